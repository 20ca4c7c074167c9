"""The trigger of an asset's watcher: what becomes of its batches when it ends, or takes over from another one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from airflow.sdk.execution_time.comms import GetAssetStateStoreByName

from sqs_lease.airflow.batches.protocol import Stage
from sqs_lease.airflow.triggers.watch import SqsLeaseTrigger
from sqs_lease.testing import AuditKind, MessageState
from tests.airflow.virtual_triggerer import KEEP, LOAD, USER_ACTION
from tests.airflow.watched_queue import RUN, VISIBILITY_SECONDS, WatchedQueue, bodies_of, events_of

IN_FLIGHT, VISIBLE = MessageState.IN_FLIGHT, MessageState.VISIBLE


def test_a_triggerer_whose_first_answers_are_late_takes_over_as_soon_as_they_come(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        killed = queue.triggerer("killed")
        await queue.fired(queue.watch(killed))
        await killed.kill()
        queue.supervisor.silent = True
        watcher = queue.watch(queue.triggerer("successor"))
        await asyncio.sleep(25)
        queue.supervisor.silent = False
        await queue.fired(watcher, within=11)
        assert queue.count(AuditKind.RECEIVED) == 1
        await watcher.cancel()

    queue.run(scenario)


def test_a_triggerer_that_takes_over_from_a_killed_one_holds_what_waits_and_fires_again(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a", "b")
        killed = queue.triggerer("killed")
        await queue.fired(queue.watch(killed))
        await asyncio.sleep(30)
        await killed.kill()
        await asyncio.sleep(15)
        successor = queue.triggerer("successor")
        watcher = queue.watch(successor)
        (event,) = await queue.fired(watcher)
        await asyncio.sleep(3 * VISIBILITY_SECONDS)
        assert queue.message_states() == [IN_FLIGHT, IN_FLIGHT]
        assert bodies_of(await queue.claim([event])) == ["a", "b"]
        assert queue.count(AuditKind.RECEIVED) == 2
        await watcher.cancel()

    queue.run(scenario)


def test_what_was_claimed_before_its_triggerer_was_killed_is_held_for_the_same_run(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        killed = queue.triggerer("killed")
        taken = await queue.claim(await queue.fired(queue.watch(killed)))
        await killed.kill()
        await asyncio.sleep(15)
        successor = queue.triggerer("successor")
        watcher = queue.watch(successor)
        await asyncio.sleep(3 * VISIBILITY_SECONDS)
        assert queue.message_states() == [IN_FLIGHT]
        assert watcher.events == []
        keeper = queue.keep(successor, taken)
        await asyncio.sleep(20)
        queue.states[LOAD.task_id] = "success"
        await keeper.ended()
        assert queue.message_states() == []
        await watcher.cancel()

    queue.run(scenario)


def test_a_batch_that_its_keeper_claims_during_a_takeover_stays_the_keepers(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        triggerer = queue.triggerer()
        former = queue.watch(triggerer)
        await queue.claim(await queue.fired(former))
        keepers = triggerer.keepers
        ((batch_id, shared),) = keepers.batches.items()
        await keepers.acquire(shared.shared_keeper.connection)
        queue.states[KEEP.task_id] = "running"

        def claimed_meanwhile(request: object) -> None:
            if isinstance(request, GetAssetStateStoreByName) and "/lease/" in request.key:
                keepers.claim(batch_id, "the keeper", lambda event: None)
                queue.states[KEEP.task_id] = "deferred"

        queue.supervisor.on_request = claimed_meanwhile
        changed = queue.watch(triggerer, max_messages=5)
        await asyncio.sleep(30)
        assert shared.owner == "the keeper"
        assert len(shared.batch.leases()) == 1
        assert [entry.stage for entry in queue.registry().entries.values()] == [Stage.AT_WORK]
        await former.cancel()
        await changed.cancel()

    queue.run(scenario)


def test_what_is_at_work_counts_as_unsettled_after_a_takeover_too(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a", "b")
        killed = queue.triggerer("killed")
        watcher = queue.watch(killed, max_messages=1, max_unsettled_batches=1)
        queue.keep(killed, await queue.claim(await queue.fired(watcher)))
        await asyncio.sleep(5)
        await killed.kill()
        watcher = queue.watch(queue.triggerer("successor"), max_messages=1, max_unsettled_batches=1)
        await asyncio.sleep(30)
        assert watcher.events == []
        queue.states[KEEP.task_id] = "success"
        await queue.fired(watcher)
        await watcher.cancel()

    queue.run(scenario)


def test_a_batch_that_lapsed_while_no_trigger_ran_is_received_anew(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        killed = queue.triggerer("killed")
        (old,) = await queue.fired(queue.watch(killed))
        await killed.kill()
        await asyncio.sleep(10 * VISIBILITY_SECONDS)
        watcher = queue.watch(queue.triggerer("successor"))
        (new,) = await queue.fired(watcher)
        assert new.batch_id != old.batch_id
        assert await queue.claim([old]) == []
        assert bodies_of(await queue.claim([new])) == ["a"]
        await watcher.cancel()

    queue.run(scenario)


def test_the_stored_deadlines_are_kept_up_to_date_while_a_batch_waits(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        killed = queue.triggerer("killed")
        await queue.fired(queue.watch(killed, handoff_timeout=3600))
        await asyncio.sleep(1000)  # Many times the visibility timeout.
        await killed.kill()
        watcher = queue.watch(queue.triggerer("successor"), handoff_timeout=3600)
        await queue.fired(watcher)
        assert queue.count(AuditKind.RECEIVED) == 1
        await watcher.cancel()

    queue.run(scenario)


def test_a_triggerer_that_stops_extends_once_and_releases_nothing(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        watcher = queue.watch()
        await queue.fired(watcher)
        await asyncio.sleep(10)
        before = queue.count(AuditKind.CHANGED)
        await watcher.cancel()
        assert queue.count(AuditKind.CHANGED) == before + 1
        await asyncio.sleep(VISIBILITY_SECONDS - 5)
        assert queue.message_states() == [IN_FLIGHT]
        assert queue.count(AuditKind.RELEASED) == 0

    queue.run(scenario)


def test_a_triggerer_that_stops_while_a_batch_is_being_received_releases_it(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        watcher = queue.watch(linger=20)
        await asyncio.sleep(5)
        assert queue.message_states() == [IN_FLIGHT]
        await watcher.cancel()
        assert queue.message_states() == [VISIBLE]
        assert watcher.events == []

    queue.run(scenario)


def test_when_the_watcher_is_removed_what_nobody_claimed_is_released(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a", "b")
        triggerer = queue.triggerer()
        watcher = queue.watch(triggerer, max_messages=1)
        first, _ = await queue.fired(watcher, 2)
        await queue.claim([first])
        await watcher.cancel(USER_ACTION)
        assert sorted(queue.message_states(), key=str) == sorted([IN_FLIGHT, VISIBLE], key=str)
        assert [entry.claimant for entry in queue.registry().entries.values()] == [RUN]
        assert queue.count(AuditKind.RECEIVED) == 2

    queue.run(scenario)


def test_nothing_is_released_when_airflow_does_not_say_who_serves_the_queue(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        watcher = queue.watch()
        await queue.fired(watcher)
        queue.supervisor.refusing = True
        await watcher.cancel(USER_ACTION)
        assert queue.message_states() == [IN_FLIGHT]
        assert queue.count(AuditKind.RELEASED) == 0

    queue.run(scenario)


def test_a_trigger_that_was_replaced_while_it_stood_still_ends(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        stalled = queue.watch(queue.triggerer("stalled"))
        await queue.fired(stalled)
        successor = queue.watch(queue.triggerer("successor"))
        await queue.fired(successor)
        assert isinstance(stalled.trigger, SqsLeaseTrigger)
        assert stalled.trigger._batches is not None
        stalled.trigger._batches._looked_at -= 60  # It did not look for a minute.
        await stalled.ended()
        assert queue.message_states() == [IN_FLIGHT]
        assert len(queue.registry().entries) == 1
        await successor.cancel()

    queue.run(scenario)


def test_a_trigger_that_was_replaced_while_it_stood_still_releases_nothing(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        stalled = queue.watch(queue.triggerer("stalled"))
        await queue.fired(stalled)
        successor = queue.watch(queue.triggerer("successor"))
        await queue.fired(successor)
        await stalled.cancel(USER_ACTION)
        assert queue.message_states() == [IN_FLIGHT]
        assert queue.count(AuditKind.RELEASED) == 0
        assert len(queue.registry().entries) == 1
        await successor.cancel()

    queue.run(scenario)


def test_a_changed_trigger_takes_over_from_the_former_one_in_the_same_process(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        triggerer = queue.triggerer()
        former = queue.watch(triggerer)
        (event,) = await queue.fired(former)
        changed = queue.watch(triggerer, max_messages=5)
        await queue.fired(changed)
        await former.cancel(USER_ACTION)
        await asyncio.sleep(30)
        assert queue.message_states() == [IN_FLIGHT]
        assert len(await queue.claim([event])) == 1
        assert queue.count(AuditKind.RECEIVED) == 1
        await changed.cancel()

    queue.run(scenario)


def test_the_client_is_closed_when_the_trigger_ends(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        triggerer = queue.triggerer()
        watcher = queue.watch(triggerer)
        await queue.fired(watcher)
        assert triggerer.open_transports == 1
        await watcher.cancel()
        assert triggerer.open_transports == 0
        assert len(events_of(watcher)) == 1

    queue.run(scenario)


def test_a_batch_whose_leases_cannot_be_read_does_not_keep_its_queue_from_being_served(
    queue: WatchedQueue, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async def scenario() -> None:
        queue.send("a")
        killed = queue.triggerer("killed")
        (old,) = await queue.fired(queue.watch(killed, payload=str(tmp_path)))
        await killed.kill()
        remove_files_in(tmp_path)
        queue.send("b")
        watcher = queue.watch(queue.triggerer("successor"))
        events = await queue.fired(watcher, 2, within=2 * VISIBILITY_SECONDS)
        assert await queue.claim([old]) == []
        assert sorted(bodies_of(await queue.claim(events))) == ["a", "b"]
        assert list(queue.registry().entries) == [event.batch_id for event in events]
        await watcher.cancel()

    queue.run(scenario)
    assert "come back when their visibility timeout ends" in caplog.text


def test_a_batch_that_was_encrypted_with_another_key_does_not_keep_its_queue_from_being_served(
    queue: WatchedQueue,
) -> None:
    async def scenario() -> None:
        queue.send("a")
        killed = queue.triggerer("killed")
        await queue.fired(queue.watch(killed))
        await killed.kill()
        (key,) = [key for key in queue.supervisor.store if "/lease/" in key[1]]
        queue.supervisor.store[key] = {**queue.supervisor.store[key], "sealed_leases": "of another key"}
        queue.send("b")
        watcher = queue.watch(queue.triggerer("successor"))
        events = await queue.fired(watcher, 2, within=2 * VISIBILITY_SECONDS)
        assert sorted(bodies_of(await queue.claim(events))) == ["a", "b"]
        await watcher.cancel()

    queue.run(scenario)


def remove_files_in(directory: Path) -> None:
    for file in directory.iterdir():
        file.unlink()
