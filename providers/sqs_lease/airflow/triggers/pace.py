"""When a watcher fires: decided from what was counted, with the time as an argument.

An event asks Airflow for a run, and the sensor of that run receives what is visible by then. An event too many costs a
run that finds nothing; an event too few lets messages wait. The counts cannot tell which run took which message. But
they tell whether the last event has led to anything:

    since the last event                             state     next event after      and if that leads to nothing
    the queue has fewer messages than at a look      DONE      the shortest pause    30 s
    before; or some were taken and others came
    more messages are in flight than at the event    HELD      the shortest pause    as long as this time
    neither                                          WAITING   the present pause     twice as long, up to the longest

    (of these the first that holds, at each look; "has": visible, in flight and delayed together)

Why these three:

- *Scarce slots.* A run that waits for a slot takes whatever is there when it begins. A second run would find nothing,
  so its event comes late, and the third later.
- *A message that can never be processed.* Runs take it and give it back: the number of messages stays the same, and
  none is in flight afterwards. That is WAITING, so its runs become rare. While other messages are sent, they are not:
  new messages must not wait for the sake of an old one.
- *Long work.* What a run took stays in flight for as long as it works. Messages that come meanwhile start runs at the
  shortest pause, up to the DAG's ``max_active_runs``.
- *More messages than one run takes.* As soon as a run has taken some, the next event follows.

SQS counts approximately, and on AWS up to a minute late. Until a count shows that messages were taken, it also shows
messages that are no longer there: one more reason not to fire again soon.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

FIRST_PAUSE_SECONDS: Final = 30.0
"""How long an event has time to lead to anything, at first: a run is made and has received after 3 s, or after half a
minute where workers are busy.
"""


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many messages a queue has, approximately.

    Attributes:
        visible: Messages that can be received.
        in_flight: Messages that consumers hold.
        delayed: Messages whose delay still runs.
    """

    visible: int
    in_flight: int
    delayed: int

    @property
    def total(self) -> int:
        """How many messages the queue has altogether."""
        return self.visible + self.in_flight + self.delayed


class _State(Enum):
    """Whether an event has led to anything; the module's docstring has the table."""

    WAITING = "waiting"
    HELD = "held"
    DONE = "done"


@dataclass(slots=True)
class _Event:
    """An event and what was seen since.

    Attributes:
        at: When it was fired.
        counts: What was counted then.
        pause_seconds: How long it has time to lead to anything.
        taken: Whether messages were received since.
        fewer: Whether the queue had fewer messages at some look since than at the look before that.
    """

    at: float
    counts: QueueCounts
    pause_seconds: float
    taken: bool = False
    fewer: bool = False

    def look(self, before: QueueCounts, counts: QueueCounts) -> None:
        """Take in one look, and the one before it."""
        self.taken = self.taken or counts.visible < before.visible or counts.in_flight > before.in_flight
        self.fewer = self.fewer or counts.total < before.total

    def state(self, counts: QueueCounts) -> _State:
        """Whether it has led to anything, by what was counted last."""
        if self.fewer or (self.taken and counts.total > self.counts.total):
            return _State.DONE
        return _State.HELD if counts.in_flight > self.counts.in_flight else _State.WAITING


class Pace:
    """Decides for one watcher, at each look, whether it fires.

    Args:
        shortest_pause_seconds: The shortest time between two events.
        longest_pause_seconds: The longest time between two events while messages are visible, not less.
    """

    def __init__(self, *, shortest_pause_seconds: float, longest_pause_seconds: float) -> None:
        self._shortest_pause_seconds = shortest_pause_seconds
        self._longest_pause_seconds = longest_pause_seconds
        self._first_pause_seconds = min(max(FIRST_PAUSE_SECONDS, shortest_pause_seconds), longest_pause_seconds)
        self._before: QueueCounts | None = None
        self._event: _Event | None = None

    def fires(self, counts: QueueCounts, now: float) -> bool:
        """Take in a look at the queue; return whether an event is fired now.

        Args:
            counts: What was counted.
            now: When, in seconds of a clock that never goes back.
        """
        before, self._before = self._before, counts
        if self._event is not None and before is not None:
            self._event.look(before, counts)
        if counts.visible == 0:
            return False
        next_pause_seconds = self._first_pause_seconds
        if self._event is not None:
            state = self._event.state(counts)
            pause_seconds = self._event.pause_seconds if state is _State.WAITING else self._shortest_pause_seconds
            if now < self._event.at + pause_seconds:
                return False
            if state is _State.HELD:
                next_pause_seconds = self._event.pause_seconds
            elif state is _State.WAITING:
                next_pause_seconds = min(2 * self._event.pause_seconds, self._longest_pause_seconds)
        self._event = _Event(now, counts, next_pause_seconds)
        return True
