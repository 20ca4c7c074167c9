"""Watch over the Spark jobs of one ingestion: it logs their progress, and cancels them when they have become useless.

Jobs have become useless when an exception leaves the block in which they run (for example a user interrupts it), or
when the leases of the messages have ended, because another receiver may have the messages by then. All calls to Spark
here are made in a thread of their own, because the thread that ingests is waiting for Spark.

In a classic session jobs are cancelled by their job group. Through Spark Connect, all jobs of the session are
cancelled, because the session belongs to the ingestion.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any, Final, TypeAlias
from uuid import uuid4

from pyspark.sql import SparkSession

from sqs_lease.spark._jvm import cancel_group_and_future_jobs, close_connection
from sqs_lease.spark.arguments import answer_of
from sqs_lease.spark.errors import LeaseLostError

logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.5
"""The interval at which Spark is asked for progress, and told to cancel while a useless job still runs."""

REPORT_SECONDS: Final = 5.0
"""The shortest time between two log lines about progress; shorter jobs are not logged."""

HELD_SECONDS: Final = 5.0
"""The interval at which ``still_held`` is called; an answer may take requests to other processes."""

_END_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.05

StillHeld: TypeAlias = Callable[[], object]
"""Returns a true value while the messages are still held. It is called in a thread of its own, and may block."""

Stage: TypeAlias = tuple[int, int, int]
"""A running stage: its number, the number of its finished tasks, and the number of its tasks."""


class Watch:
    """The watch as the code that ingests uses it.

    Attributes:
        lost: Whether the messages are known to be no longer held.
    """

    def __init__(self, name: str, still_held: StillHeld | None) -> None:
        self.lost = False
        self._name = name
        self._still_held = still_held

    def look(self) -> bool:
        """Return whether the messages are still held. The first no is final.

        If the function raises, the jobs go on. Nothing is lost by that: the sink stores no message twice.
        """
        if self._still_held is not None and not self.lost:
            try:
                self.lost = not answer_of(self._still_held)
            except Exception as error:  # noqa: BLE001 - the function is the user's, and its errors are not known
                logger.warning("%s: the check whether its messages are still held failed: %r", self._name, error)
        return not self.lost

    def require_held(self) -> None:
        """Check once more, and raise :meth:`error` if they are not held. Call it right before a commit."""
        if not self.look():
            raise self.error()

    def error(self) -> LeaseLostError:
        """Make the error for messages that are no longer held."""
        return LeaseLostError(
            f"{self._name} was stopped and nothing more of it is committed: its messages are no longer held, so "
            "another receiver may be working on them. They are received again, and what is in the table already is not "
            "stored twice"
        )


@contextmanager
def watched_jobs(spark: SparkSession, name: str, still_held: StillHeld | None = None) -> Iterator[Watch]:
    """Watch the Spark jobs that this thread starts in the block.

    Args:
        spark: A session of any kind; no other thread may use it meanwhile.
        name: The name of the work in log lines and errors, for example ``batch 17``.
        still_held: Called every few seconds; None if there is no way to tell.

    Raises:
        LeaseLostError: The block ended because its jobs were cancelled.
    """
    watch = Watch(name, still_held)
    engine = _Connect(spark) if _is_connect(spark) else _Classic(spark, name)
    stop = Event()
    thread = Thread(target=_attend, args=(watch, engine, Report(name), stop), name=f"sqs-lease {name}", daemon=True)
    engine.begin()
    thread.start()
    try:
        yield watch
    except BaseException as error:
        # Whatever the error is, the result of these jobs is not needed.
        _in_thread(engine.cancel_and_wait)
        if not isinstance(error, Exception):
            engine.interrupted()
        if watch.lost and not isinstance(error, LeaseLostError):
            raise watch.error() from error
        raise
    finally:
        stop.set()
        thread.join(_END_SECONDS)
        with suppress(Exception):
            # It fails if the connection was interrupted or Spark has ended; then there is nothing to restore.
            engine.end()


def cancel_everything(spark: SparkSession) -> None:
    """Cancel all jobs of a session that belongs to the caller. Call it in a thread that does not wait for a job."""
    if _is_connect(spark):
        spark.interruptAll()
    else:
        spark.sparkContext.cancelAllJobs()


class Report:
    """Rate-limited log of progress."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._next = clock() + REPORT_SECONDS
        self._last = ""

    def is_due(self) -> bool:
        """Whether a line would be written now."""
        return self._clock() >= self._next

    def say(self, stages: Iterable[Stage]) -> None:
        """Log the progress of stages, if a line is due and something changed."""
        text = ", ".join(f"stage {stage}: {done} of {tasks} tasks" for stage, done, tasks in stages)
        if text and text != self._last and self.is_due():
            self._last, self._next = text, self._clock() + REPORT_SECONDS
            logger.info("%s: %s", self._name, text)


def _attend(watch: Watch, engine: _Classic | _Connect, report: Report, stop: Event) -> None:
    next_look = time.monotonic() + HELD_SECONDS
    while not stop.wait(TICK_SECONDS):
        if not watch.lost and time.monotonic() >= next_look:
            watch.look()
            next_look = time.monotonic() + HELD_SECONDS
        try:
            if watch.lost:
                # Again and again, because the thread that ingests may start another job before it notices.
                engine.cancel()
            elif report.is_due():
                report.say(engine.stages())
        except Exception as error:  # noqa: BLE001 - Spark's errors have no common class, and the work goes on without
            logger.debug("%r while Spark was asked for its progress", error)


def _in_thread(call: Callable[[], None]) -> None:
    def guarded() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - as above: Spark may be gone, and with it the jobs
            logger.debug("%r while jobs were cancelled", error)

    thread = Thread(target=guarded, name="sqs-lease cancellation", daemon=True)
    thread.start()
    thread.join(_END_SECONDS)


class _Classic:
    """A session in whose process Spark's driver runs."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._context: Any = spark.sparkContext
        self._name = name
        self._group = f"sqs-lease-{uuid4().hex}"
        self._before: tuple[str | None, str | None] = (None, None)

    def begin(self) -> None:
        read = self._context.getLocalProperty
        self._before = (read("spark.jobGroup.id"), read("spark.job.description"))
        self._context.setJobGroup(self._group, self._name)

    def end(self) -> None:
        group, description = self._before
        self._context.setLocalProperty("spark.jobGroup.id", group)
        self._context.setLocalProperty("spark.job.description", description)

    def stages(self) -> Iterable[Stage]:
        tracker = self._context.statusTracker()
        # Stages of the group's jobs that run now; others have a number of tasks too, but nothing to tell.
        active = set(tracker.getActiveStageIds())
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            for stage in sorted(active & set(info.stageIds if info is not None else ())):
                if (progress := tracker.getStageInfo(stage)) is not None:
                    yield stage, progress.numCompletedTasks, progress.numTasks

    def cancel(self) -> None:
        cancel_group_and_future_jobs(self._context, self._group)

    def cancel_and_wait(self) -> None:
        """Cancel, and wait until no job runs: otherwise tasks could still write while their files are removed."""
        tracker = self._context.statusTracker()
        deadline = time.monotonic() + _END_SECONDS
        self.cancel()
        while time.monotonic() < deadline:
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
            if not any(job is not None and job.status == "RUNNING" for job in jobs):
                return
            time.sleep(_LOOK_SECONDS)

    def interrupted(self) -> None:
        """Close this thread's connection to Spark, in which an unread answer is still on its way.

        The next call, for example to stop the session, makes a new connection.
        """
        close_connection(self._context)


class _Connect:
    """A session with its driver in another process, which reports its progress while a call waits."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._stages: list[Stage] = []

    def begin(self) -> None:
        self._spark.registerProgressHandler(self._progress)

    def end(self) -> None:
        self._spark.removeProgressHandler(self._progress)

    def _progress(
        self, stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool
    ) -> None:
        running = [
            (stage.stage_id, stage.num_completed_tasks, stage.num_tasks) for stage in stages or () if not stage.done
        ]
        # One assignment: the thread that reports reads while this one writes.
        self._stages = [] if done else running

    def stages(self) -> Iterable[Stage]:
        return self._stages

    def cancel(self) -> None:
        self._spark.interruptAll()

    # The server does not say when the last task has ended.
    cancel_and_wait = cancel

    def interrupted(self) -> None:
        """Each request is a call of its own, so an interrupted one leaves nothing behind."""


def _is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")
