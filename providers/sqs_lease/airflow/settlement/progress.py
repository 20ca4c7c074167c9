"""The progress note: what the holder of a batch writes down for the next one while it works.

**Progress** (:data:`PROGRESS_KEY`) says what was settled and how long the leases last. A trigger writes settlements
before it makes them, so that no other process extends what this one is giving away. It writes the deadline of the
leases after extensions: a process that takes over then knows that the leases hold, and may release what fails.
Airflow deletes a task's XComs when its next try begins. So progress is an XCom of the receiving task: it is there for
each try of the keeper, and when the receiving task itself begins again, there is another batch.

A process that does not know yet that a run was cleared may still write a note. So each names its batch, and readers
ignore notes about other batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

import msgspec

from sqs_lease.airflow.airflow_api.requests import CommsError, RunOfTask, pull
from sqs_lease.clock import Clock
from sqs_lease.core.events import OUTCOME_LETTERS, Outcome
from sqs_lease.keeper.batch import Batch
from sqs_lease.keeper.plain_leases import WrittenBatch

PROGRESS_KEY: Final = "settled"
"""The XCom key of a batch's progress; the page of leases reads it, too."""

DEADLINE_NOTE_SECONDS: Final = 15.0
"""Shortest time between two notes of the leases' deadline, and the least that should be left of what was noted.

A trigger that takes over takes leases for lapsed when the note that it finds is older than they are. Then it neither
releases what fails nor counts as surely deleted what succeeds.
"""

_HELD: Final = "-"

_T = TypeVar("_T")

_LETTERS: Final[Mapping[Outcome, str]] = {outcome: letter for letter, outcome in OUTCOME_LETTERS.items()}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the keeper of one batch has come.

    Attributes:
        settled: What was settled, or is about to be, by the message's position in the batch.
        certain_until: The time until which every held lease lasts at least, in seconds since the epoch. None if a
            lease has lapsed, or if nothing newer is known than what the sensor handed over.
        written_at: When that was written, in seconds since the epoch.
        batch_id: The batch; None if the note does not say.
        counts: What else was counted so far, by its name in the report: extensions, and leases that lapsed.
        status: What the page of leases shows, see :mod:`sqs_lease.airflow.transfer.status`; for nothing else.
    """

    settled: Mapping[int, Outcome] = field(default_factory=dict)
    certain_until: float | None = None
    batch_id: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    status: Mapping[str, Any] | None = None
    written_at: float | None = None

    def encode(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "settled": _letters(self.settled),
            "certain_until": self.certain_until,
            "written_at": self.written_at,
            "batch_id": self.batch_id,
            "counts": dict(self.counts),
            **({} if self.status is None else {"status": dict(self.status)}),
        }

    @classmethod
    def decode(cls, plain: Mapping[str, Any] | None) -> Self:
        """Build it from what :meth:`encode` returned; None or an empty mapping means that nothing was settled.

        Raises:
            CommsError: It is something else: what was settled is not known then.
        """
        stored = _stored(plain or {}, _StoredProgress, PROGRESS_KEY)
        settled = {at: _outcome(letter) for at, letter in enumerate(stored.settled) if letter != _HELD}
        return cls(settled, stored.certain_until, stored.batch_id, stored.counts, written_at=stored.written_at)

    def newest(self, written: WrittenBatch) -> WrittenBatch:
        """What the sensor wrote of the leases, with the newest known deadlines."""
        until = self.certain_until
        if until is None or self.written_at is None:
            return written
        leases = (lease.lasting_until(until) for lease in written.leases)
        return WrittenBatch(written.batch_id, self.written_at, tuple(leases))


class _StoredProgress(msgspec.Struct):
    """What :meth:`Progress.encode` returns, without what only the page reads."""

    settled: str = ""
    certain_until: float | None = None
    batch_id: str | None = None
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    written_at: float | None = None


def _stored(plain: object, kind: type[_T], key: str) -> _T:
    try:
        return msgspec.convert(plain, kind)
    except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
        raise CommsError(f"the XCom {key!r} is not what sqs-lease writes there: {error}") from None


def _outcome(letter: str) -> Outcome:
    if letter not in OUTCOME_LETTERS:
        raise CommsError(f"the XCom {PROGRESS_KEY!r} has an outcome {letter!r}, which this release does not know")
    return OUTCOME_LETTERS[letter]


async def read_progress(receive_task: RunOfTask, batch_id: str) -> Progress | None:
    """Read the progress of a batch from the XCom of the task that received it.

    Returns:
        It, or None if it is missing, or about another batch.

    Raises:
        CommsError: There was no usable answer, or something else stands there.
    """
    plain = await pull(receive_task, PROGRESS_KEY)
    progress = Progress.decode(plain)
    return progress if plain and progress.batch_id in (None, batch_id) else None


def counts_of(batch: Batch, before: Mapping[str, int]) -> dict[str, int]:
    """The counts of a batch: those of this process added to those of processes before it."""
    return {
        "extensions": batch.extensions + before.get("extensions", 0),
        "extension_calls": batch.extension_calls + before.get("extension_calls", 0),
        # No sum: leases that lapsed before count as lapsed again here, because their deadlines are not known.
        "late": max(batch.late, before.get("late", 0)),
    }


def _letters(settled: Mapping[int, Outcome]) -> str:
    """Settlements as text: the letter at a position is the outcome of that message."""
    letters = [_HELD] * (max(settled, default=-1) + 1)
    for position, outcome in settled.items():
        letters[position] = _LETTERS[outcome]
    return "".join(letters)


class DeadlineNote:
    """Says when to note again how long the leases of a batch last, and what to note.

    Args:
        batch: The batch.
        clock: Its keeper's clock.
    """

    def __init__(self, batch: Batch, clock: Clock) -> None:
        self._batch = batch
        self._clock = clock
        self._noted_extensions = 0
        self._due_at = -math.inf

    def is_due(self) -> bool:
        """Whether to write a note: leases were extended since the last one, which is old or about to pass.

        True counts as noted.
        """
        extensions, now = self._batch.extensions, self._clock.now()
        if extensions == self._noted_extensions or now < self._due_at:
            return False
        self._noted_extensions, self._due_at = extensions, now + DEADLINE_NOTE_SECONDS
        if (seconds := self._batch.certain_seconds()) is not None:
            self._due_at = min(self._due_at, now + seconds - DEADLINE_NOTE_SECONDS)
        return True

    def until(self) -> float | None:
        """The time until which every held lease lasts at least, in seconds since the epoch; None if one has lapsed."""
        until = self._batch.certain_until()
        return None if until is None else until + self._clock.wall() - self._clock.now()
