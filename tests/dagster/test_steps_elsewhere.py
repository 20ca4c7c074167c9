"""Steps in processes that the run worker did not start: nothing would end them in time, so they do not get its batch.

The queues are in memory. The steps are executed in this process, which does not know that it is the run worker:
tests/processes/dagster/test_executor_elsewhere.py has a launcher of steps.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import dagster as dg
import pytest

from sqs_lease.dagster.run_batch.leased_batch import is_of_run_worker, working_on
from sqs_lease.testing.leased_queues import LeasedQueue, LeasedQueues
from tests.dagster import around_jobs
from tests.dagster.executor_runs import Runs, numbers, runs_in


@pytest.fixture
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with runs_in(tmp_path_factory.mktemp("workspace")) as made:
        yield made
        assert list(made.workspace.iterdir()) == []


@pytest.fixture
def queue(leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch) -> LeasedQueue:
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    return leased_queues.create("orders", visibility_seconds=600)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process be none of the run worker's."""

    def unknown(_: str) -> AbstractContextManager[None]:
        return nullcontext()

    monkeypatch.setattr("sqs_lease.dagster.executor.working_on", unknown)


def errors(result: dg.JobExecutionResult) -> list[str]:
    return [str(event.step_failure_data.error) for event in result.all_events if event.is_step_failure]


@pytest.mark.usefixtures("elsewhere")
def test_a_step_elsewhere_is_refused_the_batch_and_told_what_to_do(runs: Runs, queue: LeasedQueue) -> None:
    queue.send("a")
    result = runs.execute(around_jobs.strict, {}, {})
    assert not result.success
    assert any("BatchFolderError: step check of job strict runs in process" in error for error in errors(result))
    assert all("lease in each step: queue.lease(context) then receives" in error for error in errors(result))


@pytest.mark.usefixtures("elsewhere")
def test_messages_are_not_at_fault_where_steps_run_elsewhere(runs: Runs, queue: LeasedQueue) -> None:
    queue.send("a", "b")
    result = runs.execute(around_jobs.strict, {}, {})
    assert (sorted(queue.visible), queue.dead_letters, queue.deleted) == (["a", "b"], [], 0)
    assert numbers(result)["sqs/released"] == 2


@pytest.mark.usefixtures("elsewhere")
def test_a_step_elsewhere_is_refused_without_messages_too(runs: Runs, queue: LeasedQueue) -> None:
    assert queue.visible == []
    assert not runs.execute(around_jobs.strict, {}, {}).success


def test_a_process_is_of_the_worker_of_the_runs_that_it_works_on_alone() -> None:
    with working_on("run"), working_on("another"):
        assert is_of_run_worker("run")
        assert not is_of_run_worker("a third")
    assert not is_of_run_worker("run")


def test_a_process_that_the_run_worker_started_for_a_step_is_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = object()
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: parent)
    assert is_of_run_worker("run")
