"""Move tasks: the service itself moves the messages of a dead-letter queue. The calls, as values and as a protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from sqs_lease.sqs.requests import text_of
from sqs_lease.sqs.transport import Transport

RUNNING: Final = "RUNNING"
COMPLETED: Final = "COMPLETED"
CANCELLING: Final = "CANCELLING"
CANCELLED: Final = "CANCELLED"
FAILED: Final = "FAILED"

MAX_LISTED_TASKS: Final = 10
"""Most move tasks of a queue that the service lists, the newest first."""

MAX_MOVES_PER_SECOND: Final = 500
"""The most messages that the service moves in a second."""

NOT_A_DEAD_LETTER_QUEUE: Final = "must be configured as a dead letter queue"
"""A part of the text, in lower case, by which the service refuses a source that is not a dead-letter queue."""

ALREADY_RUNNING: Final = "already a task running"
"""A part of the text, in lower case, by which the service refuses a second task for a queue."""

UNKNOWN_CALL_CODES: Final = frozenset({"InvalidAction", "UnknownOperation", "UnsupportedOperation"})
"""The codes with which servers other than SQS refuse calls about move tasks, if they lack them."""

UNKNOWN_SOURCE: Final = "CouldNotDetermineMessageSource"
"""The failure of a task without a destination at a message that was sent to the dead-letter queue directly."""


@dataclass(frozen=True, slots=True)
class MoveTask:
    """A move task, as the service lists it.

    Attributes:
        status: ``RUNNING``, ``COMPLETED``, ``CANCELLING``, ``CANCELLED`` or ``FAILED``.
        moved: Approximate number of messages moved so far.
        to_move: Approximate number of messages at the start; None if the service does not say.
        failure: The reason for its failure; empty for other statuses.
        handle: The handle to cancel it with; the service gives it only while the task runs, else it is empty.
        started_at: The time of its start, in seconds since the epoch.
    """

    status: str
    moved: int
    to_move: int | None = None
    failure: str = ""
    handle: str = field(default="", repr=False)
    started_at: float = 0.0

    @property
    def is_active(self) -> bool:
        """Whether no other task can be started because of it."""
        return self.status in (RUNNING, CANCELLING)


class RedriveTransport(Transport, Protocol):
    """A transport that moves messages out of dead-letter queues; those over AWS clients and the in-memory one do.

    Each ARN is one that :meth:`queue_attributes` returned. Servers other than AWS write regions and forms of their own
    into it, so it is not checked.

    A call that cannot be carried out raises an :class:`sqs_lease.sqs.errors.SqsError`.
    """

    async def start_move_task(
        self, source_arn: str, *, destination_arn: str | None = None, max_per_second: int | None = None
    ) -> str:
        """Start to move all messages of a dead-letter queue, and return the task's handle.

        Args:
            source_arn: The dead-letter queue.
            destination_arn: Where to; None moves each message back to the queue that it came from.
            max_per_second: Most messages in a second, 1 to 500; None leaves it to the service.
        """

    async def move_tasks(self, source_arn: str) -> Sequence[MoveTask]:
        """List the last move tasks of a dead-letter queue, up to ten, the newest first."""

    async def cancel_move_task(self, source_arn: str, handle: str) -> None:
        """End a running move task; what it moved stays moved.

        Args:
            source_arn: The dead-letter queue, for errors.
            handle: The task's handle.
        """

    async def dead_letter_sources(self, queue_url: str) -> Sequence[str]:
        """Return the URLs of the queues whose dead-letter queue this is, up to a thousand."""


def start_request(source_arn: str, destination_arn: str | None, max_per_second: int | None) -> dict[str, Any]:
    """Build ``StartMessageMoveTask``."""
    parameters: dict[str, Any] = {"SourceArn": source_arn}
    if destination_arn is not None:
        parameters["DestinationArn"] = destination_arn
    if max_per_second is not None:
        parameters["MaxNumberOfMessagesPerSecond"] = max_per_second
    return parameters


def listed_tasks(answer: Mapping[str, Any]) -> list[MoveTask]:
    """Read the answer of ``ListMessageMoveTasks``.

    Raises:
        KeyError: The answer lacks what every task has.
        AttributeError: A value is of another type than SQS gives it; the same for the following.
        TypeError: See above.
        ValueError: See above.
        OverflowError: See above.
    """
    return [
        MoveTask(
            status=text_of(task["Status"]),
            moved=int(task.get("ApproximateNumberOfMessagesMoved") or 0),
            to_move=None if (to_move := task.get("ApproximateNumberOfMessagesToMove")) is None else int(to_move),
            failure=text_of(task.get("FailureReason") or ""),
            handle=text_of(task.get("TaskHandle") or ""),
            started_at=int(task.get("StartedTimestamp") or 0) / 1000,
        )
        for task in answer.get("Results") or ()
    ]
