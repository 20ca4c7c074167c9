"""What became of the messages of a batch so far: noted for the next holder, shown on a page, and reported at the end.

**The progress note** (:data:`PROGRESS_KEY`) says what was settled and how long the leases last. A trigger writes
settlements before it makes them, so that no other process extends what this one is giving away. It writes the deadline
of the leases after extensions: a process that takes over then knows that the leases hold, and may release what fails.
Airflow deletes a task's XComs when its next try begins. So the note is an XCom of the receiving task: it is there for
each try of the keeper, and when the receiving task itself begins again, there is another batch. A process that does not
know yet that a run was cleared may still write a note. So each names its batch, and readers ignore notes about other
batches.

**The page** *SQS leases* shows the :class:`BatchStatus` in the note, and before there is one what the keeper's task
wrote (:data:`KEEPS_KEY`). The note is written for the page alone only when something was settled. There are neither
message ids nor bodies nor receipt handles in it, and only the page reads it.

**The report** is the keeper's XCom at the end: counts, and message ids by outcome where they are not too many.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self, TypeVar

import msgspec

from sqs_lease.airflow.airflow_api.requests import CommsError, RunOfTask, publish, pull
from sqs_lease.airflow.settlement.lost_leases import RAISE
from sqs_lease.clock import Clock
from sqs_lease.core.events import OUTCOME_LETTERS, Lapsed, LeaseEvent, Lost, Outcome, Settled
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.keeper.batch import Batch
from sqs_lease.keeper.plain_leases import WrittenBatch

logger = logging.getLogger(__name__)

PROGRESS_KEY: Final = "settled"
"""The XCom key of a batch's progress; the page of leases reads it, too."""

DEADLINE_NOTE_SECONDS: Final = 15.0
"""Shortest time between two notes of the leases' deadline, and the least that should be left of what was noted.

A trigger that takes over takes leases for lapsed when the note that it finds is older than they are. Then it neither
releases what fails nor counts as surely deleted what succeeds.
"""

KEEPS_KEY: Final = "keeps"
"""The XCom key by which a keeper's task says which task received its batch, and how that stood when it began."""

PAUSE_SECONDS: Final = 30.0
"""Shortest time between two notes that are written for the page alone."""

FIRST_PAUSE_SECONDS: Final = 5.0
"""The same before the first one: what a batch needs to be kept comes first."""

MAX_LISTED_MESSAGES: Final = 100
"""Up to this many messages the report lists their ids by outcome."""

SHOWN_REFUSALS: Final = 3
"""So many different things that SQS said about settlements that failed are in the report."""

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

_OF_EXTENSIONS: Final = frozenset({"extensions", "late"})

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
        status: What the page of leases shows, see :class:`BatchStatus`; for nothing else.
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


def _letters(settled: Mapping[int, Outcome]) -> str:
    """Settlements as text: the letter at a position is the outcome of that message."""
    letters = [_HELD] * (max(settled, default=-1) + 1)
    for position, outcome in settled.items():
        letters[position] = _LETTERS[outcome]
    return "".join(letters)


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


class BatchProgress:
    """What becomes of the messages of one batch, as its holder decides and learns.

    Args:
        batch: The batch.
        leases: All leases of it in the order of the messages, those settled earlier included.
        receive_task: The task that received, whose XComs have the note.
        clock: The batch's clock.
        inherited: What other processes settled and counted before.

    Attributes:
        positions: The position of each lease's message in the batch.
        abandoned: How many settlements this process gave up.
    """

    def __init__(
        self, batch: Batch, leases: Sequence[Lease], receive_task: RunOfTask, clock: Clock, inherited: Progress
    ) -> None:
        self.positions: Mapping[Receipt, int] = {lease.receipt: position for position, lease in enumerate(leases)}
        self.abandoned = 0
        self._batch = batch
        self._receive_task = receive_task
        self._clock = clock
        self._inherited = inherited
        self._settled = dict(inherited.settled)
        self._refusals: Counter[str] = Counter()  # how many settlements failed, by what was said
        self._note = Progress(self._settled, batch_id=inherited.batch_id, counts=inherited.counts)
        self._is_unwritten = False
        self._noted_extensions = 0
        self._deadlines_due_at = -math.inf
        self._status: Mapping[str, Any] | None = None
        self._shown: Mapping[str, int] = {}  # the counts that the page of leases shows
        self._shown_at = clock.now() + FIRST_PAUSE_SECONDS - PAUSE_SECONDS

    def outcome(self, receipt: Receipt) -> Outcome | None:
        """Return how a lease ended, or is being ended; None where it is held."""
        return self._settled.get(self.positions[receipt])

    def begins(self, position: int, outcome: Outcome) -> None:
        """Take in that a message is about to be settled. What is written ahead is corrected if SQS does otherwise."""
        self._settled[position] = outcome

    def happened(self, event: LeaseEvent) -> int | None:
        """Take in what happened to one of the leases, and return its position if it ended."""
        match event:
            case Settled():
                if event.outcome is Outcome.FAILED:
                    self._refusals[event.detail or "no reason"] += 1
                return self.ended(event.receipt, event.outcome)
            case Lost():
                return self.ended(event.receipt, Outcome.LOST)
            case Lapsed():
                self._is_unwritten = True  # a keeper that resumes must count it
        return None

    def ended(self, receipt: Receipt, outcome: Outcome) -> int | None:
        """Take in how a lease ended, and return its position: a keeper that resumes must not extend it."""
        if (position := self.positions.get(receipt)) is not None and self._settled.get(position) is not outcome:
            self._settled[position] = outcome
            self._is_unwritten = True
        return position

    def counts(self) -> dict[str, int]:
        """What became of the messages so far, what other processes settled included."""
        counts: dict[str, int] = asdict(self._batch.report())
        counts |= self._counts_of_extensions()
        counts["received"] = len(self.positions)
        counts["failed"] += self.abandoned
        for outcome in self._inherited.settled.values():
            counts[_field(outcome)] += 1
        return counts

    def report(self) -> dict[str, Any]:
        """Counts of the batch and, where they are not too many, the message ids by outcome."""
        counts: dict[str, Any] = self.counts()
        if self._refusals:
            counts["refusals"] = dict(self._refusals.most_common(SHOWN_REFUSALS))
        if len(self.positions) > MAX_LISTED_MESSAGES:
            return counts
        message_ids = [receipt.message_id for receipt in self.positions]
        by_outcome: dict[str, list[str]] = {}
        for position, outcome in self._inherited.settled.items():
            by_outcome.setdefault(_field(outcome), []).append(message_ids[position])
        for receipt, settled in self._batch.outcomes().items():
            by_outcome.setdefault(_field(settled.outcome), []).append(receipt.message_id)
        return {**counts, "messages": by_outcome}

    def note(self) -> Progress:
        """Return the note as it is now: what was settled, how long the leases last, and the counts."""
        until = self._batch.certain_until()
        self._note = Progress(
            self._settled,
            None if until is None else until + self._clock.wall() - self._clock.now(),
            self._inherited.batch_id,
            self._counts_of_extensions(),
            self._status,
            self._clock.wall(),
        )
        return self._note

    def note_for_next_try(self, written: WrittenBatch) -> Progress:
        """Return what the keeper's next try begins with, when this one has stopped holding the batch.

        Args:
            written: What it held. What was decided of it but not carried out, the next try decides on.
        """
        held = {self.positions[lease.receipt] for lease in written.leases}
        settled = {position: outcome for position, outcome in self._settled.items() if position not in held}
        in_doubt = any(lease.doubtful for lease in written.leases)
        until = None if in_doubt else min((lease.deadline for lease in written.leases), default=None)
        return replace(self.note(), settled=settled, certain_until=until, written_at=written.written_at)

    async def write_settled(self) -> None:
        """Write the note before messages are settled, or after SQS did otherwise. It says of deadlines what it said."""
        await self._write("The keeper's progress cannot be written; messages are settled anyway: %s")

    async def write_corrections(self) -> None:
        """Write the note if leases ended otherwise than it says."""
        if self._is_unwritten:
            await self.write_settled()

    async def write_if_due(self) -> None:
        """Write the note if leases were extended: a process that takes over may then release them.

        And for the page of leases, after settlements.
        """
        if not self._deadlines_are_due() and not self._is_unwritten and not self._is_news_for_the_page():
            return
        shown = self.counts()
        self._shown, self._shown_at = _settled_counts(shown), self._clock.now()
        self._status = await self._status_now(shown)
        self.note()
        await self._write("The deadline of the leases cannot be written; they are extended anyway: %s")

    async def _write(self, otherwise: str) -> None:
        self._is_unwritten = False
        try:
            await publish(self._receive_task, PROGRESS_KEY, self._note.encode(), patience_seconds=0)
        except CommsError as error:
            logger.warning(otherwise, error)

    def _counts_of_extensions(self) -> dict[str, int]:
        """The counts of this process added to those of processes before it."""
        batch, before = self._batch, self._inherited.counts
        return {
            "extensions": batch.extensions + before.get("extensions", 0),
            "extension_calls": batch.extension_calls + before.get("extension_calls", 0),
            # No sum: leases that lapsed before count as lapsed again here, because their deadlines are not known.
            "late": max(batch.late, before.get("late", 0)),
        }

    def _deadlines_are_due(self) -> bool:
        """Whether leases were extended since the last note of deadlines, which is old or about to pass.

        True counts as noted.
        """
        extensions, now = self._batch.extensions, self._clock.now()
        if extensions == self._noted_extensions or now < self._deadlines_due_at:
            return False
        self._noted_extensions, self._deadlines_due_at = extensions, now + DEADLINE_NOTE_SECONDS
        if (seconds := self._batch.certain_seconds()) is not None:
            self._deadlines_due_at = min(self._deadlines_due_at, now + seconds - DEADLINE_NOTE_SECONDS)
        return True

    def _is_news_for_the_page(self) -> bool:
        """Whether anything was settled or lost since the last note, and that was written some time ago."""
        return self._clock.now() - self._shown_at >= PAUSE_SECONDS and _settled_counts(self.counts()) != self._shown

    async def _status_now(self, counts: Mapping[str, int]) -> dict[str, Any]:
        outlook, ahead = await self._batch.outlook(), self._clock.wall() - self._clock.now()

        def wall(at: float | None) -> float | None:
            return None if at is None else at + ahead

        return BatchStatus(
            self._batch.queue_url,
            counts,
            wall(self._batch.oldest_received_at()),
            wall(outlook.renew_at),
            wall(outlook.deadline),
        ).encode()


def why_it_fails(report: Mapping[str, Any], on_lost: object, queue_url: str) -> str | None:
    """Return why the keeper of a batch whose leases have all ended fails, for people; None if it does not.

    Messages that could not be settled always fail it: their work may be done, and they come back to the queue all the
    same. Leases that were lost or have lapsed fail it with ``on_lost="raise"``. So do deletes after a lapse
    (``uncertain``): SQS confirms such a delete also where another consumer received the message since, and then it is
    not gone.

    Args:
        report: The lease report.
        on_lost: What :func:`~sqs_lease.airflow.settlement.lost_leases.encode_on_lost` returned.
        queue_url: The queue.
    """
    reasons = []
    if report["failed"]:
        refusals = report.get("refusals", {})
        said = "".join(f" SQS said {count} times: {text}." for text, count in refusals.items())
        reasons.append(
            f"{report['failed']} of {report['received']} messages of {queue_url} could not be settled, so they come "
            f"back to the queue, although their work may be done.{said} Check that the queue exists, that the AWS "
            "connection may sqs:DeleteMessage and sqs:ChangeMessageVisibility on it, and for dead_letter() that it "
            "has a dead-letter queue to which the connection may sqs:SendMessage"
        )
    if on_lost == RAISE and (report["lost"] or report["late"] or report["uncertain"]):
        reasons.append(
            f"{report['lost']} leases of {queue_url} were lost and {report['late']} lapsed, and {report['uncertain']} "
            "messages were deleted only after their lease had lapsed. This fails the task, as on_lost says: other "
            "consumers may have worked on their messages as well. Make the work idempotent, or raise the visibility "
            "timeout"
        )
    return ". ".join(reasons) or None


def _settled_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """The shown counts that change when something is settled or lost, and not when leases are extended."""
    return {name: counts[name] for name in _SHOWN_COUNTS if name in counts and name not in _OF_EXTENSIONS}


def _field(outcome: Outcome) -> str:
    return outcome.value.replace("-", "_")


def _whole(seconds: float | None) -> int | None:
    """Rounded: what the two clocks differ by from one reading to the next is no news."""
    return None if seconds is None else round(seconds)
