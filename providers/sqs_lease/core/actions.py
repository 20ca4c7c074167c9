"""What the ledger wants done: calls as values, in batches of at most ten. The caller performs them and reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from sqs_lease.core.messages import Receipt


@dataclass(frozen=True, slots=True)
class VisibilityChange:
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
    """Extend these leases. ``asked_at`` is the ``now`` it was decided at: confirmed deadlines count from it."""

    asked_at: float
    changes: tuple[VisibilityChange, ...]

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """The leases it concerns."""
        return tuple(change.receipt for change in self.changes)


@dataclass(frozen=True, slots=True)
class ReleaseCall:
    """Make these messages visible after their delays."""

    asked_at: float
    changes: tuple[VisibilityChange, ...]

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """The leases it concerns."""
        return tuple(change.receipt for change in self.changes)


@dataclass(frozen=True, slots=True)
class DeleteCall:
    """Delete these messages."""

    asked_at: float
    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class ForwardCall:
    """Send a copy of this message to the dead-letter queue; its delete follows once that is confirmed."""

    asked_at: float
    receipt: Receipt
    reason: str

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """The lease it concerns."""
        return (self.receipt,)


Call: TypeAlias = ExtendCall | ReleaseCall | DeleteCall | ForwardCall
