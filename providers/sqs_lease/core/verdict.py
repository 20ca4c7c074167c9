"""Decisions on the messages of a batch, by how the work on them ended (pure).

Work comes in *units*: a task instance of Airflow, a step of Dagster. A host translates its own states into
:class:`Unit`, and a :class:`Tally` of all units says what to do with a message. These are all the rules there are. Of
the units that concern a message, the one whose end stands highest in this table decides:

    end of a unit    why                                                      the message is
    FAILED           for good, or it reported that this message failed        settled by the failure rule
    UNKNOWN          how it ended, or which messages it failed, is not known  held
    OPEN             it has not ended, or will be tried again                 held
    BLOCKED          it can never be done                                     settled by the failure rule
    NOT_DONE         it was not done, and the messages are not at fault       released
    DONE             it succeeded                                             deleted
    SKIPPED          there was nothing to do                                  released

So a message is deleted only when each unit that concerns it is done or had nothing to do, and at least one is done. A
message that no unit concerns is released: no work was done on it.

Why this order:

- A failure does not wait for other units: it is final, and a message that is visible at once is tried again soonest.
  Work that runs whatever happened before, such as a clean-up or an alert, does not make up for it.
- BLOCKED waits for what is open: a unit that cannot begin disturbs no other, and one of those may be at work on the
  message. If it were visible now, a second consumer would work on it at the same time.
- UNKNOWN is never a delete, nor a release. A host that cannot hold messages any longer, because its run is over,
  releases what is still held.

Because the highest end decides, the order of the units does not matter, and taking one in twice changes nothing. Only
*why* a message failed depends on the order, where several units failed it: what was said of the message alone counts
before what was said of all, and then what was said first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final, TypeAlias


class End(IntEnum):
    """The ends of a unit of work. The order is that of the table above, the least first."""

    SKIPPED = 0
    DONE = 1
    NOT_DONE = 2
    BLOCKED = 3
    OPEN = 4
    UNKNOWN = 5
    FAILED = 6


class Action(Enum):
    """The actions for a message that did not fail."""

    HOLD = "hold"
    DELETE = "delete"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason for which a message failed; its failure rule says what to do with it.

    Attributes:
        reason: A text for people, the same for all messages that failed in the same way.
        errors: The qualified names of the class of the exception that the work failed with, and of those that this
            derives from; empty if no exception is known.
        detail: The text that the work gave for this message alone; empty if it gave none.
    """

    reason: str
    errors: tuple[str, ...] = ()
    detail: str = ""


Decision: TypeAlias = Action | Failure

_UNEXPLAINED: Final = Failure("its work failed")


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of work that some messages of a batch went through.

    Attributes:
        end: The end of the unit, for the messages that are not in ``failed``. A unit that named the messages that it
            failed is done with the others.
        concerns: The ids of the messages that it works on; None for all of the batch.
        why: Why messages fail by its end, if that is FAILED or BLOCKED.
        failed: The messages that it reported as failed one by one, by id, and why.
    """

    end: End
    concerns: Collection[str] | None = None
    why: Failure = _UNEXPLAINED
    failed: Mapping[str, Failure] = field(default_factory=dict)


_ACTIONS: Final[Mapping[End, Action | None]] = {
    End.SKIPPED: Action.RELEASE,
    End.DONE: Action.DELETE,
    End.NOT_DONE: Action.RELEASE,
    End.BLOCKED: None,
    End.OPEN: Action.HOLD,
    End.UNKNOWN: Action.HOLD,
    End.FAILED: None,
}
"""None where the failure rule decides."""


class Tally:
    """The highest end of the units taken in so far, for each message of a batch.

    The cost of a unit that concerns all messages does not depend on how many there are.
    """

    def __init__(self) -> None:
        self._of_all: tuple[End, Failure] = (End.SKIPPED, _UNEXPLAINED)
        self._of_one: dict[str, tuple[End, Failure]] = {}

    def take(self, unit: Unit) -> None:
        """Take in a unit."""
        if unit.concerns is None:
            self._of_all = _higher(self._of_all, (unit.end, unit.why))
        else:
            for message_id in unit.concerns:
                self._take_of_one(message_id, unit.end, unit.why)
        for message_id, why in unit.failed.items():
            self._take_of_one(message_id, End.FAILED, why)

    def decision(self, message_id: str) -> Decision:
        """Return what to do with a message, by the units taken in so far."""
        end, why = self._of_all
        if (of_one := self._of_one.get(message_id)) is not None:
            end, why = _higher(of_one, self._of_all)
        return _ACTIONS[end] or why

    def holds_all(self) -> bool:
        """Return whether every message is held, by units that concern all of them."""
        return not self._of_one and _ACTIONS[self._of_all[0]] is Action.HOLD

    def _take_of_one(self, message_id: str, end: End, why: Failure) -> None:
        known = self._of_one.get(message_id)
        self._of_one[message_id] = (end, why) if known is None else _higher(known, (end, why))


def _higher(known: tuple[End, Failure], other: tuple[End, Failure]) -> tuple[End, Failure]:
    """Return the higher of two ends; of equal ones the first."""
    return other if other[0] > known[0] else known
