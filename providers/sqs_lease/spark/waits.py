"""Waiting for other writers of the same table: logged, counted and bounded.

Sinks and sources wait in many places: a commit after a conflict is tried again, another process holds a lock. All of
them wait through :func:`while_contended`, which finds the limit of the ingestion that runs in this thread and adds up
its waiting. In a call without an ingestion, such as a direct call of a sink's methods, the limit is
:data:`LIMIT_SECONDS`.

The limit is in seconds and not in tries, because only time means something to a user: 100 commits to a quiet ledger
take a second, and 20 merges of a large table take hours.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from sqs_lease.spark.errors import IngestionError, TableError

logger = logging.getLogger(__name__)

LIMIT_SECONDS: Final = 600.0
"""The longest wait for other writers, unless the caller sets another."""

TELL_SECONDS: Final = 5.0
"""The shortest time between two log lines about one wait."""

_PAUSE_SECONDS: Final = 0.005
_LONGEST_PAUSE_SECONDS: Final = 1.0


@dataclass(slots=True)
class Waits:
    """All waiting of one ingestion."""

    limit_seconds: float = LIMIT_SECONDS
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    seconds: float = 0.0
    # A wait inside another wait is not counted twice.
    counted_by: ConcurrentWriters | None = None


class ConcurrentWriters:
    """The other writers of one thing, and the wait for them. It costs nothing while there is no conflict.

    Args:
        what: The thing that is written, as the beginning of a sentence: ``table /data/orders``.
        waits: The waiting of the ingestion, to which this wait is added.
        kind: The class of the error that ends a wait that is too long.
    """

    def __init__(self, what: str, waits: Waits, kind: type[IngestionError]) -> None:
        self._what = what
        self._waits = waits
        self._kind = kind
        self._since: float | None = None
        self._tries = 0
        self._next_told = 0.0

    @property
    def limit_seconds(self) -> float:
        """The longest wait."""
        return self._waits.limit_seconds

    def pause(self, who: str) -> None:
        """Pause after a conflict: longer each time, and for a random time, so that two writers do not meet again.

        Args:
            who: The known facts about the other writer, for the log and the error.

        Raises:
            TableError: The wait is too long; or the class that was given as ``kind``.
        """
        if self.waited(who) >= self.limit_seconds:
            raise self.error(who)
        self._tries += 1
        self._waits.sleep(random.uniform(0, min(_LONGEST_PAUSE_SECONDS, _PAUSE_SECONDS * 2**self._tries)))

    def waited(self, who: str) -> float:
        """Note that this process waits for other writers, log that from time to time, and return the seconds so far."""
        now = self._waits.clock()
        if self._since is None:
            self._since = now
            self._waits.counted_by = self._waits.counted_by or self
        if now >= self._next_told:
            self._next_told = now + TELL_SECONDS
            logger.info("%s: waiting for other writers, since %d s: %s", self._what, now - self._since, who)
        return now - self._since

    def error(self, who: str) -> IngestionError:
        """Make the error for a wait that is too long."""
        return self._kind(
            f"{self._what} was waited for longer than {self.limit_seconds:g} s, because others write it ({who}): let "
            "fewer processes write it at once, in larger batches, end what holds it, or give ingest() a larger "
            "longest_wait_seconds"
        )

    def end(self) -> None:
        """End the wait, with or without success."""
        if self._since is None:
            return
        seconds = self._waits.clock() - self._since
        if self._waits.counted_by is self:
            self._waits.counted_by = None
            self._waits.seconds += seconds
        if seconds >= TELL_SECONDS:
            logger.info("%s: waited %d s for other writers", self._what, seconds)


_OF_THIS_INGESTION: ContextVar[Waits | None] = ContextVar("sqs_lease_waits", default=None)


@contextmanager
def waiting_at_most(waits: Waits) -> Iterator[Waits]:
    """Count all waiting in the block for one ingestion."""
    token = _OF_THIS_INGESTION.set(waits)
    try:
        yield waits
    finally:
        _OF_THIS_INGESTION.reset(token)


@contextmanager
def while_contended(what: str, kind: type[IngestionError] = TableError) -> Iterator[ConcurrentWriters]:
    """Run a block that other processes may run at the same time: see :class:`ConcurrentWriters`."""
    writers = ConcurrentWriters(what, _OF_THIS_INGESTION.get() or Waits(), kind)
    try:
        yield writers
    finally:
        writers.end()
