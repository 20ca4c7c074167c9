"""The audit trail of :class:`sqs_lease.testing.MemorySqs`: the events of each message, with time and handle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from sqs_lease.core.messages import Receipt


class AuditKind(Enum):
    """The kind of an event."""

    SENT = "sent"
    """The message came into the queue, from a sender or from the queue that dead-lettered it."""

    RECEIVED = "received"
    """A receive returned it; it is invisible until ``until``."""

    REPLAYED = "replayed"
    """A receive repeated with its ``ReceiveRequestAttemptId`` returned it again, under the same handle."""

    CHANGED = "changed"
    """Its visibility timeout was set to end at ``until``."""

    RELEASED = "released"
    """Its visibility timeout was set to 0: it is visible."""

    EXPIRED = "expired"
    """Its visibility timeout ended: it is visible."""

    DELETED = "deleted"
    """It was deleted."""

    DEAD_LETTERED = "dead-lettered"
    """It was received too often: the service moved it to the dead-letter queue instead of returning it."""

    REDRIVEN = "redriven"
    """A move task took it out of the dead-letter queue; it is a new message in the queue that it was moved to."""

    RETIRED = "retired"
    """It was removed because it was older than the queue's retention period."""

    REFUSED = "refused"
    """A change or delete was answered with the error ``code``; nothing changed."""

    IGNORED = "ignored"
    """A delete was answered with success and changed nothing: gone already, or the handle is superseded."""


@dataclass(frozen=True, slots=True, repr=False)
class AuditEntry:
    """One event of one message.

    Attributes:
        at: When, in seconds of the service's clock.
        kind: The kind.
        queue_url: The queue.
        message_id: The message.
        handle: The receipt handle used, or, for an expiry, the one under which it was in flight.
        caller: The name of the transport that called; empty for direct calls.
        until: The time until which the message is now invisible, if that was set.
        stale: The handle was superseded by a later receive.
        code: The service's error code, if it refused.
    """

    at: float
    kind: AuditKind
    queue_url: str
    message_id: str
    handle: str = ""
    caller: str = ""
    until: float | None = None
    stale: bool = False
    code: str = ""

    def __str__(self) -> str:
        parts = [f"{self.at:.3f} {self.kind.value}"]
        if self.handle:
            parts.append(str(Receipt(self.message_id, self.handle)))
        else:
            parts.append(self.message_id)
        if self.caller:
            parts.append(f"by {self.caller}")
        if self.until is not None:
            parts.append(f"until {self.until:.3f}")
        if self.stale:
            parts.append("by a superseded handle")
        if self.code:
            parts.append(self.code)
        return " ".join(parts)

    def __repr__(self) -> str:
        return f"AuditEntry({self!s})"


class AuditTrail:
    """All events of one :class:`sqs_lease.testing.MemorySqs`.

    An expiry happens by time alone. It is written down at the next call on the queue, with the time at which it was
    due. So entries are in order for each message, but not across queues.
    """

    def __init__(self) -> None:
        self._entries: list[AuditEntry] = []
        self._by_message: dict[str, list[AuditEntry]] = {}

    def add(self, entry: AuditEntry) -> None:
        """Write down an event."""
        self._entries.append(entry)
        self._by_message.setdefault(entry.message_id, []).append(entry)

    def entries(self) -> Sequence[AuditEntry]:
        """All entries, in the order in which they were written down."""
        return self._entries

    def of(self, message_id: str) -> Sequence[AuditEntry]:
        """The entries of one message, in order; empty for one that was never sent."""
        return self._by_message.get(message_id, [])

    def message_ids(self) -> Sequence[str]:
        """All messages that were ever sent, in order."""
        return list(self._by_message)
