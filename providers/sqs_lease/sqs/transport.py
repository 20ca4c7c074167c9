"""The one protocol for all calls to SQS; its two implementations differ only in their client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sqs_lease.core.calls import EntryAnswer, VisibilityChange
from sqs_lease.core.messages import Message, Receipt


@dataclass(frozen=True, slots=True)
class QueueAttributes:
    """The attributes of a queue that the project uses.

    Attributes:
        arn: The queue's ARN.
        visibility_seconds: The visibility timeout of a receive that sets none.
        fifo: Whether the queue is a FIFO queue.
        dead_letter_arn: The ARN of its dead-letter queue; None without a redrive policy.
        max_receive_count: The number of receives after which a message moves there; None without a redrive policy.
        visible: Approximate number of messages that can be received.
        in_flight: Approximate number of messages in flight.
        delayed: Approximate number of messages whose delay still runs.
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
    """Asynchronous calls to SQS, with answers as values.

    Input that the service always refuses (more than ten entries, a visibility timeout out of range, an option of the
    other kind of queue) raises ``ValueError`` before anything is sent. The caller splits its work into batches of ten,
    because it knows what is urgent.

    ``change_visibility`` and ``delete`` never raise for errors of the service or the network: after a failed call
    each entry has the same verdict. All other methods raise an :class:`sqs_lease.sqs.errors.SqsError`. A cancelled call
    may or may not have been carried out.
    """

    async def queue_url(self, queue: str) -> str:
        """Return the URL of a queue.

        Args:
            queue: Its name (in the client's region and account), its ARN (any account, the client's region) or its
                URL, which is returned unchanged and without a call.

        Raises:
            ValueError: ``queue`` is not a queue name, ARN or URL.
            sqs_lease.sqs.errors.WrongRegionError: The ARN or URL names another region than the client's.
            sqs_lease.sqs.errors.QueueNotFoundError: The queue does not exist, or the caller may not see it.
            sqs_lease.sqs.errors.SqsError: The call failed otherwise.
        """

    async def queue_attributes(self, queue_url: str) -> QueueAttributes:
        """Read the attributes of a queue.

        Raises:
            sqs_lease.sqs.errors.SqsError: The call failed.
        """

    async def receive(
        self,
        queue_url: str,
        *,
        max_messages: int,
        wait_seconds: int,
        visibility_seconds: int | None,
        attempt_id: str | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> Sequence[Message]:
        """Receive up to ten messages by one long poll, with all their attributes.

        Args:
            queue_url: The queue.
            max_messages: 1 to 10.
            wait_seconds: How long the poll waits for a first message, 0 to 20.
            visibility_seconds: Their visibility timeout, 0 to 43 200; None takes the queue's own.
            attempt_id: ``ReceiveRequestAttemptId``, for FIFO queues only: the same id within five minutes returns the
                same messages again.
            on_sent: Called once in the event loop, just before the request goes to the client. Before that the call
                may wait for a free connection. Leases count from this moment; a call that is cancelled before it
                takes no messages.

        Raises:
            ValueError: A value is out of range, or ``attempt_id`` is set for a standard queue.
            sqs_lease.sqs.errors.OverLimitError: Too many messages of the queue are in flight.
            sqs_lease.sqs.errors.SqsError: The call failed otherwise.
        """

    async def change_visibility(self, queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        """Set the visibility timeouts of up to ten messages; one answer per entry, in the order given.

        Raises:
            ValueError: More than ten entries, or a visibility timeout out of range.
        """

    async def delete(self, queue_url: str, receipts: Sequence[Receipt]) -> Sequence[EntryAnswer]:
        """Delete up to ten messages; one answer per entry, in the order given.

        Raises:
            ValueError: More than ten entries.
        """

    async def send(
        self,
        queue_url: str,
        body: str,
        *,
        message_attributes: Mapping[str, Mapping[str, Any]] | None = None,
        message_group_id: str | None = None,
        deduplication_id: str | None = None,
    ) -> str:
        """Send one message and return its id; this puts a message into a dead-letter queue with its reason.

        Args:
            queue_url: The queue.
            body: The text, not empty.
            message_attributes: At most ten, in the shape of the SQS API:
                ``{"name": {"DataType": "String", "StringValue": "..."}}``.
            message_group_id: Required on FIFO queues; on standard queues the tenant of a fair queue.
            deduplication_id: FIFO queues only; optional where the queue deduplicates by content.

        Raises:
            ValueError: An option is missing, malformed, or for the other kind of queue.
            sqs_lease.sqs.errors.SqsError: The call failed.
        """

    async def aclose(self) -> None:
        """Close the client's connections; calls under way fail. A second call does nothing."""
