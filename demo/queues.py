"""The demo's queues: a work queue with a dead-letter queue behind it, and what is in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient
    from types_boto3_sqs.literals import QueueAttributeNameType
    from types_boto3_sqs.type_defs import SendMessageBatchRequestEntryTypeDef

    from demo.flights import Body
    from demo.sqs_server import SqsServer

VISIBILITY_SECONDS = 20
"""The work queue's visibility timeout: shorter than the work on any batch."""

MAX_RECEIVE_COUNT = 2
"""How often a message is delivered before the service moves it to the dead-letter queue."""

DEAD_LETTER_SECONDS = 14 * 24 * 3600
"""How long the dead-letter queue keeps messages, counted from when they were sent: the most."""

BATCH_ENTRIES = 10
"""As many messages as SQS takes or gives in one call."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How many messages a queue holds, by whether a consumer could receive them now."""

    visible: int
    in_flight: int
    delayed: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.visible + self.in_flight + self.delayed


@dataclass(frozen=True, slots=True)
class Published:
    """The ids that the service gave to the published messages."""

    flights: frozenset[str]
    malformed: frozenset[str]


class PublishError(RuntimeError):
    """The service took only some of the messages."""


class Queues:
    """The two queues on an SQS server, which it creates.

    Args:
        server: The server, which must have no queues of these names.
    """

    def __init__(self, server: SqsServer) -> None:
        self._client: SQSClient = server.sqs_client()
        self.url, self.dead_letter_url = create_with_dead_letters(
            self._client, "flights", visibility_seconds=VISIBILITY_SECONDS, max_receive_count=MAX_RECEIVE_COUNT
        )

    def publish(self, bodies: Sequence[Body]) -> Published:
        """Send one message for each body to the work queue.

        Raises:
            PublishError: The service refused some.
        """
        entries: list[SendMessageBatchRequestEntryTypeDef] = [
            {"Id": str(number), "MessageBody": body.text} for number, body in enumerate(bodies)
        ]
        flights: set[str] = set()
        malformed: set[str] = set()
        for message_id, body in zip(send(self._client, self.url, entries), bodies, strict=True):
            (malformed if body.is_malformed else flights).add(message_id)
        return Published(frozenset(flights), frozenset(malformed))

    def counts(self) -> Counts:
        """Return the counts of the work queue now."""
        return counts(self._client, self.url)

    def dead_letters(self) -> int:
        """How many messages the dead-letter queue holds now."""
        return counts(self._client, self.dead_letter_url).total

    def receive_dead_letters(self) -> frozenset[str]:
        """The ids of the messages in the dead-letter queue; they stay there, and are visible again at once."""
        total = self.dead_letters()
        handles: dict[str, str] = {}
        while len(handles) < total:
            answer = self._client.receive_message(
                QueueUrl=self.dead_letter_url, MaxNumberOfMessages=BATCH_ENTRIES, WaitTimeSeconds=1
            )
            if not answer.get("Messages"):
                break
            handles |= {message["MessageId"]: message["ReceiptHandle"] for message in answer["Messages"]}
        for handle in handles.values():
            self._client.change_message_visibility(
                QueueUrl=self.dead_letter_url, ReceiptHandle=handle, VisibilityTimeout=0
            )
        return frozenset(handles)


def create_with_dead_letters(
    client: SQSClient, name: str, *, visibility_seconds: int, max_receive_count: int
) -> tuple[str, str]:
    """Make a queue and its dead-letter queue, or find them as they were made so before.

    Args:
        client: With which to make them.
        name: The queue's name; one that ends in `.fifo` makes both FIFO queues.
        visibility_seconds: The queue's visibility timeout.
        max_receive_count: How often a message is delivered before the service moves it to the dead-letter queue.

    Returns:
        The URLs of both.
    """
    suffix = ".fifo" if name.endswith(".fifo") else ""
    fifo: dict[QueueAttributeNameType, str] = {"FifoQueue": "true"} if suffix else {}
    dead_letter_url = client.create_queue(
        QueueName=f"{name.removesuffix(suffix)}-dead-letter{suffix}", Attributes=fifo
    )["QueueUrl"]
    # Not when it is made: the service refuses to find a queue again that was made otherwise.
    client.set_queue_attributes(
        QueueUrl=dead_letter_url, Attributes={"MessageRetentionPeriod": str(DEAD_LETTER_SECONDS)}
    )
    arn = client.get_queue_attributes(QueueUrl=dead_letter_url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    redrive = {"deadLetterTargetArn": arn, "maxReceiveCount": max_receive_count}
    url = client.create_queue(
        QueueName=name,
        Attributes={**fifo, "VisibilityTimeout": str(visibility_seconds), "RedrivePolicy": json.dumps(redrive)},
    )["QueueUrl"]
    return url, dead_letter_url


def send(client: SQSClient, url: str, entries: Sequence[SendMessageBatchRequestEntryTypeDef]) -> list[str]:
    """Send messages, ten a call.

    Args:
        client: With which to send them.
        url: The queue.
        entries: The messages, in the shape of SendMessageBatch; each has an `Id` of its own.

    Returns:
        The ids that the service gave to them, in the same order.

    Raises:
        PublishError: The service refused some.
    """
    ids: dict[str, str] = {}
    for start in range(0, len(entries), BATCH_ENTRIES):
        answer = client.send_message_batch(QueueUrl=url, Entries=entries[start : start + BATCH_ENTRIES])
        if refused := answer.get("Failed"):
            raise PublishError(f"{url} refused {len(refused)} messages: {refused[0].get('Message')}")
        ids |= {entry["Id"]: entry["MessageId"] for entry in answer["Successful"]}
    return [ids[entry["Id"]] for entry in entries]


def counts(client: SQSClient, url: str) -> Counts:
    """Return the counts of a queue now, which are approximate on AWS."""
    attributes = client.get_queue_attributes(
        QueueUrl=url,
        AttributeNames=[
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesDelayed",
        ],
    )["Attributes"]
    return Counts(
        visible=int(attributes["ApproximateNumberOfMessages"]),
        in_flight=int(attributes["ApproximateNumberOfMessagesNotVisible"]),
        delayed=int(attributes["ApproximateNumberOfMessagesDelayed"]),
    )
