"""Watches the Spark jobs of one ingestion: logs how far they are, and cancels them when their result is not wanted.

They are not wanted any more when the block in which they run is left by an exception (a user interrupts it), or when
the messages are held no longer, because somebody else may have them by then. Whatever is asked of Spark here is asked
from a thread of its own, because the thread that ingests waits for Spark's answer meanwhile.

Jobs are cancelled by their job group in a session of the classic kind, and with all that the session runs through
Spark Connect, where nobody else uses it.
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
from sqs_lease.spark.errors import LeaseLostError

logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.5
"""How often Spark is asked how far it is, and told to cancel while something that is not wanted still runs."""

REPORT_SECONDS: Final = 5.0
"""Shortest time between two lines about progress; nothing is said of what takes less."""

HELD_SECONDS: Final = 5.0
"""How often it is asked whether the messages are still held; an answer may take requests to other processes."""

_END_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.05

StillHeld: TypeAlias = Callable[[], object]
"""Says by a true value that the messages are still held. It is called from a thread of its own, and may block."""

Stage: TypeAlias = tuple[int, int, int]
"""A stage that runs: its number, how many of its tasks are done, and how many it has."""


class Watch:
    """What the code that ingests asks of the watcher of its jobs.

    Attributes:
        lost: Whether it is known that the messages are held no longer.
    """

    def __init__(self, name: str, still_held: StillHeld | None) -> None:
        self.lost = False
        self._name = name
        self._still_held = still_held

    def look(self) -> bool:
        """Ask whether the messages are still held, once it was answered with no: remember that for good.

        Without an answer the jobs go on. The sink finds out then: it takes no message twice.
        """
        if self._still_held is not None and not self.lost:
            try:
                self.lost = not self._still_held()
            except Exception as error:  # noqa: BLE001 - the function is the user's, and its errors are not known
                logger.warning("%s: it cannot be found out whether its messages are still held: %r", self._name, error)
        return not self.lost

    def require_held(self) -> None:
        """Ask once more, and raise :meth:`error` if so; to be called right before a commit."""
        if not self.look():
            raise self.error()

    def error(self) -> LeaseLostError:
        """The error that says so."""
        return LeaseLostError(
            f"{self._name} was stopped and nothing more of it is committed: its messages are held no longer, so "
            "somebody else may be working on them. They are received again, and what is in the table already is not "
            "stored twice"
        )


@contextmanager
def watched_jobs(spark: SparkSession, name: str, still_held: StillHeld | None = None) -> Iterator[Watch]:
    """Watch the Spark jobs that this thread starts in the block.

    Args:
        spark: The session of any kind; used by no other thread meanwhile.
        name: What log lines and errors call the work, for example ``batch 17``.
        still_held: Asked every few seconds; None where nobody can tell.

    Raises:
        LeaseLostError: The block was ended by the cancellation of its jobs.
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
        # Whatever it is, nobody waits for these jobs any more.
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
            # Fails where the connection was interrupted or Spark has ended; there is nothing to take back then.
            engine.end()


def cancel_everything(spark: SparkSession) -> None:
    """Cancel all jobs of a session that nobody else uses; to be called from a thread that waits for none of them."""
    if _is_connect(spark):
        spark.interruptAll()
    else:
        spark.sparkContext.cancelAllJobs()


class Report:
    """Writes progress to the log, not more often than is of use."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._next = clock() + REPORT_SECONDS
        self._last = ""

    def is_due(self) -> bool:
        """Whether a line would be written now."""
        return self._clock() >= self._next

    def say(self, stages: Iterable[Stage]) -> None:
        """Say how far stages are."""
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
                # Again and again, because another job may begin before the thread that starts them notices.
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
        """Cancel, and wait until nothing runs: else tasks might write while what they wrote is removed."""
        tracker = self._context.statusTracker()
        deadline = time.monotonic() + _END_SECONDS
        self.cancel()
        while time.monotonic() < deadline:
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
            if not any(job is not None and job.status == "RUNNING" for job in jobs):
                return
            time.sleep(_LOOK_SECONDS)

    def interrupted(self) -> None:
        """Give up this thread's connection to Spark: an answer that nobody read is still on its way through it.

        The next call, for example to stop the session, makes a new one.
        """
        close_connection(self._context)


class _Connect:
    """A session whose driver is elsewhere: it tells of its progress by itself, while it is waited for."""

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
