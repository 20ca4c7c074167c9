"""However many leases there are, a keeper looks at no more than a thousand of them in one round of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import pytest

from sqs_lease.core.events import Outcome
from sqs_lease.core.failure_rules import Delete, Settlement
from sqs_lease.core.ledger import Ledger
from sqs_lease.core.messages import Lease, Message, Receipt
from sqs_lease.keeper.batch import Batch, KeeperClosedError
from sqs_lease.keeper.event_loop_rounds import LEASES_IN_A_ROUND, RoundLimiter
from sqs_lease.keeper.keeper import Keeper, Leaving
from tests.keeper.held import POLICY, QUEUE, Setting

MANY: Final = 3 * LEASES_IN_A_ROUND
ON_TOP: Final = 50
"""The work that answers to calls may add to that of a round."""


class Rounds:
    """Counts what a ledger is asked for, by rounds of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self.most = 0
        self.total = 0
        for name in ("settle", "extend_now", "forget"):
            monkeypatch.setattr(Ledger, name, self._counted(getattr(Ledger, name)))

    def _counted(self, method: Any) -> Any:
        def counted(ledger: Ledger, *arguments: Any, **named: Any) -> Any:
            self.now += 1
            self.total += 1
            self.most = max(self.most, self.now)
            return method(ledger, *arguments, **named)

        return counted

    async def during(self, work: Coroutine[Any, Any, object]) -> None:
        """Do some work to its end, and watch each round meanwhile."""
        task = asyncio.ensure_future(work)
        while not task.done():
            self.now = 0
            await asyncio.sleep(0)
        await task


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    return Rounds(monkeypatch)


def filled(keeper: Keeper, setting: Setting, count: int, *, first: int = 0) -> Batch:
    batch = keeper.open_batch(QUEUE, policy=POLICY)
    numbers = range(first, first + count)
    received = [Message(Receipt(f"m{number}", "handle"), "body") for number in numbers]
    batch.add(received, received_at=setting.clock.now())
    return batch


@pytest.mark.parametrize("how", ["succeed", "fail", "release_all", "extend_now"])
def test_a_large_batch_goes_on_in_slices(setting: Setting, rounds: Rounds, how: str) -> None:
    async def scenario(keeper: Keeper) -> None:
        batch = filled(keeper, setting, MANY)
        await rounds.during(batch.fail("it broke") if how == "fail" else getattr(batch, how)())

    setting.run(scenario)
    assert rounds.total >= MANY
    assert rounds.most <= LEASES_IN_A_ROUND + ON_TOP


def test_many_batches_that_end_at_once_share_the_rounds(setting: Setting, rounds: Rounds) -> None:
    async def scenario(keeper: Keeper) -> None:
        batches = [filled(keeper, setting, 100, first=first) for first in range(0, MANY, 100)]
        await rounds.during(asyncio.wait([asyncio.ensure_future(batch.succeed()) for batch in batches]))
        assert sum(batch.report().deleted for batch in batches) == MANY

    setting.run(scenario)
    assert rounds.most <= LEASES_IN_A_ROUND + ON_TOP


def test_a_keeper_that_closes_extends_its_leases_in_slices(setting: Setting, rounds: Rounds) -> None:
    async def scenario(keeper: Keeper) -> None:
        for first in range(0, MANY, 100):
            filled(keeper, setting, 100, first=first)
        await rounds.during(keeper.close(Leaving.EXTEND))

    setting.run(scenario)
    assert rounds.total >= MANY
    assert rounds.most <= LEASES_IN_A_ROUND + ON_TOP


class TestDropped:
    def test_a_large_batch_is_forgotten_in_slices_before_any_call_is_made(
        self, setting: Setting, rounds: Rounds
    ) -> None:
        async def scenario(keeper: Keeper) -> None:
            batch = filled(keeper, setting, MANY)
            other = filled(keeper, setting, 1, first=MANY)

            async def drop() -> None:
                keeper.drop(batch)
                assert not batch.holds(Receipt("m0", "handle"))
                assert batch.leases() == []
                assert batch.report().held == 0
                await other.succeed()

            await rounds.during(drop())
            await asyncio.sleep(60)

        setting.run(scenario)
        assert rounds.most <= LEASES_IN_A_ROUND + ON_TOP
        assert [call.method for call in setting.transport.asked] == ["delete"]

    def test_leases_that_another_batch_takes_meanwhile_are_held_by_that(self, setting: Setting) -> None:
        async def scenario(keeper: Keeper) -> None:
            batch = filled(keeper, setting, MANY)
            first, second = batch.leases()[:2]
            keeper.drop(batch)
            adopting = keeper.open_batch(QUEUE, policy=POLICY)
            adopting.adopt([first])
            holding = keeper.open_batch(QUEUE, policy=POLICY)
            holding.add([Message(second.receipt, "body")], received_at=setting.clock.now())
            await asyncio.sleep(60)
            assert adopting.still_held(first.receipt)
            assert holding.still_held(second.receipt)

        setting.run(scenario)
        extended = {message_id for call in setting.transport.asked for message_id, _ in call.entries}
        assert extended == {"m0", "m1"}

    def test_leases_that_another_batch_takes_meanwhile_are_as_that_batch_knows_them(self, setting: Setting) -> None:
        async def scenario(keeper: Keeper) -> None:
            late = keeper.open_batch(QUEUE, policy=POLICY)
            held = [Lease(Receipt(f"m{number}", "handle"), -100.0, -70.0) for number in range(MANY)]
            late.adopt([lease.in_doubt() for lease in held])
            keeper.drop(late)
            batch = keeper.open_batch(QUEUE, policy=POLICY)
            batch.adopt([lease.lasting_until(20.0) for lease in held])
            assert {(lease.deadline, lease.doubtful) for lease in batch.leases()} == {(20.0, False)}

        setting.run(scenario)


class TestWaitingForATurn:
    def test_a_caller_that_is_cancelled_leaves_the_rest_undecided(self, setting: Setting, rounds: Rounds) -> None:
        async def scenario(keeper: Keeper) -> None:
            batch = filled(keeper, setting, MANY)
            settling = asyncio.ensure_future(batch.succeed())
            for _ in range(MANY):
                await asyncio.sleep(0)
                if rounds.total:
                    break
            settling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await settling
            await asyncio.sleep(60)
            assert 0 < batch.report().deleted < MANY
            await batch.release_all()
            assert batch.report().deleted + batch.report().released == MANY

        setting.run(scenario)

    def test_a_batch_that_is_held_on_is_so_as_a_whole_if_its_holder_is_cancelled(
        self, setting: Setting, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def scenario(keeper: Keeper) -> None:
            batch = filled(keeper, setting, MANY)
            passing = asyncio.ensure_future(batch.pass_on(100, hold_on=True))
            hold = Ledger.hold

            def cancelling(ledger: Ledger, *arguments: Any, **named: Any) -> None:
                # All leases were extended: the first one is held on.
                passing.cancel()
                hold(ledger, *arguments, **named)

            monkeypatch.setattr(Ledger, "hold", cancelling)
            with pytest.raises(asyncio.CancelledError):
                await passing
            await asyncio.sleep(200)
            assert (batch.report().held, batch.report().late) == (MANY, 0)

        setting.run(scenario)

    def test_a_batch_that_is_dropped_meanwhile_says_so(self, setting: Setting) -> None:
        async def scenario(keeper: Keeper) -> None:
            batch = filled(keeper, setting, MANY)
            settling = asyncio.ensure_future(batch.succeed())
            await asyncio.sleep(0)
            keeper.drop(batch)
            with pytest.raises(KeeperClosedError, match="no longer held here"):
                await settling

        setting.run(scenario)

    def test_leases_that_move_to_another_batch_meanwhile_say_so(self, setting: Setting) -> None:
        async def scenario(keeper: Keeper) -> None:
            batch = filled(keeper, setting, MANY)
            leases = batch.leases()
            last: Lease = leases[-1]
            settling = asyncio.ensure_future(batch.settle({lease.receipt: Delete() for lease in leases}))
            await asyncio.sleep(0)
            keeper.open_batch(QUEUE, policy=POLICY).adopt([last])
            with pytest.raises(KeeperClosedError, match="no longer held here"):
                await settling

        setting.run(scenario)

    def test_a_small_batch_begins_at_once(self, setting: Setting) -> None:
        begun: list[Settlement] = []

        async def scenario(keeper: Keeper) -> None:
            batch = filled(keeper, setting, 3)
            settling = asyncio.ensure_future(batch.succeed())
            await asyncio.sleep(0)
            begun.extend(entry.settlement for entry in batch._driver._ledger._entries.values() if entry.settlement)
            outcomes = await settling
            assert {settled.outcome for settled in outcomes.values()} == {Outcome.DELETED}

        setting.run(scenario)
        assert len(begun) == 3

    def test_turns_are_given_in_the_order_of_asking(self) -> None:
        order: list[int] = []

        async def ask(rounds: RoundLimiter, number: int) -> None:
            await rounds.take(600)
            order.append(number)

        async def scenario() -> None:
            rounds = RoundLimiter()
            async with asyncio.TaskGroup() as asking:
                for number in range(5):
                    asking.create_task(ask(rounds, number))

        asyncio.run(scenario())
        assert order == [0, 1, 2, 3, 4]
