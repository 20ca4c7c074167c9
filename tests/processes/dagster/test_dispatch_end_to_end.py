"""One queue for two jobs and for partitions that are added, on a real daemon, code server and SQS server.

The queue is not there at first; and the daemon is killed while runs are to be started.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from demo.dagster_stack import DAEMON, DagsterStack, dagster_stack
from demo.processes import wait_until
from demo.sqs_server import SqsServer
from tests.dagster.evidence import DIRECTORY_VARIABLE, notes

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

DEFINITIONS = Path(__file__).parent / "definitions_dispatch.py"
SENSOR = "dispatching"

GOOD: list[dict[str, Any]] = [
    {"job": "orders", "customer": "ann"},
    {"job": "orders", "customer": "bob"},
    {"job": "returns"},
    {"job": "orders", "customer": "ann", "number": 2},
]
BAD = [{"job": "invoices"}, {"job": "returns", "customer": "ann"}]


@dataclass
class Ground:
    stack: DagsterStack
    sqs: SQSClient
    name: str
    evidence: Path

    def wait(self, what: str, ready: Callable[[], bool]) -> None:
        wait_until(ready, processes=[self.stack.processes["webserver"]], what=what, deadline_seconds=300)

    def create_queue(self) -> tuple[str, str]:
        """Make the queue and its dead-letter queue, and return their URLs."""
        dead = self.sqs.create_queue(QueueName=f"{self.name}-dead")["QueueUrl"]
        arn = self.sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 100})
        url = self.sqs.create_queue(
            QueueName=self.name, Attributes={"VisibilityTimeout": "600", "RedrivePolicy": redrive}
        )["QueueUrl"]
        return url, dead

    def left(self, url: str) -> int:
        counts = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        return int(counts["ApproximateNumberOfMessages"]) + int(counts["ApproximateNumberOfMessagesNotVisible"])

    def failed_ticks(self) -> list[str]:
        return [tick.error or "" for tick in self.stack.api.ticks(SENSOR) if tick.status == "FAILURE"]


@pytest.fixture
def ground(tmp_path: Path, server: SqsServer) -> Iterator[Ground]:
    name = f"dispatch-{uuid4()}"
    environment = {
        **server.environment,
        DIRECTORY_VARIABLE: str(tmp_path / "evidence"),
        "QUEUE": name,
        "WORKSPACE": str(tmp_path / "workspace"),
    }
    (tmp_path / "evidence").mkdir()
    with dagster_stack(tmp_path / "dagster", DEFINITIONS, environment, stop_grace_seconds=0) as stack:
        yield Ground(stack, server.sqs_client(), name, tmp_path / "evidence")


def test_each_message_is_worked_on_by_its_run_once_and_what_fits_no_run_is_a_dead_letter(ground: Ground) -> None:
    ground.wait("failing a tick", lambda: bool(ground.failed_ticks()))
    assert ground.name in ground.failed_ticks()[0]
    assert "QueueNotFoundError" in ground.failed_ticks()[0]

    url, dead = ground.create_queue()
    for message in (*GOOD, *BAD):
        ground.sqs.send_message(QueueUrl=url, MessageBody=json.dumps(message))
    ground.wait("starting a run", lambda: bool(ground.stack.api.runs()))
    ground.stack.processes[DAEMON].kill()
    ground.stack.start(DAEMON)
    ground.stack.wait_until_ready()

    ground.wait("done with all messages", lambda: ground.left(url) == 0)
    assert ground.left(dead) == len(BAD)
    orders, returns = notes(ground.evidence, "orders"), notes(ground.evidence, "returns")
    found = sorted((each.what, body) for each in (*orders, *returns) for body in each.details["bodies"])
    assert found == sorted((str(each.get("customer", "refunded")), json.dumps(each)) for each in GOOD), "each once"
