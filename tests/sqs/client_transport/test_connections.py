"""How the transports use their clients: connections, time limits, opening and closing, what is sent where."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock

import botocore
import pytest
from botocore.config import Config

from sqs_lease import daemon_threads
from sqs_lease.core.calls import Verdict, VisibilityChange
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.sqs import boto3 as boto3_transport
from sqs_lease.sqs import client_transport, errors
from sqs_lease.sqs.aiobotocore import AiobotocoreTransport
from sqs_lease.sqs.boto3 import Boto3Transport
from sqs_lease.sqs.client_transport import ClientTransport
from tests.sqs import clients
from tests.sqs.clients import MakeTransport
from tests.sqs.scripted_server import Answer, Fault, ScriptedServer

QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/orders"
FIFO = f"{QUEUE}.fifo"
PATIENCE_SECONDS = 60.0
RECEIPTS = [Receipt(f"id-{number}", f"handle-{number}") for number in range(10)]
CHANGES = [VisibilityChange(receipt, 60) for receipt in RECEIPTS]
MESSAGE = {"MessageId": "id-1", "ReceiptHandle": "handle-1", "Body": "text"}

limits_read_times = pytest.mark.skipif(
    tuple(int(part) for part in botocore.__version__.split(".")) < (1, 43, 68),
    reason="older releases of botocore have one read timeout for all calls of a client",
)


async def receive_one(transport: ClientTransport, wait_seconds: int = 0) -> list[str]:
    messages = await transport.receive(QUEUE, max_messages=1, wait_seconds=wait_seconds, visibility_seconds=30)
    return [message.message_id for message in messages]


def test_an_answer_slower_than_the_clients_read_timeout_is_transient(
    make_transport: MakeTransport, scripted: ScriptedServer
) -> None:
    scripted.script("ReceiveMessage", Fault.HANG)

    async def scenario() -> None:
        async with make_transport(scripted.endpoint_url, Config(read_timeout=0.05)) as transport:
            with pytest.raises(errors.TransientError):
                await receive_one(transport)

    asyncio.run(scenario())


def test_an_answer_that_does_not_come_in_time_is_given_up_whatever_the_clients_timeouts(
    make_transport: MakeTransport, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_transport, "ANSWER_SECONDS", 0.05)
    scripted.script("ReceiveMessage", Fault.HANG)
    scripted.script("DeleteMessageBatch", Fault.HANG)

    async def scenario() -> set[Verdict]:
        async with make_transport(scripted.endpoint_url) as transport:
            with pytest.raises(errors.TransientError, match=r"no answer within 0\.05 s"):
                await receive_one(transport)
            return {answer.verdict for answer in await transport.delete(QUEUE, RECEIPTS)}

    assert asyncio.run(scenario()) == {Verdict.TRANSIENT}


@limits_read_times
def test_a_thread_does_not_wait_for_an_answer_that_was_given_up(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boto3_transport, "ANSWER_SECONDS", 0.05)
    scripted.script("DeleteMessageBatch", Fault.HANG, Answer({"Successful": [{"Id": "0"}]}))

    async def scenario() -> list[Verdict]:
        # One connection for polls, one for all else: the second delete needs the first one's.
        config = Config(max_pool_connections=2, read_timeout=3600)
        async with clients.boto3_transport(scripted.endpoint_url, config) as transport:
            given_up = asyncio.create_task(transport.delete(QUEUE, RECEIPTS[:1]))
            await asyncio.to_thread(scripted.wait_for, "DeleteMessageBatch")
            given_up.cancel()
            for module in (client_transport, boto3_transport):
                monkeypatch.setattr(module, "ANSWER_SECONDS", 3600.0)
            async with asyncio.timeout(120):
                return [answer.verdict for answer in await transport.delete(QUEUE, RECEIPTS[:1])]

    assert asyncio.run(scenario()) == [Verdict.DONE]


@limits_read_times
def test_a_long_poll_may_take_longer_than_other_calls(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boto3_transport, "ANSWER_SECONDS", 0.05)
    scripted.script("ReceiveMessage", Answer({"Messages": [MESSAGE]}, held=True))
    scripted.script("DeleteMessageBatch", Fault.HANG)

    async def scenario() -> list[str]:
        async with clients.boto3_transport(scripted.endpoint_url) as transport:
            poll = asyncio.create_task(receive_one(transport, wait_seconds=20))
            await asyncio.to_thread(scripted.wait_for, "ReceiveMessage")
            (answer,) = await transport.delete(QUEUE, RECEIPTS[:1])
            assert answer.code == "ReadTimeoutError"
            scripted.released.set()
            return await poll

    assert asyncio.run(scenario()) == ["id-1"]


def test_open_long_polls_keep_no_extension_waiting(make_transport: MakeTransport, scripted: ScriptedServer) -> None:
    scripted.script("ReceiveMessage", Fault.HANG)
    scripted.script("ChangeMessageVisibilityBatch", Answer({"Successful": [{"Id": "0"}]}))

    async def scenario() -> list[Verdict]:
        async with make_transport(scripted.endpoint_url, Config(max_pool_connections=4)) as transport:
            polls = [asyncio.create_task(receive_one(transport, wait_seconds=20)) for _ in range(20)]
            await asyncio.to_thread(scripted.wait_for, "ReceiveMessage", 2)
            answers = await transport.change_visibility(QUEUE, CHANGES[:1])
            assert not any(poll.done() for poll in polls)
            for poll in polls:
                poll.cancel()
            await asyncio.wait(polls)
            scripted.released.set()
        return [answer.verdict for answer in answers]

    assert asyncio.run(scenario()) == [Verdict.DONE]
    assert scripted.count("ReceiveMessage") == 2


def test_a_poll_counts_as_sent_only_once_there_is_a_connection_for_it(
    make_transport: MakeTransport, scripted: ScriptedServer
) -> None:
    scripted.script("ReceiveMessage", Fault.HANG, Answer({"Messages": [MESSAGE]}))

    async def scenario() -> None:
        async with make_transport(scripted.endpoint_url, Config(max_pool_connections=2)) as transport:
            sent: list[str] = []

            def poll(name: str) -> asyncio.Task[Sequence[Message]]:
                call = transport.receive(
                    QUEUE, max_messages=1, wait_seconds=20, visibility_seconds=None, on_sent=lambda: sent.append(name)
                )
                return asyncio.create_task(call)

            first, second = poll("first"), poll("second")
            await asyncio.to_thread(scripted.wait_for, "ReceiveMessage")
            assert sent == ["first"]
            scripted.released.set()
            await asyncio.wait([first, second])
            assert sent == ["first", "second"]
            assert isinstance(first.exception(), errors.TransientError)
            assert second.exception() is None

    asyncio.run(scenario())


def test_a_cancelled_call_occupies_its_connection_until_its_thread_has_ended(scripted: ScriptedServer) -> None:
    scripted.script("ReceiveMessage", Fault.HANG, Answer({"Messages": [MESSAGE]}))

    async def scenario() -> list[str]:
        async with clients.boto3_transport(scripted.endpoint_url, Config(max_pool_connections=2)) as transport:
            first = asyncio.create_task(receive_one(transport, wait_seconds=20))
            await asyncio.to_thread(scripted.wait_for, "ReceiveMessage")
            first.cancel()
            second = asyncio.create_task(receive_one(transport))
            await asyncio.wait([first])
            assert scripted.count("ReceiveMessage") == 1
            scripted.released.set()
            return await second

    assert asyncio.run(scenario()) == ["id-1"]


def test_a_queue_of_another_region_is_refused_before_anything_is_sent(
    make_transport: MakeTransport, scripted: ScriptedServer
) -> None:
    elsewhere = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders"

    async def scenario() -> set[tuple[Verdict, str]]:
        async with make_transport(scripted.endpoint_url) as transport:
            for queue in (elsewhere, "arn:aws:sqs:eu-central-1:123456789012:orders"):
                with pytest.raises(errors.WrongRegionError, match=r"in region eu-central-1, .* calls us-east-1"):
                    await transport.queue_url(queue)
            with pytest.raises(errors.WrongRegionError, match="for eu-central-1"):
                await transport.receive(elsewhere, max_messages=1, wait_seconds=0, visibility_seconds=None)
            answers = await transport.change_visibility(elsewhere, CHANGES)
        return {(answer.verdict, answer.code) for answer in answers}

    assert asyncio.run(scenario()) == {(Verdict.REFUSED, "WrongRegion")}
    assert scripted.requests == []


def test_a_queue_given_by_its_arn_is_looked_up_in_the_arns_account(
    make_transport: MakeTransport, scripted: ScriptedServer
) -> None:
    scripted.script("GetQueueUrl", Answer({"QueueUrl": QUEUE}))

    async def scenario() -> str:
        async with make_transport(scripted.endpoint_url) as transport:
            return await transport.queue_url("arn:aws:sqs:us-east-1:123456789012:orders")

    assert asyncio.run(scenario()) == QUEUE
    assert scripted.sent("GetQueueUrl") == {"QueueName": "orders", "QueueOwnerAWSAccountId": "123456789012"}


def test_a_receive_asks_for_all_attributes_and_carries_its_attempt_id(
    make_transport: MakeTransport, scripted: ScriptedServer
) -> None:
    scripted.script("ReceiveMessage", Answer({}))

    async def scenario() -> int:
        async with make_transport(scripted.endpoint_url) as transport:
            messages = await transport.receive(
                FIFO, max_messages=7, wait_seconds=3, visibility_seconds=45, attempt_id="try-1"
            )
        return len(messages)

    assert asyncio.run(scenario()) == 0
    assert scripted.sent("ReceiveMessage") == {
        "QueueUrl": FIFO,
        "MaxNumberOfMessages": 7,
        "WaitTimeSeconds": 3,
        "VisibilityTimeout": 45,
        "ReceiveRequestAttemptId": "try-1",
        "AttributeNames": ["All"],
        "MessageAttributeNames": ["All"],
    }


def test_a_closed_transport_makes_no_more_calls(make_transport: MakeTransport, scripted: ScriptedServer) -> None:
    async def scenario() -> None:
        async with make_transport(scripted.endpoint_url) as transport:
            pass
        await transport.aclose()
        with pytest.raises(RuntimeError, match="closed"):
            await receive_one(transport)

    asyncio.run(scenario())


def test_a_boto3_client_is_closed_with_its_transport(scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    async def scenario() -> None:
        client = clients.boto3_client(scripted.endpoint_url)
        monkeypatch.setattr(client, "close", lambda: closed.append("closed"))
        async with Boto3Transport(client):
            assert not closed

    asyncio.run(scenario())
    assert closed == ["closed"]


def test_the_threads_of_a_boto3_client_end_with_its_transport(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_threads, "IDLE_SECONDS", 3_600.0)
    before = set(threading.enumerate())
    scripted.script("ReceiveMessage", Answer({"Messages": [MESSAGE]}))
    transport = Boto3Transport(clients.boto3_client(scripted.endpoint_url))

    async def scenario() -> list[threading.Thread]:
        async with transport:
            assert await receive_one(transport) == ["id-1"]
            return [thread for thread in set(threading.enumerate()) - before if thread.name == "sqs-lease"]

    (thread,) = asyncio.run(scenario())
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_a_context_manager_that_makes_the_client_is_entered_with_the_first_call_and_left_at_the_end(
    scripted: ScriptedServer,
) -> None:
    scripted.script("ReceiveMessage", Answer({"Messages": [MESSAGE]}))
    steps: list[str] = []

    @asynccontextmanager
    async def making() -> AsyncIterator[Any]:
        async with clients.aiobotocore_client(scripted.endpoint_url) as client:
            steps.append("entered")
            yield client
        steps.append("left")

    async def scenario() -> None:
        transport = AiobotocoreTransport(making())
        assert steps == []
        first, second = await asyncio.gather(receive_one(transport), receive_one(transport))
        assert first == second == ["id-1"]
        assert steps == ["entered"]
        await transport.aclose()

    asyncio.run(scenario())
    assert steps == ["entered", "left"]


def test_an_aiobotocore_client_that_is_open_already_is_taken_as_it_is_and_closed(
    scripted: ScriptedServer,
) -> None:
    scripted.script("ReceiveMessage", Answer({"Messages": [MESSAGE]}))

    async def scenario() -> None:
        # Releases of aiobotocore differ in what a closed client does: some call again, some refuse a second close.
        client = await clients.aiobotocore_client(scripted.endpoint_url).__aenter__()
        client.close = closing = AsyncMock(wraps=client.close)
        async with AiobotocoreTransport(client) as transport:
            assert await receive_one(transport) == ["id-1"]
            closing.assert_not_awaited()
        closing.assert_awaited_once_with()

    asyncio.run(scenario())
