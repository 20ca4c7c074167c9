"""What Airflow's page *SQS leases* shows of a batch while it is kept: numbers and times, as an XCom of the keeper.

The keeper's task writes the queue and the number of messages before it defers, so that the page shows a batch that no
triggerer has taken yet. Then the trigger writes the rest, and again whenever something changed. It has neither message
ids nor bodies nor receipt handles in it, and nothing but the page reads it: what a takeover needs stands in other
XComs (:mod:`sqs_lease.airflow.transfer.progress`).

A triggerer's supervisor serves some 45 requests a second, and keeping messages comes first. So a batch is written at
most every :data:`PAUSE_SECONDS`, all batches of a triggerer together at most :data:`WRITES_A_SECOND` times a second,
and one that could not be written waits for its next turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from sqs_lease.airflow.airflow_api.requests import CommsError, RunOfTask, publish
from sqs_lease.clock import Clock
from sqs_lease.keeper.batch import Batch

STATUS_KEY: Final = "lease_status"
"""The XCom key of the keeper's task."""

PAUSE_SECONDS: Final = 30.0
"""Shortest time between two writes about one batch."""

WRITES_A_SECOND: Final = 5.0
"""Most writes of one triggerer, on average."""

FIRST_WRITE_SECONDS: Final = 2.0
"""How long after a batch was taken it is first written, at the earliest: what it needs to be kept comes first."""

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

logger = logging.getLogger(__name__)


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


async def status_of(batch: Batch, counts: Mapping[str, int], clock: Clock) -> BatchStatus:
    """How a batch stands now.

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
    )


class StatusWriter:
    """Writes the status of one batch down while it is kept.

    Args:
        task: The keeper's task.
        status: Gives the status as it is now.
        batches: Gives how many batches are kept in this process.
    """

    def __init__(
        self, task: RunOfTask, status: Callable[[], Awaitable[BatchStatus]], batches: Callable[[], int]
    ) -> None:
        self._task = task
        self._status = status
        self._batches = batches
        self._random = Random()
        self._written: dict[str, Any] | None = None

    async def run(self) -> None:
        """Write it whenever something changed, until cancelled; nothing that goes wrong here ends it."""
        # Spread, because a takeover starts hundreds of triggers at once.
        await asyncio.sleep(FIRST_WRITE_SECONDS + self._random.random() * self._batches() / WRITES_A_SECOND)
        while True:
            try:
                await self._write()
            except Exception:
                # The page shows an older status then; leases do not depend on it.
                logger.warning("The status of %s cannot be written down for the page of leases", self._task)
                logger.debug("Why it cannot be written down", exc_info=True)
            await asyncio.sleep(max(PAUSE_SECONDS, self._batches() / WRITES_A_SECOND))

    async def _write(self) -> None:
        status = (await self._status()).encode()
        if status == self._written:
            return
        try:
            await publish(self._task, STATUS_KEY, status, patience_seconds=0)
        except CommsError as error:
            logger.info("The page of leases shows an older status of %s: %s", self._task, error)
        else:
            self._written = status


def _whole(seconds: float | None) -> int | None:
    """Rounded: what the two clocks differ by from one reading to the next is no news."""
    return None if seconds is None else round(seconds)
