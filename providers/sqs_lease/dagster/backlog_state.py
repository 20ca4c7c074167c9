"""What a backlog sensor sees of its queue, and what it remembers from one evaluation to the next."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import uuid4

import msgspec

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Backlog:
    """A queue as a sensor sees it: the service's own approximate counts.

    Attributes:
        visible: Messages that can be received now.
        in_flight: Messages that somebody holds.
        delayed: Messages that were sent with a delay still running.
        waited: How long the sensor has seen visible messages without starting anything for them. The service tells
            nobody the age of a message that is not received, so this is the least that the oldest has waited.
        seen_at: When, in UTC.
    """

    visible: int
    in_flight: int
    delayed: int
    waited: timedelta
    seen_at: datetime


class Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A sensor's cursor. All times are seconds since the epoch.

    Attributes:
        version: Of this format.
        epoch: Drawn when the sensor began with no cursor; part of the run keys, so that they are new after a reset.
        sequence: How many runs (or asset events) it has asked for since then; the other part of the run keys.
        waiting_since: Since when there are visible messages that nothing was started for.
        unreadable_since: Since when the queue cannot be read.
        reported_at: When the queue's asset was last reported.
        last_run: The newest run that ended of the assets behind the queue's asset.
        failures: How many of those failed in a row.
    """

    version: int
    epoch: str
    sequence: int = 0
    waiting_since: float | None = None
    unreadable_since: float | None = None
    reported_at: float | None = None
    last_run: str | None = None
    failures: int = 0

    @classmethod
    def fresh(cls) -> Memory:
        """Nothing remembered."""
        return cls(_VERSION, uuid4().hex[:12])

    @classmethod
    def of(cls, cursor: str) -> Memory | None:
        """Read a cursor; None if it is of another version, or was never one of ours."""
        try:
            memory = msgspec.json.decode(cursor, type=cls)
        except (msgspec.DecodeError, UnicodeError):
            return None
        return memory if memory.version == _VERSION else None

    def cursor(self) -> str:
        """Write it down."""
        return msgspec.json.encode(self).decode()

    def seen(self, visible: int, now: float) -> Memory:
        """After the queue was read."""
        waiting_since = (self.waiting_since or now) if visible else None
        return msgspec.structs.replace(self, waiting_since=waiting_since, unreadable_since=None)

    def unread(self, now: float) -> Memory:
        """After the queue could not be read."""
        return msgspec.structs.replace(self, unreadable_since=self.unreadable_since or now)

    def waited(self, now: float) -> timedelta:
        """How long visible messages have waited at least; none if the clock was set back."""
        return timedelta(seconds=max(now - (self.waiting_since or now), 0.0))

    def started(self, count: int) -> Memory:
        """After ``count`` runs were asked for: what is visible from now on waits for others."""
        return msgspec.structs.replace(self, sequence=self.sequence + count, waiting_since=None)

    def reported(self, now: float) -> Memory:
        """After the queue's asset was reported."""
        return msgspec.structs.replace(self.started(1), reported_at=now)

    def answered(self, last_run: str | None, failures: int) -> Memory:
        """After a look at the runs of the assets behind the queue's."""
        return msgspec.structs.replace(self, last_run=last_run, failures=failures)

    def key(self, number: int) -> str:
        """The run key of the ``number``-th thing, from 1, that the next evaluation asks for."""
        return f"{self.epoch}-{self.sequence + number}"


def at(seconds: float) -> datetime:
    """A time of the epoch as people read it."""
    return datetime.fromtimestamp(seconds, UTC)
