"""The trigger of an asset's watcher: what it receives and holds, and whom it gives it to."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from itertools import pairwise

import pytest

from sqs_lease.airflow.batches.protocol import Stage
from sqs_lease.airflow.triggers.watch import SqsLeaseTrigger
from sqs_lease.core.policies import Growing
from sqs_lease.testing import AuditKind, Fault, MemoryTransport, MessageState, TransportCall, no_faults
from tests.airflow.virtual_triggerer import KEEP, LOAD, RECEIVE, RUN_ID
from tests.airflow.watched_queue import OTHER_RUN, RUN, VISIBILITY_SECONDS, WatchedQueue, bodies_of

IN_FLIGHT, VISIBLE = MessageState.IN_FLIGHT, MessageState.VISIBLE


def test_an_event_says_where_to_ask_and_nothing_of_what_is_in_the_messages(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a secret", "another")
        watcher = queue.watch()
        (event,) = await queue.fired(watcher)
        assert (event.queue_url, event.messages) == (queue.url, 2)
        fired = json.dumps(watcher.events[0].payload)
        assert "secret" not in fired
        assert "eceipt" not in fired
        await watcher.cancel()

    queue.run(scenario)


def test_messages_are_held_for_as_long_as_no_run_was_made_of_their_event(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a", "b")
        watcher = queue.watch()
        await queue.fired(watcher)
        for _ in range(int(9 * VISIBILITY_SECONDS)):
            await asyncio.sleep(1)
            assert queue.message_states() == [IN_FLIGHT, IN_FLIGHT]
        await watcher.cancel()

    queue.run(scenario)


def test_the_run_that_claims_gets_the_messages_and_its_keeper_the_leases(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a", "b")
        triggerer = queue.triggerer()
        watcher = queue.watch(triggerer)
        taken = await queue.claim(await queue.fired(watcher))
        assert bodies_of(taken) == ["a", "b"]
        keeper = queue.keep(triggerer, taken)
        await asyncio.sleep(5 * VISIBILITY_SECONDS)
        assert queue.message_states() == [IN_FLIGHT, IN_FLIGHT]
        queue.states[LOAD.task_id] = "success"
        await keeper.ended()
        assert queue.message_states() == []
        assert queue.count(AuditKind.RECEIVED) == 2
        await watcher.cancel()

    queue.run(scenario)


def test_a_run_takes_all_batches_whose_events_it_was_given_as_one(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a", "b", "c")
        triggerer = queue.triggerer()
        watcher = queue.watch(triggerer, max_messages=1)
        taken = await queue.claim(await queue.fired(watcher, 3))
        assert [len(batch.messages) for batch in taken] == [1, 1, 1]
        keeper = queue.keep(triggerer, taken)
        await asyncio.sleep(20)
        queue.states[LOAD.task_id] = "success"
        await keeper.ended()
        assert queue.message_states() == []
        await watcher.cancel()

    queue.run(scenario)


def test_nothing_is_left_in_the_state_store_of_a_batch_that_was_settled(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        triggerer = queue.triggerer()
        watcher = queue.watch(triggerer)
        keeper = queue.keep(triggerer, await queue.claim(await queue.fired(watcher)))
        await asyncio.sleep(5)
        (entry,) = queue.registry().entries.values()
        assert (entry.stage, entry.claimant) == (Stage.AT_WORK, RUN)
        queue.states[LOAD.task_id] = "success"
        await keeper.ended()
        queue.states[KEEP.task_id] = "success"
        await asyncio.sleep(10)
        assert (queue.registry().entries, queue.stored_batches()) == ({}, 0)
        await watcher.cancel()

    queue.run(scenario)


def test_of_two_runs_that_claim_at_the_same_time_one_gets_the_batch(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        watcher = queue.watch()
        events = await queue.fired(watcher)
        both = await asyncio.gather(queue.claim(events), queue.claim(events, OTHER_RUN))
        assert sorted(len(taken) for taken in both) == [0, 1]
        await watcher.cancel()

    queue.run(scenario)


def test_two_runs_that_claim_different_batches_at_the_same_time_get_both(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a", "b")
        watcher = queue.watch(max_messages=1)
        first, second = await queue.fired(watcher, 2)
        both = await asyncio.gather(queue.claim([first]), queue.claim([second], OTHER_RUN))
        assert [len(taken) for taken in both] == [1, 1]
        await watcher.cancel()

    queue.run(scenario)


def test_no_more_is_received_while_too_many_batches_are_unsettled(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send(*"abcdef")
        triggerer = queue.triggerer()
        watcher = queue.watch(triggerer, max_messages=1, max_unsettled_batches=2)
        events = await queue.fired(watcher, 2)
        await asyncio.sleep(300)
        assert queue.message_states().count(IN_FLIGHT) == 2
        keeper = queue.keep(triggerer, await queue.claim(events))
        await asyncio.sleep(60)
        assert queue.message_states().count(IN_FLIGHT) == 2  # They are at work, so they still count.
        queue.states[LOAD.task_id] = "success"
        await keeper.ended()
        queue.states[KEEP.task_id] = "success"
        await asyncio.sleep(10)
        assert queue.message_states() == [IN_FLIGHT, IN_FLIGHT, VISIBLE, VISIBLE]
        await watcher.cancel()

    queue.run(scenario)


def test_a_batch_that_nobody_claims_is_released_and_not_received_again_at_once(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        watcher = queue.watch(handoff_timeout=20)
        await queue.fired(watcher)
        await asyncio.sleep(27)
        assert queue.message_states() == [VISIBLE]
        assert queue.count(AuditKind.RECEIVED) == 1
        assert (queue.registry().entries, queue.stored_batches()) == ({}, 0)
        await asyncio.sleep(30)
        assert queue.message_states() == [IN_FLIGHT]
        await watcher.cancel()

    queue.run(scenario)


def test_a_dag_that_is_paused_for_hours_costs_each_message_few_receives(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        watcher = queue.watch(handoff_timeout=timedelta(hours=1))
        await asyncio.sleep(5.5 * 3600)
        # Once an hour, and a pause that grows to a quarter of an hour.
        assert queue.count(AuditKind.RECEIVED) <= 6
        await watcher.cancel()

    queue.run(scenario)


def test_a_batch_that_a_run_left_out_gets_its_event_fired_again(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a", "b")
        watcher = queue.watch(max_messages=1)
        first, second = await queue.fired(watcher, 2)
        await queue.claim([first])
        *_, again = await queue.fired(watcher, 3, within=15)
        assert again == second
        await watcher.cancel()

    queue.run(scenario)


def test_reminders_of_a_batch_that_nobody_claims_become_rare(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a", "b")
        watcher = queue.watch(max_messages=1, handoff_timeout=3600)
        await asyncio.sleep(3500)
        # 60, 180, 420, then every 300 s; one for both batches.
        assert 2 + 10 <= len(watcher.events) <= 2 + 14
        await watcher.cancel()

    queue.run(scenario)


def test_a_batch_whose_keeper_never_comes_is_released_and_not_received_again_for_a_while(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        watcher = queue.watch(max_unsettled_batches=1)
        await queue.claim(await queue.fired(watcher))
        queue.states[KEEP.task_id] = "upstream_failed"
        await asyncio.sleep(20)
        assert queue.message_states() == [VISIBLE]
        assert queue.registry().entries == {}
        await asyncio.sleep(30)
        assert queue.message_states() == [IN_FLIGHT]
        await watcher.cancel()

    queue.run(scenario)


@pytest.mark.parametrize("batches", [1, 2])
def test_a_keeper_that_begins_after_its_batch_was_given_back_touches_nobody_elses_lease(
    queue: WatchedQueue, batches: int
) -> None:
    async def scenario() -> None:
        triggerer = queue.triggerer()
        policy = Growing(visibility=180.0)
        watcher = queue.watch(
            triggerer, max_messages=1, max_unsettled_batches=batches, handoff_timeout=300, policy=policy
        )
        queue.send(*"ab"[:batches])
        taken = await queue.claim(await queue.fired(watcher, batches))
        queue.states.update({RECEIVE.task_id: "success", KEEP.task_id: "queued"})
        await asyncio.sleep(310)
        assert queue.message_states() == [VISIBLE] * batches
        other = MemoryTransport(queue.sqs, name="other")
        received = await other.receive(queue.url, max_messages=10, wait_seconds=0, visibility_seconds=900)
        assert len(received) == batches
        begun_at = queue.clock.now()
        keeper = queue.keep(triggerer, taken)
        await asyncio.sleep(60)
        queue.states[LOAD.task_id] = "success"
        await keeper.ended()
        assert queue.message_states() == [IN_FLIGHT] * batches
        touched = [entry for entry in queue.sqs.trail().entries() if entry.at >= begun_at and entry.caller != "other"]
        assert touched == []
        await watcher.cancel()

    queue.run(scenario)
    report = queue.supervisor.xcoms[RUN_ID, KEEP.task_id, -1, "lease_report"]
    assert (report["lost"], report["deleted"]) == (batches, 0)


def test_pauses_are_short_again_after_a_keeper_took_a_batch(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        triggerer = queue.triggerer()
        watcher = queue.watch(triggerer, handoff_timeout=20)
        events = await queue.fired(watcher, 3, within=300)  # Released twice, so the next pause would be of 120 s.
        keeper = queue.keep(triggerer, await queue.claim(events[-1:]))
        queue.states[LOAD.task_id] = "failed"
        await keeper.ended()
        queue.states[KEEP.task_id] = "success"
        await queue.fired(watcher, 4, within=10)
        await queue.fired(watcher, 5, within=70)
        await watcher.cancel()

    queue.run(scenario)


def test_a_message_that_fails_at_once_comes_back_without_a_pause(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        triggerer = queue.triggerer()
        watcher = queue.watch(triggerer)
        keeper = queue.keep(triggerer, await queue.claim(await queue.fired(watcher)))
        queue.states[LOAD.task_id] = "failed"
        await keeper.ended()
        queue.states[KEEP.task_id] = "success"
        await queue.fired(watcher, 2, within=10)
        await watcher.cancel()

    queue.run(scenario)


@pytest.mark.parametrize("trouble", ["silent", "refusing"])
def test_messages_that_cannot_be_registered_are_released(queue: WatchedQueue, trouble: str) -> None:
    async def scenario() -> None:
        watcher = queue.watch()
        await asyncio.sleep(2)
        setattr(queue.supervisor, trouble, True)
        queue.send("a")
        await asyncio.sleep(400)
        assert watcher.events == []
        assert queue.count(AuditKind.RELEASED) >= 1
        setattr(queue.supervisor, trouble, False)
        await queue.fired(watcher, within=400)
        await watcher.cancel()

    queue.run(scenario)


def test_what_waits_is_extended_while_airflow_gives_no_answer(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        watcher = queue.watch()
        (event,) = await queue.fired(watcher)
        queue.supervisor.silent = True
        await asyncio.sleep(5 * VISIBILITY_SECONDS)
        assert queue.message_states() == [IN_FLIGHT]
        queue.supervisor.silent = False
        assert len(await queue.claim([event])) == 1
        await watcher.cancel()

    queue.run(scenario)


def test_messages_that_do_not_match_start_no_run_and_are_left_alone(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("other")
        watcher = queue.watch(message_filtering="literal", message_filtering_match_values=["a"])
        await asyncio.sleep(20)
        assert watcher.events == []
        queue.send("a")
        assert bodies_of(await queue.claim(await queue.fired(watcher))) == ["a"]
        assert queue.count(AuditKind.RELEASED) == 0
        await watcher.cancel()

    queue.run(scenario)


def test_a_queue_that_is_made_later_is_received_from_then(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        triggerer = queue.triggerer()
        watcher = triggerer.watch(SqsLeaseTrigger("later", linger=0))
        await asyncio.sleep(30)
        assert not watcher.task.done()
        later = queue.sqs.create_queue("later")
        queue.sqs.send(later, "a")
        (event,) = await queue.fired(watcher, within=35)
        assert event.queue_url == later
        await watcher.cancel()

    queue.run(scenario)


def test_a_queue_that_does_not_exist_yet_is_looked_for_every_half_minute(queue: WatchedQueue) -> None:
    looks: list[float] = []

    def look(call: TransportCall) -> Fault:
        looks.append(queue.clock.now())
        return no_faults(call)

    async def scenario() -> None:
        triggerer = queue.triggerer()
        triggerer.faults = look
        watcher = triggerer.watch(SqsLeaseTrigger("later", linger=0))
        await asyncio.sleep(3600)
        await watcher.cancel()

    queue.run(scenario)
    pauses = [after - before for before, after in pairwise([*looks, 3600.0])]
    assert max(pauses) <= 30
    assert len(looks) <= 3600 / 30 + 5


def test_a_queue_that_is_missing_for_a_day_is_a_few_lines_in_the_log(
    queue: WatchedQueue, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        watcher = queue.triggerer().watch(SqsLeaseTrigger("later", linger=0))
        await asyncio.sleep(86_400)
        await watcher.cancel()

    queue.run(scenario)
    said = [record for record in caplog.records if "No events of later" in record.message]
    assert 2 <= len(said) <= 40
    assert "does not exist" in said[0].message


def test_one_request_a_second_is_made_while_batches_wait_and_none_while_nothing_does(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        watcher = queue.watch(max_messages=1)
        await asyncio.sleep(5)
        before = len(queue.supervisor.asked)
        await asyncio.sleep(60)
        assert len(queue.supervisor.asked) == before
        queue.send(*"abcd")
        await queue.fired(watcher, 4)
        before = len(queue.supervisor.asked)
        await asyncio.sleep(100)
        assert len(queue.supervisor.asked) - before <= 115
        await watcher.cancel()

    queue.run(scenario)
