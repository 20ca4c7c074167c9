"""One batch over a run whose steps any executor runs: Dagster's own, and some that do what such executors may do.

The queues are in memory, and this process is the run worker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import dagster as dg
import pytest

from sqs_lease.dagster import LeasedBatch, MessageFailed, SqsQueueResource
from sqs_lease.dagster.executor import sqs_lease_executor
from sqs_lease.dagster.run_batch.folder import BatchFolderError
from sqs_lease.testing.leased_queues import LeasedQueue, LeasedQueues
from tests.dagster import around_jobs, executor_jobs
from tests.dagster.executor_runs import Runs, numbers, runs_in

QUEUE = SqsQueueResource(queue="orders")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with runs_in(tmp_path_factory.mktemp("workspace")) as runs:
        yield runs


@pytest.fixture
def runs(made: Runs) -> Iterator[Runs]:
    yield made
    assert list(made.workspace.iterdir()) == []


@pytest.fixture
def queue(leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch) -> LeasedQueue:
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    return leased_queues.create("orders", visibility_seconds=600)


def run_error(result: dg.JobExecutionResult) -> str:
    (failed,) = (event for event in result.all_events if event.is_job_failure)
    error = failed.job_failure_data.error
    assert error is not None
    return str(error)


@pytest.mark.parametrize(
    ("job", "config"),
    [
        (around_jobs.in_process, {}),
        (around_jobs.either, {"in_process": {}}),
        (around_jobs.without_retries, {}),
        (around_jobs.asking, {}),
        (around_jobs.ready_made, {}),
    ],
    ids=["in_process", "multi_or_in_process", "configured", "one that asks the context for itself", "an instance"],
)
def test_any_executor_runs_the_steps_with_its_own_configuration(
    runs: Runs, queue: LeasedQueue, job: Callable[[], dg.JobDefinition], config: dict[str, Any]
) -> None:
    queue.send("a", "bad")
    result = runs.execute(job, {"check": {"fails": ["bad"]}}, config)
    assert result.success
    assert (queue.visible, queue.deleted) == (["bad"], 1)
    assert numbers(result)["sqs/received"] == 2


def test_the_configuration_of_a_run_is_that_of_the_executor_that_runs_the_steps(runs: Runs, queue: LeasedQueue) -> None:
    with pytest.raises(dg.DagsterInvalidConfigError, match="max_concurrent"):
        runs.execute(around_jobs.in_process, executor={"max_concurrent": 3})


def test_an_executor_in_the_run_worker_needs_no_stored_instance() -> None:
    config: dict[str, object] = {}
    assert sqs_lease_executor(QUEUE, workspace="/orders", around=dg.in_process_executor).get_requirements(config) == []
    assert dg.ExecutorRequirement.NON_EPHEMERAL_INSTANCE in sqs_lease_executor(
        QUEUE, workspace="/orders"
    ).get_requirements(config)


@pytest.mark.parametrize(
    ("job", "dead_letters"), [(around_jobs.in_process, []), (around_jobs.without_retries, ["a"])], ids=["on", "off"]
)
def test_steps_are_retried_as_the_executor_that_runs_them_has_it(
    runs: Runs, queue: LeasedQueue, job: Callable[[], dg.JobDefinition], dead_letters: list[str]
) -> None:
    queue.send("a")
    result = runs.execute(job, {"load": {"raises": True, "wrong_tries": 1}}, {})
    assert result.success == (not dead_letters)
    assert (queue.visible, queue.dead_letters) == ([], dead_letters)


def test_what_a_step_raised_counts_where_the_executor_raises_it_too(runs: Runs, queue: LeasedQueue) -> None:
    queue.send("a", "bad")
    with pytest.raises(ZeroDivisionError):
        runs.execute(around_jobs.in_process, {"report": {"raises": True}}, {}, raise_on_error=True)
    assert (queue.visible, queue.dead_letters) == ([], ["a", "bad"])


def test_messages_of_a_dynamic_output_that_an_executor_did_not_get_to_are_not_deleted(
    runs: Runs, queue: LeasedQueue
) -> None:
    queue.send("bad", "good")
    with pytest.raises(MessageFailed):
        runs.execute(around_jobs.mapped, {}, {}, raise_on_error=True)
    assert (queue.visible, queue.dead_letters) == (["good"], ["bad"])


def test_nothing_is_deleted_where_an_executor_ends_before_its_steps(runs: Runs, queue: LeasedQueue) -> None:
    queue.send("a", "bad")
    result = runs.execute(around_jobs.hasty, {"check": {"fails": ["bad"]}, "load": {"fails": ["bad"]}}, {})
    assert (sorted(queue.visible), queue.deleted) == (["a", "bad"], 0)
    assert any("ended before" in told and "report" in told for told in runs.told(result.run_id))


def test_where_an_executor_fails_messages_that_no_step_failed_come_back(runs: Runs, queue: LeasedQueue) -> None:
    queue.send("a", "b")
    result = runs.execute(around_jobs.broken, {}, {})
    assert "the broker is away" in run_error(result)
    assert (sorted(queue.visible), queue.dead_letters, queue.deleted) == (["a", "b"], [], 0)
    assert numbers(result)["sqs/released"] == 2


def test_steps_that_were_skipped_untold_hold_nothing_up(runs: Runs, queue: LeasedQueue) -> None:
    queue.send("a", "b")
    assert runs.execute(around_jobs.reticent, {}, {}).success
    assert (queue.visible, queue.deleted) == ([], 2)


def test_a_step_that_does_not_reach_the_messages_is_not_their_fault(
    runs: Runs, queue: LeasedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.send("a")

    reached = executor_jobs.leased

    def reached_by_some(context: dg.OpExecutionContext) -> AbstractContextManager[LeasedBatch]:
        if context.op_def.name == "report":
            raise BatchFolderError("it is on another machine")
        return reached(context)

    monkeypatch.setattr(executor_jobs, "leased", reached_by_some)
    result = runs.execute(around_jobs.strict, {}, {})
    assert not result.success
    assert (queue.visible, queue.dead_letters, queue.deleted) == (["a"], [], 0)


def of_library(module: str) -> dg.ExecutorDefinition:
    """An executor that a library of Dagster's defines."""

    def create(_: dg.InitExecutorContext) -> dg.Executor:
        raise AssertionError("nothing is to run")

    create.__module__ = module
    return dg.ExecutorDefinition("its_name", executor_creation_fn=create)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"around": "multiprocess"}, TypeError, "must be a Dagster executor, not 'multiprocess'"),
        ({"around": dg.in_process_executor, "max_concurrent": 2}, ValueError, "configured"),
        ({"around": of_library("dagster_k8s.executor")}, ValueError, r"'its_name' of dagster_k8s\.executor runs: they"),
        (
            {"around": of_library("dagster_celery.executor").configured({}, name="queues")},
            ValueError,
            r"'queues' of dagster_celery\.executor .* lease in each step: queue\.lease\(context\)",
        ),
    ],
    ids=["no executor", "max_concurrent of another executor", "steps elsewhere", "steps elsewhere, configured"],
)
def test_what_cannot_run_the_steps_is_refused_where_the_executor_is_made(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        sqs_lease_executor(QUEUE, workspace="/orders", **options)


def test_the_description_names_the_executor_that_runs_the_steps() -> None:
    definition = sqs_lease_executor(QUEUE, workspace="/orders", around=dg.in_process_executor)
    assert "in_process" in json.dumps(definition.description)
