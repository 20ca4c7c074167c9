"""The trigger of an asset's watcher with ``payload``: its batches are in files."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from sqs_lease.testing import AuditKind, MessageState
from tests.airflow.virtual_triggerer import LOAD
from tests.airflow.watched_queue import WatchedQueue, bodies_of

IN_FLIGHT, VISIBLE = MessageState.IN_FLIGHT, MessageState.VISIBLE


def test_with_payload_a_batch_is_in_files_until_it_was_settled(queue: WatchedQueue, tmp_path: Path) -> None:
    async def scenario() -> None:
        queue.send("a", "b")
        triggerer = queue.triggerer()
        watcher = queue.watch(triggerer, payload=str(tmp_path))
        taken = await queue.claim(await queue.fired(watcher))
        assert bodies_of(taken) == ["a", "b"]
        assert all(len(json.dumps(value)) < 1_000 for value in queue.supervisor.store.values())
        keeper = queue.keep(triggerer, taken)
        await asyncio.sleep(20)
        queue.states[LOAD.task_id] = "success"
        await keeper.ended()
        assert files_in(tmp_path) == []
        assert queue.message_states() == []
        await watcher.cancel()

    queue.run(scenario)


def test_with_payload_a_batch_is_taken_over_from_its_files(queue: WatchedQueue, tmp_path: Path) -> None:
    async def scenario() -> None:
        queue.send("a")
        killed = queue.triggerer("killed")
        await queue.fired(queue.watch(killed, payload=str(tmp_path), handoff_timeout=3600))
        await asyncio.sleep(1000)
        await killed.kill()
        watcher = queue.watch(queue.triggerer("successor"), payload=str(tmp_path))
        assert bodies_of(await queue.claim(await queue.fired(watcher))) == ["a"]
        assert queue.count(AuditKind.RECEIVED) == 1
        await watcher.cancel()

    queue.run(scenario)


def test_with_payload_the_files_of_a_batch_that_nobody_claimed_are_removed(queue: WatchedQueue, tmp_path: Path) -> None:
    async def scenario() -> None:
        queue.send("a")
        watcher = queue.watch(payload=str(tmp_path), handoff_timeout=20)
        await queue.fired(watcher)
        assert len(files_in(tmp_path)) == 2
        await asyncio.sleep(30)
        assert files_in(tmp_path) == []
        await watcher.cancel()

    queue.run(scenario)


def test_messages_that_cannot_be_stored_are_released(queue: WatchedQueue, tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "file").touch()
        queue.send("a")
        watcher = queue.watch(payload=str(tmp_path / "file" / "below"))
        await asyncio.sleep(4)
        assert watcher.events == []
        assert queue.message_states() == [VISIBLE]
        await watcher.cancel()

    queue.run(scenario)


def files_in(directory: Path) -> list[Path]:
    return list(directory.iterdir())
