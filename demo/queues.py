"""The demo's queues: a work queue with a dead-letter queue behind it, and what is in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from demo.flights import Body
from demo.sqs_server import SqsServer

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

VISIBILITY_SECONDS = 30
"""The work queue's visibility timeout: shorter than the work on any batch."""

MAX_RECEIVE_COUNT = 2
"""How often a message is delivered before the service moves it to the dead-letter queue."""

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
    """The two queues on an SQS server; made anew.

    Args:
        server: The server, which must have no queues of these names.
    """

    def __init__(self, server: SqsServer) -> None:
        self._client: SQSClient = server.sqs_client()
        self.dead_letter_url = self._client.create_queue(QueueName="flights-dead-letter")["QueueUrl"]
        arn = self._client.get_queue_attributes(QueueUrl=self.dead_letter_url, AttributeNames=["QueueArn"])[
            "Attributes"
        ]["QueueArn"]
        redrive = {"deadLetterTargetArn": arn, "maxReceiveCount": MAX_RECEIVE_COUNT}
        self.url = self._client.create_queue(
            QueueName="flights",
            Attributes={"VisibilityTimeout": str(VISIBILITY_SECONDS), "RedrivePolicy": json.dumps(redrive)},
        )["QueueUrl"]

    def publish(self, bodies: Sequence[Body]) -> Published:
        """Send one message for each body to the work queue.

        Raises:
            PublishError: The service refused some.
        """
        flights: set[str] = set()
        malformed: set[str] = set()
        for some in _in_batches(bodies):
            answer = self._client.send_message_batch(
                QueueUrl=self.url,
                Entries=[{"Id": str(number), "MessageBody": body.text} for number, body in enumerate(some)],
            )
            if refused := answer.get("Failed"):
                raise PublishError(f"{self.url} refused {len(refused)} messages: {refused[0].get('Message')}")
            for entry in answer["Successful"]:
                kind = malformed if some[int(entry["Id"])].is_malformed else flights
                kind.add(entry["MessageId"])
        return Published(frozenset(flights), frozenset(malformed))

    def counts(self) -> Counts:
        """What the work queue holds now."""
        return self._counts(self.url)

    def dead_letters(self) -> int:
        """How many messages the dead-letter queue holds now."""
        return self._counts(self.dead_letter_url).total

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

    def _counts(self, url: str) -> Counts:
        attributes = self._client.get_queue_attributes(
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


def _in_batches(bodies: Sequence[Body]) -> Iterator[Sequence[Body]]:
    for start in range(0, len(bodies), BATCH_ENTRIES):
        yield bodies[start : start + BATCH_ENTRIES]
