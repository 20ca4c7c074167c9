"""Steps that a launcher runs elsewhere: the batch of a run is refused them, and a lease of their own is the way.

This process is the run worker. The steps are in processes that share nothing with it but a directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from demo.sqs_server import SqsServer
from sqs_lease.testing.leased_queues import LeasedQueues
from tests.dagster.executor_runs import Runs, runs_in
from tests.processes.dagster import far_jobs

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with runs_in(tmp_path_factory.mktemp("workspace")) as made:
        yield made
        assert list(made.workspace.iterdir()) == []


def test_steps_elsewhere_are_refused_the_batch_of_a_run_and_its_messages_come_back(
    runs: Runs, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    queue = leased_queues.create("orders", "a", "b", visibility_seconds=600)
    result = runs.execute(far_jobs.held, executor={})
    assert not result.success
    errors = {
        str(event.step_key): str(event.step_failure_data.error) for event in result.all_events if event.is_step_failure
    }
    assert errors.keys() == {"check", "load"}
    for step, error in errors.items():
        assert f"BatchFolderError: step {step} of job held runs in process" in error
        assert "lease in each step: queue.lease(context) then receives" in error
    assert (sorted(queue.visible), queue.dead_letters, queue.deleted) == (["a", "b"], [], 0)


def test_a_step_elsewhere_receives_and_settles_messages_of_its_own(
    runs: Runs, server: SqsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqs = server.sqs_client()
    url = sqs.create_queue(QueueName=f"far-{uuid4()}", Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
    for body in ("a", "bad"):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    for name, value in {**server.environment, "ORDERS_QUEUE": url}.items():
        monkeypatch.setenv(name, value)
    result = runs.execute(far_jobs.leased_in_the_step, {"check": {"fails": ["bad"]}}, {})
    assert result.success
    left = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in left] == ["bad"]
