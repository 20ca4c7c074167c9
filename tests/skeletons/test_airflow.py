"""Airflow's walking skeleton: one run on real processes, beside a second consumer that polls all along.

Nothing here is timed. The work ends when the test allows it, and the test allows it when it has seen what must come
before. It lets one deadline pass, the service's own: the end of the visibility timeout that the messages were received
with. Only the keeper has a deadline to meet, which is 40 s away when its extension is due.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any

import pytest

from demo.airflow_stack import AirflowStack, airflow_stack, migrated_postgres
from demo.postgres import postgres_server
from demo.processes import wait_until
from demo.sqs_server import SqsServer
from tests.second_consumer import SecondConsumer

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1800)]

DAGS_FOLDER = Path(__file__).parent / "dags_airflow"
DAG_ID = "orders"
QUEUE = "airflow-skeleton"
GOOD = ["first", "second", "third"]
POISON = "poison"
BODIES = [*GOOD, POISON]

VISIBILITY_SECONDS = 120
"""The first extension is due after two thirds of it, and may be late by the last third."""

LIMIT_SECONDS = 600.0
"""How long to wait for one thing at most."""

ECONOMY = {
    # A process for each message and one for the keeper; all that there may be are started at once.
    "AIRFLOW__CORE__PARALLELISM": str(len(BODIES) + 1),
    # Nothing is to be scheduled for two minutes, and looking for something is most of what they cost the scheduler.
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1",
    # The DAG is there from the start and does not change.
    "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "600",
}
"""Settings of Airflow's that take nothing from what is shown here."""


@dataclass(frozen=True, slots=True)
class Record:
    """Observations of the run, and its results.

    Attributes:
        received_early: The messages that the second consumer was given before any work was allowed to end.
        received: The messages that it was given altogether.
        beside: The states of the tasks at the moment when it had been given the poison; the work goes by the message.
        ended: The states and the numbers of tries in which the tasks ended.
        run_state: The state in which the run ended.
        report: The keeper's lease report.
        message_ids: The ids of the messages by their bodies.
        left: How many messages the queue still has, in flight or not.
    """

    received_early: list[str]
    received: list[str]
    beside: dict[str, tuple[str | None, int]]
    ended: dict[str, tuple[str | None, int]]
    run_state: str
    report: dict[str, Any]
    message_ids: dict[str, str]
    left: int


class Skeleton:
    """Airflow with the DAG, beside a queue with messages and a second consumer of it.

    Args:
        stack: Airflow.
        server: The SQS server.
        notes: The directory in which the work notes that it began, and looks whether it may end.
    """

    def __init__(self, stack: AirflowStack, server: SqsServer, notes: Path) -> None:
        self.stack = stack
        self.notes = notes
        self.sqs = server.sqs_client()
        self.queue_url = self.sqs.create_queue(QueueName=QUEUE)["QueueUrl"]
        self.consumer = SecondConsumer(server.sqs_client(), self.queue_url, len(BODIES))

    def run(self) -> Record:
        """Run the DAG once, and let its work end piece by piece."""
        for body in BODIES:
            self.sqs.send_message(QueueUrl=self.queue_url, MessageBody=body)
        self.stack.wait_for_dag(DAG_ID, LIMIT_SECONDS)
        run_id = self.stack.api.trigger(DAG_ID)
        with self.consumer.polling():
            self.wait_until(lambda: self.consumer.is_polling, "done with receiving the messages")
            # They were received before, so their first visibility timeout is over then.
            over_at = time() + VISIBILITY_SECONDS
            self.wait_until(self.all_work_began, "at work on all messages")
            messages = self.stack.api.xcom(DAG_ID, run_id, "orders")
            self.wait_for_a_whole_poll()
            received_early = self.received()

            self.allow_to_end(POISON)
            self.wait_until(lambda: POISON in self.received(), "done with giving the poison back")
            beside = self.states(run_id, messages)

            self.wait_until(lambda: time() > over_at, "past the first visibility timeout")
            self.wait_for_a_whole_poll()
            self.allow_to_end(*GOOD)
            run_state = self.stack.wait_for_run(DAG_ID, run_id, LIMIT_SECONDS)
            self.wait_for_a_whole_poll()
        return Record(
            received_early=received_early,
            received=self.received(),
            beside=beside,
            ended=self.states(run_id, messages),
            run_state=run_state,
            report=self.stack.api.xcom(DAG_ID, run_id, "orders_keeper", "lease_report"),
            message_ids={message["Body"]: message["MessageId"] for message in messages},
            left=self.left(),
        )

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait until something is the case, while scheduler and triggerer run."""
        processes = [self.stack.processes["scheduler"], self.stack.processes["triggerer"]]
        wait_until(is_so, processes=processes, what=what, deadline_seconds=LIMIT_SECONDS)

    def all_work_began(self) -> bool:
        """Whether there is work under way on each message."""
        return all((self.notes / f"{body}.began").exists() for body in BODIES)

    def allow_to_end(self, *bodies: str) -> None:
        """Let the work on some messages end."""
        for body in bodies:
            (self.notes / f"{body}.may-end").touch()

    def wait_for_a_whole_poll(self) -> None:
        """Wait until the second consumer has made a poll that began after this call."""
        # The first one that ends from now on may have begun before.
        enough = self.consumer.polls + 2
        self.wait_until(lambda: self.consumer.polls >= enough, "beside a second consumer that polls")

    def received(self) -> list[str]:
        """The bodies that the second consumer was given so far."""
        return [reception.body for reception in self.consumer.receptions]

    def states(self, run_id: str, messages: list[dict[str, Any]]) -> dict[str, tuple[str | None, int]]:
        """State and number of tries: of the work by the bodies of the messages, of other tasks by their ids."""
        return {
            messages[task.map_index]["Body"] if task.map_index >= 0 else task.task_id: (task.state, task.try_number)
            for task in self.stack.api.task_states(DAG_ID, run_id)
        }

    def left(self) -> int:
        """How many messages the queue has, in flight or not."""
        answer = self.sqs.get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=["All"])["Attributes"]
        return int(answer["ApproximateNumberOfMessages"]) + int(answer["ApproximateNumberOfMessagesNotVisible"])


@pytest.fixture(scope="module")
def record(server: SqsServer, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The record of the one run. Airflow has ended before the tests look at it."""
    home, notes = tmp_path_factory.mktemp("airflow"), tmp_path_factory.mktemp("notes")
    environment = {
        **ECONOMY,
        "AIRFLOW_CONN_AWS_DEFAULT": server.airflow_connection,
        "SKELETON_MESSAGES": str(len(BODIES)),
        "SKELETON_NOTES": str(notes),
        "SKELETON_VISIBILITY_SECONDS": str(VISIBILITY_SECONDS),
    }
    with ExitStack() as exits:
        metadata = exits.enter_context(postgres_server(migrated_postgres()))
        stack = exits.enter_context(airflow_stack(home, DAGS_FOLDER, environment, database_url=metadata.url))
        return Skeleton(stack, server, notes).run()


def test_no_other_consumer_gets_a_message_while_its_task_works_past_the_first_visibility_timeout(
    record: Record,
) -> None:
    assert record.received_early == []
    # The same message twice would still be the same one: the second consumer does not hold it for ever.
    assert set(record.received) == {POISON}
    assert record.report["extensions"] >= len(GOOD)


def test_a_message_reaches_others_after_its_task_failed_for_good_while_the_other_tasks_still_work(
    record: Record,
) -> None:
    assert {body: record.beside[body] for body in GOOD} == dict.fromkeys(GOOD, ("running", 1))
    assert record.ended[POISON] == ("failed", 1)
    assert record.report["messages"]["released"] == [record.message_ids[POISON]]


def test_the_messages_of_successful_tasks_are_deleted(record: Record) -> None:
    assert {body: record.ended[body] for body in GOOD} == dict.fromkeys(GOOD, ("success", 1))
    assert sorted(record.report["messages"]["deleted"]) == sorted(record.message_ids[body] for body in GOOD)
    assert record.left == 1


def test_a_failed_message_fails_the_run_but_not_the_keeper(record: Record) -> None:
    assert record.run_state == "failed"
    assert record.beside["orders_keeper"][0] == "deferred"
    assert record.ended["orders_keeper"][0] == "success"


def test_the_keeper_reports_each_message_once_and_no_lease_that_was_lost_or_late(record: Record) -> None:
    counts = {
        name: record.report[name] for name in ("received", "deleted", "released", "lost", "late", "failed", "held")
    }
    assert counts == {"received": 4, "deleted": 3, "released": 1, "lost": 0, "late": 0, "failed": 0, "held": 0}
