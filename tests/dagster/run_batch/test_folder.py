"""The directory of a batch that several processes work on, and what is removed of such directories later."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest

from sqs_lease.core.failure_rules import MessageFailed
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.dagster.run_batch.folder import (
    LEFT_OVER_AFTER_SECONDS,
    MESSAGES,
    BatchFolder,
    BatchFolderError,
    PieceOfWork,
    RaisedException,
    is_run_batch,
    remove_left_over,
    run_batch_id,
    run_batch_path,
)

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
HANDLE = "AQEB-handle"


@pytest.fixture
def folder(tmp_path: Path) -> BatchFolder:
    return BatchFolder(tmp_path / "batches" / "b")


def create(folder: BatchFolder) -> None:
    messages = [Message(Receipt("m0", HANDLE), "first"), Message(Receipt("m1", HANDLE), "second")]
    folder.create(batch_id="b", queue_url=QUEUE, messages=messages)


def test_the_messages_are_read_again_without_their_receipt_handles(folder: BatchFolder) -> None:
    create(folder)
    manifest = folder.manifest()
    assert (manifest.batch_id, manifest.queue_url) == ("b", QUEUE)
    assert [(message.receipt, message.body) for message in manifest.messages] == [
        (Receipt("m0", ""), "first"),
        (Receipt("m1", ""), "second"),
    ]


@pytest.mark.parametrize("name", ["load", "group.load[a]", "a/b", "ü" * 300, ".."])
def test_news_of_a_piece_of_work_replaces_older_news(folder: BatchFolder, name: str) -> None:
    assert folder.read(name) is None
    assert folder.pieces() == {}
    folder.write(PieceOfWork(name, "run/0", failed={"m0": "torn"}))
    later = PieceOfWork(name, "run/1", True, {"m1": 'no "order"'}, RaisedException.by(MessageFailed(["m1"])))
    folder.write(later)
    assert folder.read(name) == later
    assert folder.pieces() == {name: later}


def test_names_that_look_alike_are_told_apart(folder: BatchFolder) -> None:
    names = ["a" * 200 + "b", "a" * 200 + "c", "x.y", "x_y"]
    for name in names:
        folder.write(PieceOfWork(name, "run/0"))
    assert folder.pieces().keys() == set(names)


def test_an_exception_is_known_by_its_classes_and_never_by_its_text(folder: BatchFolder) -> None:
    folder.write(PieceOfWork("load", "run/0", raised=RaisedException.by(KeyError("a secret body"))))
    (work,) = folder.pieces().values()
    assert work.raised is not None
    assert work.raised.errors[:2] == ("builtins.KeyError", "builtins.LookupError")
    assert work.raised.message_ids is None
    assert all(b"secret" not in path.read_bytes() for path in folder.path.iterdir())


def test_other_files_beside_those_are_kept_and_read(folder: BatchFolder) -> None:
    assert folder.get("leases") is None
    folder.put("leases", b"sealed")
    assert folder.get("leases") == b"sealed"
    assert folder.pieces() == {}


def test_all_of_it_is_removed_and_may_be_gone_already(folder: BatchFolder) -> None:
    create(folder)
    folder.write(PieceOfWork("load", "run/0"))
    folder.remove()
    folder.remove()
    assert not folder.path.exists()
    with pytest.raises(BatchFolderError, match="removed when the batch's messages were settled"):
        folder.manifest()


def test_a_directory_that_a_step_does_not_reach_is_named_with_what_it_needs(folder: BatchFolder) -> None:
    with pytest.raises(BatchFolderError, match=r"seen from .*a shared volume at the same path"):
        folder.manifest()


def test_the_directory_is_its_owners_alone_and_holds_no_half_written_file(
    folder: BatchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(folder)
    folder.put("leases", b"sealed")
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder.path / "leases").stat().st_mode) == 0o600

    def fail(self: Path, target: Path) -> Path:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        folder.put("leases", b"other")
    assert sorted(path.name for path in folder.path.iterdir()) == ["leases", MESSAGES]
    assert folder.get("leases") == b"sealed"


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps({"name": "load"})])
def test_a_file_of_another_program_is_named(folder: BatchFolder, content: str) -> None:
    folder.put("work-load.json", content.encode())
    with pytest.raises(BatchFolderError, match=r"work-load\.json"):
        folder.pieces()


def test_messages_that_are_not_a_manifest_are_named(folder: BatchFolder) -> None:
    folder.put(MESSAGES, b"PAR1")
    with pytest.raises(BatchFolderError, match=MESSAGES):
        folder.manifest()


def batch(workspace: Path, name: str, age_seconds: float) -> None:
    folder = BatchFolder(workspace / name)
    folder.create(batch_id=name, queue_url="queue", messages=[Message(Receipt("m", "h"), "body")])
    written_at = time.time() - age_seconds
    os.utime(folder.path, (written_at, written_at))


def test_directories_that_no_run_can_hold_any_more_are_removed_and_nothing_else(tmp_path: Path) -> None:
    old = LEFT_OVER_AFTER_SECONDS + 60
    batch(tmp_path, run_batch_id("killed"), old)
    batch(tmp_path, run_batch_id("under-way"), old - 120)
    batch(tmp_path, 32 * "a", old)
    batch(tmp_path, 32 * "b", old - 120)
    batch(tmp_path, "batch-of-a-sensor", old)
    (tmp_path / run_batch_id("begun")).mkdir()
    assert remove_left_over(str(tmp_path)) == 2
    left = {32 * "b", "batch-of-a-sensor", run_batch_id("begun"), run_batch_id("under-way")}
    assert {path.name for path in tmp_path.iterdir()} == left


def test_a_workspace_that_is_not_there_yet_has_nothing_left_over(tmp_path: Path) -> None:
    assert remove_left_over(str(tmp_path / "later")) == 0


def test_a_directory_that_cannot_be_removed_is_named_and_stops_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batch(tmp_path, run_batch_id("killed"), 0)
    (tmp_path / run_batch_id("killed") / "directory").mkdir()
    os.utime(tmp_path / run_batch_id("killed"), (0, 0))
    assert remove_left_over(str(tmp_path)) == 0
    assert "cannot be removed" in caplog.text


def test_the_executors_batches_are_told_from_others() -> None:
    assert is_run_batch(run_batch_path("/var/orders/", "r"))
    assert run_batch_path("/var/orders/", "r") == "/var/orders/run-r"
    assert not is_run_batch("/var/run-r/4711")
