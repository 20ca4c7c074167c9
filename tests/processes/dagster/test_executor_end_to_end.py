"""Batches over runs of several steps on real Dagster processes and a real SQS server, with second consumers polling.

All jobs of `definitions_executor.py` are started at the same time; while they are under way, one run is terminated and
the worker of another killed. The tests then look at what became of each.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from demo.dagster_stack import DagsterStack, dagster_postgres, dagster_stack
from demo.postgres import postgres_server
from demo.processes import wait_until
from demo.sqs_server import SqsServer
from sqs_lease.dagster.run_batch.leased_batch import INTERRUPTED_SECONDS
from tests.dagster.evidence import DIRECTORY_VARIABLE, VISIBILITY_SECONDS, Note, notes
from tests.form import DAGSTER_DATABASES
from tests.second_consumer import Reception, SecondConsumer

pytestmark = pytest.mark.processes

DEFINITIONS = Path(__file__).parent / "definitions_executor.py"
JOBS = ("long", "terminated", "worker_killed")
BODIES = ("good", "better")

QUEUE_VISIBILITY_SECONDS = 600
DEADLINE_SECONDS = 150.0


class Running:
    """The stack with all jobs under way.

    Attributes:
        killed_at: When the run worker was killed, in seconds since the epoch.
        orphans_seconds: How long its steps went on after that.
    """

    def __init__(self, stack: DagsterStack, server: SqsServer, evidence: Path, prefix: str) -> None:
        self.stack = stack
        self.runs: dict[str, str] = {}
        self.killed_at = self.orphans_seconds = 0.0
        self._evidence = evidence
        self._sqs = server.sqs_client()
        self._urls = {name: self._create_queue(f"{prefix}-{name}") for name in JOBS}
        for url in self._urls.values():
            for body in BODIES:
                self._sqs.send_message(QueueUrl=url, MessageBody=body)
        self.consumers = {
            name: SecondConsumer(server.sqs_client(), url, len(BODIES)) for name, url in self._urls.items()
        }

    def drive(self) -> None:
        """Start all jobs, and do to each what its name says."""
        for name in JOBS:
            self.runs[name] = self.stack.api.launch(name)
        for what in ("received", "abrupt"):
            self._await_note("terminated", what)
        self._await_watched("terminated")
        self.stack.api.terminate(self.runs["terminated"])
        for what in ("received", "stubborn"):
            self._await_note("worker_killed", what)
        self._await_watched("worker_killed")
        steps = self.stack.step_processes(self.runs["worker_killed"])
        assert steps.keys() == {"obedient", "stubborn"}
        worker = self.stack.run_worker(self.runs["worker_killed"])
        assert worker is not None
        self.killed_at = time.time()
        os.kill(worker, signal.SIGKILL)
        self.await_("rid of the steps", lambda: not any(is_at_work(pid) for pid in steps.values()))
        self.orphans_seconds = time.time() - self.killed_at

    def notes(self, name: str, what: str) -> list[Note]:
        """The work's notes of this kind."""
        return [each for each in notes(self._evidence, name) if each.what == what]

    def receptions(self, name: str) -> list[Reception]:
        """The messages of the second consumer, once it has all."""
        receptions = self.consumers[name].receptions
        self.await_(f"giving the messages of {name} away", lambda: len(receptions) == len(BODIES))
        return receptions

    def left(self, name: str) -> int:
        """How many messages the queue has."""
        answer = self._sqs.get_queue_attributes(QueueUrl=self._urls[name], AttributeNames=["All"])["Attributes"]
        return int(answer["ApproximateNumberOfMessages"]) + int(answer["ApproximateNumberOfMessagesNotVisible"])

    def state(self, name: str) -> str:
        """How a run ended."""
        return self.stack.wait_for_run(self.runs[name], DEADLINE_SECONDS).state

    def await_(self, what: str, ready: Callable[[], bool]) -> None:
        """Wait until something is the case."""
        server = self.stack.processes["webserver"]
        wait_until(ready, processes=[server], what=what, deadline_seconds=DEADLINE_SECONDS)

    def _create_queue(self, name: str) -> str:
        dead_letters = self._sqs.create_queue(QueueName=f"{name}-dead-letters")["QueueUrl"]
        asked = self._sqs.get_queue_attributes(QueueUrl=dead_letters, AttributeNames=["QueueArn"])
        redrive = {"deadLetterTargetArn": asked["Attributes"]["QueueArn"], "maxReceiveCount": "10"}
        attributes = {"VisibilityTimeout": str(QUEUE_VISIBILITY_SECONDS), "RedrivePolicy": json.dumps(redrive)}
        return self._sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]  # type: ignore[arg-type]

    def _await_note(self, name: str, what: str) -> None:
        self.await_(f"told by {name}: {what}", lambda: self.notes(name, what) != [])

    def _await_watched(self, name: str) -> None:
        self.await_(f"watching {name}", lambda: self.consumers[name].polls > 0)


def is_at_work(pid: int) -> bool:
    """Whether a process runs; one that has ended may be there until its parent asks for its exit code."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module", params=DAGSTER_DATABASES)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, server: SqsServer
) -> Iterator[Running]:
    evidence, workspace = tmp_path_factory.mktemp("evidence"), tmp_path_factory.mktemp("workspace")
    prefix = f"executor-{request.param}"
    environment = {
        **server.environment,
        DIRECTORY_VARIABLE: str(evidence),
        "QUEUES": prefix,
        "WORKSPACE": str(workspace),
    }
    with ExitStack() as exits:
        url = None
        if request.param == "postgresql":
            url = exits.enter_context(postgres_server(dagster_postgres())).url
        stack = exits.enter_context(
            dagster_stack(tmp_path_factory.mktemp("dagster"), DEFINITIONS, environment, database_url=url)
        )
        under_way = Running(stack, server, evidence, prefix)
        for consumer in under_way.consumers.values():
            exits.enter_context(consumer.polling())
        under_way.drive()
        yield under_way


def test_no_other_consumer_gets_a_message_while_several_steps_work_for_several_visibility_timeouts(
    running: Running,
) -> None:
    assert running.state("long") == "SUCCESS"
    (received,), (worked,) = running.notes("long", "received"), running.notes("long", "worked")
    assert worked.at - received.at > 2 * VISIBILITY_SECONDS
    assert worked.pid != received.pid
    # Both steps had both messages, and no other consumer received them in between.
    assert received.details["counts"] == worked.details["counts"] == [1, 1]
    assert running.consumers["long"].receptions == []
    assert running.left("long") == 0


def test_messages_of_a_terminated_run_are_received_by_others_once_its_steps_have_ended_and_have_not_failed(
    running: Running,
) -> None:
    assert running.state("terminated") == "CANCELED"
    (ended,) = (
        event.at
        for event in running.stack.api.events(running.runs["terminated"])
        if event.message.startswith(f"Of {len(BODIES)} messages")
    )
    assert all(abs(reception.at - ended) <= 2 for reception in running.receptions("terminated"))
    assert running.left("terminated") == len(BODIES)


def test_the_steps_of_a_killed_run_worker_are_interrupted_and_end_within_seconds_whatever_they_do(
    running: Running,
) -> None:
    assert len(running.notes("worker_killed", "interrupted")) == 1
    assert running.notes("worker_killed", "goes on") != []
    # Their work would go on for much longer; a busy machine takes its time.
    assert INTERRUPTED_SECONDS <= running.orphans_seconds < 60


def test_messages_of_a_killed_run_worker_come_back_after_its_steps_have_ended_and_are_not_deleted(
    running: Running,
) -> None:
    receptions = running.receptions("worker_killed")
    assert all(reception.at > running.killed_at + running.orphans_seconds for reception in receptions)
    assert running.state("worker_killed") == "FAILURE"
    assert running.left("worker_killed") == len(BODIES)
