"""Steps that run where the run worker cannot end them: here in this process, which seems to be another one.

Dagster reads the annotations of ops, so this module has no postponed ones.
"""

import gc
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from threading import Event, Thread

import dagster as dg
import pytest

from sqs_lease.blocking import LeasedBatch
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.dagster import SqsQueueResource
from sqs_lease.dagster.run_batch import elsewhere
from sqs_lease.dagster.run_batch.elsewhere import end_steps_elsewhere, report
from sqs_lease.dagster.run_batch.folder import SETTLING, BatchFolder, BatchFolderError, PieceOfWork
from sqs_lease.dagster.run_batch.leased_batch import BATCH_TAG
from sqs_lease.dagster.run_batch.signs_of_life import ALIVE, SignOfLife, signs_of_life

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
DEADLINE_SECONDS = 600.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchFolder:
    """A batch whose run worker says that it lives, and was this process under another name."""
    made = BatchFolder(tmp_path / "batch")
    made.create(batch_id="batch", queue_url=QUEUE, messages=[Message(Receipt("m0", "handle"), "first")])
    with signs_of_life(made, lambda: 3600.0):
        pass
    monkeypatch.setattr("sqs_lease.dagster.run_batch.leased_batch.this_process", lambda: "another")
    monkeypatch.setattr(elsewhere, "LOOK_SECONDS", 0.02)
    return made


def execute(folder: BatchFolder, work: Callable[[LeasedBatch], None]) -> dg.ExecuteInProcessResult:
    @dg.op
    def load(context: dg.OpExecutionContext) -> None:
        with SqsQueueResource(queue=QUEUE).lease(context) as batch:
            work(batch)

    @dg.job
    def loading() -> None:
        load()

    return loading.execute_in_process(tags={BATCH_TAG: str(folder)}, raise_on_error=False)


def piece(folder: BatchFolder) -> PieceOfWork:
    (found,) = folder.pieces().values()
    return found


def wait_for_the_interruption() -> None:
    """Work until somebody ends it."""
    Event().wait(DEADLINE_SECONDS)
    raise AssertionError("nobody interrupted the step")


def test_a_step_says_that_it_runs_elsewhere(folder: BatchFolder) -> None:
    def work(batch: LeasedBatch) -> None:
        assert (piece(folder).is_elsewhere, piece(folder).is_over) == (True, False)
        batch.fail("m0", "torn")

    assert execute(folder, work).success
    assert (piece(folder).is_elsewhere, piece(folder).is_over, piece(folder).failed) == (True, True, {"m0": "torn"})


def test_a_step_in_the_run_worker_does_not(folder: BatchFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert execute(folder, lambda _: None).success
    assert not piece(folder).is_elsewhere


def given_up(folder: BatchFolder) -> None:
    folder.put(SETTLING, b"[]")


def settled(folder: BatchFolder) -> None:
    (folder.path / ALIVE).unlink()


def taken_over(folder: BatchFolder) -> None:
    folder.write(PieceOfWork("load", "run/1", is_elsewhere=True))


def silent(folder: BatchFolder) -> None:
    # The last sign says that the leases end now, and that another one is overdue.
    last = SignOfLife("another", "worker", 2, time.time(), lasting_seconds=0.0, next_seconds=0.0)
    folder.put(ALIVE, json.dumps(asdict(last)).encode())


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (given_up, "gave the batch up"),
        (settled, "is settled"),
        (taken_over, "Another attempt"),
        (silent, "run worker is gone"),
    ],
)
def test_a_step_is_interrupted_when_others_are_about_to_get_its_messages(
    folder: BatchFolder, caplog: pytest.LogCaptureFixture, happens: Callable[[BatchFolder], None], said: str
) -> None:
    def work(_: LeasedBatch) -> None:
        happens(folder)
        wait_for_the_interruption()

    assert not execute(folder, work).success
    assert said in caplog.text
    (left,) = folder.pieces().values()
    # The interruption's traceback holds connections of Dagster's instance: they end here, and not in another test.
    gc.collect()
    # What another attempt has written stays.
    assert left.is_over == (happens is not taken_over)
    assert left.raised is None


def test_a_directory_that_cannot_be_read_for_a_while_ends_no_step(
    folder: BatchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = Event()

    def refuse(*_: object) -> None:
        looked.set()
        raise OSError("the store is away")

    def work(_: LeasedBatch) -> None:
        with pytest.MonkeyPatch.context() as away:
            away.setattr(elsewhere, "read_sign", refuse)
            assert looked.wait(DEADLINE_SECONDS)

    assert execute(folder, work).success


def test_a_step_that_begins_while_the_batch_is_given_up_does_not_work_on_it(
    folder: BatchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = BatchFolder.write

    def written_too_late(self: BatchFolder, work: PieceOfWork) -> None:
        if not work.is_over:
            given_up(folder)
        write(self, work)

    monkeypatch.setattr(BatchFolder, "write", written_too_late)
    worked: list[LeasedBatch] = []
    assert not execute(folder, worked.append).success
    assert worked == []
    assert piece(folder).is_over


def test_who_gives_a_batch_up_waits_for_the_steps_elsewhere_alone(folder: BatchFolder) -> None:
    folder.write(PieceOfWork("here", "run/0"))
    folder.write(PieceOfWork("ended", "run/0", is_over=True, is_elsewhere=True))
    folder.write(PieceOfWork("killed", "run/0", is_elsewhere=True))
    assert end_steps_elsewhere(folder, {("killed", "run/0")}, 0.0)
    assert folder.is_settling()
    assert not end_steps_elsewhere(folder, {("killed", "run/1")}, 0.0)


def test_who_gives_a_batch_up_waits_until_the_steps_have_ended(folder: BatchFolder) -> None:
    folder.write(PieceOfWork("load", "run/0", is_elsewhere=True))
    answers: list[bool] = []
    waiting = Thread(target=lambda: answers.append(end_steps_elsewhere(folder, set(), DEADLINE_SECONDS)))
    waiting.start()
    while not folder.is_settling():
        time.sleep(0.01)
    assert answers == []
    report(folder, PieceOfWork("load", "run/0", is_over=True, is_elsewhere=True))
    waiting.join()
    assert answers == [True]


def test_where_the_directory_is_away_nobody_knows_whether_steps_have_ended(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not end_steps_elsewhere(BatchFolder(tmp_path / "file" / "batch"), set(), 0.0)


def test_a_step_that_comes_to_its_end_when_the_batch_is_gone_leaves_nothing(folder: BatchFolder) -> None:
    execute(folder, lambda _: folder.remove())
    assert not folder.path.exists()


def test_a_directory_that_a_step_does_not_reach_is_named_with_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(BatchFolderError, match=r"seen from .*s3://bucket/prefix\) or a shared volume at the same path"):
        BatchFolder(tmp_path / "not-here").manifest()
