"""Whatever a file of a run's folder or a sensor's cursor says, it is read, ignored, or refused as documented."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.dagster.backlog_sensor import Memory, _backlog
from sqs_lease.dagster.dispatch import RUN, Destination, read_run, write_run
from sqs_lease.dagster.run_batch.batch_of_run import LEASES, read_written, write_leases
from sqs_lease.dagster.run_batch.folder import BatchFolder, BatchFolderError, PieceOfWork, RaisedException
from sqs_lease.keeper.plain_leases import WrittenBatch
from sqs_lease.sqs.transport import QueueAttributes
from tests.fuzz.strange import CONTENT, examples, json_near, said_by

HELD: Final = [Lease(Receipt(f"m{number}", f"{CONTENT}{number}"), 1.5, 31.5, 2, "group") for number in range(2)]
WORK: Final = PieceOfWork(
    "step",
    "run.0",
    True,
    {"m1": "no"},
    RaisedException(("builtins.ValueError",), ("m1",)),
    {"m1": ("builtins.ValueError",)},
    frozenset({"m2"}),
    frozenset({"m3"}),
)


@functools.cache
def folder() -> BatchFolder:
    """One for all examples."""
    return BatchFolder(Path(tempfile.mkdtemp(prefix="sqs-lease-strange-")))


@pytest.fixture(autouse=True, scope="module")
def removed() -> Iterator[None]:
    yield
    folder().remove()
    folder.cache_clear()


@functools.cache
def written(name: str) -> Any:
    """Read a file of that name that the package itself wrote."""
    match name:
        case "leases.json":
            write_leases(folder(), WrittenBatch("b", 1.7e9, tuple(HELD)))
        case "run.json":
            write_run(
                folder(),
                Destination("job", run_config={"ops": {"x": {"config": {"a": [1]}}}}, run_tags={"tag": "1"}),
            )
        case _:
            folder().write(WORK)
            (name,) = (path.name for path in folder().path.iterdir() if path.name.startswith("work-"))
    content = folder().get(name)
    assert content is not None
    return json.loads(content)


@examples(120)
@given(st.deferred(lambda: json_near(written(LEASES))))
def test_written_leases_are_of_their_types_or_count_as_missing(content: bytes) -> None:
    (folder().path / LEASES).write_bytes(content)
    found = said_by(lambda: read_written(folder()))
    if isinstance(found, WrittenBatch):
        assert isinstance(found.batch_id, str)
        for lease in found.leases:
            assert isinstance(lease.receipt.handle, str)
            assert lease.deadline == lease.deadline
            assert abs(lease.deadline) < float("inf")


@examples(120)
@given(st.deferred(lambda: json_near(written("work"))))
def test_a_piece_of_work_is_of_its_types_or_refused(content: bytes) -> None:
    for path in folder().path.iterdir():
        path.unlink()
    (folder().path / "work-step-0.json").write_bytes(content)
    found = said_by(folder().pieces, BatchFolderError)
    if isinstance(found, dict):
        for name, work in found.items():
            assert isinstance(name, str)
            assert isinstance(work.attempt, str)
            assert all(isinstance(text, str) for text in (*work.failed, *work.failed.values(), *work.done))
            assert all(isinstance(text, str) for text in (*work.released, *work.errors))
            assert all(isinstance(error, str) for errors in work.errors.values() for error in errors)
            if work.raised is not None:
                assert all(isinstance(text, str) for text in (*work.raised.errors, *(work.raised.message_ids or ())))


@examples(80)
@given(st.deferred(lambda: json_near(written("run.json"))))
def test_a_recorded_run_is_read_or_counts_as_missing(content: bytes) -> None:
    folder().put(RUN, content)
    found = said_by(lambda: read_run(folder()))
    if isinstance(found, Destination):
        assert msgspec.json.encode(found)


MEMORY: Final = {
    "version": 1,
    "epoch": "e",
    "sequence": 3,
    "waiting_since": 1.7e9,
    "unreadable_since": 1.7e9,
    "reported_at": 1.7e9,
}
QUEUE: Final = QueueAttributes("arn", 30, False, None, None, 5, 0, 0)


@examples(150)
@given(json_near(MEMORY), st.sampled_from([1.7e9, 0.0, -1.0]))
@example(json.dumps(MEMORY | {"waiting_since": -(2**63)}).encode(), 1.7e9)
def test_a_cursor_is_remembered_or_reset(content: bytes, now: float) -> None:
    memory = said_by(lambda: Memory.of(content.decode("utf-8", "surrogateescape")))
    if isinstance(memory, Memory):
        assert _backlog(QUEUE, memory.seen(5, now), 1.7e9).waited.total_seconds() >= 0
        memory.unread(now).reported(now).key(1)
        assert Memory.of(memory.started(1).cursor()) is not None
