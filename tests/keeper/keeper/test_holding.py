"""The keeper holds leases for as long as the work takes, whatever single calls do."""

from __future__ import annotations

import asyncio

import pytest

from sqs_lease.core.calls import Call, Verdict
from sqs_lease.core.events import Ending, Lapsed, LeaseEvent, Lost, Outcome, Refused
from sqs_lease.core.ledger import MAX_CALLS_UNDER_WAY, SLOTS_FOR_SETTLEMENTS, Ledger
from sqs_lease.core.messages import Lease, Message, Receipt
from sqs_lease.core.policies import Growing
from sqs_lease.keeper.keeper import Keeper
from tests.keeper.held import OTHER, POLICY, QUEUE, Setting, messages
from tests.keeper.scripted_transport import RecordedCall, never_answers


def test_leases_are_extended_while_the_work_runs_and_deleted_when_it_succeeded(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        batch = keeper.open_batch(QUEUE, policy=POLICY)
        batch.add(messages(25), received_at=setting.clock.now())
        await asyncio.sleep(65)
        assert len(batch.leases()) == 25
        outcomes = await batch.succeed()
        assert {settled.outcome for settled in outcomes.values()} == {Outcome.DELETED}
        assert batch.leases() == []
        report = batch.report()
        assert (report.received, report.held, report.deleted, report.late) == (25, 0, 25, 0)
        assert (report.extensions, report.extension_calls) == (75, 9)

    setting.run(scenario)
    assert [asked.at for asked in setting.transport.calls("extend")] == [20.0] * 3 + [40.0] * 3 + [60.0] * 3
    assert [len(asked.entries) for asked in setting.transport.calls("delete")] == [10, 10, 5]


def test_many_batches_and_queues_are_held_at_once_with_calls_shared_within_a_queue(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        one, two, other = (keeper.open_batch(url, policy=POLICY) for url in (QUEUE, QUEUE, OTHER))
        first, *rest = messages(8)
        one.add([first], received_at=setting.clock.now())
        two.add(rest[:4], received_at=setting.clock.now())
        other.add(rest[4:], received_at=setting.clock.now())
        await asyncio.sleep(25)
        assert [batch.report().extensions for batch in (one, two, other)] == [1, 4, 3]
        assert [batch.report().extension_calls for batch in (one, two, other)] == [1, 1, 1]
        await one.succeed()
        assert len(two.leases()) == 4

    setting.run(scenario)
    assert {(asked.queue_url, len(asked.entries)) for asked in setting.transport.calls("extend")} == {
        (QUEUE, 5),
        (OTHER, 3),
    }


def test_a_call_that_hangs_delays_no_other_and_is_tried_again_within_the_lease(setting: Setting) -> None:
    hung = 0

    async def script(asked: RecordedCall) -> Verdict:
        nonlocal hung
        if "m0" in dict(asked.entries) and not hung:
            hung += 1
            return await never_answers(asked)
        return Verdict.DONE

    setting.transport.script = script

    async def scenario(keeper: Keeper) -> None:
        batch = keeper.open_batch(QUEUE, policy=POLICY)
        batch.add(messages(30), received_at=setting.clock.now())
        await asyncio.sleep(29.9)
        assert {lease.deadline for lease in batch.leases()[10:]} == {50.0}, "the other calls went through at once"
        assert all(lease.deadline > 44 for lease in batch.leases()), "the hung one was repeated before the deadline"
        assert batch.report().late == 0

    setting.run(scenario)
    assert hung == 1


def test_a_transport_that_raises_is_tried_again_and_the_other_queue_goes_on(setting: Setting) -> None:
    async def script(asked: RecordedCall) -> Verdict:
        if asked.queue_url == QUEUE and asked.at < 25:
            raise RuntimeError("a bug of the transport")
        return Verdict.DONE

    setting.transport.script = script

    async def scenario(keeper: Keeper) -> None:
        batch, other = keeper.open_batch(QUEUE, policy=POLICY), keeper.open_batch(OTHER, policy=POLICY)
        batch.add(messages(1), received_at=setting.clock.now())
        other.add(messages(1), received_at=setting.clock.now())
        await asyncio.sleep(29)
        assert batch.leases()[0].deadline > 50
        assert other.leases()[0].deadline == 50

    setting.run(scenario)


def test_a_keeper_goes_on_a_second_after_an_error_of_its_own(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    due, failed = Ledger.due, list[float]()

    def broken_once(self: Ledger, now: float, limit: int | None = None) -> list[Call]:
        if now >= 20 and not failed:
            failed.append(now)
            raise RuntimeError("a bug of the ledger")
        return due(self, now, limit)

    monkeypatch.setattr(Ledger, "due", broken_once)

    async def scenario(keeper: Keeper) -> None:
        keeper.open_batch(QUEUE, policy=POLICY).add(messages(1), received_at=setting.clock.now())
        await asyncio.sleep(25)

    setting.run(scenario)
    assert failed == [20.0]
    assert [asked.at for asked in setting.transport.asked] == [21.0]
    assert "starts again" in caplog.text


def test_calls_overlap_but_only_so_many_of_a_queue_are_under_way_at_once(setting: Setting) -> None:
    async def slowly(_: RecordedCall) -> Verdict:
        await asyncio.sleep(0.1)
        return Verdict.DONE

    setting.transport.script = slowly

    async def scenario(keeper: Keeper) -> None:
        batch = keeper.open_batch(QUEUE, policy=POLICY)
        batch.add(messages(1_000), received_at=setting.clock.now())
        await asyncio.sleep(22)
        assert batch.report().extensions == 1_000
        assert batch.report().late == 0

    setting.run(scenario)
    assert setting.transport.most_under_way == MAX_CALLS_UNDER_WAY - SLOTS_FOR_SETTLEMENTS


def test_listeners_hear_of_lost_lapsed_refused_and_ending_leases_and_may_fail(setting: Setting) -> None:
    verdicts = {"m0": Verdict.LOST, "m1": Verdict.CAPPED, "m2": Verdict.REFUSED}

    async def script(asked: RecordedCall) -> Verdict:
        ((message_id, _),) = asked.entries
        return verdicts[message_id]

    setting.transport.script = script

    def listener(event: LeaseEvent) -> None:
        setting.events.append(event)
        raise ValueError("a listener's own error")

    async def scenario(keeper: Keeper) -> None:
        # A queue each, so that their entries do not share a call.
        for number, message in enumerate(messages(3)):
            batch = keeper.open_batch(f"{QUEUE}-{number}", policy=POLICY, on_event=listener)
            batch.add([message], received_at=setting.clock.now())
        await asyncio.sleep(31)

    setting.run(scenario)
    kinds = {message_id: [] for message_id in verdicts}  # type: dict[str, list[type]]
    for event in setting.events:
        kinds[event.receipt.message_id].append(type(event))
    assert kinds == {"m0": [Lost], "m1": [Ending, Lapsed], "m2": [Refused, Lapsed]}


def test_a_message_received_again_within_the_batch_is_held_by_its_new_receipt_alone(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        batch = keeper.open_batch(QUEUE, policy=POLICY)
        (message,) = messages(1)
        again = Message(Receipt("m0", "newer handle"), message.body)
        batch.add([message], received_at=setting.clock.now())
        batch.add([again], received_at=setting.clock.now())
        assert batch.messages() == [again]
        assert batch.report().received == 1
        assert not batch.holds(message.receipt)
        with pytest.raises(KeyError, match="not in this batch"):
            await batch.fail("stale", [message.receipt])
        await batch.succeed()

    setting.run(scenario)


def test_held_messages_are_counted_without_looking_at_each_lease(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        def counts() -> tuple[int, int]:
            return batch.count_held(), len(batch.leases())

        batch = keeper.open_batch(QUEUE, policy=POLICY)
        first, second, third, *rest = messages(10)
        batch.add([first, second, third, *rest], received_at=setting.clock.now())
        assert counts() == (10, 10)
        settling = asyncio.create_task(batch.succeed([first.receipt]))
        await asyncio.sleep(0)
        # Received again while it is being settled: the older receipt counts no more.
        batch.add([Message(Receipt("m0", "newer handle"), first.body)], received_at=setting.clock.now())
        assert counts() == (10, 10)
        await settling
        await batch.succeed([second.receipt, third.receipt])
        assert counts() == (8, 8)
        # One that was settled is received again.
        batch.add([Message(Receipt("m1", "newer handle"), second.body)], received_at=setting.clock.now())
        assert counts() == (9, 9)
        keeper.drop(batch)
        assert counts() == (0, 0)

    setting.run(scenario)


def test_a_repeated_receive_counts_its_visibility_from_the_last_try_and_its_12_hours_from_the_first(
    setting: Setting,
) -> None:
    async def scenario(keeper: Keeper) -> None:
        batch = keeper.open_batch(QUEUE, policy=POLICY)
        batch.add(messages(1), received_at=0.0, sent_at=15.0)
        (lease,) = batch.leases()
        assert (lease.received_at, lease.deadline) == (0.0, 45.0)

    setting.run(scenario)


def test_an_adopted_lease_is_extended_at_once_and_counts_from_its_own_receive(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        await asyncio.sleep(1_000)
        batch = keeper.open_batch(QUEUE, policy=Growing(visibility=30))
        batch.adopt([Lease(Receipt("m0", "handle"), received_at=400.0, deadline=1_010.0)])
        await asyncio.sleep(0.1)
        assert batch.leases()[0].deadline == 1_600

    setting.run(scenario)
    assert [(asked.at, asked.entries) for asked in setting.transport.asked] == [(1_000.0, (("m0", 600),))]


def test_a_policy_without_a_known_visibility_is_refused_before_anything_is_held(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        with pytest.raises(ValueError, match="for_queue"):
            keeper.open_batch(QUEUE, policy=Growing())

    setting.run(scenario)
