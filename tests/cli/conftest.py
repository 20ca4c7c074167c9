"""Shared by the tests of the command: a real SQS server behind a wire that records calls, and may deny them."""

from __future__ import annotations

# isort: off
from tests.airflow import airflow_home  # noqa: F401 - Airflow reads its configuration when it is imported
# isort: on

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from demo.sqs_server import SqsServer
from tests.cli.wire import Wire, wire_to

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient


@pytest.fixture
def usual_sigterm() -> Iterator[None]:
    """SIGTERM as a process of the command has it. Dagster, for one, handles it for good in this process."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def wire(server: SqsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """The way to the SQS server, on which every AWS client of this process finds it."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    with wire_to(server.endpoint_url) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


@dataclass(frozen=True)
class Ground:
    """Makes queues, past the wire."""

    sqs: SQSClient

    def queue(self, name: str, **attributes: str) -> str:
        """Create a queue with a name of its own that begins so, and return the name."""
        end = ".fifo" if attributes.get("FifoQueue") else ""
        full = f"{name}-{uuid4().hex[:6]}{end}"
        given: Any = attributes
        self.sqs.create_queue(QueueName=full, Attributes=given)
        return full

    def url(self, name: str) -> str:
        return self.sqs.get_queue_url(QueueName=name)["QueueUrl"]

    def arn(self, name: str) -> str:
        answer = self.sqs.get_queue_attributes(QueueUrl=self.url(name), AttributeNames=["QueueArn"])
        return answer["Attributes"]["QueueArn"]

    def redrive_to(self, name: str, count: int = 5) -> str:
        """A redrive policy to a queue."""
        return json.dumps({"deadLetterTargetArn": self.arn(name), "maxReceiveCount": count})

    def in_flight_and_counts(self, name: str) -> dict[str, str]:
        """All that a receive, a send or a delete would have changed."""
        answer = self.sqs.get_queue_attributes(QueueUrl=self.url(name), AttributeNames=["All"])
        return {key: value for key, value in answer["Attributes"].items() if "Number" in key or "Modified" in key}


@pytest.fixture
def ground(server: SqsServer) -> Ground:
    return Ground(server.sqs_client())
