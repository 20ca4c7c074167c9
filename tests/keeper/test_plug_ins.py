"""Plug-ins of a user or a host may raise or stall: no lease stops for it, and the log says so once."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NoReturn

import pytest

from sqs_lease.core.events import LeaseEvent, Outcome
from sqs_lease.core.failure_rules import FailureRule, Release, Settlement, dead_letter
from sqs_lease.core.messages import Lease, Message, Receipt
from sqs_lease.core.policies import LeaseTimes, RenewalPolicy
from sqs_lease.keeper.keeper import Keeper, Leaving
from sqs_lease.keeper.plug_ins import LONGEST_ANSWER_SECONDS
from sqs_lease.testing import VirtualClock, run_virtual
from tests.keeper.held import POLICY, QUEUE, Setting, messages
from tests.keeper.scripted_transport import ScriptedTransport


def failures_logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken(RenewalPolicy):
    """A user's policy that fails in one of its two answers."""

    renewal: object = 20.0
    extension: object = 30.0

    def renew_at(self, lease: LeaseTimes) -> float:
        return lease.received_at + self._give(self.renewal)

    def extension_seconds(self, lease: LeaseTimes, now: float) -> float:
        return self._give(self.extension)

    @staticmethod
    def _give(answer: object) -> float:
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[return-value]


@pytest.mark.parametrize(
    "wrong", [ValueError("broken"), SystemExit(1), asyncio.CancelledError(), "soon", math.nan, -math.inf]
)
@pytest.mark.parametrize("answer", ["renewal", "extension"])
def test_a_policy_that_fails_is_replaced_and_its_leases_and_those_of_others_go_on(
    setting: Setting, caplog: pytest.LogCaptureFixture, answer: str, wrong: object
) -> None:
    async def scenario(keeper: Keeper) -> None:
        policy = Broken(visibility=30, **{answer: wrong})  # type: ignore[arg-type]
        broken, other = keeper.open_batch(QUEUE, policy=policy), keeper.open_batch(QUEUE, policy=POLICY)
        broken.add(messages(20), received_at=setting.clock.now())
        other.add([Message(Receipt("other", "handle"), "body")], received_at=setting.clock.now())
        await asyncio.sleep(300)
        assert (broken.report().held, broken.report().late) == (20, 0)
        assert (other.report().held, other.report().late) == (1, 0)

    setting.run(scenario)
    assert len(failures_logged(caplog)) == 1


def test_a_policy_that_is_always_due_makes_two_calls_a_second_at_most(setting: Setting) -> None:
    class AlwaysDue(Broken):
        def renew_at(self, lease: LeaseTimes) -> float:
            return lease.received_at - 5

    async def scenario(keeper: Keeper) -> None:
        batch = keeper.open_batch(QUEUE, policy=AlwaysDue(visibility=30))
        batch.add(messages(1), received_at=setting.clock.now())
        await asyncio.sleep(10)
        assert (batch.report().held, batch.report().late) == (1, 0)
        assert 10 <= batch.report().extension_calls <= 20

    setting.run(scenario)


def test_a_policy_that_stalls_is_asked_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()

    class Stalling(Broken):
        def renew_at(self, lease: LeaseTimes) -> float:
            clock.advance(2 * LONGEST_ANSWER_SECONDS)
            return lease.received_at + 20

    async def scenario() -> None:
        keeper = Keeper(ScriptedTransport(clock), clock=clock, random=Random(0))
        batch = keeper.open_batch(QUEUE, policy=Stalling(visibility=30))
        batch.add(messages(100), received_at=clock.now())
        assert clock.now() < 1
        await asyncio.sleep(100)
        assert batch.report().late == 0
        await keeper.close(Leaving.NOTHING)

    run_virtual(scenario, clock=clock)
    assert len(failures_logged(caplog)) == 1


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(1), asyncio.CancelledError()])
def test_a_listener_that_fails_stops_nothing(
    setting: Setting, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def listener(event: LeaseEvent) -> NoReturn:
        raise error

    async def scenario(keeper: Keeper) -> None:
        batch = keeper.open_batch(QUEUE, policy=POLICY, on_event=listener)
        batch.add(messages(3), received_at=setting.clock.now() - 40)
        await asyncio.sleep(100)
        assert batch.report().held == 3
        assert {one.outcome for one in (await batch.fail("it broke")).values()} == {Outcome.EXPIRED}

    setting.run(scenario)
    assert len(failures_logged(caplog)) == 1


def test_a_meter_that_fails_leaves_no_lease_under_way(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def held(self, queue_url: str, change: int) -> NoReturn:
            raise ValueError("broken")

        def batches(self, queue_url: str, change: int) -> NoReturn:
            raise ValueError("broken")

        def extended(self, queue_url: str, leases: int) -> NoReturn:
            raise ValueError("broken")

        def late(self, queue_url: str) -> NoReturn:
            raise ValueError("broken")

        def ended(self, queue_url: str, outcome: Outcome, settling_seconds: float | None) -> NoReturn:
            raise ValueError("broken")

    clock = VirtualClock()
    transport = ScriptedTransport(clock)

    async def scenario() -> None:
        keeper = Keeper(transport, clock=clock, random=Random(0), meter=Broken())
        batch = keeper.open_batch(QUEUE, policy=POLICY)
        batch.add(messages(3), received_at=clock.now())
        await asyncio.sleep(100)
        assert len(transport.calls("extend")) == 4, "at 20, 40, 60 and 80 s"
        await batch.succeed()
        assert batch.report().deleted == 3
        await keeper.close(Leaving.NOTHING)

    run_virtual(scenario, clock=clock)
    assert len(failures_logged(caplog)) == 1


@pytest.mark.parametrize("answer", [ValueError("broken"), SystemExit(1), None, "release"])
def test_a_failure_rule_that_fails_makes_it_a_release(
    setting: Setting, caplog: pytest.LogCaptureFixture, answer: object
) -> None:
    class Broken(FailureRule):
        def settlement(self, *, receive_count: int, reason: str, random: Random) -> Settlement:
            if isinstance(answer, BaseException):
                raise answer
            return answer  # type: ignore[return-value]

    async def scenario(keeper: Keeper) -> None:
        batch = keeper.open_batch(QUEUE, policy=POLICY, on_failure=Broken())
        batch.add(messages(3), received_at=setting.clock.now())
        assert {one.outcome for one in (await batch.fail("it broke")).values()} == {Outcome.RELEASED}

    setting.run(scenario)
    assert len(failures_logged(caplog)) == 1


def test_a_failure_rule_of_ones_own_is_asked_for_each_message(setting: Setting) -> None:
    class Patient(FailureRule):
        def settlement(self, *, receive_count: int, reason: str, random: Random) -> Settlement:
            return Release(60 * receive_count)

    async def scenario(keeper: Keeper) -> None:
        batch = keeper.open_batch(QUEUE, policy=POLICY, on_failure=Patient())
        batch.add(messages(1, receive_count=3), received_at=setting.clock.now())
        await batch.fail("it broke")

    setting.run(scenario)
    assert [asked.entries for asked in setting.transport.calls("extend")] == [(("m0", 180),)]


def test_a_message_source_that_fails_is_asked_again(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    asked = 0

    async def source(message_ids: Sequence[str]) -> Mapping[str, Message]:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise ConnectionError("not now")
        return {message.message_id: message for message in messages(1)}

    async def scenario(keeper: Keeper) -> None:
        setting.transport.dead_letter_arn = "arn:aws:sqs:eu-west-1:000000000000:dead"
        batch = keeper.open_batch(QUEUE, policy=POLICY, on_failure=dead_letter(), message_source=source)
        now = setting.clock.now()
        batch.adopt([Lease(message.receipt, now, now + 30) for message in messages(1)])
        outcomes = await batch.fail("it broke")
        assert {one.outcome for one in outcomes.values()} == {Outcome.DEAD_LETTERED}

    setting.run(scenario)
    assert len(failures_logged(caplog)) == 1
