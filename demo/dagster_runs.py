"""The demo on Dagster: a sensor of `dagster_defs` starts runs of its asset `flights`, which are read here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from demo.dagster_api import FINAL_RUN_STATES
from demo.dagster_stack import DagsterStack, dagster_stack
from demo.processes import ServerProcess
from demo.runs import RUN_SECONDS, SPARK_ENVIRONMENT, RunCounts, Work
from demo.summary import BatchOutcome

DEFINITIONS = "dagster_defs"
ASSET = "flights"

STOP_SECONDS = 3.0
"""How long Dagster may take to end by itself."""


@contextmanager
def dagster_runs(work: Work) -> Iterator[DagsterRuns]:
    """Run Dagster with the code location `dagster_defs` until the block ends.

    The sensor of the asset starts by itself. One run is started by hand, and told to fail on its first try.

    Args:
        work: The work of the asset.

    Yields:
        The runs, of which there is one or more.

    Raises:
        demo.dagster_api.DagsterApiError: The run could not be started.
        demo.dagster_stack.DagsterSetupError: Dagster's database could not be made, or `dagster_defs` not loaded.
        demo.processes.ProcessFailedError: Dagster did not start.
    """
    environment = {
        **work.server.environment,
        "FLIGHTS_QUEUE": work.queue_url,
        "FLIGHTS_RUN_SECONDS": str(RUN_SECONDS),
        "LAKE_DIRECTORY": str(work.table),
        **SPARK_ENVIRONMENT,
    }
    # When the demo is interrupted, the code server would wait for the end of its runs for as long as it may.
    with dagster_stack(work.directory, DEFINITIONS, environment, stop_grace_seconds=STOP_SECONDS) as stack:
        stack.api.materialize(ASSET, config={"ops": {ASSET: {"config": {"fail_first_try": True}}}})
        yield DagsterRuns(stack)


@dataclass(slots=True)
class DagsterRuns:
    """The runs so far.

    Args:
        stack: Dagster.
    """

    stack: DagsterStack
    _states: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The address of Dagster's user interface."""
        return self.stack.url

    @property
    def logs(self) -> Path:
        """The directory of the steps' output; their event logs are in the user interface only."""
        return self.stack.home / "storage"

    @property
    def processes(self) -> Sequence[ServerProcess]:
        """Dagster's processes."""
        return list(self.stack.processes.values())

    def look(self) -> RunCounts:
        """See how the runs are."""
        self._states.update((run.run_id, run.state) for run in self.stack.api.runs())
        at_work = sum(state not in FINAL_RUN_STATES for state in self._states.values())
        return RunCounts(at_work, len(self._states) - at_work)

    def start(self, visible: int) -> None:
        """Do nothing: the sensor sees that messages are visible."""

    def outcomes(self) -> list[BatchOutcome]:
        """Return the outcome of each batch, by the asset's observation at the end of the step."""
        found = []
        for materialization in self.stack.api.materializations(ASSET):
            run_id = materialization.run_id
            events = self.stack.api.events(run_id)
            observed = (event.metadata for event in events if event.event_type == "ASSET_OBSERVATION")
            # Counts that are 0 are not shown.
            numbers = Counter({"sqs/received": 0, **next(observed, {})})
            retried = sum(event.event_type == "STEP_RESTARTED" for event in events)
            # Another run may take the messages of a failed try, so that the next try has an empty batch.
            if numbers["sqs/received"] or retried:
                found.append(
                    BatchOutcome(
                        run_id,
                        received=numbers["sqs/received"],
                        extensions=numbers["sqs/extensions"],
                        extension_calls=_calls(str(numbers["sqs/queue"])),
                        lost=numbers["sqs/lost"],
                        retried=retried,
                    )
                )
        return found

    def failed(self) -> list[str]:
        """The ids of the runs that did not succeed."""
        return [run_id for run_id, state in self._states.items() if state in FINAL_RUN_STATES - {"SUCCESS"}]

    def hold_for_show(self, publish: Callable[[], object]) -> str | None:
        """Nothing: Dagster's interface has no page of leases."""
        return None


def _calls(queue: str) -> int:
    """The number of calls that extended leases, from the row of the queue."""
    found = re.search(r"(\d+) calls that extended leases", queue)
    return 0 if found is None else int(found[1])
