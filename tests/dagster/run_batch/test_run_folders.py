"""The directories of the executor's batches, and what is removed of them later."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sqs_lease.core.messages import Message, Receipt
from sqs_lease.dagster.run_batch.folder import (
    LEFT_OVER_AFTER_SECONDS,
    MESSAGES,
    BatchFolder,
    is_run_batch,
    remove_left_over,
    run_batch_id,
    run_batch_path,
)


def batch(workspace: Path, name: str, age_seconds: float) -> None:
    folder = BatchFolder(workspace / name)
    folder.create(batch_id=name, queue_url="queue", messages=[Message(Receipt("m", "h"), "body")])
    written_at = time.time() - age_seconds
    os.utime(folder.path / MESSAGES, (written_at, written_at))


def test_what_nobody_can_hold_any_more_is_removed_and_nothing_else(tmp_path: Path) -> None:
    old = LEFT_OVER_AFTER_SECONDS + 60
    batch(tmp_path, run_batch_id("killed"), old)
    batch(tmp_path, run_batch_id("under-way"), old - 120)
    batch(tmp_path, "batch-of-a-sensor", old)
    (tmp_path / run_batch_id("begun")).mkdir()
    assert remove_left_over(str(tmp_path)) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["batch-of-a-sensor", "run-begun", "run-under-way"]


def test_a_workspace_that_is_not_there_yet_has_nothing_left_over(tmp_path: Path) -> None:
    assert remove_left_over(str(tmp_path / "later")) == 0


def test_what_cannot_be_removed_is_said_and_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    batch(tmp_path, run_batch_id("killed"), LEFT_OVER_AFTER_SECONDS + 60)
    (tmp_path / run_batch_id("killed") / "directory").mkdir()
    assert remove_left_over(str(tmp_path)) == 0
    assert "cannot be removed" in caplog.text


def test_the_executors_batches_are_told_from_others() -> None:
    assert is_run_batch(run_batch_path("/var/orders/", "r"))
    assert run_batch_path("/var/orders/", "r") == "/var/orders/run-r"
    assert not is_run_batch("/var/run-r/4711")
