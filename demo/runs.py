"""Drives the DAG until the queue is drained, and reads from Airflow what its runs did."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from demo.airflow_api import FINAL_RUN_STATES
from demo.airflow_stack import AirflowStack
from demo.processes import ServerProcess, pause, require_running
from demo.queues import Counts, Queues
from demo.summary import BatchOutcome

DAG_ID = "flights_to_delta"
WORK_TASK = "load"
KEEPER_TASK = "flights_keeper"
BATCH_SIZE = 1500
"""`max_messages` of the DAG."""

RUN_SECONDS = 45
"""How long each run takes at least; but for a few seconds, its messages are held all the time."""

DEADLINE_SECONDS = 600.0
LOOK_SECONDS = 2.0
STILL_SECONDS = 10.0


class NotDrainedError(RuntimeError):
    """The queue still held messages at the deadline."""


@dataclass(slots=True)
class Runs:
    """The runs of the demo so far.

    Args:
        stack: Airflow.
        queues: The queues.
        server: The process that serves them.
        rows: Tells how many rows the table has now.
        show: Takes one line that says how it stands: when that changed, and every ten seconds.
    """

    stack: AirflowStack
    queues: Queues
    server: ServerProcess
    rows: Callable[[], int]
    show: Callable[[str], None]
    _states: dict[str, str] = field(default_factory=dict)

    def drain(self) -> None:
        """Start runs until every message is deleted or in the dead-letter queue.

        As many at once as the visible messages are batches; when those are over, as many as it takes for what they
        gave back. The first one is told to fail on its first try.

        Raises:
            NotDrainedError: That took longer than ten minutes.
            demo.processes.ProcessFailedError: The SQS server or one of Airflow's processes ended.
        """
        deadline = time.monotonic() + DEADLINE_SECONDS
        shown, shown_at = "", 0.0
        while True:
            require_running([self.server, *self.stack.processes.values()])
            # In this order: what a run that is over gave back is seen as visible.
            self._states.update(self.stack.api.run_states(DAG_ID))
            counts = self.queues.counts()
            line = self._line(counts)
            if line != shown or time.monotonic() > shown_at + STILL_SECONDS:
                self.show(line)
                shown, shown_at = line, time.monotonic()
            active = self._active()
            if not active and not counts.total:
                return
            if time.monotonic() > deadline:
                raise NotDrainedError(
                    f"The queue still holds {counts.total} messages after {DEADLINE_SECONDS:.0f} s: {line}"
                )
            if not active:
                for _ in range(math.ceil(counts.visible / BATCH_SIZE)):
                    conf = {"run_seconds": RUN_SECONDS, "fail_first_try": not self._states}
                    self._states[self.stack.api.trigger(DAG_ID, conf)] = "queued"
            pause(self.stack.processes["scheduler"], LOOK_SECONDS)

    def outcomes(self) -> list[BatchOutcome]:
        """What became of each batch; runs that received nothing are left out."""
        found = []
        for run_id in self._states:
            report = self.stack.api.xcom(DAG_ID, run_id, KEEPER_TASK, "lease_report")
            if report:
                tasks = self.stack.api.task_states(DAG_ID, run_id)
                found.append(
                    BatchOutcome(
                        run_id,
                        received=report["received"],
                        extensions=report["extensions"],
                        extension_calls=report["extension_calls"],
                        lost=report["lost"],
                        retried=sum(task.try_number > 1 for task in tasks if task.task_id == WORK_TASK),
                    )
                )
        return found

    def failed(self) -> list[str]:
        """The ids of the runs that failed."""
        return [run_id for run_id, state in self._states.items() if state == "failed"]

    def _active(self) -> list[str]:
        return [run_id for run_id, state in self._states.items() if state not in FINAL_RUN_STATES]

    def _line(self, counts: Counts) -> str:
        active = len(self._active())
        return (
            f"runs: {active} at work, {len(self._states) - active} over | "
            f"queue: {counts.visible} visible, {counts.in_flight} in flight | "
            f"dead letters: {self.queues.dead_letters()} | table: {self.rows()} rows"
        )
