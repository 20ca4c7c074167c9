"""The work of an orchestrator's runs until the queue is drained, the same for all orchestrators."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from demo.processes import ServerProcess, pause, require_running
from demo.queues import Queues
from demo.sqs_server import SqsServer
from demo.summary import BatchOutcome

BATCH_SIZE = 1500
"""Most messages of a run: `max_messages` of the DAG and of the asset."""

RUN_SECONDS = 30
"""How long each run takes at least; but for a few seconds, its messages are held all the time."""

STALLED_SECONDS = 600.0
"""How long it may take until a message is done, or a row stored: a slow machine may take long for all of them."""

LOOK_SECONDS = 2.0
STILL_SECONDS = 10.0

SPARK_ENVIRONMENT = {
    # Each batch starts a Spark of its own for a few seconds of work: compiling it to the last costs more than
    # twice the processor time that it saves, and several run at once on perhaps two cores.
    "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Environment variables of the runs for Spark."""


class NotDrainedError(RuntimeError):
    """The queue still held messages, and nothing was done for a long time."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of an orchestrator: bring the messages of a queue into a table."""

    server: SqsServer
    queue_url: str
    directory: Path
    """Where the orchestrator's own files go."""
    table: Path
    """The table is its subdirectory `flights`."""


@dataclass(frozen=True, slots=True)
class RunCounts:
    """How many runs there are, by whether they are over."""

    at_work: int
    over: int


class Runs(Protocol):
    """The runs on an orchestrator that is up: all that differs between one and the other."""

    @property
    def url(self) -> str:
        """The address of its user interface, which asks for no login."""

    @property
    def logs(self) -> Path:
        """Where it is written what the runs did."""

    @property
    def processes(self) -> Sequence[ServerProcess]:
        """Its processes, all of which must run for as long as there is work."""

    def look(self) -> RunCounts:
        """See which runs there are by now."""

    def start(self, visible: int) -> None:
        """Start runs for visible messages; it is called again and again while no run is at work.

        Args:
            visible: The number of messages that can be received now.
        """

    def outcomes(self) -> list[BatchOutcome]:
        """Return the outcome of each batch; runs that received nothing are left out."""

    def failed(self) -> list[str]:
        """The ids of the runs that failed."""

    def hold_for_show(self, publish: Callable[[], object]) -> str | None:
        """Start a run that holds messages, for people to look at.

        Args:
            publish: Sends the messages.

        Returns:
            The address of the page that shows what is held. None where the orchestrator has no such page: then nothing
            is published.
        """


def drain(
    runs: Runs, queues: Queues, server: ServerProcess, rows: Callable[[], int], show: Callable[[str], None]
) -> None:
    """Let runs work until every message is deleted or in the dead-letter queue.

    Args:
        runs: The runs.
        queues: The queues.
        server: The process that serves them.
        rows: Tells how many rows the table has now.
        show: Takes one line that says how it stands: when that changed, and every ten seconds.

    Raises:
        NotDrainedError: For ten minutes no message left the queue, and no row came.
        demo.processes.ProcessFailedError: The SQS server or one of the orchestrator's processes ended.
    """
    shown, shown_at = "", 0.0
    done: tuple[int, int, int] | None = None
    done_at = time.monotonic()
    while True:
        require_running([server, *runs.processes])
        # In this order, so that messages that an ended run gave back count as visible.
        found, counts = runs.look(), queues.counts()
        now, dead_letters, stored = time.monotonic(), queues.dead_letters(), rows()
        if (counts.total, dead_letters, stored) != done:
            done, done_at = (counts.total, dead_letters, stored), now
        line = (
            f"runs: {found.at_work} at work, {found.over} over | "
            f"queue: {counts.visible} visible, {counts.in_flight} in flight | "
            f"dead letters: {dead_letters} | table: {stored} rows"
        )
        if line != shown or now > shown_at + STILL_SECONDS:
            show(line)
            shown, shown_at = line, now
        if not found.at_work and not counts.total:
            return
        if now > done_at + STALLED_SECONDS:
            raise NotDrainedError(
                f"The queue still holds {counts.total} messages, and none was done for {STALLED_SECONDS:.0f} s: {line}"
            )
        if not found.at_work:
            runs.start(counts.visible)
        pause(runs.processes[0], LOOK_SECONDS)
