"""Runs of the executor's jobs in this process, and what their logs say of the lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.reconstruct import ReconstructableRepository

from sqs_lease.dagster.run_batch.batch_of_run import BATCH_TAG
from sqs_lease.testing.leased_queues import LeasedQueue
from tests.dagster import executor_jobs
from tests.dagster.instances import stored_instance

# Each step that has a process is forked from one that has all modules loaded already.
FORK_SERVER = {"start_method": {"forkserver": {"preload_modules": [executor_jobs.__name__]}}}


class Runs:
    """Executes jobs; this process is the run worker.

    Attributes:
        instance: Dagster's instance.
        workspace: Where the executor's files are.
    """

    def __init__(self, instance: dg.DagsterInstance, workspace: Path) -> None:
        self.instance = instance
        self.workspace = workspace

    def execute(
        self,
        job: Callable[[], dg.JobDefinition],
        ops: Mapping[str, Mapping[str, Any]] | None = None,
        executor: Mapping[str, Any] = FORK_SERVER,
        **options: Any,
    ) -> dg.JobExecutionResult:
        """Execute a job, with the configuration of its ops by their names, and that of its executor."""
        config = {
            "execution": {"config": dict(executor)},
            "ops": {name: {"config": dict(values)} for name, values in (ops or {}).items()},
        }
        return dg.execute_job(dg.reconstructable(job), self.instance, run_config=config, **options)

    def materialize(self, definitions: Callable[[], dg.Definitions], *assets: str) -> dg.JobExecutionResult:
        """Materialize some assets by the job that Dagster makes of all."""
        location = ReconstructableRepository.for_module(definitions.__module__, definitions.__name__)
        job = location.get_reconstructable_job("__ASSET_JOB")
        return dg.execute_job(job, self.instance, asset_selection=[dg.AssetKey(each) for each in assets])

    def told(self, run_id: str) -> list[str]:
        """List the messages about the lease in the run's log."""
        return [
            entry.user_message if entry.dagster_event is None else entry.dagster_event.message or ""
            for entry in self.instance.all_logs(run_id)
        ]


@contextmanager
def runs_in(workspace: Path, **settings: Any) -> Iterator[Runs]:
    """Have an instance, and the jobs' workspace in a directory: Dagster makes each job once in a process.

    Args:
        workspace: The directory.
        settings: The settings of ``dagster.yaml``.
    """
    with pytest.MonkeyPatch.context() as patch, stored_instance(**settings) as instance:
        patch.setenv("ORDERS_WORKSPACE", str(workspace))
        yield Runs(instance, workspace)


def numbers(result: dg.JobExecutionResult) -> dict[str, Any]:
    """Read the lease's numbers from the run's log."""
    engine_events = [event for event in result.all_events if event.is_engine_event]
    metadata = [event.engine_event_data.metadata for event in engine_events]
    return {name: value.value for each in metadata for name, value in each.items() if name.startswith("sqs/")}


def failure(result: dg.JobExecutionResult) -> str:
    """Why a run failed that executed no step."""
    assert not [event for event in result.all_events if event.is_step_start]
    (failed,) = (event for event in result.all_events if event.is_job_failure)
    error = failed.job_failure_data.error
    assert error is not None
    return str(error.message)


def check_that_only_a_whole_repetition_may_lease(runs: Runs, queue: LeasedQueue, failed: dg.JobExecutionResult) -> None:
    """A run from the failure on is refused; one that repeats all steps leases the message again, and deletes it."""
    refused = runs.execute(
        executor_jobs.orders,
        reexecution_options=dg.ReexecutionOptions.from_failure(failed.run_id, runs.instance),
    )
    assert "leaves out 'check', 'load'" in failure(refused)
    assert '"dagster/retry_strategy": "ALL_STEPS"' in failure(refused)
    assert queue.visible == ["a"]

    run = runs.instance.get_run_by_id(failed.run_id)
    assert run is not None
    repeated = runs.execute(
        executor_jobs.orders,
        {"report": {"receive_count": 2}, "check": {"receive_count": 2}, "load": {"receive_count": 2}},
        reexecution_options=dg.ReexecutionOptions(failed.run_id),
        # As the web server and the daemon do, which pass on the tags.
        tags={BATCH_TAG: run.tags[BATCH_TAG]},
    )
    assert repeated.success
    assert (queue.visible, queue.deleted) == ([], 1)
