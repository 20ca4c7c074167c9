"""Shared by the failover tests: Airflow beside an SQS server, queues with a second consumer each, and task logs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from botocore.config import Config

from demo.airflow_stack import COMPONENTS, AirflowStack, airflow_stack
from demo.processes import pause, wait_until
from demo.sqs_server import sqs_server
from tests.second_consumer import SecondConsumer

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient
    from types_boto3_sqs.literals import QueueAttributeNameType

IN_FLIGHT: Final[QueueAttributeNameType] = "ApproximateNumberOfMessagesNotVisible"
VISIBLE: Final[QueueAttributeNameType] = "ApproximateNumberOfMessages"

STARTED_SECONDS = 180.0
"""How long a process of Airflow's may take to start on a loaded machine."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a task's log.

    Attributes:
        dag_id: The DAG.
        run_id: The run.
        task_id: The task.
        at: When, in seconds since the epoch.
        text: Its text.
    """

    dag_id: str
    run_id: str
    task_id: str
    at: float
    text: str


@dataclass(slots=True)
class Stage:
    """Airflow and an SQS server.

    Attributes:
        stack: Airflow.
        sqs: A client of the SQS server.
        exits: Ends the consumers with the stage.
        queue_urls: The queues by their names.
        consumers: The second consumers by the names of their queues.
    """

    stack: AirflowStack
    sqs: SQSClient
    exits: ExitStack
    queue_urls: dict[str, str] = field(default_factory=dict)
    consumers: dict[str, SecondConsumer] = field(default_factory=dict)

    def fill(self, queue: str, messages: int, *, later: int = 0) -> None:
        """Make a queue with messages, and a second consumer that polls it from when they all are in flight.

        Args:
            queue: Its name.
            messages: How many messages it has.
            later: How many more it gets later, see :meth:`send`, for which the second consumer waits, too.
        """
        self.send(queue, messages)
        self.consumers[queue] = SecondConsumer(self.sqs, self.queue_urls[queue], messages + later)
        self.exits.enter_context(self.consumers[queue].polling())

    def send(self, queue: str, messages: int) -> None:
        """Send so many messages to a queue, which is made with the first of them."""
        self.send_bodies(queue, [f"message {number}" for number in range(messages)])

    def send_bodies(self, queue: str, bodies: Sequence[str]) -> None:
        """Send messages with these bodies to a queue, which is made with the first of them."""
        if queue not in self.queue_urls:
            self.queue_urls[queue] = self.sqs.create_queue(QueueName=queue)["QueueUrl"]
        for body in bodies:
            self.sqs.send_message(QueueUrl=self.queue_urls[queue], MessageBody=body)

    def in_flight(self, queue: str) -> int:
        """How many messages of a queue are in flight."""
        return self._count(queue, IN_FLIGHT)

    def left(self, queue: str) -> int:
        """How many messages a queue still has, in flight or not."""
        # In one answer: between two of them a message may go from one state to the other, and be in neither.
        return self._count(queue, IN_FLIGHT, VISIBLE)

    def _count(self, queue: str, *attributes: QueueAttributeNameType) -> int:
        answer = self.sqs.get_queue_attributes(QueueUrl=self.queue_urls[queue], AttributeNames=attributes)
        return sum(int(answer["Attributes"][attribute]) for attribute in attributes)

    def received_by_others(self, queue: str) -> list[float]:
        """When the second consumer was given messages, in seconds since the epoch."""
        return [reception.at for reception in self.consumers[queue].receptions]

    def wait_until(self, is_so: Callable[[], bool], what: str, deadline_seconds: float) -> None:
        """Wait until something is the case, while the scheduler runs."""
        scheduler = self.stack.processes["scheduler"]
        wait_until(is_so, processes=[scheduler], what=what, deadline_seconds=deadline_seconds)

    def pause(self, seconds: float) -> None:
        """Let time pass."""
        pause(self.stack.processes["scheduler"], seconds)

    def state(self, dag_id: str, run_id: str, task_id: str) -> str | None:
        """The state of a task that is not mapped."""
        return next(t.state for t in self.stack.api.task_states(dag_id, run_id) if t.task_id == task_id)

    def wait_for_triggerers(self, number: int) -> None:
        """Wait until so many triggerers look for triggers."""
        self.wait_until(
            lambda: sum(triggerer.is_at_work for triggerer in self.stack.api.triggerers()) == number,
            f"beside {number} triggerers at work",
            STARTED_SECONDS,
        )

    def report(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """The lease report of a run's keeper; empty when it left none."""
        return dict(self.stack.api.xcom(dag_id, run_id, "orders_keeper", "lease_report") or {})

    def log_lines(self, task_id: str, phrase: str, *, dag_id: str = "*", of_workers: bool = False) -> list[LogLine]:
        """The lines with a phrase in the logs of a task's triggers, over all of its runs and tries.

        Args:
            task_id: The task.
            phrase: The phrase.
            dag_id: The DAG; any, by default.
            of_workers: Whether to look in the logs of workers, too.
        """
        found = []
        logs = "*" if of_workers else "*.trigger.*"
        for path in (self.stack.home / "logs").glob(f"dag_id={dag_id}/run_id=*/task_id={task_id}/{logs}"):
            names = dict(part.split("=", 1) for part in path.parts if "=" in part)
            for line in path.read_text(errors="replace").splitlines(keepends=True):
                # The last one may be half written: at this moment, or by a triggerer that was killed.
                if phrase in line and line.endswith("\n"):
                    event = json.loads(line)
                    at = datetime.fromisoformat(event["timestamp"]).timestamp()
                    found.append(LogLine(names["dag_id"], names["run_id"], task_id, at, str(event["event"])))
        return found


@contextmanager
def stage(
    home: Path,
    dags_folder: Path,
    environment: Mapping[str, str],
    *,
    database_url: str | None = None,
    components: Sequence[str] = tuple(COMPONENTS),
) -> Iterator[Stage]:
    """Run Airflow beside an SQS server, which its default AWS connection leads to, until the block ends."""
    with ExitStack() as exits:
        server = exits.enter_context(sqs_server(home))
        environment = {"AIRFLOW_CONN_AWS_DEFAULT": server.airflow_connection, **environment}
        stack = exits.enter_context(
            airflow_stack(home, dags_folder, environment, database_url=database_url, components=components)
        )
        # A connection for each second consumer's long poll.
        here = Stage(stack, server.sqs_client(Config(max_pool_connections=64)), exits)
        try:
            yield here
        finally:
            for consumer in here.consumers.values():
                consumer.stop()
