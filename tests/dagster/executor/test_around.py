"""One batch over a run whose steps another executor of Dagster runs than the default one.

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


@pytest.mark.parametrize(
    ("job", "config"),
    [
        (around_jobs.in_process, {}),
        (around_jobs.either, {"in_process": {}}),
        (around_jobs.without_retries, {}),
    ],
    ids=["in_process", "multi_or_in_process", "configured"],
)
def test_another_executor_of_dagster_runs_the_steps_with_its_own_configuration(
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


def test_an_error_of_a_step_counts_where_the_executor_raises_it_too(runs: Runs, queue: LeasedQueue) -> None:
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


class Own(dg.Executor):
    """An executor of a user's."""

    @property
    def retries(self) -> Any:
        raise NotImplementedError

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[dg.DagsterEvent]:
        raise NotImplementedError


@dg.executor(name="k8s")
def elsewhere(_: dg.InitExecutorContext) -> dg.Executor:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("around", "error", "text"),
    [
        ("multiprocess", TypeError, "must be the definition of an executor, not 'multiprocess'"),
        (Own(), TypeError, "must be the definition of an executor"),
        (elsewhere, ValueError, "'k8s' runs: around must be dg.multiprocess_executor, "),
        (
            elsewhere.configured({}, name="queues"),
            ValueError,
            r"'queues' .* lease in each step: queue\.lease\(context\)",
        ),
        (dg.ExecutorDefinition.hardcoded_executor(Own()), ValueError, "lease in each step"),
    ],
    ids=["no executor", "an instance", "steps elsewhere", "steps elsewhere, configured", "one of the user's own"],
)
def test_executors_with_steps_that_the_run_worker_may_not_be_able_to_end_are_refused(
    around: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        sqs_lease_executor(QUEUE, workspace="/orders", around=around)


def test_the_description_names_the_executor_that_runs_the_steps() -> None:
    definition = sqs_lease_executor(QUEUE, workspace="/orders", around=dg.in_process_executor)
    assert "in_process" in json.dumps(definition.description)
