"""The calls that the ledger asks for, as values for at most ten messages each, and the answer to each entry.

The caller performs the calls and reports the answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from msgspec import Struct

from sqs_lease.core.messages import Receipt


class VisibilityChange(Struct, frozen=True, gc=False):
    """One entry of ``ChangeMessageVisibilityBatch``.

    Attributes:
        receipt: The lease to change.
        seconds: The new visibility timeout in whole seconds, counted from now, 0 to 43 200; 0 makes
            the message visible at once.
    """

    receipt: Receipt
    seconds: int


@dataclass(frozen=True, slots=True)
class ExtendCall:
    """A call that extends leases. ``asked_at`` is when it was decided: confirmed deadlines count from then."""

    asked_at: float
    changes: tuple[VisibilityChange, ...]

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """The leases that the call is about."""
        return tuple([change.receipt for change in self.changes])


@dataclass(frozen=True, slots=True)
class ReleaseCall:
    """A call that makes messages visible after their delays."""

    asked_at: float
    changes: tuple[VisibilityChange, ...]

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """The leases that the call is about."""
        return tuple([change.receipt for change in self.changes])


@dataclass(frozen=True, slots=True)
class DeleteCall:
    """A call that deletes messages."""

    asked_at: float
    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class ForwardCall:
    """A call that sends a copy of a message to the dead-letter queue; the delete follows once that is confirmed."""

    asked_at: float
    receipt: Receipt
    reason: str

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """The lease that the call is about."""
        return (self.receipt,)


Call: TypeAlias = ExtendCall | ReleaseCall | DeleteCall | ForwardCall


class Verdict(Enum):
    """The classes of answer to an extension, a release or a delete."""

    # Members are hashed several times per message: by identity, which is faster than by name.
    __hash__ = object.__hash__

    DONE = "done"
    """The service did what was asked."""

    LOST = "lost"
    """The lease is no longer ours: the message was deleted, is visible again, or another consumer holds it."""

    CAPPED = "capped"
    """The extension would go beyond the service's 12 hours from the receive; the lease lasts until its deadline."""

    THROTTLED = "throttled"
    """There were too many requests: try again, more slowly, the most urgent lease first."""

    UNAVAILABLE = "unavailable"
    """The call was certainly not carried out, e.g. 503 ServiceUnavailable, a refused connection, a host name that does
    not resolve, credentials that are not available right now. Try again; even a release may be repeated."""

    TRANSIENT = "transient"
    """The answer was lost, or the service failed while it worked on the call (500, a time-out, a torn connection): the
    call may or may not have been carried out. Try again, but never repeat a release at once."""

    REFUSED = "refused"
    """The service will not do this (denied, no such queue, malformed): a repetition gets the same answer until a user
    changes a policy or a setting."""


PASSING: Final = frozenset({Verdict.THROTTLED, Verdict.TRANSIENT, Verdict.UNAVAILABLE})
"""The verdicts after which the same call may succeed by itself."""

NOT_CARRIED_OUT: Final = frozenset({Verdict.THROTTLED, Verdict.UNAVAILABLE, Verdict.REFUSED})
"""The verdicts that say that the service did nothing."""


class EntryAnswer(Struct, frozen=True, gc=False):
    """The verdict on one entry of a batch call.

    Attributes:
        receipt: The lease that the entry is about.
        verdict: The class of answer.
        code: The service's error code, e.g. ``InvalidParameterValue``; empty when done.
        text: The service's error text, for people; empty when done.
    """

    receipt: Receipt
    verdict: Verdict
    code: str = ""
    text: str = ""
