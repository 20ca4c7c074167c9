"""Whatever an HTTP answer says, a call returns what it may return, or raises an ``SqsError``, and tells no contents.

Proxies and servers that are not SQS answer in all ways. The answers are given to botocore and aiobotocore in place of
those of a connection; what a connection does is in ``test_errors.py``.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from aiobotocore.awsrequest import AioAWSResponse
from botocore.awsrequest import AWSResponse, HeadersDict
from hypothesis import given
from hypothesis import strategies as st

from sqs_lease.core.calls import EntryAnswer, Verdict, VisibilityChange
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.sqs import client_transport
from sqs_lease.sqs.aiobotocore import AiobotocoreTransport
from sqs_lease.sqs.boto3 import Boto3Transport
from sqs_lease.sqs.client_transport import ClientTransport
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.transport import QueueAttributes
from tests.fuzz.strange import CONTENT, examples, json_near, said_by
from tests.sqs.clients import aiobotocore_client, boto3_client

QUEUE: Final = "https://sqs.us-east-1.amazonaws.com/123456789012/orders"
RECEIPTS: Final = [Receipt(f"m{number}", f"AQ{number}{CONTENT}+/=") for number in range(3)]
ARN: Final = "arn:aws:sqs:us-east-1:123456789012:orders"

ECHO: Final = "The contents of the request."
"""In place of what an answer quotes of its request."""

RECEIVED: Final = {
    "Messages": [
        {
            "MessageId": f"m{number}",
            "ReceiptHandle": f"AQ{number}{CONTENT}",
            "MD5OfBody": "00000000000000000000000000000000",
            "Body": f"{CONTENT} {number}",
            "Attributes": {
                "ApproximateReceiveCount": "2",
                "SentTimestamp": "1700000000000",
                "MessageGroupId": "group",
            },
            "MessageAttributes": {
                "text": {"DataType": "String", "StringValue": CONTENT},
                "bytes": {"DataType": "Binary", "BinaryValue": "AAEC"},
            },
        }
        for number in range(2)
    ]
}
SETTLED: Final = {
    "Successful": [{"Id": "0"}, {"Id": "2"}],
    "Failed": [
        {
            "Id": "1",
            "SenderFault": True,
            "Code": "ReceiptHandleIsInvalid",
            "Message": f'The input receipt handle "{ECHO}" is not a valid receipt handle.',
        }
    ],
}
ATTRIBUTES: Final = {
    "Attributes": {
        "QueueArn": ARN,
        "VisibilityTimeout": "30",
        "RedrivePolicy": json.dumps({"deadLetterTargetArn": f"{ARN}-dead", "maxReceiveCount": 3}),
        "ApproximateNumberOfMessages": "1",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
    }
}
TASKS: Final = {
    "Results": [
        {
            "TaskHandle": "task",
            "Status": "RUNNING",
            "SourceArn": ARN,
            "DestinationArn": ARN,
            "MaxNumberOfMessagesPerSecond": 5,
            "ApproximateNumberOfMessagesMoved": 1,
            "ApproximateNumberOfMessagesToMove": 2,
            "FailureReason": "no",
            "StartedTimestamp": 1_700_000_000_000,
        }
    ]
}
REFUSED: Final = {
    "__type": "com.amazonaws.sqs#InvalidParameterValue",
    "message": f"Value {ECHO} for parameter ReceiptHandle is invalid.",
}


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer of a server."""

    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)


@st.composite
def answers(draw: st.DrawFn, good: Mapping[str, Any], *, echoed: str = "") -> HttpAnswer:
    """An answer that is close to a good one, or to a refusal, under any status.

    Args:
        draw: Hypothesis's.
        good: The good one.
        echoed: The part of its request that an answer may quote; all else is secret but messages that were received.
    """
    status = draw(st.sampled_from([200, 200, 200, 200, 201, 302, 400, 400, 403, 404, 413, 429, 500, 502, 503, 599]))
    body = draw(json_near(good) if status < 300 or draw(st.integers(0, 3)) == 0 else json_near(REFUSED))
    if status >= 300 or echoed:
        body = body.replace(CONTENT.encode(), b"").replace(ECHO.encode(), json.dumps(echoed)[1:-1].encode())
    headers = {"Content-Type": draw(st.sampled_from(["application/x-amz-json-1.0", "text/html", "", "\x00"]))}
    match draw(st.integers(0, 6)):
        case 0:
            pass
        case 1:
            headers["Content-Length"] = str(draw(st.integers(-1, len(body) + 10)))
        case 2:
            headers["Content-Length"] = draw(st.sampled_from(["", "many", "1e9", "9" * 5_000, "²", "٣"]))
        case _:
            headers["Content-Length"] = str(len(body))
    match draw(st.integers(0, 5)):
        case 0:
            codes = ["AWS.SimpleQueueService.NonExistentQueue;Sender", ";", "a;b;c", "x", ""]
            headers["x-amzn-query-error"] = draw(st.sampled_from(codes))
        case 1:
            headers["x-amzn-requestid"] = draw(st.sampled_from(["", "1", "\xff"]))
    return HttpAnswer(status, body, headers)


class Wire:
    """A transport whose client gets answers without a connection."""

    def __init__(self, client: Any, kind: type[AWSResponse], make: Callable[[Any], ClientTransport]) -> None:
        self._answer = HttpAnswer(500, b"")
        self._kind = kind
        self._loop = asyncio.Runner()
        if hasattr(client, "__aenter__"):
            client = self.run(client.__aenter__)
        client.meta.events.register("before-send.sqs", self._send)
        self._transport = make(client)

    def ask(self, answer: HttpAnswer, call: Callable[[ClientTransport], Awaitable[Any]]) -> Any:
        """Make a call that is answered so."""
        self._answer = answer
        return self.run(lambda: call(self._transport))

    def run(self, call: Callable[[], Awaitable[Any]]) -> Any:
        async def called() -> Any:
            return await call()

        return self._loop.run(called())

    def close(self) -> None:
        self.run(self._transport.aclose)
        self._loop.close()

    def _send(self, request: Any, **_: Any) -> AWSResponse:
        headers: Any = HeadersDict(self._answer.headers)
        response: AWSResponse = self._kind(request.url, self._answer.status, headers, None)
        vars(response)["_content"] = self._answer.body
        return response


@functools.cache
def wires() -> tuple[Wire, Wire]:
    """One over each client."""
    endpoint = "http://127.0.0.1:9"
    return (
        Wire(boto3_client(endpoint), AWSResponse, Boto3Transport),
        Wire(aiobotocore_client(endpoint), AioAWSResponse, AiobotocoreTransport),
    )


@pytest.fixture(autouse=True, scope="module")
def closed_wires() -> Iterator[None]:
    yield
    for wire in wires():
        wire.close()
    wires.cache_clear()


def results(answer: HttpAnswer, call: Callable[[ClientTransport], Awaitable[Any]]) -> list[Any]:
    """Collect the results or errors of a call over each client; only an ``SqsError`` may be raised."""
    # It reads up to three times; nothing changes between them here.
    pause, client_transport._READ_PAUSE_SECONDS = client_transport._READ_PAUSE_SECONDS, 0.0  # type: ignore[misc]
    try:
        return [said_by(functools.partial(wire.ask, answer, call), SqsError) for wire in wires()]
    finally:
        client_transport._READ_PAUSE_SECONDS = pause  # type: ignore[misc]


def are_texts(*values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


@examples(250)
@given(answers(RECEIVED))
def test_a_receive_gives_messages_that_can_be_worked_on_or_an_error(answer: HttpAnswer) -> None:
    for found in results(
        answer, lambda wire: wire.receive(QUEUE, max_messages=10, wait_seconds=0, visibility_seconds=30)
    ):
        if isinstance(found, SqsError):
            continue
        for message in found:
            assert isinstance(message, Message)
            assert are_texts(message.message_id, message.receipt.handle, message.body)
            assert message.message_id
            assert message.receipt.handle
            assert are_texts(*message.attributes, *message.attributes.values(), *message.message_attributes)
            assert message.receive_count >= 1
            assert message.sent_at is None or message.sent_at.tzinfo
            assert message.message_group_id is None or are_texts(message.message_group_id)
            assert json.dumps(message.as_dict())


@examples(250)
@given(answers(SETTLED, echoed=RECEIPTS[1].handle), st.booleans())
def test_each_entry_of_a_batch_is_done_only_where_the_answer_says_so(answer: HttpAnswer, deleting: bool) -> None:
    changes = [VisibilityChange(receipt, 60) for receipt in RECEIPTS]
    for found in results(
        answer,
        lambda wire: wire.delete(QUEUE, RECEIPTS) if deleting else wire.change_visibility(QUEUE, changes),
    ):
        assert [entry.receipt for entry in found] == RECEIPTS
        assert all(isinstance(entry, EntryAnswer) for entry in found)
        for entry in found:
            assert are_texts(entry.code, entry.text)
            assert CONTENT not in entry.code + entry.text
        done = [str(place) for place, entry in enumerate(found) if entry.verdict is Verdict.DONE]
        if done:
            assert answer.status < 300
            entries = [entry for entry in json.loads(answer.body)["Successful"] if isinstance(entry, dict)]
            assert all(entry_id in [entry.get("Id") for entry in entries] for entry_id in done)


@examples(60)
@given(answers(ATTRIBUTES))
def test_the_attributes_of_a_queue_are_of_their_types_or_there_is_an_error(answer: HttpAnswer) -> None:
    for found in results(answer, lambda wire: wire.queue_attributes(QUEUE)):
        if isinstance(found, SqsError):
            continue
        assert isinstance(found, QueueAttributes)
        assert are_texts(found.arn)
        assert found.dead_letter_arn is None or are_texts(found.dead_letter_arn)
        numbers = [
            found.visibility_seconds,
            found.visible,
            found.in_flight,
            found.delayed,
            found.max_receive_count or 0,
        ]
        assert all(isinstance(number, int) for number in numbers)


@examples(60)
@given(answers({"QueueUrl": QUEUE}), answers({"MessageId": "m1"}, echoed=CONTENT))
def test_a_url_and_the_id_of_what_was_sent_are_texts_or_there_is_an_error(url: HttpAnswer, sent: HttpAnswer) -> None:
    for found in results(url, lambda wire: wire.queue_url("orders")):
        assert isinstance(found, SqsError | str)
    for found in results(sent, lambda wire: wire.send(QUEUE, CONTENT)):
        assert isinstance(found, SqsError | str)


@examples(60)
@given(answers(TASKS), answers({"queueUrls": [QUEUE]}))
def test_the_moved_messages_are_known_or_there_is_an_error(tasks: HttpAnswer, sources: HttpAnswer) -> None:
    for found in results(tasks, lambda wire: wire.move_tasks(ARN)):
        assert isinstance(found, SqsError) or all(are_texts(task.status) for task in found)
    for found in results(sources, lambda wire: wire.dead_letter_sources(QUEUE)):
        assert isinstance(found, SqsError) or are_texts(*found)
