"""What the service and the network can answer, for both clients: a scripted server gives what emulators do not."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import HTTPClientError
from sqs_lease.core.actions import VisibilityChange
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.core.verdicts import Verdict
from sqs_lease.sqs import boto3_transport, client_transport, errors
from sqs_lease.sqs.aiobotocore_transport import AiobotocoreTransport
from sqs_lease.sqs.client_transport import ClientTransport

from tests.sqs import clients
from tests.sqs.clients import MakeTransport
from tests.sqs.scripted_server import Answer, Fault, ScriptedServer, refused

QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/orders"
FIFO = f"{QUEUE}.fifo"
HANDLE = "AQEB" + "x7/Kq+" * 40 + "=="
RECEIPTS = [Receipt(f"id-{number}", f"handle-{number}") for number in range(10)]
CHANGES = [VisibilityChange(receipt, 60) for receipt in RECEIPTS]
MESSAGE = {"MessageId": "id-1", "ReceiptHandle": "handle-1", "Body": "text"}


async def receive_one(transport: ClientTransport, wait_seconds: int = 0) -> list[str]:
    messages = await transport.receive(QUEUE, max_messages=1, wait_seconds=wait_seconds, visibility_seconds=30)
    return [message.message_id for message in messages]


@pytest.mark.parametrize("call", ["change_visibility", "delete"])
def test_each_entry_of_a_batch_has_its_own_answer_in_the_order_given(
    make_transport: MakeTransport, scripted: ScriptedServer, call: str
) -> None:
    operation = {"change_visibility": "ChangeMessageVisibilityBatch", "delete": "DeleteMessageBatch"}[call]
    scripted.script(
        operation,
        Answer(
            {
                "Successful": [{"Id": "9"}, {"Id": "0"}, {"Id": "1"}],
                "Failed": [
                    {"Id": "3", "SenderFault": True, "Code": "ReceiptHandleIsInvalid", "Message": "no"},
                    {
                        "Id": "2",
                        "SenderFault": True,
                        "Code": "InvalidParameterValue",
                        "Message": "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]",
                    },
                    {"Id": "4", "SenderFault": False, "Code": "InternalError", "Message": "again"},
                    {"Id": "5", "SenderFault": True, "Code": "RequestThrottled"},
                    {"Id": "6", "SenderFault": True, "Code": "AccessDenied", "Message": "no"},
                ],
            }
        ),
    )

    async def scenario() -> list[Verdict]:
        async with make_transport(scripted.endpoint_url) as transport:
            if call == "delete":
                answers = await transport.delete(QUEUE, RECEIPTS)
            else:
                answers = await transport.change_visibility(QUEUE, CHANGES)
        assert [answer.receipt for answer in answers] == RECEIPTS
        return [answer.verdict for answer in answers]

    assert asyncio.run(scenario()) == [
        Verdict.DONE,
        Verdict.DONE,
        Verdict.CAPPED,
        Verdict.LOST,
        Verdict.TRANSIENT,
        Verdict.THROTTLED,
        Verdict.REFUSED,
        Verdict.TRANSIENT,  # mentioned neither as successful nor as failed
        Verdict.TRANSIENT,
        Verdict.DONE,
    ]
    ids = [entry["Id"] for entry in scripted.sent(operation)["Entries"]]
    assert len(set(ids)) == 10
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,80}", entry_id) for entry_id in ids)


@pytest.mark.parametrize(
    ("answer", "verdict", "code"),
    [
        (refused("RequestThrottled", "slower", status=403), Verdict.THROTTLED, "RequestThrottled"),
        (refused("ThrottlingException", "slower"), Verdict.THROTTLED, "Throttling"),
        (Answer("Too many", 429), Verdict.THROTTLED, "429"),
        (refused("InternalFailure", "sorry", status=500), Verdict.TRANSIENT, "InternalFailure"),
        (Answer("<html>Bad gateway</html>", 502), Verdict.TRANSIENT, "502"),
        (refused("ServiceUnavailable", "sorry", status=503), Verdict.TRANSIENT, "ServiceUnavailable"),
        (Fault.CUT, Verdict.TRANSIENT, "ConnectionClosedError"),
        (
            refused("QueueDoesNotExist", "gone", query_code="AWS.SimpleQueueService.NonExistentQueue"),
            Verdict.REFUSED,
            "NonExistentQueue",
        ),
        (refused("AccessDeniedException", "no", query_code="AccessDenied"), Verdict.REFUSED, "AccessDenied"),
        (
            refused("ReceiptHandleIsInvalid", "one of them is wrong", status=404),
            Verdict.REFUSED,
            "ReceiptHandleIsInvalid",
        ),
    ],
    ids=lambda value: getattr(value, "value", str(value))[:40],
)
def test_a_batch_call_that_fails_as_a_whole_is_the_same_verdict_for_each_entry_after_one_attempt(
    make_transport: MakeTransport, scripted: ScriptedServer, answer: Answer | Fault, verdict: Verdict, code: str
) -> None:
    scripted.script("ChangeMessageVisibilityBatch", answer)

    async def scenario() -> set[tuple[Verdict, str]]:
        async with make_transport(scripted.endpoint_url) as transport:
            answers = await transport.change_visibility(QUEUE, CHANGES)
        assert [entry.receipt for entry in answers] == RECEIPTS
        assert all(QUEUE in entry.text for entry in answers)
        return {(entry.verdict, entry.code) for entry in answers}

    assert asyncio.run(scenario()) == {(verdict, code)}
    assert scripted.count("ChangeMessageVisibilityBatch") == 1


def test_a_lost_lease_that_is_a_call_of_its_own_is_lost(
    make_transport: MakeTransport, scripted: ScriptedServer
) -> None:
    scripted.script("DeleteMessageBatch", refused("ReceiptHandleIsInvalid", "it is wrong", status=404))

    async def scenario() -> list[Verdict]:
        async with make_transport(scripted.endpoint_url) as transport:
            return [answer.verdict for answer in await transport.delete(QUEUE, RECEIPTS[:1])]

    assert asyncio.run(scenario()) == [Verdict.LOST]


def test_an_empty_handle_is_refused_without_harm_to_the_other_entries(
    make_transport: MakeTransport, scripted: ScriptedServer
) -> None:
    scripted.script("DeleteMessageBatch", Answer({"Successful": [{"Id": "0"}, {"Id": "1"}]}))

    async def scenario() -> list[tuple[str, Verdict]]:
        async with make_transport(scripted.endpoint_url) as transport:
            answers = await transport.delete(QUEUE, [RECEIPTS[0], Receipt("id-x", ""), RECEIPTS[1]])
            assert await transport.delete(QUEUE, []) == []
        return [(answer.receipt.message_id, answer.verdict) for answer in answers]

    assert asyncio.run(scenario()) == [("id-0", Verdict.DONE), ("id-x", Verdict.REFUSED), ("id-1", Verdict.DONE)]
    assert scripted.count("DeleteMessageBatch") == 1


def test_no_receipt_handle_and_no_body_gets_into_an_error_text(
    make_transport: MakeTransport, scripted: ScriptedServer
) -> None:
    quoting = f"Value {HANDLE} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
    failed = [{"Id": "0", "SenderFault": True, "Code": "InvalidParameterValue", "Message": quoting}]
    scripted.script("DeleteMessageBatch", Answer({"Failed": failed}), refused("InvalidParameterValue", quoting))
    scripted.script("SendMessage", refused("InvalidMessageContents", "bad: a secret body"))

    async def scenario() -> tuple[list[str], str]:
        async with make_transport(scripted.endpoint_url) as transport:
            answers = [*await transport.delete(QUEUE, [Receipt("id", HANDLE)])]
            answers += await transport.delete(QUEUE, [Receipt("id", HANDLE)])
            assert [answer.verdict for answer in answers] == [Verdict.LOST, Verdict.LOST]
            with pytest.raises(errors.InvalidRequestError) as raised:
                await transport.send(QUEUE, "a secret body")
        assert raised.value.__suppress_context__
        return [answer.text for answer in answers], str(raised.value)

    texts, sending = asyncio.run(scenario())
    assert not any(HANDLE[10:40] in text for text in texts)
    assert all("receipt handle has expired" in text for text in texts)
    assert "secret" not in sending


@pytest.mark.parametrize(
    ("answer", "error", "remedy"),
    [
        (
            refused("QueueDoesNotExist", "gone", query_code="AWS.SimpleQueueService.NonExistentQueue"),
            errors.QueueNotFoundError,
            "Check its name, account and region",
        ),
        (refused("AccessDeniedException", "no"), errors.AccessDeniedError, "Allow sqs:ReceiveMessage"),
        (
            refused("KmsAccessDenied", "no", query_code="KMS.AccessDeniedException"),
            errors.AccessDeniedError,
            "kms:Decrypt",
        ),
        (refused("InvalidAddress", "not here"), errors.WrongRegionError, "region"),
        (refused("OverLimit", "too many", status=403), errors.OverLimitError, "Settle messages"),
        (refused("ExpiredTokenException", "old", status=403), errors.CredentialsError, "Renew"),
        (refused("RequestThrottled", "slower", status=403), errors.ThrottledError, "Call less often"),
        (Fault.CUT, errors.TransientError, "Try again"),
        (Answer("<html>Not found</html>", 404), errors.EndpointError, "endpoint URL"),
    ],
    ids=lambda value: getattr(value, "__name__", "")[:40],
)
def test_a_receive_that_fails_says_what_happened_to_which_queue_and_what_to_do(
    make_transport: MakeTransport,
    scripted: ScriptedServer,
    answer: Answer | Fault,
    error: type[errors.SqsError],
    remedy: str,
) -> None:
    scripted.script("ReceiveMessage", answer)

    async def scenario() -> None:
        async with make_transport(scripted.endpoint_url) as transport:
            with pytest.raises(error, match=re.escape(remedy)) as raised:
                await receive_one(transport)
        assert type(raised.value) is error
        assert QUEUE in str(raised.value)
        assert raised.value.queue == QUEUE

    asyncio.run(scenario())
    assert scripted.count("ReceiveMessage") == 1


def test_an_endpoint_nobody_listens_at_is_unreachable(make_transport: MakeTransport) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint_url = f"http://127.0.0.1:{unused.getsockname()[1]}"

        async def scenario() -> set[Verdict]:
            async with make_transport(endpoint_url) as transport:
                with pytest.raises(errors.EndpointUnreachableError, match="endpoint URL"):
                    await receive_one(transport)
                return {answer.verdict for answer in await transport.delete(QUEUE, RECEIPTS)}

        assert asyncio.run(scenario()) == {Verdict.TRANSIENT}


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


def test_a_thread_does_not_wait_for_an_answer_that_was_given_up(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_transport, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(boto3_transport, "ANSWER_SECONDS", 0.05)
    scripted.script("DeleteMessageBatch", Fault.HANG, Answer({"Successful": [{"Id": "0"}]}))

    async def scenario() -> list[Verdict]:
        # One connection for polls, one for all else: the second delete needs the first one's.
        async with clients.boto3_transport(scripted.endpoint_url, Config(max_pool_connections=2)) as transport:
            await transport.delete(QUEUE, RECEIPTS[:1])
            monkeypatch.setattr(client_transport, "ANSWER_SECONDS", 20.0)
            return [answer.verdict for answer in await transport.delete(QUEUE, RECEIPTS[:1])]

    assert asyncio.run(scenario()) == [Verdict.DONE]


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


def test_a_read_is_repeated_when_it_failed_on_the_way_and_not_when_it_was_refused(
    make_transport: MakeTransport, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_transport, "_READ_PAUSE_SECONDS", 0.0)
    unavailable = refused("ServiceUnavailable", "sorry", status=503)
    scripted.script("GetQueueUrl", unavailable, Fault.CUT, Answer({"QueueUrl": QUEUE}))
    scripted.script("GetQueueAttributes", refused("AccessDenied", "no", status=403))
    scripted.script("SendMessage", unavailable)

    async def scenario() -> None:
        async with make_transport(scripted.endpoint_url) as transport:
            assert await transport.queue_url("orders") == QUEUE
            with pytest.raises(errors.AccessDeniedError):
                await transport.queue_attributes(QUEUE)
            with pytest.raises(errors.TransientError):
                await transport.send(QUEUE, "text")

    asyncio.run(scenario())
    assert scripted.count("GetQueueUrl") == 3
    assert scripted.count("GetQueueAttributes") == 1
    assert scripted.count("SendMessage") == 1


def test_a_read_that_keeps_failing_is_raised(
    make_transport: MakeTransport, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_transport, "_READ_PAUSE_SECONDS", 0.0)
    scripted.script("GetQueueUrl", refused("RequestThrottled", "slower", status=403))

    async def scenario() -> None:
        async with make_transport(scripted.endpoint_url) as transport:
            with pytest.raises(errors.ThrottledError, match="orders"):
                await transport.queue_url("orders")

    asyncio.run(scenario())
    assert scripted.count("GetQueueUrl") == client_transport.READ_ATTEMPTS


@pytest.mark.parametrize("operation", ["GetQueueUrl", "GetQueueAttributes", "SendMessage"])
def test_what_answers_without_being_sqs_is_an_endpoint_error(
    make_transport: MakeTransport, scripted: ScriptedServer, operation: str
) -> None:
    scripted.script(operation, Answer("<html>Log in first</html>"))

    async def scenario() -> None:
        async with make_transport(scripted.endpoint_url) as transport:
            call: Coroutine[Any, Any, object]
            match operation:
                case "GetQueueUrl":
                    call = transport.queue_url("orders")
                case "GetQueueAttributes":
                    call = transport.queue_attributes(QUEUE)
                case _:
                    call = transport.send(QUEUE, "text")
            with pytest.raises(errors.EndpointError, match="not one of SQS"):
                await call

    asyncio.run(scenario())


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


def test_an_aiobotocore_client_that_is_open_already_is_taken_as_it_is_and_closed(scripted: ScriptedServer) -> None:
    scripted.script("ReceiveMessage", Answer({"Messages": [MESSAGE]}))

    async def scenario() -> list[str]:
        async with clients.aiobotocore_client(scripted.endpoint_url) as client:
            async with AiobotocoreTransport(client) as transport:
                received = await receive_one(transport)
            with pytest.raises(HTTPClientError):
                await client.receive_message(QueueUrl=QUEUE)
        return received

    assert asyncio.run(scenario()) == ["id-1"]
