"""Sensors that do not defer: they receive in their own process from a real SQS server, and hand over what they got."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import Any
from uuid import uuid4

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from demo.sqs_server import SqsServer
from sqs_lease.airflow import connection
from sqs_lease.airflow.handover import LEASE_KEY, HandedLease
from sqs_lease.airflow.worker import GivenBackError
from sqs_lease.sqs.aiobotocore import AiobotocoreTransport
from tests.airflow.scripted_comms import ScriptedComms, supervised_by
from tests.airflow.test_worker import RECEIVING, TaskInstance, dag, execute, sensor, wait_until

__all__ = ["dag"]

pytestmark = [pytest.mark.processes]


class Queue:
    """A queue of the test's own."""

    def __init__(self, server: SqsServer) -> None:
        self.sqs: Any = server.sqs_client()
        self.url = self.sqs.create_queue(QueueName=f"orders-{uuid4()}")["QueueUrl"]

    def send(self, *bodies: str) -> None:
        for body in bodies:
            self.sqs.send_message(QueueUrl=self.url, MessageBody=body)

    def visible(self) -> list[str]:
        answer = self.sqs.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10, VisibilityTimeout=0)
        return sorted(message["Body"] for message in answer.get("Messages", []))

    def in_flight(self) -> int:
        names = ["ApproximateNumberOfMessagesNotVisible"]
        answer = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        return int(answer["Attributes"][names[0]])


@pytest.fixture
def queue(server: SqsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", server.airflow_connection)
    with supervised_by(ScriptedComms()):
        yield Queue(server)


def test_the_messages_are_returned_and_the_lease_is_left_for_the_keeper(dag: DAG, queue: Queue) -> None:
    queue.send("a", "b")
    task_instance = TaskInstance()
    messages = execute(sensor(dag, queue.url, linger=20, max_messages=2), task_instance)
    assert sorted(message["Body"] for message in messages) == ["a", "b"]
    assert all("ReceiptHandle" not in message for message in messages)
    leases = HandedLease.decode(task_instance.pushed[LEASE_KEY], RECEIVING).leases
    assert [lease.receipt.message_id for lease in leases] == [message["MessageId"] for message in messages]


def test_messages_are_extended_while_more_are_waited_for(dag: DAG, queue: Queue) -> None:
    queue.send("a")
    # Extended when a third of the time is left: so long may a busy machine take for it.
    made = sensor(dag, queue.url, linger=12, visibility=9, timeout=60)
    receptions: list[str] = []
    ended = Event()

    def poll() -> None:
        while not ended.wait(0.2):
            receptions.extend(queue.visible())

    while_it_waits = Thread(target=poll)
    task_instance = TaskInstance()
    worker = Thread(target=execute, args=(made, task_instance))
    worker.start()
    wait_until(lambda: queue.in_flight() == 1)
    while_it_waits.start()
    worker.join()
    ended.set()
    while_it_waits.join()
    assert receptions == []
    assert LEASE_KEY in task_instance.pushed


def test_a_task_that_is_killed_gives_back_what_it_received(dag: DAG, queue: Queue) -> None:
    queue.send("a")
    made = sensor(dag, queue.url, visibility=300, linger=60, max_messages=2)
    with ThreadPoolExecutor() as threads:
        executed = threads.submit(execute, made, TaskInstance())
        wait_until(lambda: queue.in_flight() == 1)
        made.on_kill()
        wait_until(lambda: queue.visible() == ["a"])
        assert isinstance(executed.exception(60), GivenBackError)


def test_a_task_that_is_killed_gives_back_what_was_on_its_way_and_receives_no_more(
    dag: DAG, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    received, killed = Event(), Event()

    class LateAnswers(AiobotocoreTransport):
        async def receive(self, *arguments: Any, **options: Any) -> Any:
            answer = await super().receive(*arguments, **options)
            received.set()
            await asyncio.to_thread(killed.wait, 60)
            return answer

    monkeypatch.setattr(connection, "AiobotocoreTransport", LateAnswers)
    queue.send("a")
    made = sensor(dag, queue.url, visibility=300, linger=60, max_messages=2)
    with ThreadPoolExecutor() as threads:
        executed = threads.submit(execute, made, TaskInstance())
        assert received.wait(60)
        assert queue.in_flight() == 1
        made.on_kill()
        killed.set()
        assert isinstance(executed.exception(60), GivenBackError)
    assert queue.visible() == ["a"]
    with pytest.raises(AirflowFailException, match="was killed"):
        execute(made, TaskInstance())


def test_a_queue_that_does_not_exist_fails_the_task_for_good(dag: DAG, queue: Queue) -> None:
    with pytest.raises(
        AirflowFailException, match=r"task 'orders' of DAG 'shop': .*no-such-queue.*Check its name"
    ) as e:
        execute(sensor(dag, "no-such-queue"), TaskInstance())
    assert type(e.value) is AirflowFailException
