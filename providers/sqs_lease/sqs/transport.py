"""The one protocol through which everything reaches SQS; its two implementations differ in nothing but their client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sqs_lease.core.actions import VisibilityChange
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.core.verdicts import EntryAnswer


@dataclass(frozen=True, slots=True)
class QueueAttributes:
    """What a queue says of itself.

    Attributes:
        arn: The queue's ARN.
        visibility_seconds: The visibility timeout of messages received without one of their own.
        fifo: Whether it is a FIFO queue.
        dead_letter_arn: The ARN of its dead-letter queue; None without a redrive policy.
        max_receive_count: After how many receives a message is moved there; None without a redrive policy.
        visible: Approximate number of messages that can be received.
        in_flight: Approximate number of messages in flight.
        delayed: Approximate number of messages that were sent with a delay still running.
    """

    arn: str
    visibility_seconds: int
    fifo: bool
    dead_letter_arn: str | None
    max_receive_count: int | None
    visible: int
    in_flight: int
    delayed: int


class Transport(Protocol):
    """Calls on SQS, asynchronous, with answers as values.

    Batch calls of more than ten entries are the caller's error (``ValueError``): splitting is done where
    urgency is known. ``change_visibility`` and ``delete`` never raise for what the service or the network
    answered: a failed call is the same verdict for each of its entries. All other methods raise an
    :class:`sqs_lease.sqs.errors.SqsError`. Cancelling a call leaves it unknown whether it was carried out.
    """

    async def queue_url(self, queue: str) -> str:
        """Return the URL of a queue given by name or URL; a URL is returned as it is, without a call."""

    async def queue_attributes(self, queue_url: str) -> QueueAttributes:
        """Read the attributes of a queue."""

    async def receive(
        self,
        queue_url: str,
        *,
        max_messages: int,
        wait_seconds: int,
        visibility_seconds: int | None,
        attempt_id: str | None = None,
    ) -> Sequence[Message]:
        """Receive up to ten messages by one long poll, with all their attributes.

        Args:
            queue_url: The queue.
            max_messages: 1 to 10.
            wait_seconds: How long the poll waits for a first message, 0 to 20.
            visibility_seconds: Their visibility timeout; None takes the queue's own.
            attempt_id: ``ReceiveRequestAttemptId``, for FIFO queues only: the same id within five minutes
                returns the same messages again.
        """

    async def change_visibility(self, queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        """Set the visibility timeouts of up to ten messages; one answer per entry, in the order given."""

    async def delete(self, queue_url: str, receipts: Sequence[Receipt]) -> Sequence[EntryAnswer]:
        """Delete up to ten messages; one answer per entry, in the order given."""

    async def send(
        self,
        queue_url: str,
        body: str,
        *,
        message_attributes: Mapping[str, Mapping[str, Any]] | None = None,
        message_group_id: str | None = None,
        deduplication_id: str | None = None,
    ) -> str:
        """Send one message and return its id: how a message is put into a dead-letter queue with its reason."""

    async def aclose(self) -> None:
        """Close the client's connections; calls under way fail."""
