"""Publishes what the triggerer's keepers do as Airflow's own metrics (StatsD, Datadog or OpenTelemetry).

All carry the tag ``queue``, the queue's name; a StatsD server that knows no tags gets the sums over all queues.

    sqs_lease.held                 gauge    leases held now
    sqs_lease.batches              gauge    batches with leases that are held now
    sqs_lease.oldest_lease         gauge    age of the oldest lease held, in seconds since its receive
    sqs_lease.extended             counter  confirmed extensions, one for each message
    sqs_lease.late                 counter  deadlines that passed before an extension was confirmed
    sqs_lease.lost                 counter  leases that the service refused to extend, or to settle
    sqs_lease.settled.<outcome>    counter  settlements: deleted, released, dead_lettered, expired, failed, uncertain
    sqs_lease.release_latency      timer    from the decision that a message failed to its being visible again
    sqs_lease.watcher.poll_age     gauge    seconds since the queue was last counted for its watchers without an error
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from sqs_lease.airflow.airflow_api.requests import stats
from sqs_lease.clock import Clock
from sqs_lease.core.events import Outcome
from sqs_lease.keeper.keeper import Holding

MEASURE_SECONDS: Final = 10.0
"""Pause between two readings of the gauges."""


class AirflowMeter:
    """Passes on what a keeper counts."""

    def held(self, queue_url: str, change: int) -> None:
        """Not passed on: :class:`Gauges` reads how many there are."""

    def batches(self, queue_url: str, change: int) -> None:
        """Not passed on either."""

    def extended(self, queue_url: str, leases: int) -> None:
        """See ``sqs_lease.extended``."""
        stats.incr("sqs_lease.extended", leases, tags=_tags(queue_url))

    def late(self, queue_url: str) -> None:
        """See ``sqs_lease.late``."""
        stats.incr("sqs_lease.late", 1, tags=_tags(queue_url))

    def ended(self, queue_url: str, outcome: Outcome, settling_seconds: float | None) -> None:
        """See ``sqs_lease.lost``, ``sqs_lease.settled`` and ``sqs_lease.release_latency``."""
        tags = _tags(queue_url)
        if outcome is Outcome.LOST:
            stats.incr("sqs_lease.lost", 1, tags=tags)
            return
        stats.incr(f"sqs_lease.settled.{outcome.value.replace('-', '_')}", 1, tags=tags)
        if outcome is Outcome.RELEASED and settling_seconds is not None:
            stats.timing("sqs_lease.release_latency", timedelta(seconds=settling_seconds), tags=tags)


class Gauges:
    """Publishes how much is held; a queue with nothing left is set to 0 once."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def show(self, holdings: Iterable[Holding], now: float) -> None:
        """Publish the gauges.

        Args:
            holdings: What all keepers of the triggerer hold, each queue of a keeper once.
            now: The time of the keepers' clock.
        """
        leases: dict[str, int] = dict.fromkeys(self._shown, 0)
        batches: dict[str, int] = dict.fromkeys(self._shown, 0)
        ages: dict[str, float] = dict.fromkeys(self._shown, 0.0)
        for holding in holdings:
            leases[holding.queue_url] = leases.get(holding.queue_url, 0) + holding.leases
            batches[holding.queue_url] = batches.get(holding.queue_url, 0) + holding.batches
            ages[holding.queue_url] = max(ages.get(holding.queue_url, 0.0), now - holding.oldest_received_at)
        for queue_url, count in leases.items():
            stats.gauge("sqs_lease.held", count, tags=_tags(queue_url))
            stats.gauge("sqs_lease.batches", batches[queue_url], tags=_tags(queue_url))
            stats.gauge("sqs_lease.oldest_lease", ages[queue_url], tags=_tags(queue_url))
        self._shown = {queue_url for queue_url, count in leases.items() if count}


class PollAge:
    """Measures how long ago a queue was last counted for its watchers.

    While all is well it stays below the time between two counts; any greater age means errors.

    Args:
        queue: The queue's URL, name or ARN.
        clock: The source of time.
    """

    def __init__(self, queue: str, clock: Clock) -> None:
        self._queue = queue
        self._clock = clock
        self._answered_at = clock.now()

    def answered(self) -> None:
        """Take in that a count was answered just now."""
        self._answered_at = self._clock.now()

    async def show(self) -> None:
        """Publish the gauge again and again, until cancelled."""
        while True:
            age = self._clock.now() - self._answered_at
            stats.gauge("sqs_lease.watcher.poll_age", age, tags=_tags(self._queue))
            await asyncio.sleep(MEASURE_SECONDS)


def _tags(queue: str) -> dict[str, str]:
    # The name is the end of a URL, and of an ARN.
    return {"queue": queue.rpartition("/")[2].rpartition(":")[2]}
