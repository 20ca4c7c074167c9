"""Waiting for others who write the same table: it is told, counted, and bounded.

What waits stands deep in sinks and sources: a commit that others overtook is tried again, a lock is held by somebody.
All of it asks :func:`while_contended`, which finds the limit of the ingestion that runs in this thread, and adds up how
long it waited. Without one, as in a call of a sink's own methods, the limit is :data:`LIMIT_SECONDS`.
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
"""How long others are waited for, unless the caller says something else."""

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
    # What one wait counts, one within it does not count again.
    counted_by: ConcurrentWriters | None = None


class ConcurrentWriters:
    """One thing that others write or hold, too. It costs nothing as long as nobody does.

    Args:
        what: What is written, as the beginning of a sentence: ``table /data/orders``.
        waits: What it belongs to.
        kind: The error that ends it.
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
        """How long to wait, at most."""
        return self._waits.limit_seconds

    def pause(self, who: str) -> None:
        """Pause, because somebody else was faster or holds it: a little longer each time, and not as long as others.

        Raises:
            TableError: It has taken too long; or the error that the wait was given.
        """
        if self.waited(who) >= self.limit_seconds:
            raise self.error(who)
        self._tries += 1
        self._waits.sleep(random.uniform(0, min(_LONGEST_PAUSE_SECONDS, _PAUSE_SECONDS * 2**self._tries)))

    def waited(self, who: str) -> float:
        """Take note that others are waited for, and tell of it from time to time: for how many seconds by now."""
        now = self._waits.clock()
        if self._since is None:
            self._since = now
            self._waits.counted_by = self._waits.counted_by or self
        if now >= self._next_told:
            self._next_told = now + TELL_SECONDS
            logger.info("%s: waiting for others who write it, since %d s: %s", self._what, now - self._since, who)
        return now - self._since

    def error(self, who: str) -> IngestionError:
        """The error that says that it has taken too long."""
        return self._kind(
            f"{self._what} was waited for longer than {self.limit_seconds:g} s, because others write it ({who}): let "
            "fewer processes write it at once, in larger batches, end whatever holds it, or give ingest() a larger "
            "longest_wait_seconds"
        )

    def end(self) -> None:
        """The wait is over, whichever way."""
        if self._since is None:
            return
        seconds = self._waits.clock() - self._since
        if self._waits.counted_by is self:
            self._waits.counted_by = None
            self._waits.seconds += seconds
        if seconds >= TELL_SECONDS:
            logger.info("%s: waited %d s for others who write it", self._what, seconds)


_OF_THIS_INGESTION: ContextVar[Waits | None] = ContextVar("sqs_lease_waits", default=None)


@contextmanager
def waiting_at_most(waits: Waits) -> Iterator[Waits]:
    """Have all waiting in the block be of one ingestion."""
    token = _OF_THIS_INGESTION.set(waits)
    try:
        yield waits
    finally:
        _OF_THIS_INGESTION.reset(token)


@contextmanager
def while_contended(what: str, kind: type[IngestionError] = TableError) -> Iterator[ConcurrentWriters]:
    """Do in the block what others may do at the same time: see :class:`ConcurrentWriters`."""
    writers = ConcurrentWriters(what, _OF_THIS_INGESTION.get() or Waits(), kind)
    try:
        yield writers
    finally:
        writers.end()
