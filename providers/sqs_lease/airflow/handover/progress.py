"""What a keeper leaves word of while it works, for whoever resumes it: what was settled, and how long leases last.

It is an XCom of the keeper's own task. Settlements are written down before they are carried out, so that no other
process extends what this one is giving away. The time until which the leases last is written down after extensions,
so that whoever takes over knows them to be certain, and may release what fails then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from sqs_lease.core.events import Outcome
from sqs_lease.core.leases import Lease

PROGRESS_KEY: Final = "settled"
"""The keeper's XCom key for it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the keeper of one batch has come.

    Attributes:
        settled: What was settled, or is about to be, by the message's position in the batch.
        certain_until: Until when every lease that is held lasts at least, in seconds since the epoch; None where
            nothing newer is known than what the sensor handed over, or where a lease has lapsed.
    """

    settled: Mapping[int, Outcome] = field(default_factory=dict)
    certain_until: float | None = None

    def encode(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "settled": {str(position): outcome.value for position, outcome in self.settled.items()},
            "certain_until": self.certain_until,
        }

    @classmethod
    def decode(cls, plain: Mapping[str, Any] | None) -> Self:
        """Build it from what :meth:`encode` returned; None, or a mapping without anything, is nothing so far."""
        plain = plain or {}
        settled = {int(position): Outcome(value) for position, value in plain.get("settled", {}).items()}
        return cls(settled, plain.get("certain_until"))

    def brought_up_to_date(self, leases: Iterable[Lease]) -> list[Lease]:
        """The leases as they were handed over, with the deadlines that are known since; times since the epoch."""
        until = self.certain_until
        return [lease if until is None else replace(lease, deadline=max(lease.deadline, until)) for lease in leases]
