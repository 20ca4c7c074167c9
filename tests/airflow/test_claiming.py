"""How a run gets the batches of its events, and which it leaves out."""

from __future__ import annotations

import asyncio
import logging

import pytest

from sqs_lease.airflow.airflow_api.assets import TaskAssetState
from sqs_lease.airflow.batches.claim import PATIENCE_SECONDS, Claiming, NotAnsweredError
from sqs_lease.airflow.batches.protocol import BatchEvent, BatchRegistry, Claim, Place, RegisteredBatch, Stage
from sqs_lease.airflow.transfer.lease import HandedLease
from sqs_lease.airflow.transfer.payload import read_messages
from sqs_lease.testing import MessageState
from tests.airflow.virtual_triggerer import KEEP, LOAD
from tests.airflow.watched_queue import OTHER_RUN, RUN, VISIBILITY_SECONDS, WatchedQueue


def test_a_batch_that_belongs_to_another_run_is_left_out_with_its_owners_name(
    queue: WatchedQueue, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        queue.send("a")
        watcher = queue.watch()
        events = await queue.fired(watcher)
        assert len(await queue.claim(events, OTHER_RUN)) == 1
        with caplog.at_level(logging.WARNING, "sqs_lease.airflow.batches.claim"):
            assert await queue.claim(events) == []
        await watcher.cancel()

    queue.run(scenario)
    assert "belongs to run 'other_run' of DAG 'other_dag'" in caplog.text


def test_a_batch_whose_event_came_twice_is_taken_once(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        watcher = queue.watch()
        events = await queue.fired(watcher)
        assert len(await queue.claim([*events, *events])) == 1
        await watcher.cancel()

    queue.run(scenario)


def test_a_task_that_is_tried_again_gets_its_batch_again(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        watcher = queue.watch()
        events = await queue.fired(watcher)
        first = await queue.claim(events)
        assert await queue.claim(events) == first
        await watcher.cancel()

    queue.run(scenario)


def test_a_task_that_is_cleared_while_its_keeper_has_the_messages_takes_nothing(
    queue: WatchedQueue, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        queue.send("a")
        triggerer = queue.triggerer()
        watcher = queue.watch(triggerer)
        events = await queue.fired(watcher)
        keeper = queue.keep(triggerer, await queue.claim(events))
        await asyncio.sleep(5)
        assert await queue.claim(events) == []
        await keeper.cancel()
        await watcher.cancel()

    queue.run(scenario)
    assert "the keeper of this run has, or had, it already" in caplog.text


def test_a_task_that_is_cleared_after_its_messages_were_settled_takes_nothing(
    queue: WatchedQueue, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        queue.send("a")
        triggerer = queue.triggerer()
        watcher = queue.watch(triggerer)
        events = await queue.fired(watcher)
        keeper = queue.keep(triggerer, await queue.claim(events))
        await asyncio.sleep(5)
        queue.states[LOAD.task_id] = "success"
        await keeper.ended()
        queue.states[KEEP.task_id] = "success"
        await asyncio.sleep(10)
        assert await queue.claim(events) == []
        await watcher.cancel()

    queue.run(scenario)
    assert "it was settled or given back already" in caplog.text


def test_messages_that_were_lost_while_they_waited_are_left_out(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a", "b")
        watcher = queue.watch()
        (event,) = await queue.fired(watcher)
        (stored,) = [value for (_, key), value in queue.supervisor.store.items() if "/lease/" in key]
        lost, kept = HandedLease.decode(stored).leases
        queue.sqs.delete(queue.url, [lost.receipt], caller="somebody else")
        await asyncio.sleep(VISIBILITY_SECONDS)
        (taken,) = await queue.claim([event])
        assert [message["MessageId"] for message in read_messages(taken.messages)] == [kept.receipt.message_id]
        assert [lease.receipt for lease in HandedLease.decode(taken.lease).leases] == [kept.receipt]
        await watcher.cancel()

    queue.run(scenario)


def test_a_run_whose_trigger_does_not_answer_gives_up_and_says_so(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        triggerer = queue.triggerer()
        events = await queue.fired(queue.watch(triggerer))
        await triggerer.kill()
        started_at = queue.clock.now()
        with pytest.raises(NotAnsweredError, match="check that a triggerer runs"):
            await queue.claim(events)
        assert queue.clock.now() - started_at == pytest.approx(PATIENCE_SECONDS, abs=2)

    queue.run(scenario)


def test_a_run_waits_for_a_trigger_that_is_being_taken_over(queue: WatchedQueue) -> None:
    async def scenario() -> None:
        queue.send("a")
        killed = queue.triggerer("killed")
        events = await queue.fired(queue.watch(killed))
        await killed.kill()
        claiming = asyncio.create_task(queue.claim(events))
        await asyncio.sleep(40)
        watcher = queue.watch(queue.triggerer("successor"))
        assert len(await claiming) == 1
        assert queue.message_states() == [MessageState.IN_FLIGHT]
        await watcher.cancel()

    queue.run(scenario)


def test_a_run_asks_again_when_another_one_overwrote_its_claim(queue: WatchedQueue) -> None:
    place = Place.of_queue("asset", "orders")
    store = TaskAssetState("asset")
    store.put(place.registry, BatchRegistry("owner", queue.url, {"b": RegisteredBatch("b", 1, 0.0)}).encode())
    steps = Claiming(store, [BatchEvent("b", queue.url, 1, place)], RUN, clock=queue.clock).steps()
    next(steps)
    store.put(place.claim, Claim(OTHER_RUN, ["c"]).encode())
    next(steps)
    assert Claim.decode(store.get(place.claim)) == Claim(RUN, ("b",))


def test_a_batch_that_was_given_back_between_two_looks_is_left_out(queue: WatchedQueue) -> None:
    place = Place.of_queue("asset", "orders")
    store = TaskAssetState("asset")
    entry = RegisteredBatch("b", 1, 0.0, Stage.CLAIMED, RUN)
    store.put(place.registry, BatchRegistry("owner", queue.url, {"b": entry}).encode())
    claiming = Claiming(store, [BatchEvent("b", queue.url, 1, place)], RUN, clock=queue.clock)
    assert list(claiming.steps()) == []
    assert claiming.taken() == []


@pytest.mark.parametrize("extra", [None, {}, {"payload": "text"}, {"payload": {"kind": "another"}}], ids=repr)
def test_events_of_others_are_told_from_ours(extra: dict[str, object] | None) -> None:
    assert BatchEvent.decode(extra) is None


def test_queues_of_one_name_in_two_accounts_have_places_of_their_own() -> None:
    names = [f"https://sqs.eu-central-1.amazonaws.com/{account}/orders" for account in ("1" * 12, "2" * 12)]
    first, second = (Place.of_queue("asset", name) for name in names)
    assert first.registry != second.registry
    assert "/orders-" in first.registry
