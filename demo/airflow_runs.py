"""The demo on Airflow: starts runs of the DAG `flights_to_delta`, and reads from Airflow what they did."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from demo.airflow_api import FINAL_RUN_STATES
from demo.airflow_stack import AirflowStack, airflow_stack
from demo.processes import ROOT, ServerProcess
from demo.runs import BATCH_SIZE, RUN_SECONDS, SPARK_ENVIRONMENT, RunCounts, Work
from demo.summary import BatchOutcome
from sqs_lease.airflow.page.site import NAVIGATION_VIEW

DAG_ID = "flights_to_delta"
WORK_TASK = "load"
KEEPER_TASK = "flights_keeper"

SHOW_SECONDS = 6 * 3600
"""How long the run takes that is there to be looked at."""

DAG_FILE = ROOT / "dags" / f"{DAG_ID}.py"
SETTINGS = {"FLIGHTS_EXTEND_SECONDS": "10"}
"""Environment variables that the DAG file reads: each lease is extended several times in a run."""
"""The DAG of the demo, alone: the other examples there have no queues here."""


@contextmanager
def airflow_runs(work: Work) -> Iterator[AirflowRuns]:
    """Run Airflow with the DAG of the demo until the block ends.

    Args:
        work: The work of the DAG.

    Yields:
        The runs; at first there are no runs.

    Raises:
        demo.airflow_stack.AirflowSetupError: Airflow's database could not be made.
        demo.airflow_api.AirflowApiError: The DAG could not be imported.
        demo.processes.ProcessFailedError: Airflow did not start.
    """
    dags_folder = work.directory / "dags"
    dags_folder.mkdir(parents=True)
    shutil.copy(DAG_FILE, dags_folder)
    environment = {
        "AIRFLOW_CONN_AWS_DEFAULT": work.server.airflow_connection,
        "AIRFLOW_VAR_FLIGHTS_QUEUE_URL": work.queue_url,
        "AIRFLOW_VAR_FLIGHTS_TABLE": str(work.table),
        **SETTINGS,
        **SPARK_ENVIRONMENT,
    }
    with airflow_stack(work.directory, dags_folder, environment) as stack:
        stack.wait_for_dag(DAG_ID)
        yield AirflowRuns(stack)


@dataclass(slots=True)
class AirflowRuns:
    """The runs of the DAG so far; the first one is told to fail on its first try.

    Args:
        stack: Airflow.
    """

    stack: AirflowStack
    _states: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The address of Airflow's user interface."""
        return self.stack.url

    @property
    def logs(self) -> Path:
        """The logs of the tasks."""
        return self.stack.home / "logs" / f"dag_id={DAG_ID}"

    @property
    def processes(self) -> Sequence[ServerProcess]:
        """Airflow's processes."""
        return list(self.stack.processes.values())

    def look(self) -> RunCounts:
        """See how the runs are."""
        self._states.update(self.stack.api.run_states(DAG_ID))
        at_work = sum(state not in FINAL_RUN_STATES for state in self._states.values())
        return RunCounts(at_work, len(self._states) - at_work)

    def start(self, visible: int) -> None:
        """Start as many runs at once as the visible messages are batches."""
        for _ in range(math.ceil(visible / BATCH_SIZE)):
            conf = {"run_seconds": RUN_SECONDS, "fail_first_try": not self._states}
            self._states[self.stack.api.trigger(DAG_ID, conf)] = "queued"

    def outcomes(self) -> list[BatchOutcome]:
        """Return the outcome of each batch, by the keeper's reports."""
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

    def hold_for_show(self, publish: Callable[[], object]) -> str | None:
        """Start a run that holds what is published for hours; the page *SQS leases* shows it."""
        publish()
        self.stack.api.trigger(DAG_ID, {"run_seconds": SHOW_SECONDS})
        return f"{self.stack.url}/plugin/{NAVIGATION_VIEW['url_route']}"
