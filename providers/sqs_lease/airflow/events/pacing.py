"""When an event trigger receives again after a batch came back unused, and when it fires again for one that waits.

Why events are fired again: Airflow makes one run of all events up to the one that queued it. An event that
comes while a run is queued, but not made yet (``max_active_runs``, a busy scheduler), belongs neither to that run
nor to a later one, until another event comes; and so does one that was fired while the DAG was paused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MISSED_SECONDS: Final = 10.0
"""So long after a claim the event of an older batch that was not claimed with it is fired again."""

FIRST_REMINDER_SECONDS: Final = 60.0
"""So long after its event a batch that nobody claimed gets it fired again; then after twice as long, and so on."""

LONGEST_REMINDER_SECONDS: Final = 300.0
"""The longest pause between two such events: a DAG that is not paused any more sees what waits after so long."""

FIRST_PAUSE_SECONDS: Final = 30.0
"""How long nothing is received after a batch came back unused; twice as long each time, until a keeper takes one."""

LONGEST_PAUSE_SECONDS: Final = 900.0
"""The longest such pause."""


@dataclass(slots=True)
class ReceivePause:
    """How long nothing is received because batches came back unused: each receive counts for the redrive policy."""

    times: int = 0
    ends_at: float = 0.0

    def unused(self, now: float) -> float:
        """A batch came back unused: return for how many seconds nothing is received."""
        seconds = min(FIRST_PAUSE_SECONDS * 2.0 ** min(self.times, 30), LONGEST_PAUSE_SECONDS)
        self.times += 1
        self.ends_at = max(self.ends_at, now + seconds)
        return seconds

    def used(self) -> None:
        """A keeper took a batch."""
        self.times = 0


@dataclass(slots=True)
class Reminder:
    """When the event of one waiting batch is due again. Times are of the keeper's clock."""

    due_at: float
    pause_seconds: float = FIRST_REMINDER_SECONDS

    @classmethod
    def from_now(cls, now: float) -> Reminder:
        """The reminder of an event that is fired now."""
        return cls(now + FIRST_REMINDER_SECONDS)

    def missed(self, now: float) -> None:
        """A run claimed other batches, but not this one."""
        self.due_at = min(self.due_at, now + MISSED_SECONDS)

    def reminded(self, now: float) -> None:
        """It, or the event of another batch of the same trigger, was fired again: a run takes all that wait."""
        self.pause_seconds = min(self.pause_seconds * 2, LONGEST_REMINDER_SECONDS)
        self.due_at = now + self.pause_seconds
