"""The steps that get the batch of their run: those that lease from its queue, in processes of the run worker.

Nothing would end the others in time. The queues are in memory. The steps are executed in this process, which does not
know that it is the run worker: tests/processes/dagster/test_executor_elsewhere.py has a launcher of steps.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from sqs_lease.core.messages import Message, Receipt
from sqs_lease.dagster.run_batch.batch_of_run import (
    BATCH_TAG,
    batch_of_run,
    is_of_run_worker,
    run_worker,
    write_worker,
)
from sqs_lease.dagster.run_batch.folder import BatchFolder
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

    def another(folder: BatchFolder) -> None:
        folder.put("worker", b"another-machine 1")

    monkeypatch.setattr("sqs_lease.dagster.executor.write_worker", another)


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


def test_a_run_worker_and_the_processes_that_it_starts_for_steps_have_its_batch_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = BatchFolder(tmp_path / "batch")
    assert not is_of_run_worker(folder)
    write_worker(folder)
    assert is_of_run_worker(folder)
    assert run_worker(folder) is None
    pid = os.getpid()
    monkeypatch.setattr("os.getpid", lambda: pid + 1)
    assert not is_of_run_worker(folder)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: SimpleNamespace(pid=pid + 2))
    assert not is_of_run_worker(folder)
    parent: Any = SimpleNamespace(pid=pid)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: parent)
    assert is_of_run_worker(folder)
    assert run_worker(folder) is parent
    monkeypatch.setattr("socket.gethostname", lambda: "another-machine")
    assert not is_of_run_worker(folder)


URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"


@pytest.mark.parametrize(
    ("queue", "is_joined"),
    [
        ("orders", True),
        (URL, True),
        ("arn:aws:sqs:eu-west-1:123456789012:orders", True),
        ("arn:aws:sqs:eu-west-1:210987654321:orders", False),
        ("arn:aws:sqs:us-east-1:123456789012:orders", False),
        ("https://sqs.eu-west-1.amazonaws.com/210987654321/orders", False),
        ("flights", False),
    ],
)
def test_the_batch_of_the_run_is_that_of_its_queue_however_it_is_named(
    tmp_path: Path, queue: str, is_joined: bool
) -> None:
    folder = BatchFolder(tmp_path / "batch")
    folder.create(batch_id="batch", queue_url=URL, messages=[Message(Receipt("m0", ""), "of the run")])
    context = dg.build_op_context(run_tags={BATCH_TAG: str(folder)})
    assert (batch_of_run(context, None, queue) is not None) == is_joined
