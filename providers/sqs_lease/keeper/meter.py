"""What a keeper tells whoever measures it; each host has its own way to publish it."""

from __future__ import annotations

from typing import Protocol

from sqs_lease.core.events import Outcome


class Meter(Protocol):
    """Counts what happens to the leases of a keeper. Called in the keeper's event loop; it must not block or raise."""

    def extended(self, queue_url: str, leases: int) -> None:
        """A call was answered and confirmed so many extensions."""

    def late(self, queue_url: str) -> None:
        """A deadline passed before an extension was confirmed."""

    def ended(self, queue_url: str, outcome: Outcome, settling_seconds: float | None) -> None:
        """A lease ended.

        Args:
            queue_url: The queue.
            outcome: How.
            settling_seconds: From the decision to settle it to the service's confirmation; None where there was no
                decision: it was lost while its work went on.
        """


class Unmetered:
    """Counts nothing: what a keeper has when nobody asks."""

    def extended(self, queue_url: str, leases: int) -> None:
        """Not counted."""

    def late(self, queue_url: str) -> None:
        """Not counted."""

    def ended(self, queue_url: str, outcome: Outcome, settling_seconds: float | None) -> None:
        """Not counted."""
