"""A batch is passed from one keeper to the next by what is written down, and by nothing else."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from sqs_lease.core.events import Outcome
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.core.policies import Growing, Never, RenewalPolicy
from sqs_lease.keeper.batch import Batch, KeeperClosedError
from sqs_lease.keeper.keeper import Keeper, Leaving
from sqs_lease.keeper.plain_leases import WrittenBatch
from sqs_lease.testing import (
    NO_FAULT,
    AuditKind,
    Fault,
    FaultRule,
    MemorySqs,
    MemoryTransport,
    TransportCall,
    VirtualClock,
    run_virtual,
)
from sqs_lease.testing.service_errors import ACCESS_DENIED, THROTTLED

VISIBILITY_SECONDS = 30
POLICY = Growing(visibility=VISIBILITY_SECONDS)


class WallClock(VirtualClock):
    """A machine's clocks over the same time, whose calendar is wrong."""

    def __init__(self, true: VirtualClock, error_seconds: float) -> None:
        super().__init__()
        self._true = true
        self._error_seconds = error_seconds

    def now(self) -> float:
        return self._true.now() + 77_000.0

    def wall(self) -> float:
        return self._true.wall() + self._error_seconds


class Ground:
    """A queue, a second consumer, and the batches of any number of keepers."""

    def __init__(self, count: int = 12, *, faults: FaultRule = lambda call: NO_FAULT) -> None:
        self.clock = VirtualClock(start=1_000.0)
        self.sqs = MemorySqs(self.clock)
        self.queue_url = self.sqs.create_queue("orders", visibility_seconds=VISIBILITY_SECONDS)
        self.transport = MemoryTransport(self.sqs, faults=faults)
        for number in range(count):
            self.sqs.send(self.queue_url, f"body {number}")

    def keeper(self, *, wrong_by_seconds: float = 0.0) -> Keeper:
        clock = WallClock(self.clock, wrong_by_seconds) if wrong_by_seconds else self.clock
        return Keeper(self.transport, clock=clock, random=Random(0))

    def open_batch(self, keeper: Keeper, *, policy: RenewalPolicy = POLICY, batch_id: str | None = None) -> Batch:
        return keeper.open_batch(self.queue_url, policy=policy, batch_id=batch_id)

    def receive(self, keeper: Keeper, *, policy: RenewalPolicy = POLICY) -> Batch:
        batch = self.open_batch(keeper, policy=policy)
        while messages := self.sqs.receive(self.queue_url, max_messages=10):
            batch.add(messages, received_at=keeper.clock.now())
        return batch

    def visible(self) -> list[Message]:
        return list(self.sqs.receive(self.queue_url, max_messages=10))

    def extensions(self) -> int:
        return sum(entry.kind is AuditKind.CHANGED for entry in self.sqs.trail().entries())

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        run_virtual(scenario, clock=self.clock)


async def written_by(ground: Ground, seconds: float = 300.0) -> WrittenBatch:
    keeper = ground.keeper()
    written = await ground.receive(keeper).pass_on(seconds)
    await keeper.close(Leaving.NOTHING)
    return WrittenBatch.decode(written.encode())


class TestPassingOn:
    def test_a_short_lease_is_extended_once_written_down_and_forgotten(self) -> None:
        ground = Ground()

        async def scenario() -> None:
            keeper = ground.keeper()
            batch = ground.receive(keeper)
            written = await batch.pass_on(300)
            assert len(written.leases) == 12
            assert {lease.deadline - written.written_at for lease in written.leases} == {300}
            assert ground.extensions() == 12
            assert batch.count_held() == 0
            with pytest.raises(KeeperClosedError):
                await batch.succeed([written.leases[0].receipt])
            await asyncio.sleep(299)
            assert ground.visible() == []
            await asyncio.sleep(2)
            assert len(ground.visible()) == 10, "the price of a hand-over without a next holder is bounded"
            assert ground.extensions() == 12

        ground.run(scenario)

    def test_a_keeper_keeps_nothing_of_a_batch_that_it_passed_on(self) -> None:
        ground = Ground()

        async def scenario() -> None:
            keeper = ground.keeper()
            batch = ground.receive(keeper)
            held = weakref.ref(batch)
            await batch.pass_on(300)
            del batch
            gc.collect()
            assert held() is None

        ground.run(scenario)

    def test_it_can_be_held_until_it_is_known_to_be_written(self) -> None:
        ground = Ground()

        async def scenario() -> None:
            batch = ground.receive(ground.keeper())
            written = await batch.pass_on(60, hold_on=True)
            assert {lease.deadline - written.written_at for lease in written.leases} == {60}
            await asyncio.sleep(120)
            assert ground.visible() == []
            batch.forget()
            await asyncio.sleep(600)
            assert len(ground.visible()) == 10

        ground.run(scenario)

    def test_a_batch_that_was_passed_on_can_be_given_back(self) -> None:
        ground = Ground()

        async def scenario() -> None:
            batch = ground.receive(ground.keeper())
            await batch.pass_on(300, hold_on=True)
            await batch.release_all()
            assert len(ground.visible()) == 10

        ground.run(scenario)

    def test_a_lease_that_lasts_longer_is_left_alone(self) -> None:
        ground = Ground()

        async def scenario() -> None:
            written = await ground.receive(ground.keeper()).pass_on(20)
            assert {lease.deadline - written.written_at for lease in written.leases} == {30}
            assert ground.extensions() == 0

        ground.run(scenario)

    def test_a_policy_that_never_extends_is_obeyed(self) -> None:
        ground = Ground()

        async def scenario() -> None:
            policy = Never(visibility=VISIBILITY_SECONDS)
            written = await ground.receive(ground.keeper(), policy=policy).pass_on(300)
            assert {lease.deadline - written.written_at for lease in written.leases} == {30}

        ground.run(scenario)

    @pytest.mark.parametrize("error", [THROTTLED, ACCESS_DENIED], ids=lambda error: error.code)
    def test_a_call_that_is_refused_once_is_made_again(self, error: object) -> None:
        calls = 0

        def once(call: TransportCall) -> Fault:
            nonlocal calls
            calls += 1
            return Fault(error=error) if calls == 1 else NO_FAULT  # type: ignore[arg-type]

        ground = Ground(faults=once)

        async def scenario() -> None:
            written = await ground.receive(ground.keeper()).pass_on(300)
            assert {round(lease.deadline - written.written_at) // 10 for lease in written.leases} <= {29, 30}

        ground.run(scenario)

    def test_a_deadline_that_was_not_confirmed_is_not_written(self) -> None:
        ground = Ground(faults=lambda call: Fault(answer_lost=True))

        async def scenario() -> None:
            received_at = ground.clock.wall()
            written = await ground.receive(ground.keeper()).pass_on(300)
            assert {lease.deadline - received_at for lease in written.leases} == {30}
            assert written.written_at - received_at <= 10, "it waits no longer than for a call"

        ground.run(scenario)

    def test_a_batch_that_cannot_be_written_down_is_adopted_again_by_the_same_keeper(self) -> None:
        ground = Ground()

        async def scenario() -> None:
            keeper = ground.keeper()
            batch = ground.open_batch(keeper)
            batch.adopt(await ground.receive(keeper).pass_on(300))
            await asyncio.sleep(4_000)
            assert ground.visible() == []
            ends = await batch.succeed()
            assert {end.outcome for end in ends.values()} == {Outcome.DELETED}

        ground.run(scenario)


class TestAdopting:
    def test_the_next_holder_makes_no_call_and_settles_at_once(self) -> None:
        ground = Ground()

        async def scenario() -> None:
            written = await written_by(ground)
            calls = ground.extensions()
            batch = ground.open_batch(ground.keeper())
            batch.adopt(written)
            await asyncio.sleep(100)
            assert ground.extensions() == calls
            began_at = ground.clock.now()
            ends = await batch.succeed()
            assert ground.clock.now() - began_at < 1
            assert {end.outcome for end in ends.values()} == {Outcome.DELETED}

        ground.run(scenario)

    def test_the_policy_extends_when_it_is_due(self) -> None:
        ground = Ground()

        async def scenario() -> None:
            batch = ground.open_batch(ground.keeper())
            batch.adopt(await written_by(ground))
            await asyncio.sleep(3_600)
            assert ground.visible() == []
            assert batch.certain_until() is not None, "no lease lapsed"

        ground.run(scenario)

    def test_a_holder_that_dies_just_after_it_has_adopted_costs_nothing(self) -> None:
        ground = Ground()

        async def scenario() -> None:
            written = await written_by(ground)
            first = ground.keeper()
            ground.open_batch(first).adopt(written)
            await asyncio.sleep(1.4)
            await first.close(Leaving.NOTHING)
            await asyncio.sleep(60)
            assert ground.visible() == []
            batch = ground.open_batch(ground.keeper())
            batch.adopt(written)
            await asyncio.sleep(600)
            assert ground.visible() == []

        ground.run(scenario)

    def test_a_lease_past_its_deadline_is_in_doubt_and_extended_while_its_work_runs(self) -> None:
        ground = Ground()

        async def scenario() -> None:
            written = await written_by(ground)
            await asyncio.sleep(400)
            batch = ground.open_batch(ground.keeper())
            batch.adopt(written)
            await asyncio.sleep(120)
            assert ground.visible() == []
            assert batch.certain_until() is None
            ends = await batch.succeed()
            assert {end.outcome for end in ends.values()} == {Outcome.UNCERTAIN}

        ground.run(scenario)

    def test_a_lease_past_its_deadline_is_never_released_and_a_run_that_is_over_extends_nothing(self) -> None:
        ground = Ground()

        async def scenario() -> None:
            written = await written_by(ground)
            await asyncio.sleep(400)
            calls = ground.extensions()
            batch = ground.open_batch(ground.keeper())
            batch.adopt(written)
            ends = await batch.release_all()
            assert {end.outcome for end in ends.values()} == {Outcome.EXPIRED}
            assert ground.extensions() == calls

        ground.run(scenario)

    def test_messages_that_another_consumer_received_meanwhile_are_left_to_it(self) -> None:
        ground = Ground(10)

        async def scenario() -> None:
            written = await written_by(ground)
            await asyncio.sleep(400)
            others = ground.visible()
            batch = ground.open_batch(ground.keeper())
            batch.adopt(written)
            await asyncio.sleep(5)
            await batch.release_all()
            assert ground.visible() == [], "the other consumer's leases go on"
            deleted = ground.sqs.delete(ground.queue_url, [message.receipt for message in others])
            assert len(list(deleted)) == 10

        ground.run(scenario)

    def test_a_batch_takes_nothing_that_was_written_for_another_one(self) -> None:
        ground = Ground()

        async def scenario() -> None:
            written = await written_by(ground)
            batch = ground.open_batch(ground.keeper(), batch_id="dag/run/task")
            with pytest.raises(ValueError, match="another holder"):
                batch.adopt(written)
            assert batch.count_held() == 0

        ground.run(scenario)

    def test_a_batch_keeps_its_identity_from_holder_to_holder(self) -> None:
        ground = Ground()

        async def scenario() -> None:
            written = await written_by(ground)
            batch = ground.open_batch(ground.keeper(), batch_id=written.batch_id)
            batch.adopt(written)
            assert (await batch.pass_on(300)).batch_id == written.batch_id

        ground.run(scenario)

    def test_one_that_goes_to_and_fro_stays_invisible_and_costs_a_call_of_ten_each_time(self) -> None:
        ground = Ground(10)

        async def scenario() -> None:
            keepers = [ground.keeper(), ground.keeper()]
            written = await ground.receive(keepers[0]).pass_on(60)
            for turn in range(20):
                await asyncio.sleep(20)
                batch = ground.open_batch(keepers[turn % 2])
                batch.adopt(written)
                assert ground.visible() == []
                written = await batch.pass_on(60)
            assert ground.extensions() == 21 * 10

        ground.run(scenario)


class TestClocks:
    @pytest.mark.parametrize("hours_ahead", [1, 12, 24])
    def test_a_calendar_that_is_hours_ahead_does_not_keep_a_good_lease_from_being_extended(
        self, hours_ahead: float
    ) -> None:
        ground = Ground()

        async def scenario() -> None:
            written = await written_by(ground)
            batch = ground.open_batch(ground.keeper(wrong_by_seconds=hours_ahead * 3_600))
            batch.adopt(written)
            await asyncio.sleep(3_600)
            assert ground.visible() == []
            ends = await batch.succeed()
            assert {end.outcome for end in ends.values()} == {Outcome.UNCERTAIN}

        ground.run(scenario)

    @pytest.mark.parametrize("hours_behind", [0.02, 1, 12])
    def test_a_calendar_that_is_behind_does_not_keep_a_lease_beyond_its_deadline(
        self, hours_behind: float, caplog: pytest.LogCaptureFixture
    ) -> None:
        ground = Ground()

        async def scenario() -> None:
            written = await written_by(ground)
            await asyncio.sleep(60)
            batch = ground.open_batch(ground.keeper(wrong_by_seconds=-hours_behind * 3_600))
            with caplog.at_level(logging.WARNING):
                batch.adopt(written)
            await asyncio.sleep(3_600)
            assert ground.visible() == []

        ground.run(scenario)
        assert ("clock" in caplog.text) == (hours_behind * 3_600 > 65)

    def test_calendars_that_differ_by_less_than_the_margin_cost_nothing(self) -> None:
        for error_seconds in (-4.0, 4.0):
            ground = Ground()

            async def scenario(ground: Ground = ground, error_seconds: float = error_seconds) -> None:
                written = await written_by(ground)
                batch = ground.open_batch(ground.keeper(wrong_by_seconds=error_seconds))
                batch.adopt(written)
                assert batch.certain_until() is not None
                ends = await batch.succeed()
                assert {end.outcome for end in ends.values()} == {Outcome.DELETED}

            ground.run(scenario)

    def test_max_lease_counts_what_certainly_passed(self) -> None:
        ground = Ground(1)

        async def scenario() -> None:
            written = await written_by(ground)
            policy = Growing(visibility=VISIBILITY_SECONDS, max_lease=600)
            batch = ground.open_batch(ground.keeper(wrong_by_seconds=43_200), policy=policy)
            batch.adopt(written)
            await asyncio.sleep(250)
            assert ground.visible() == []
            await asyncio.sleep(400)
            assert len(ground.visible()) == 1

        ground.run(scenario)


def test_a_lease_is_extended_by_the_batch_that_adopts_it_after_its_delete_was_refused() -> None:
    """Seen on a real triggerer: the batch stood still for ever, and another consumer got all of its messages."""
    ground = Ground(10, faults=lambda call: Fault(error=ACCESS_DENIED) if call.at < 1_010 else NO_FAULT)

    async def scenario() -> None:
        keeper = ground.keeper()
        first = ground.receive(keeper)
        leases = first.leases()
        ends = await first.succeed()
        assert {end.outcome for end in ends.values()} == {Outcome.FAILED}
        await asyncio.sleep(10)
        second = ground.open_batch(keeper)
        second.adopt(leases)
        await asyncio.sleep(100)
        assert ground.visible() == []
        ends = await second.succeed([Receipt(lease.receipt.message_id, lease.receipt.handle) for lease in leases])
        assert {end.outcome for end in ends.values()} == {Outcome.DELETED}

    ground.run(scenario)


def test_a_batch_that_a_cancellation_kept_is_extended_further() -> None:
    ground = Ground(faults=lambda call: Fault(before_seconds=1.0))

    async def main() -> None:
        async with ground.keeper() as keeper:
            batch = ground.receive(keeper)
            passing = asyncio.create_task(batch.pass_on(120))
            await asyncio.sleep(0.5)
            passing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await passing
            await asyncio.sleep(600)
            assert batch.report().late == 0
            assert batch.count_held() == 12

    run_virtual(main, clock=ground.clock)
