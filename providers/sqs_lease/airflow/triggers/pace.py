"""The pace of a watcher: decides from counts of the queue, and the time as an argument, when the watcher fires.

An event asks Airflow for a run, and the sensor of that run receives the messages that are visible by then. An event too
many costs a run without messages; an event too few lets messages wait. The counts cannot tell which run took which
message. But they tell whether the last event had an effect, and so how long the next one waits while messages are
visible:

    since the last event                                  state      the next event comes after
    more messages are in flight than at the event         HELD       the shortest pause
    some were taken, and the queue had fewer messages
    at some look than at the one before, or has more
    than at the event                                     DONE       the shortest pause
    some were taken, and it has as many as at the event   RETURNED   the shortest pause, doubled n times
    no message was taken                                  WAITING    30 s, doubled n times

    (the first state that holds, at each look; "has": visible, in flight and delayed together)

n counts the events without effect: it grows by one with each event after RETURNED or WAITING, stays after HELD, and is
0 again after DONE. No pause is longer than the longest.

Why these four:

- *Scarce slots* (WAITING). A run that waits for a slot takes all messages that are there when it begins. A second run
  would find nothing. Deletions by other runs say nothing about this run; only messages that are taken do.
- *A message that can never be processed* (RETURNED). Runs take it and give it back: the number of messages stays the
  same, and no message is in flight afterwards. So its runs become rare. While other messages are sent they stay
  frequent, because new messages must not wait for an old one. The same counts appear when a burst was deleted and
  another one of the same size came between two looks; therefore the pauses begin short.
- *Long work* (HELD). The messages of a run stay in flight for as long as it works. Messages that come meanwhile start
  runs at the shortest pause, up to the DAG's ``max_active_runs``.
- *More messages than one run takes* (HELD or DONE). As soon as a run has taken some, the next event follows.

SQS counts approximately, and on AWS up to a minute late. Until a count shows that messages were taken, it also shows
messages that are no longer there: one more reason to wait for 30 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

FIRST_PAUSE_SECONDS: Final = 30.0
"""How long a run has time to take something, at first. It begins after 3 s, or half a minute on a busy machine."""


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
        """The number of all messages of the queue."""
        return self.visible + self.in_flight + self.delayed


class _State(Enum):
    """The effect of an event so far; the module's docstring has the table."""

    HELD = "held"
    DONE = "done"
    RETURNED = "returned"
    WAITING = "waiting"


@dataclass(slots=True)
class _Event:
    """An event and the looks since then.

    Attributes:
        at: When it was fired.
        counts: The counts at that time.
        fruitless: How many events in a row before it had no effect.
        taken: Whether messages were received since.
        fewer: Whether the queue had fewer messages at some look since than at the look before that.
    """

    at: float
    counts: QueueCounts
    fruitless: int = 0
    taken: bool = False
    fewer: bool = False

    def look(self, before: QueueCounts, counts: QueueCounts) -> None:
        """Take in one look, and the one before it."""
        self.taken = self.taken or counts.visible < before.visible or counts.in_flight > before.in_flight
        self.fewer = self.fewer or counts.total < before.total

    def state(self, counts: QueueCounts) -> _State:
        """Return its effect so far, by the newest counts."""
        if counts.in_flight > self.counts.in_flight:
            return _State.HELD
        if not self.taken:
            return _State.WAITING
        return _State.DONE if self.fewer or counts.total > self.counts.total else _State.RETURNED


class Pace:
    """The pace of one watcher: decides at each look whether it fires.

    Args:
        shortest_pause_seconds: The shortest time between two events.
        longest_pause_seconds: The longest time between two events while messages are visible, not less.
    """

    def __init__(self, *, shortest_pause_seconds: float, longest_pause_seconds: float) -> None:
        self._shortest_pause_seconds = shortest_pause_seconds
        self._longest_pause_seconds = longest_pause_seconds
        self._before: QueueCounts | None = None
        self._event: _Event | None = None

    def fires(self, counts: QueueCounts, now: float) -> bool:
        """Take in a look at the queue; return whether an event is fired now.

        Args:
            counts: The counts.
            now: The time of the look, in seconds of a clock that never goes back.
        """
        before, self._before = self._before, counts
        event = self._event
        if event is not None and before is not None:
            event.look(before, counts)
        if counts.visible == 0:
            return False
        if event is None:
            self._event = _Event(now, counts)
            return True
        state = event.state(counts)
        if now < event.at + self._pause_seconds(state, event.fruitless):
            return False
        after = {_State.DONE: 0, _State.HELD: event.fruitless}
        self._event = _Event(now, counts, after.get(state, event.fruitless + 1))
        return True

    def _pause_seconds(self, state: _State, fruitless: int) -> float:
        shortest, longest = self._shortest_pause_seconds, self._longest_pause_seconds
        if state in (_State.HELD, _State.DONE):
            return shortest
        first = max(FIRST_PAUSE_SECONDS, shortest) if state is _State.WAITING else shortest
        # The power is limited, because 2.0 ** 1024 raises OverflowError.
        return min(first * 2.0 ** min(fruitless, 30), longest)
