"""Sensors that do not defer: they receive in their own process from a real SQS server, and hand over what they got."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from airflow.sdk import DAG, PokeReturnValue, task, timezone
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
)

from demo.sqs_server import SqsServer
from sqs_lease.airflow import SqsLeaseSensor, aws_connection, sqs_lease
from sqs_lease.airflow.comms.supervisor import RunOfTask
from sqs_lease.airflow.handover.handed_lease import LEASE_KEY, HandedLease
from sqs_lease.airflow.local_run import give_back_what_is_left, receive_locally, settle_locally
from sqs_lease.airflow.receiving.worker_lease import GivenBackError
from sqs_lease.core.settlements import discard, release
from sqs_lease.sqs.aiobotocore_transport import AiobotocoreTransport
from tests.airflow.scripted_comms import ScriptedComms

pytestmark = pytest.mark.processes


class TaskInstance(SimpleNamespace):
    """A task instance as an operator sees it, which keeps what is pushed."""

    def __init__(self) -> None:
        super().__init__(map_index=-1)
        self.pushed: dict[str, Any] = {}
        self.error: Exception | None = None

    def xcom_push(self, *, key: str, value: Any) -> None:
        if self.error is not None:
            raise self.error
        self.pushed[key] = value

    def get_first_reschedule_date(self, context: Any) -> Any:
        return timezone.utcnow()


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
def queue(server: SqsServer, monkeypatch: pytest.MonkeyPatch, supervisor: ScriptedComms) -> Queue:
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", server.airflow_connection)
    return Queue(server)


@pytest.fixture
def dag() -> Iterator[DAG]:
    with DAG("shop", schedule=None) as opened:
        yield opened


@task
def load(messages: Any) -> None: ...


def sensor(dag: DAG, queue_url: str, **options: Any) -> SqsLeaseSensor:
    arguments = {"visibility": 2, "timeout": 1, "linger": 0.5, "poke_interval": 0.1, "deferrable": False, **options}
    with sqs_lease("orders", queue_url=queue_url, **arguments) as orders:
        load(orders)
    made = dag.task_dict["orders"]
    assert isinstance(made, SqsLeaseSensor)
    return made


def execute(made: SqsLeaseSensor, task_instance: TaskInstance) -> Any:
    return SqsLeaseSensor.execute.__wrapped__(made, {"ti": task_instance})  # type: ignore[attr-defined]


def test_the_messages_are_returned_and_the_lease_is_left_for_the_keeper(dag: DAG, queue: Queue) -> None:
    queue.send("a", "b")
    task_instance = TaskInstance()
    messages = execute(sensor(dag, queue.url), task_instance)
    assert sorted(message["Body"] for message in messages) == ["a", "b"]
    assert all("ReceiptHandle" not in message for message in messages)
    leases = HandedLease.decode(task_instance.pushed[LEASE_KEY]).leases
    assert [lease.receipt.message_id for lease in leases] == [message["MessageId"] for message in messages]


def test_the_leases_last_for_the_hand_off_although_nobody_extends_them(dag: DAG, queue: Queue) -> None:
    queue.send("a")
    task_instance = TaskInstance()
    began_at = time.time()
    execute(sensor(dag, queue.url, handoff_timeout=300), task_instance)
    handed = HandedLease.decode(task_instance.pushed[LEASE_KEY])
    assert began_at + 299 < handed.leases[0].deadline < time.time() + 301
    assert handed.policy.visibility_seconds == 2
    Event().wait(2.5)
    assert queue.visible() == []


def test_leases_that_are_never_to_be_extended_are_not(dag: DAG, queue: Queue) -> None:
    queue.send("a")
    task_instance = TaskInstance()
    execute(sensor(dag, queue.url, policy="never"), task_instance)
    (lease,) = HandedLease.decode(task_instance.pushed[LEASE_KEY]).leases
    assert lease.deadline - time.time() <= 2


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


def test_messages_that_airflow_does_not_take_are_visible_again_at_once(dag: DAG, queue: Queue) -> None:
    queue.send("a")
    task_instance = TaskInstance()
    task_instance.error = RuntimeError("no XCom today")
    with pytest.raises(RuntimeError, match="no XCom today"):
        execute(sensor(dag, queue.url, visibility=300), task_instance)
    assert queue.visible() == ["a"]


def test_a_task_that_is_killed_gives_back_what_it_received(dag: DAG, queue: Queue) -> None:
    queue.send("a")
    made = sensor(dag, queue.url, visibility=300, linger=60, timeout=300)
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

    monkeypatch.setattr(aws_connection, "AiobotocoreTransport", LateAnswers)
    queue.send("a")
    made = sensor(dag, queue.url, visibility=300, linger=60, timeout=300)
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


def test_an_empty_queue_is_looked_at_until_the_time_is_up(dag: DAG, queue: Queue) -> None:
    with pytest.raises(AirflowSensorTimeout):
        execute(sensor(dag, queue.url), TaskInstance())


def test_with_soft_fail_only_the_time_out_is_a_reason_to_skip(dag: DAG, queue: Queue) -> None:
    with pytest.raises(AirflowSkipException):
        execute(sensor(dag, queue.url, soft_fail=True), TaskInstance())


@pytest.mark.parametrize("soft_fail", [False, True])
def test_a_queue_that_does_not_exist_fails_the_task_for_good(dag: DAG, queue: Queue, soft_fail: bool) -> None:
    with pytest.raises(
        AirflowFailException, match=r"task 'orders' of DAG 'shop': .*no-such-queue.*Check its name"
    ) as e:
        execute(sensor(dag, "no-such-queue", soft_fail=soft_fail), TaskInstance())
    assert type(e.value) is AirflowFailException


def test_in_reschedule_mode_the_worker_is_free_between_two_looks(dag: DAG, queue: Queue) -> None:
    made = sensor(dag, queue.url, mode="reschedule", timeout=3600)
    made.timeout = 1  # one look, and not the twenty seconds of it
    looked = made.poke({"ti": TaskInstance()})
    assert looked is False
    made.timeout = 3600
    made.poke = lambda context: False  # type: ignore[method-assign]
    with pytest.raises(AirflowRescheduleException):
        execute(made, TaskInstance())


def test_what_does_not_match_is_settled_by_the_rule(dag: DAG, queue: Queue) -> None:
    queue.send("wanted", "unwanted")
    made = sensor(
        dag,
        queue.url,
        message_filtering="literal",
        message_filtering_match_values=["wanted"],
        unmatched=discard(),
        visibility=30,
    )
    looked = made.poke({"ti": TaskInstance()})
    assert isinstance(looked, PokeReturnValue)
    assert [message["Body"] for message in looked.xcom_value or ()] == ["wanted"]
    assert queue.in_flight() == 1
    assert queue.visible() == []


# In dag.test(); test_dag_test.py runs it as a whole


def test_what_a_dag_test_does_not_settle_is_given_back_when_its_process_ends(dag: DAG, queue: Queue) -> None:
    queue.send("a")
    received = receive_locally(sensor(dag, queue.url, visibility=300)._options(), 5)
    assert received is not None
    assert queue.visible() == []
    give_back_what_is_left()
    assert queue.visible() == ["a"]


def test_a_keeper_in_dag_test_says_when_its_process_holds_no_such_batch() -> None:
    with pytest.raises(AirflowFailException, match="this process does not hold that batch"):
        settle_locally(RunOfTask("shop", "run", "keep"), "unknown", [], release(), ordered=True)


def wait_until(condition: Any, seconds: float = 60.0) -> None:
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, "it did not come to that"
        Event().wait(0.1)
