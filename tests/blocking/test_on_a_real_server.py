"""``with lease(...)`` receives, reports and settles as its block ends, on a real SQS server.

That it keeps messages from others for longer than their visibility timeout, which takes real time, is tested in
``tests/processes/package/test_lease_on_real_time.py``.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from _thread import interrupt_main
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from demo.sqs_server import SqsServer
from sqs_lease import MessageFailed, by_exception, dead_letter, expire, lease, release
from sqs_lease.blocking import queue_attributes
from sqs_lease.clock import SystemClock
from sqs_lease.sqs.client import client_config
from sqs_lease.sqs.errors import QueueNotFoundError, TransientError
from sqs_lease.sqs.transport import QueueAttributes
from sqs_lease.testing import MemorySqs, MemoryTransport

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

pytestmark = pytest.mark.processes

MakeClient = Callable[[], "SQSClient"]


@pytest.fixture
def make_client(server: SqsServer) -> MakeClient:
    def make() -> SQSClient:
        return server.sqs_client(client_config())

    return make


@pytest.fixture
def sqs(make_client: MakeClient) -> SQSClient:
    return make_client()


@pytest.fixture
def queue(sqs: SQSClient) -> str:
    return sqs.create_queue(QueueName=f"queue-{uuid4()}", Attributes={"VisibilityTimeout": "600"})["QueueUrl"]


def send(sqs: SQSClient, queue: str, count: int) -> None:
    for number in range(count):
        sqs.send_message(QueueUrl=queue, MessageBody=f"message {number}")


def receive(sqs: SQSClient, queue: str, count: int) -> list[str]:
    """So many messages, and all that are visible beside them."""
    bodies: list[str] = []
    for _ in range(600):
        answer = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=1, MaxNumberOfMessages=10)
        bodies += [message["Body"] for message in answer.get("Messages", [])]
        if len(bodies) >= count:
            break
    return sorted(bodies)


def test_a_block_that_raises_gives_its_messages_back_at_once(
    sqs: SQSClient, queue: str, make_client: MakeClient
) -> None:
    send(sqs, queue, 1)

    def work() -> None:
        with lease(queue, client=make_client()) as batch:
            assert len(batch) == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert receive(sqs, queue, 1) == ["message 0"]


def test_single_messages_are_settled_within_the_block(sqs: SQSClient, queue: str, make_client: MakeClient) -> None:
    send(sqs, queue, 2)
    with lease(queue, max_messages=2, linger=120, client=make_client()) as batch:
        good, bad = sorted(batch, key=lambda message: message.body)
        batch.fail(bad, reason="it is bad")
        batch.succeed(good)
        assert not batch.still_held(good)
        assert not batch.still_held(bad)
        assert receive(sqs, queue, 1) == ["message 1"]


def test_messages_that_fail_together_keep_the_reason_of_each(
    sqs: SQSClient, queue: str, make_client: MakeClient
) -> None:
    dead = sqs.create_queue(QueueName=f"dead-{uuid4()}")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "9"})
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": redrive})
    send(sqs, queue, 3)
    with lease(queue, max_messages=3, linger=120, client=make_client(), on_failure=dead_letter()) as batch:
        reasons = {message.message_id: f"not {message.body}" for message in batch if message.body != "message 0"}
        batch.fail_each(reasons)
        batch.flush()
        assert batch.report().dead_lettered == 2
    messages = sqs.receive_message(QueueUrl=dead, MaxNumberOfMessages=10, MessageAttributeNames=["All"])["Messages"]
    said = {message["Body"]: message["MessageAttributes"]["sqs_lease_reason"]["StringValue"] for message in messages}
    assert said == {"message 1": "not message 1", "message 2": "not message 2"}


def test_only_the_messages_that_the_exception_names_come_back(
    sqs: SQSClient, queue: str, make_client: MakeClient
) -> None:
    send(sqs, queue, 3)

    def work() -> None:
        with lease(queue, max_messages=3, linger=120, client=make_client()) as batch:
            first, second, _ = sorted(batch, key=lambda message: message.body)
            batch.fail(first.message_id, reason="it is bad")
            raise MessageFailed([first.message_id, second.message_id])

    with pytest.raises(MessageFailed):
        work()
    assert receive(sqs, queue, 2) == ["message 0", "message 1"]
    assert _left(sqs, queue) == 2


@pytest.mark.parametrize("named", [[], ["of another batch"]], ids=["none", "a stranger"])
def test_an_exception_that_names_no_message_of_the_batch_fails_all(
    sqs: SQSClient, queue: str, make_client: MakeClient, named: list[str]
) -> None:
    send(sqs, queue, 1)

    def work() -> None:
        with lease(queue, client=make_client()):
            raise MessageFailed(named)

    with pytest.raises(MessageFailed):
        work()
    assert receive(sqs, queue, 1) == ["message 0"]


def test_the_rule_is_chosen_by_the_exception_and_the_report_stays_after_the_block(
    sqs: SQSClient, queue: str, make_client: MakeClient
) -> None:
    send(sqs, queue, 1)
    seen = []

    def work() -> None:
        rule = by_exception({ZeroDivisionError: expire()}, otherwise=release())
        with lease(queue, client=make_client(), on_failure=rule) as batch:
            seen.append(batch)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    report = seen[0].report()
    assert (report.received, report.held, report.expired, report.released) == (1, 0, 1, 0)
    assert not seen[0].still_held(next(iter(seen[0])))


def test_a_message_of_another_batch_is_refused(sqs: SQSClient, queue: str, make_client: MakeClient) -> None:
    send(sqs, queue, 1)
    with (
        lease(queue, client=make_client()) as batch,
        pytest.raises(KeyError, match=r"not in this batch of .*: a text of 10 characters that is not a message's id"),
    ):
        batch.fail(["a stranger"], reason="it is bad")


def _left(sqs: SQSClient, queue: str) -> int:
    counts = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    return int(counts["ApproximateNumberOfMessages"]) + int(counts["ApproximateNumberOfMessagesNotVisible"])


def test_a_queue_without_messages_gives_an_empty_batch(queue: str, make_client: MakeClient) -> None:
    with lease(queue, wait=0, client=make_client()) as batch:
        assert len(batch) == 0
        assert list(batch) == []


def test_an_interrupted_receive_gives_back_what_it_took_whatever_the_failure_rule(
    sqs: SQSClient, queue: str, make_client: MakeClient
) -> None:
    send(sqs, queue, 1)
    client = make_client()
    client.meta.events.register("before-call.sqs.ReceiveMessage", lambda **_: interrupt_main())
    with (
        pytest.raises(KeyboardInterrupt),
        lease(queue, client=client, on_failure=expire()),
    ):
        pytest.fail("the block is not entered")
    assert receive(sqs, queue, 1) == ["message 0"]


def test_a_queue_that_does_not_exist_is_named_in_the_error(queue: str, make_client: MakeClient) -> None:
    with pytest.raises(QueueNotFoundError, match="no-such-queue"), lease("no-such-queue", client=make_client()):
        pytest.fail("the block is not entered")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"queue": "queue", "visibility": 43_201}, "visibility must be between 1 and 43200"),
        ({"queue": "queue", "max_messages": 0}, "max_messages"),
        ({"queue": "queue", "wait": -1}, "wait must be at least 0"),
        ({"queue": "queue", "linger": float("nan")}, "linger must be at least 0"),
        ({"queue": "not a queue!"}, "not a queue!"),
        ({"queue": "queue", "policy": "gently"}, "policy must be one of"),
    ],
)
def test_impossible_arguments_are_refused_before_anything_is_called(arguments: dict[str, Any], message: str) -> None:
    # Without a client of the test's own: there is no region to make one for, and none is needed.
    with pytest.raises(ValueError, match=message), lease(**arguments):
        pytest.fail("the block is not entered")


OUTLIVING = """
import threading
from sqs_lease import lease

def work():
    with lease("{queue}", wait=20, linger=0):
        is_leased.set()
        threading.main_thread().join()
    print("left")

is_leased = threading.Event()
threading.Thread(target=work).start()
assert is_leased.wait(60)
"""


def test_a_lease_in_a_thread_that_outlives_the_main_thread_comes_to_its_end(
    server: SqsServer, sqs: SQSClient, queue: str
) -> None:
    send(sqs, queue, 1)
    ended = subprocess.run(
        [sys.executable, "-c", OUTLIVING.format(queue=queue)],
        timeout=120,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **server.environment, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (ended.stdout, ended.stderr) == ("left\n", "")
    counts = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert int(counts["ApproximateNumberOfMessages"]) + int(counts["ApproximateNumberOfMessagesNotVisible"]) == 0


class SilentTransport(MemoryTransport):
    """It is asked for attributes, and never answers."""

    async def queue_attributes(self, queue_url: str) -> QueueAttributes:
        await asyncio.Event().wait()
        raise AssertionError


def test_reading_a_queue_takes_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    sqs = MemorySqs(SystemClock())
    sqs.create_queue("orders")
    monkeypatch.setattr("sqs_lease.blocking.open_transport", lambda client, queue: SilentTransport(sqs))
    with pytest.raises(TransientError, match=r"queue orders took longer than 0.01 s"):
        queue_attributes("orders", timeout=0.01)


def test_a_second_lease_reads_no_data_file_of_botocore_again(
    sqs: SQSClient, queue: str, server: SqsServer, monkeypatch: pytest.MonkeyPatch, read_by_botocore: list[str]
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    send(sqs, queue, 2)
    for _ in range(2):
        read_by_botocore.clear()
        with lease(queue, max_messages=1) as batch:
            assert len(batch) == 1
    assert read_by_botocore == []


def test_a_lease_that_names_its_visibility_timeout_does_not_ask_the_queue_for_it(
    make_client: MakeClient, queue: str
) -> None:
    client = make_client()
    called: list[str] = []
    client.meta.events.register("before-call.sqs", lambda model, **_: called.append(model.name))
    with lease(queue, wait=0, visibility=60, client=client):
        pass
    assert called == ["ReceiveMessage"]
