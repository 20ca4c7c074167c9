"""Whatever a file of a run's folder or a sensor's cursor says, it is read, taken for none, or refused as documented."""

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
from sqs_lease.dagster.backlog_sensor import _backlog
from sqs_lease.dagster.backlog_state import Memory
from sqs_lease.dagster.lease_sensor.dispatch import RUN, Destination, RecordedRun, read_run, write_run
from sqs_lease.dagster.run_batch.folder import SETTLING, BatchFolder, BatchFolderError, PieceOfWork, Raised
from sqs_lease.dagster.run_batch.lease_files import (
    HELD_UNTIL,
    LEASES,
    RecordedLeases,
    read_leases,
    write_leases,
)
from sqs_lease.dagster.run_batch.ownership import OWNER, Ownership
from sqs_lease.sqs.transport import QueueAttributes
from tests.fuzz.strange import CONTENT, examples, json_near, outcome_of, said_by

HELD: Final = [Lease(Receipt(f"m{number}", f"{CONTENT}{number}"), 1.5, 31.5, 2, "group") for number in range(2)]
WORK: Final = PieceOfWork(
    "step",
    "run.0",
    True,
    {"m1": "no"},
    Raised(("builtins.ValueError",), ("m1",)),
    {"m1": ("builtins.ValueError",)},
    frozenset({"m2"}),
    frozenset({"m3"}),
)
OWNED: Final = {"token": "t", "deployment": "here", "host": "h", "pid": 1}


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
    """What the package itself writes into a file of that name."""
    match name:
        case "leases.json":
            write_leases(folder(), "b", "q", HELD)
        case "run.json":
            write_run(
                folder(),
                Destination("job", run_config={"ops": {"x": {"config": {"a": [1]}}}}, run_tags={"tag": "1"}),
                ["b2"],
            )
        case _:
            folder().write(WORK)
            (name,) = (path.name for path in folder().path.iterdir() if path.name.startswith("work-"))
    content = folder().get(name)
    assert content is not None
    return json.loads(content)


@st.composite
def lease_files(draw: st.DrawFn) -> dict[str, bytes | None]:
    good = written(LEASES)
    leases = draw(json_near(json.loads(good["leases"])))
    head = draw(json_near({**good, "leases": leases.decode("utf-8", "replace")}))
    return {
        LEASES: head,
        HELD_UNTIL: draw(st.none() | json_near(1.7e9)),
        SETTLING: draw(st.none() | json_near(["m1", "m2"])),
    }


@examples(120)
@given(lease_files())
def test_recorded_leases_are_of_their_types_or_count_as_none(files: dict[str, bytes | None]) -> None:
    for name, content in files.items():
        (folder().path / name).unlink(missing_ok=True)
        if content is not None:
            (folder().path / name).write_bytes(content)
    found = said_by(lambda: read_leases(folder()))
    if isinstance(found, RecordedLeases):
        assert isinstance(found.batch_id, str)
        assert isinstance(found.queue_url, str)
        for lease in found.leases:
            assert isinstance(lease.receipt.handle, str)
            assert lease.deadline == lease.deadline
            assert abs(lease.deadline) < float("inf")
        assert found.deleting is None or all(isinstance(message_id, str) for message_id in found.deleting)


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
@given(json_near(OWNED))
def test_whoever_owned_a_directory_it_can_be_taken_or_is_refused(content: bytes) -> None:
    from sqs_lease.dagster.run_batch.ownership import ForeignOwnerError

    folder().put(OWNER, content)
    ownership = Ownership(folder().path, "here")
    assert not ownership.is_ours()
    if not isinstance(outcome_of(ownership.take, ForeignOwnerError), ForeignOwnerError):
        assert ownership.is_ours()


@examples(80)
@given(st.deferred(lambda: json_near(written("run.json"))))
def test_a_recorded_run_is_read_or_counts_as_none(content: bytes) -> None:
    folder().put(RUN, content)
    found = said_by(lambda: read_run(folder()))
    if isinstance(found, RecordedRun):
        assert msgspec.json.encode(found)


MEMORY: Final = {
    "version": 1,
    "epoch": "e",
    "sequence": 3,
    "waiting_since": 1.7e9,
    "unreadable_since": 1.7e9,
    "reported_at": 1.7e9,
    "last_run": "r",
    "failures": 2,
}
QUEUE: Final = QueueAttributes("arn", 30, False, None, None, 5, 0, 0)


@examples(150)
@given(json_near(MEMORY), st.sampled_from([1.7e9, 0.0, -1.0]))
@example(json.dumps(MEMORY | {"waiting_since": -(2**63)}).encode(), 1.7e9)
def test_a_cursor_is_remembered_or_begins_anew(content: bytes, now: float) -> None:
    memory = said_by(lambda: Memory.of(content.decode("utf-8", "surrogateescape")))
    if isinstance(memory, Memory):
        assert _backlog(QUEUE, memory.seen(5, now), 1.7e9).waited.total_seconds() >= 0
        memory.unread(now).reported(now).answered("r", memory.failures + 1).key(1)
        assert Memory.of(memory.started(1).cursor()) is not None
