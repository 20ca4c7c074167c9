"""What Airflow's page *SQS leases* shows of a batch while it is kept: numbers and times.

The keeper's task writes the queue and the number of messages before it defers (:data:`KEEPS_KEY`), so that the page
shows a batch about which nothing was noted yet. From then on it is a part of the progress note
(:mod:`sqs_lease.airflow.settlement.progress`) of the process that holds the batch: the one that received it, as long as
no trigger takes it, and then that of the keeper's trigger. That note says anew how long the leases last whenever they
were extended. So it costs a request of its own only when something was settled. It has neither message ids nor bodies
nor receipt handles in it, and nothing but the page reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqs_lease.clock import Clock
from sqs_lease.keeper.batch import Batch

KEEPS_KEY: Final = "keeps"
"""The XCom key by which a keeper's task says which task received its batch, and how that stood when it began."""

PAUSE_SECONDS: Final = 30.0
"""Shortest time between two notes that are written for the page alone."""

FIRST_PAUSE_SECONDS: Final = 5.0
"""The same before the first one: what a batch needs to be kept comes first."""

_SHOWN_COUNTS: Final = (
    "received",
    "held",
    "deleted",
    "released",
    "dead_lettered",
    "expired",
    "lost",
    "failed",
    "uncertain",
    "extensions",
    "late",
)

_OF_EXTENSIONS: Final = frozenset({"extensions", "late"})


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """How a batch stands; times are in seconds since the epoch.

    Attributes:
        queue_url: The queue.
        counts: What became of the messages, by its name in the keeper's report.
        oldest_received_at: When the oldest lease that is held was received; None where none is held.
        renew_at: When the next lease is to be extended; None where none is any more.
        deadline: When the first lease ends unless it is extended; None where none is held.
    """

    queue_url: str
    counts: Mapping[str, int]
    oldest_received_at: float | None = None
    renew_at: float | None = None
    deadline: float | None = None

    def encode(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "queue_url": self.queue_url,
            "counts": {name: self.counts[name] for name in _SHOWN_COUNTS if name in self.counts},
            "oldest_received_at": _whole(self.oldest_received_at),
            "renew_at": _whole(self.renew_at),
            "deadline": _whole(self.deadline),
        }


def settled_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """The shown counts that change when something is settled or lost, and not when leases are extended."""
    return {name: counts[name] for name in _SHOWN_COUNTS if name in counts and name not in _OF_EXTENSIONS}


async def status_of(batch: Batch, counts: Mapping[str, int], clock: Clock) -> dict[str, Any]:
    """How a batch stands now, as :meth:`BatchStatus.encode` gives it.

    Args:
        batch: The batch.
        counts: What became of its messages, other processes' settlements included.
        clock: Its keeper's clock.
    """
    outlook, ahead = await batch.outlook(), clock.wall() - clock.now()

    def wall(at: float | None) -> float | None:
        return None if at is None else at + ahead

    return BatchStatus(
        batch.queue_url, counts, wall(batch.oldest_received_at()), wall(outlook.renew_at), wall(outlook.deadline)
    ).encode()


def _whole(seconds: float | None) -> int | None:
    """Rounded: what the two clocks differ by from one reading to the next is no news."""
    return None if seconds is None else round(seconds)
