"""The cost of each failure around a router, on a real daemon, code server and SQS server: a table of the docs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from demo.dagster_stack import CODE_SERVER, DAEMON, DagsterStack, dagster_stack
from demo.processes import wait_until
from demo.sqs_server import SqsServer
from tests.dagster.evidence import DIRECTORY_VARIABLE, notes

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

DEFINITIONS = Path(__file__).parent / "definitions_router.py"
SETTINGS_FILE = "dagster.yaml"
HANDOFF_SECONDS = 60.0
VISIBLE_WITHIN_SECONDS = 15.0
"""How much later than the deadline a message may be seen: by a poll of the service, on a loaded machine."""


def run_queue(most: int) -> dict[str, Mapping[str, Any]]:
    """How ``dagster.yaml`` says how many runs may be under way at once."""
    return {"run_queue": {"max_concurrent_runs": most, "dequeue_interval_seconds": 1}}


@dataclass
class Ground:
    """A stack with the router, and its queue."""

    stack: DagsterStack
    sqs: SQSClient
    url: str
    evidence: Path

    def wait(self, what: str, ready: Callable[[], bool]) -> None:
        wait_until(ready, processes=[self.stack.processes["webserver"]], what=what, deadline_seconds=300)

    def count(self, name: str) -> int:
        found: Any = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=["All"])["Attributes"]
        return int(found[name])

    def send_and_await_reception(self) -> float:
        """Send a message, and return when the router was seen to hold it."""
        self.sqs.send_message(QueueUrl=self.url, MessageBody="an order")
        self.wait("receiving", lambda: self.count("ApproximateNumberOfMessagesNotVisible") == 1)
        return time.time()

    def await_visible(self) -> float:
        """Return when another consumer could receive the message again."""
        self.wait("giving the message back", lambda: self.count("ApproximateNumberOfMessages") == 1)
        return time.time()

    def await_stored(self) -> None:
        """Wait until the message was worked on, and check that this happened once."""
        self.wait("done", lambda: sum(map(self.count, COUNTS)) == 0)
        assert [body for each in notes(self.evidence, "routed") for body in each.details["bodies"]] == ["an order"]


COUNTS = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")


@contextmanager
def ground(
    directory: Path, server: SqsServer, most_runs: int, handoff_seconds: float = HANDOFF_SECONDS
) -> Iterator[Ground]:
    sqs = server.sqs_client()
    name = f"router-{uuid4()}"
    url = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
    environment = {
        **server.environment,
        DIRECTORY_VARIABLE: str(directory / "evidence"),
        "QUEUE": name,
        "WORKSPACE": str(directory / "workspace"),
        "HANDOFF_SECONDS": str(handoff_seconds),
    }
    (directory / "evidence").mkdir()
    with dagster_stack(
        directory / "dagster", DEFINITIONS, environment, settings=run_queue(most_runs), stop_grace_seconds=0
    ) as stack:
        yield Ground(stack, sqs, url, directory / "evidence")


def test_a_code_server_that_is_killed_while_the_router_receives_costs_the_handoff_timeout(
    tmp_path: Path, server: SqsServer
) -> None:
    with ground(tmp_path, server, most_runs=10) as around:
        received_at = around.send_and_await_reception()
        around.stack.kill_code_server()
        assert around.stack.api.runs() == []
        cost = around.await_visible() - received_at
        assert cost < HANDOFF_SECONDS + VISIBLE_WITHIN_SECONDS
        around.stack.start(CODE_SERVER)
        around.await_stored()


def test_a_code_location_that_is_reloaded_costs_nothing(tmp_path: Path, server: SqsServer) -> None:
    # However long the daemon takes to begin again on a loaded machine.
    with ground(tmp_path, server, most_runs=0, handoff_seconds=600) as around:
        around.send_and_await_reception()
        around.wait("queueing a run", lambda: bool(around.stack.api.runs()))
        around.stack.api.reload()
        resume(around.stack)
        around.await_stored()
        assert len(around.stack.api.runs()) == 1


def test_a_run_that_waits_in_the_queue_of_runs_costs_the_handoff_timeout_and_then_fails(
    tmp_path: Path, server: SqsServer
) -> None:
    with ground(tmp_path, server, most_runs=0) as around:
        around.send_and_await_reception()
        around.wait("queueing a run", lambda: bool(around.stack.api.runs()))
        asked_at = time.time()
        cost = around.await_visible() - asked_at
        assert cost < HANDOFF_SECONDS + VISIBLE_WITHIN_SECONDS
        (late,) = around.stack.api.runs()
        resume(around.stack)
        failed = around.stack.wait_for_run(late.run_id, 300)
        assert failed.state == "FAILURE"
        assert any("came too late" in str(event) for event in around.stack.api.events(late.run_id))


def resume(stack: DagsterStack) -> None:
    """Let queued runs start, which takes a new daemon."""
    stack.processes[DAEMON].kill()
    file = stack.home / SETTINGS_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), **run_queue(10)}))
    stack.start(DAEMON)
