"""Steps that a launcher runs elsewhere lease messages of their own.

This process is the run worker. The steps are in processes that share nothing with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from demo.sqs_server import SqsServer
from tests.dagster.executor_runs import Runs, runs_in
from tests.processes.dagster import far_jobs

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with runs_in(tmp_path_factory.mktemp("workspace")) as made:
        yield made
        assert list(made.workspace.iterdir()) == []


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
