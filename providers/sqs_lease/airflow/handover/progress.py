"""What a keeper leaves word of while it works, for whoever resumes it: what was settled, and how long leases last.

It is an XCom of the keeper's own task. Settlements are written down before they are carried out, so that no other
process extends what this one is giving away. The time until which the leases last is written down after extensions,
so that whoever takes over knows them to be certain, and may release what fails then. Until the keeper's task has begun,
the process that received writes that down as an XCom of the receiving task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from msgspec.structs import replace

from sqs_lease.clock import Clock
from sqs_lease.core.events import Outcome
from sqs_lease.core.messages import Lease
from sqs_lease.keeper.batch import Batch

PROGRESS_KEY: Final = "settled"
"""The XCom key for it."""

CERTAINTY_SECONDS: Final = 15.0
"""Shortest time between two notes of how long the leases last: a takeover needs one that is newer than the lease."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the keeper of one batch has come.

    Attributes:
        settled: What was settled, or is about to be, by the message's position in the batch.
        certain_until: Until when every lease that is held lasts at least, in seconds since the epoch; None where
            nothing newer is known than what the sensor handed over, or where a lease has lapsed.
        counts: What the lease report counts beside outcomes, by its names: ``extensions``, ``late`` and so on.
    """

    settled: Mapping[int, Outcome] = field(default_factory=dict)
    certain_until: float | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "settled": {str(position): outcome.value for position, outcome in self.settled.items()},
            "certain_until": self.certain_until,
            "counts": dict(self.counts),
        }

    @classmethod
    def decode(cls, plain: Mapping[str, Any] | None) -> Self:
        """Build it from what :meth:`encode` returned; None, or a mapping without anything, is nothing so far."""
        plain = plain or {}
        settled = {int(position): Outcome(value) for position, value in plain.get("settled", {}).items()}
        return cls(settled, plain.get("certain_until"), plain.get("counts", {}))

    def brought_up_to_date(self, leases: Iterable[Lease]) -> list[Lease]:
        """The leases as they were handed over, with the deadlines that are known since; times since the epoch."""
        until = self.certain_until
        return [lease if until is None else replace(lease, deadline=max(lease.deadline, until)) for lease in leases]


class Certainty:
    """Says when it is time for another note of how long the leases of a batch last.

    Args:
        batch: The batch.
        clock: Its keeper's clock.
    """

    def __init__(self, batch: Batch, clock: Clock) -> None:
        self._batch = batch
        self._clock = clock
        self._noted_extensions = 0
        self._noted_at = -math.inf

    def is_news(self) -> bool:
        """Whether leases were extended since the last note, and that is some time ago; it counts as noted then."""
        extensions, now = self._batch.extensions, self._clock.now()
        if extensions == self._noted_extensions or now - self._noted_at < CERTAINTY_SECONDS:
            return False
        self._noted_extensions, self._noted_at = extensions, now
        return True

    def until(self) -> float | None:
        """Until when every lease that is held lasts at least, in seconds since the epoch; None if one has lapsed."""
        until = self._batch.certain_until()
        return None if until is None else until + self._clock.wall() - self._clock.now()
