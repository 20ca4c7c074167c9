"""One queue of :class:`sqs_lease.testing.MemorySqs`: the common part of standard and FIFO queues."""

from __future__ import annotations

import base64
import binascii
import heapq
import json
from abc import ABC, abstractmethod
from asyncio import Future
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from sqs_lease.clock import Clock
from sqs_lease.core.limits import MAX_VISIBILITY_SECONDS
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.testing import service_errors as errors
from sqs_lease.testing.audit import AuditEntry, AuditKind, AuditTrail
from sqs_lease.testing.service_errors import ServiceError


class MessageState(Enum):
    """The state of a message in a queue."""

    DELAYED = "delayed"
    VISIBLE = "visible"
    IN_FLIGHT = "in flight"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceChoices:
    """Choices that the real service leaves open; correct code works with each.

    Attributes:
        extends_after_expiry: On a standard queue, a message can still be extended after its visibility timeout
            ended, until it is received again. False: ``MessageNotInflight``.
        superseded_handle_changes: On a standard queue, a superseded handle changes the visibility of the
            message, so that it can end the next holder's lease. False: it is refused as not available.
    """

    extends_after_expiry: bool = True
    superseded_handle_changes: bool = True


@dataclass(slots=True, eq=False)
class StoredMessage:
    """A message in a queue. ``version`` changes with each event, so that older notes about it are void."""

    message_id: str
    body: str
    message_attributes: Mapping[str, Mapping[str, Any]]
    message_group_id: str | None
    deduplication_id: str | None
    sequence: int
    sent_at: float
    sent_milliseconds: int
    source_arn: str | None = None
    first_received_milliseconds: int | None = None
    receive_count: int = 0
    state: MessageState = MessageState.DELAYED
    version: int = 0
    handle: str = ""
    received_at: float = 0.0
    visible_at: float = 0.0
    released: bool = False
    """Visible because its visibility timeout was set to 0, not because it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """The settings that a queue was created with; durations in seconds."""

    name: str
    url: str
    arn: str
    visibility_seconds: int
    delay_seconds: int
    retention_seconds: float | None
    max_receive_count: int | None
    content_based_deduplication: bool
    in_flight_limit: int
    choices: ServiceChoices


@dataclass(slots=True)
class Counts:
    """The numbers of a queue's messages by state."""

    by_state: dict[MessageState, int] = field(default_factory=lambda: dict.fromkeys(MessageState, 0))

    def move(self, message: StoredMessage, state: MessageState) -> None:
        """Move a message to another state."""
        self.by_state[message.state] -= 1
        self.by_state[state] += 1
        message.state = state


class MemoryQueue(ABC):
    """A queue. Every method first carries out events that were due by now: delays, visibility timeouts, retention."""

    fifo: bool

    def __init__(
        self, settings: QueueSettings, clock: Clock, trail: AuditTrail, dead_letter: MemoryQueue | None
    ) -> None:
        self.settings = settings
        self.dead_letter = dead_letter
        self.waiters: dict[Future[None], None] = {}
        self._clock = clock
        self._trail = trail
        self._messages: dict[str, StoredMessage] = {}
        self._counts = Counts()
        self._timers: list[tuple[float, int, StoredMessage, int]] = []
        self._timer_number = 0

    def put(self, message: StoredMessage, *, delay_seconds: float) -> None:
        """Take in a new message, or one that was moved here."""
        now = self.catch_up()
        self._messages[message.message_id] = message
        self._counts.by_state[message.state] += 1
        self._log(now, AuditKind.SENT, message)
        if self.settings.retention_seconds is not None:
            # A negative version never matches an event, so the timer stays valid after all events of the message.
            self._set_timer(message.sent_at + self.settings.retention_seconds, message, version=-1)
        self._file(message)
        if delay_seconds:
            self._set_timer(now + delay_seconds, message, version=message.version)
        else:
            self._show(message)

    def receive(
        self, *, max_messages: int, visibility_seconds: int | None, attempt_id: str | None, caller: str
    ) -> list[Message]:
        """Return up to ``max_messages`` visible messages and make them invisible."""
        now = self.catch_up()
        seconds = self.settings.visibility_seconds if visibility_seconds is None else visibility_seconds
        return self._receive(now, max_messages, seconds, attempt_id, caller)

    def change(self, handle: str, seconds: int, caller: str) -> ServiceError | None:
        """Set one message's visibility timeout, counted from now; None when done."""
        now = self.catch_up()
        message_id, message = self._find(handle)
        if message_id is None:
            return errors.MALFORMED_HANDLE
        error: ServiceError | None
        if not 0 <= seconds <= MAX_VISIBILITY_SECONDS:
            error = errors.out_of_range("VisibilityTimeout", seconds, 0, MAX_VISIBILITY_SECONDS)
        elif message is None:
            error = errors.NOT_AVAILABLE
        else:
            error = self._change_refused(message, stale=handle != message.handle)
            # Beyond the cap SQS refuses the extension; it does not shorten it.
            if error is None and seconds > 0 and now + seconds > message.received_at + MAX_VISIBILITY_SECONDS:
                error = errors.beyond_total_visibility(seconds)
        if error is not None or message is None:
            code = "" if error is None else error.code
            self._log_refusal(now, AuditKind.REFUSED, message_id, message, handle, caller, code)
            return error
        stale = handle != message.handle
        if seconds > 0:
            self._hide(message, now + seconds)
            self._log(now, AuditKind.CHANGED, message, handle, caller, until=message.visible_at, stale=stale)
        else:
            self._log(now, AuditKind.RELEASED, message, handle, caller, stale=stale)
            if message.state is MessageState.IN_FLIGHT:
                message.released = True
                self._end_of_flight(message)
                self._show(message)
        return None

    def delete(self, handle: str, caller: str) -> ServiceError | None:
        """Delete one message; None when done, or when the service only answers so."""
        now = self.catch_up()
        message_id, message = self._find(handle)
        if message_id is None:
            return errors.MALFORMED_HANDLE
        stale = message is not None and handle != message.handle
        if message is not None:
            error = self._delete_refused(message, stale=stale)
            if error is not None:
                self._log_refusal(now, AuditKind.REFUSED, message_id, message, handle, caller, error.code)
                return error
        if message is None or stale:
            self._log_refusal(now, AuditKind.IGNORED, message_id, message, handle, caller, "")
            return None
        self._log(now, AuditKind.DELETED, message, handle, caller)
        self._remove(message)
        return None

    def catch_up(self) -> float:
        """Carry out events that were due by now, in their order; return the time."""
        now = self._clock.now()
        while self._timers and self._timers[0][0] <= now:
            due, _, message, version = heapq.heappop(self._timers)
            if version == -1 and message.state is not MessageState.GONE:
                self._log(due, AuditKind.RETIRED, message, message.handle)
                self._remove(message)
            elif version == message.version:
                if message.state is MessageState.IN_FLIGHT:
                    message.released = False
                    self._log(due, AuditKind.EXPIRED, message, message.handle)
                    self._end_of_flight(message)
                self._show(message)
        return now

    def next_change_at(self) -> float | None:
        """Return when time alone may make the next message visible; None for never."""
        while self._timers:
            due, _, message, version = self._timers[0]
            if version == message.version or (version == -1 and message.state is not MessageState.GONE):
                return due
            heapq.heappop(self._timers)
        return None

    def give_up(self, message: StoredMessage) -> None:
        """Remove a message that a move task puts into another queue."""
        self._log(self.catch_up(), AuditKind.REDRIVEN, message, message.handle)
        self._remove(message)

    def count(self, state: MessageState) -> int:
        """Return how many messages are in a state."""
        return self._counts.by_state[state]

    def messages(self) -> Sequence[StoredMessage]:
        """Return all messages, in the order in which they came."""
        return list(self._messages.values())

    def _take(self, message: StoredMessage, now: float, visibility_seconds: int, caller: str) -> Message:
        """Put a visible message in flight under a new handle."""
        message.receive_count += 1
        message.received_at = now
        message.released = False
        message.handle = _new_handle(self.settings.name, message.message_id, message.receive_count)
        if message.first_received_milliseconds is None:
            message.first_received_milliseconds = int(self._clock.wall() * 1000)
        self._hide(message, now + visibility_seconds)
        self._log(now, AuditKind.RECEIVED, message, message.handle, caller, until=message.visible_at)
        return self._as_received(message)

    def _as_received(self, message: StoredMessage) -> Message:
        attributes = {
            "SenderId": "AIDAMEMORYSQS",
            "ApproximateReceiveCount": str(message.receive_count),
            "SentTimestamp": str(message.sent_milliseconds),
            "ApproximateFirstReceiveTimestamp": str(message.first_received_milliseconds),
        }
        if message.message_group_id is not None:
            attributes["MessageGroupId"] = message.message_group_id
        if message.deduplication_id is not None:
            attributes["MessageDeduplicationId"] = message.deduplication_id
        if self.fifo:
            attributes["SequenceNumber"] = f"{message.sequence:020d}"
        if message.source_arn is not None:
            attributes["DeadLetterQueueSourceArn"] = message.source_arn
        return Message(
            Receipt(message.message_id, message.handle), message.body, attributes, message.message_attributes
        )

    def _dead_letter_if_due(self, message: StoredMessage, now: float) -> bool:
        """Move a message that was received too often already; return whether it was."""
        limit = self.settings.max_receive_count
        if self.dead_letter is None or limit is None or message.receive_count < limit:
            return False
        self._log(now, AuditKind.DEAD_LETTERED, message, message.handle)
        self._remove(message)
        moved = StoredMessage(
            message_id=message.message_id,
            body=message.body,
            message_attributes=message.message_attributes,
            message_group_id=message.message_group_id,
            # On a FIFO queue the message id is the new deduplication id, and the retention period starts again.
            deduplication_id=message.message_id if self.fifo else None,
            sequence=message.sequence,
            sent_at=now if self.fifo else message.sent_at,
            sent_milliseconds=message.sent_milliseconds,
            first_received_milliseconds=message.first_received_milliseconds,
            receive_count=message.receive_count,
            source_arn=self.settings.arn,
        )
        if self.dead_letter.duplicate_of(moved.deduplication_id) is None:
            self.dead_letter.put(moved, delay_seconds=0)
        return True

    def _hide(self, message: StoredMessage, until: float) -> None:
        was = message.state
        message.version += 1
        message.visible_at = until
        self._set_timer(until, message, version=message.version)
        if was is not MessageState.IN_FLIGHT:
            self._counts.move(message, MessageState.IN_FLIGHT)
            self._started_flight(message)

    def _show(self, message: StoredMessage) -> None:
        message.version += 1
        self._counts.move(message, MessageState.VISIBLE)
        self._offer(message)
        self._wake()

    def _remove(self, message: StoredMessage) -> None:
        if message.state is MessageState.IN_FLIGHT:
            self._end_of_flight(message)
        message.version += 1
        self._counts.move(message, MessageState.GONE)
        del self._messages[message.message_id]
        self._unfile(message)
        self._wake()

    def _wake(self) -> None:
        # Threadsafe, because a test's own thread may call while a poll waits in a loop's thread.
        for waiter in self.waiters:
            waiter.get_loop().call_soon_threadsafe(_resolve, waiter)
        self.waiters.clear()

    def _set_timer(self, due: float, message: StoredMessage, *, version: int) -> None:
        if not self._timers or due < self._timers[0][0]:
            # A poll that waits for the next change must not sleep through this one.
            self._wake()
        self._timer_number += 1
        heapq.heappush(self._timers, (due, self._timer_number, message, version))

    def _find(self, handle: str) -> tuple[str | None, StoredMessage | None]:
        """Return the message id in a handle (None: malformed, or another queue's), and the message if still here."""
        message_id = _message_id_in(handle, self.settings.name)
        return message_id, None if message_id is None else self._messages.get(message_id)

    def _log(
        self,
        at: float,
        kind: AuditKind,
        message: StoredMessage,
        handle: str = "",
        caller: str = "",
        *,
        until: float | None = None,
        stale: bool = False,
    ) -> None:
        self._trail.add(AuditEntry(at, kind, self.settings.url, message.message_id, handle, caller, until, stale))

    def _log_refusal(
        self,
        at: float,
        kind: AuditKind,
        message_id: str,
        message: StoredMessage | None,
        handle: str,
        caller: str,
        code: str,
    ) -> None:
        stale = message is not None and handle != message.handle
        self._trail.add(AuditEntry(at, kind, self.settings.url, message_id, handle, caller, None, stale, code))

    @abstractmethod
    def duplicate_of(self, deduplication_id: str | None) -> str | None:
        """Return the id of a message with this deduplication id of the last 5 minutes; None without one."""

    @abstractmethod
    def _receive(
        self, now: float, max_messages: int, visibility_seconds: int, attempt_id: str | None, caller: str
    ) -> list[Message]:
        """Take visible messages."""

    @abstractmethod
    def _change_refused(self, message: StoredMessage, *, stale: bool) -> ServiceError | None:
        """Return why the visibility of a message cannot be changed; None if it can."""

    @abstractmethod
    def _delete_refused(self, message: StoredMessage, *, stale: bool) -> ServiceError | None:
        """Return the error that a delete is answered with; None for success."""

    @abstractmethod
    def _file(self, message: StoredMessage) -> None:
        """Take note that a message came."""

    @abstractmethod
    def _unfile(self, message: StoredMessage) -> None:
        """Take note that a message went."""

    @abstractmethod
    def _offer(self, message: StoredMessage) -> None:
        """Take note that a message is visible."""

    @abstractmethod
    def _started_flight(self, message: StoredMessage) -> None:
        """Take note that a message is in flight from now on."""

    @abstractmethod
    def _end_of_flight(self, message: StoredMessage) -> None:
        """Take note that a message will no longer be in flight."""


def _resolve(waiter: Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _new_handle(queue_name: str, message_id: str, number: int) -> str:
    """Return an opaque handle; the number is last, so that the shortened forms of receipts differ."""
    return base64.b64encode(json.dumps([queue_name, message_id, f"{number:06d}"]).encode()).decode()


def _message_id_in(handle: str, queue_name: str) -> str | None:
    try:
        name, message_id, _ = json.loads(base64.b64decode(handle, validate=True))
    except (binascii.Error, ValueError, TypeError):
        return None
    return message_id if name == queue_name and isinstance(message_id, str) else None
