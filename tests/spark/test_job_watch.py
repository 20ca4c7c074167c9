"""Spark jobs tell how far they are, and are cancelled when their result is not needed any more."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread, Timer, get_ident
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession

from sqs_lease.spark import LeaseLostError, job_watch
from sqs_lease.spark.job_watch import REPORT_SECONDS, Report, watched_jobs
from tests.spark.samples import Place, good

RELEASED = "released"


class Hands:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def run_until(spark: SparkSession, released: Path) -> int:
    """A job of two tasks, the second of which ends when a file is there."""
    path = str(released)

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            while 1 in batch["id"].to_pylist() and not Path(path).exists():
                Event().wait(0.02)
            yield batch

    return spark.range(0, 2, 1, 2).mapInArrow(wait, "id BIGINT").count()


def active_jobs(spark: SparkSession) -> list[int]:
    """Asked in a thread of its own, as whatever else talks to Spark while another thread waits for it."""
    found: list[int] = []
    thread = Thread(target=lambda: found.extend(spark.sparkContext.statusTracker().getActiveJobsIds()))
    thread.start()
    thread.join()
    return found


def no_jobs(spark: SparkSession) -> bool:
    return not active_jobs(spark)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TICK_SECONDS", "REPORT_SECONDS", "HELD_SECONDS"):
        monkeypatch.setattr(job_watch, name, 0.05)


@pytest.mark.usefixtures("often")
def test_a_stage_under_way_is_in_the_log(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    released = tmp_path / RELEASED

    class Releasing(logging.Handler):
        """Lets the task go once its progress was told."""

        def emit(self, record: logging.LogRecord) -> None:
            if "1 of 2 tasks" in record.getMessage():
                released.touch()

    handler = Releasing()
    job_watch.logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO), watched_jobs(spark, "batch a"):
            assert run_until(spark, released) == 2
    finally:
        job_watch.logger.removeHandler(handler)
    assert any(text.startswith("batch a: stage ") for text in caplog.messages)


@pytest.mark.usefixtures("often")
def test_jobs_are_cancelled_when_their_messages_are_lost(spark: SparkSession, tmp_path: Path) -> None:
    said = "batch a was stopped and nothing more of it is committed"
    still_held = partial(no_jobs, spark)
    with pytest.raises(LeaseLostError, match=said), watched_jobs(spark, "batch a", still_held):
        run_until(spark, tmp_path / RELEASED)
    assert active_jobs(spark) == []
    assert spark.range(2).count() == 2


class TimedOutError(BaseException):
    """As Airflow's for a task that takes too long."""


def test_an_interrupted_thread_leaves_no_job_behind_and_a_session_that_works(
    spark: SparkSession, tmp_path: Path
) -> None:
    interrupting = interrupting_when(lambda: not no_jobs(spark))
    with interrupting, pytest.raises(TimedOutError), watched_jobs(spark, "batch a"):
        run_until(spark, tmp_path / RELEASED)
    assert active_jobs(spark) == []
    assert spark.range(2).count() == 2


@contextmanager
def interrupting_when(condition: Any) -> Iterator[None]:
    """Interrupt this thread, as by a signal, once something is the case."""

    def interrupt(*_: object) -> None:
        raise TimedOutError

    def watch() -> None:
        while not condition():
            Event().wait(0.05)
        # To the thread that waits, as otherwise it goes on waiting.
        signal.pthread_kill(waiting, signal.SIGUSR1)

    waiting = get_ident()
    before = signal.signal(signal.SIGUSR1, interrupt)
    watcher = Timer(0, watch)
    watcher.start()
    try:
        yield
    finally:
        watcher.join()
        signal.signal(signal.SIGUSR1, before)


def test_the_job_group_of_the_caller_comes_back(spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    context.setJobGroup("mine", "my jobs")
    try:
        with watched_jobs(spark, "batch a"):
            assert context.getLocalProperty("spark.jobGroup.id") != "mine"
        assert context.getLocalProperty("spark.jobGroup.id") == "mine"
        assert context.getLocalProperty("spark.job.description") == "my jobs"
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        context.setLocalProperty("spark.job.description", None)


def test_nothing_is_committed_for_messages_that_are_held_no_longer(place: Place) -> None:
    with pytest.raises(LeaseLostError):
        place.ingest(good([1, 2]), still_held=lambda: False)
    assert place.ingest(good([1, 2]), still_held=lambda: True).rows == 2


def test_a_check_of_the_leases_that_fails_stops_nothing(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> bool:
        raise RuntimeError("no answer")

    assert place.ingest(good([1]), still_held=fail).rows == 1
    assert "the check whether its messages are still held failed" in caplog.text


async def _later() -> bool:
    return False


class Later:
    async def __call__(self) -> bool:
        return False


def _in_pieces() -> Iterator[bool]:
    yield False


@pytest.mark.parametrize(
    ("still_held", "says"),
    [
        (_later, "async"),
        (partial(_later), "async"),
        (Later(), "async"),
        (_in_pieces, "yields"),
        (True, "must be a function, not bool"),
    ],
)
def test_a_check_of_the_leases_that_could_never_say_no_is_refused(place: Place, still_held: Any, says: str) -> None:
    with pytest.raises(TypeError, match=f"still_held .*{says}"):
        place.ingest(good([1]), still_held=still_held)

    assert not place.table.exists()


def test_a_coroutine_is_not_taken_for_a_yes(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    def seems_plain() -> object:
        return _later()

    assert place.ingest(good([1]), still_held=seems_plain).rows == 1
    assert "the check whether its messages are still held failed" in caplog.text
    assert "it gave a coroutine" in caplog.text


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text.removeprefix("batch a: ") for text in caplog.messages]


def test_progress_is_told_every_few_seconds_and_only_when_it_is_news(caplog: pytest.LogCaptureFixture) -> None:
    clock = Hands()
    with caplog.at_level(logging.INFO):
        report = Report("batch a", clock)
        report.say([(2, 1, 200)])
        clock.seconds += REPORT_SECONDS
        report.say([(2, 37, 200), (3, 0, 4)])
        report.say([(2, 38, 200)])
        clock.seconds += REPORT_SECONDS
        report.say([(2, 37, 200), (3, 0, 4)])
        report.say([])
        report.say([(3, 1, 4)])
    assert said(caplog) == ["stage 2: 37 of 200 tasks, stage 3: 0 of 4 tasks", "stage 3: 1 of 4 tasks"]
