"""The auditor: what a round must not show, judged from outside by the ledger, the workers' notes and the table.

The rules are those of docs/how-it-works.md. :func:`audit` names each as :class:`Rule`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tests.rounds.beliefs import Belief, held_by_two, of_two_batches, taken_after_the_end, unconfirmed
from tests.rounds.draw import AWAY, Kind, Work
from tests.rounds.ledger import Entry

FREE_SECONDS: Final = 3.0
"""For how long, before a lease ends, nothing may be wrong: then it must have been extended.

An extension that was sent with less than two seconds left is the last one (docs/how-it-works.md), and it may have been
sent just before all was well again.
"""

LONGEST_TIMEOUT_SECONDS: Final = 900
"""The ceiling of the policy."""

GONE: Final = frozenset({Kind.KILL, Kind.STOP, Kind.MEMORY})
"""During these, a worker's process is gone for another one that waits for a sign of life."""

ENDED: Final = frozenset({Kind.KILL, Kind.DATABASE})
"""After these, a process is started again, or finds its way back."""

RACE_SECONDS: Final = 1.0
"""A process that was stopped between a decision and its call makes the call when it goes on."""


POLL_SECONDS: Final = 4.0
"""How long a worker waits for a first message in one call."""

LONGEST_WAY_SECONDS: Final = 30.0
"""How long before it came a call may have been sent, when the machine or the network was slow."""


class Rule(Enum):
    """The rules that always hold."""

    LOST = "a message is lost"
    TWICE = "a message is in the table twice"
    DOUBLE_HOLDER = "two workers hold a message beyond what is promised"
    SILENT = "a block ends well, and what it says is not so"
    AFTER_THE_END = "a call for a lease that had ended"
    TOO_LONG = "a lease longer than the policy's"
    ORDER = "a message is deleted ahead of an earlier one of its group"
    UNCONFIRMED = "a holder relies on a deadline that the service did not confirm"
    NOT_HANDED_OVER = "a holder goes on with a lease that another one took or ended"
    STUCK = "the round does not come to its end"
    DIED = "a worker ended by itself"


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that was broken.

    Attributes:
        rule: The rule.
        text: How, with the message and the times.
    """

    rule: Rule
    text: str


@dataclass(frozen=True, slots=True)
class Window:
    """When something was wrong.

    Attributes:
        kind: The fault; None is the machine itself, which let no process work.
        worker: Whom it hit; None is all of them.
        began_at: From when.
        ended_at: Until when.
    """

    kind: Kind | None
    worker: str | None
    began_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class Takeover:
    """How the leases of a process that is gone come to another one, where a host has that.

    Attributes:
        noticed_after_seconds: A process that was away for a shorter time keeps its leases.
        seconds: How long after a process went away the other one extends them at the latest. A process that is started
            again is at work as soon.
    """

    noticed_after_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Block:
    """Work on a batch: one `with` statement of a worker, by its own notes, or one run of an orchestrator, by its word.

    Attributes:
        worker: The worker, or the run.
        ids: The messages that it was given.
        began_at: When it was entered.
        ended_at: When it was left, or its process died.
        is_green: Whether it was left without an error.
        failed: The messages that it failed itself, and when: it holds them no longer from then on. With less than two
            seconds left they are not even released.
        receive_counts: How often each message had been received by then; empty where the worker itself received them.
    """

    worker: str
    ids: frozenset[str]
    began_at: float
    ended_at: float
    is_green: bool
    failed: Mapping[str, float] = field(default_factory=dict)
    receive_counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """A row of the table.

    Attributes:
        message_id: The message that it is of.
        at: When it was written; None where the table does not tell.
    """

    message_id: str
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of a round.

    Attributes:
        sent: The messages by their ids.
        entries: The ledger.
        blocks: The workers' blocks.
        table: The table's rows.
        dead_letters: How often each message, by its number, is in the dead-letter queue.
        windows: The faults, and their times.
        each_once: Whether the host promises that the table has each message once.
        in_order: Whether the queue is a FIFO queue.
        left: How many messages the queue still had when the round was given up.
        deaths: The workers that ended by themselves, and how.
        takeover: How leases come from a process that is gone to another one; None where they do not.
        passed_on_seconds: By how much a process extends a batch that it passes on; 0 where none is passed on.
        beliefs: The holders' beliefs about their leases, in the order of time.
    """

    sent: Mapping[str, Work]
    entries: Sequence[Entry]
    blocks: Sequence[Block]
    table: Sequence[Done]
    dead_letters: Mapping[int, int]
    windows: Sequence[Window]
    each_once: bool
    in_order: bool = False
    left: int = 0
    deaths: Sequence[str] = field(default_factory=tuple)
    takeover: Takeover | None = None
    passed_on_seconds: float = 0.0
    beliefs: Sequence[Belief] = ()


def audit(evidence: Evidence) -> list[Finding]:
    """Judge a round.

    Returns:
        The rules that were broken, with the evidence; none if all is well.
    """
    by_message: dict[str, list[Entry]] = defaultdict(list)
    for entry in evidence.entries:
        by_message[entry.message_id].append(entry)
    return [
        *(Finding(Rule.DIED, death) for death in evidence.deaths),
        *_stuck(evidence),
        *_lost(evidence, by_message),
        *_undone(evidence, by_message),
        *_twice(evidence),
        *_order(evidence, by_message),
        *_double_holders(evidence, by_message),
        *_silent(evidence, by_message),
        *_after_the_end(evidence, by_message),
        *_too_long(evidence, by_message),
        *_beliefs(evidence),
    ]


def _stuck(evidence: Evidence) -> Iterator[Finding]:
    if evidence.left:
        yield Finding(
            Rule.STUCK, f"{evidence.left} messages are neither done nor visible when nothing is wrong any more"
        )


def _lost(evidence: Evidence, by_message: Mapping[str, Sequence[Entry]]) -> Iterator[Finding]:
    rows = defaultdict(list)
    for row in evidence.table:
        rows[row.message_id].append(row)
    for message_id, work in evidence.sent.items():
        deletes = [entry for entry in by_message.get(message_id, ()) if entry.kind == "delete" and entry.acted]
        is_dead = evidence.dead_letters.get(work.number, 0) > 0
        if not deletes and not is_dead and not evidence.left:
            yield Finding(Rule.LOST, f"{message_id}: the queue is empty, and no worker deleted it")
        for delete in deletes:
            before = [row for row in rows[message_id] if row.at is None or row.at <= delete.answered_at]
            if not before and not is_dead:
                yield Finding(
                    Rule.LOST, f"{message_id}: {delete.worker} deleted it at {delete.asked_at:.3f}, and it is not done"
                )
        if work.kind == "poison" and rows[message_id]:
            yield Finding(Rule.LOST, f"{message_id}: it is poison, and it is in the table")


def _undone(evidence: Evidence, by_message: Mapping[str, Sequence[Entry]]) -> Iterator[Finding]:
    for hold in _holds(evidence, by_message):
        work = evidence.sent.get(hold.message_id)
        if hold.message_id not in hold.block.failed or work is None or evidence.dead_letters.get(work.number, 0):
            continue
        for entry in by_message[hold.message_id]:
            if entry.kind == "delete" and entry.acted and entry.reception == hold.reception:
                failed_at = hold.block.failed[hold.message_id]
                yield Finding(
                    Rule.LOST,
                    f"{hold.message_id}: {hold.block.worker} failed it at {failed_at:.3f}, and {entry.worker} deleted "
                    f"it at {entry.asked_at:.3f}",
                )


def _twice(evidence: Evidence) -> Iterator[Finding]:
    if not evidence.each_once:
        return
    for message_id, times in Counter(row.message_id for row in evidence.table).items():
        if times > 1:
            yield Finding(Rule.TWICE, f"{message_id}: it is in the table {times} times")
        if message_id not in evidence.sent:
            yield Finding(Rule.TWICE, f"{message_id}: it is in the table, and was not sent in this round")


def _order(evidence: Evidence, by_message: Mapping[str, Sequence[Entry]]) -> Iterator[Finding]:
    if not evidence.in_order:
        return
    last: dict[int, tuple[str, float]] = {}
    for message_id, work in sorted(evidence.sent.items(), key=lambda each: each[1].number):
        deletes = [entry for entry in by_message.get(message_id, ()) if entry.kind == "delete" and entry.acted]
        if not deletes or evidence.dead_letters.get(work.number, 0):
            continue
        earlier, at = last.get(work.group, ("", 0.0))
        if deletes[0].asked_at < at:
            yield Finding(
                Rule.ORDER,
                f"{message_id}: it was deleted at {deletes[0].asked_at:.3f}, and {earlier}, which was sent before it, "
                f"at {at:.3f}",
            )
        last[work.group] = (message_id, deletes[0].asked_at)


@dataclass(frozen=True, slots=True)
class _Hold:
    """A block's hold on one message."""

    block: Block
    message_id: str
    reception: int
    until: float


def _holds(evidence: Evidence, by_message: Mapping[str, Sequence[Entry]]) -> Iterator[_Hold]:
    for block in evidence.blocks:
        for message_id in block.ids:
            entries = by_message.get(message_id, ())
            reception = _reception(block, message_id, entries)
            if reception is None:
                continue
            ends = [
                entry.asked_at
                for entry in entries
                if entry.reception == reception and (entry.kind == "delete" or entry.is_release)
            ]
            failed_at = _failed_at(evidence, block, message_id)
            yield _Hold(block, message_id, reception, min([*ends, *failed_at, block.ended_at]))


def _failed_at(evidence: Evidence, block: Block, message_id: str) -> list[float]:
    """When a block failed a message, or on a FIFO queue one before it that did not become a dead letter."""
    work = evidence.sent.get(message_id)
    return [
        at
        for failed_id, at in block.failed.items()
        if failed_id == message_id
        or (
            evidence.in_order
            and work is not None
            and (before := evidence.sent.get(failed_id)) is not None
            and before.kind != "poison"
            and before.group == work.group
            and before.number < work.number
        )
    ]


def _reception(block: Block, message_id: str, entries: Sequence[Entry]) -> int | None:
    """By which reception a block has a message; None if the ledger does not know."""
    receives = [entry for entry in entries if entry.kind == "receive"]
    if message_id in block.receive_counts:
        counted = receives[block.receive_counts[message_id] - 1 :]
        return counted[0].reception if counted else None
    own = [entry for entry in receives if entry.worker == block.worker and entry.answered_at <= block.began_at]
    return own[-1].reception if own else None


def _double_holders(evidence: Evidence, by_message: Mapping[str, Sequence[Entry]]) -> Iterator[Finding]:
    for hold in _holds(evidence, by_message):
        entries = by_message[hold.message_id]
        others = [
            entry
            for entry in entries
            if entry.kind == "receive"
            and entry.reception != hold.reception
            and hold.block.began_at < entry.answered_at < hold.until
        ]
        if not others:
            continue
        extensions = [
            entry
            for entry in entries
            if entry.reception == hold.reception
            and entry.kind in {"receive", "change"}
            and entry.acted
            and entry.answered_at <= others[0].answered_at
        ]
        last = extensions[-1]
        ends_at = (
            last.asked_at + last.timeout_seconds if last.kind == "change" else last.answered_at + last.timeout_seconds
        )
        due_at = ends_at - last.timeout_seconds / 3
        free = _longest_free(_away(evidence, last.worker), due_at, ends_at)
        nothing_was_wrong = free >= ends_at - due_at
        if free >= FREE_SECONDS or nothing_was_wrong:
            yield Finding(
                Rule.DOUBLE_HOLDER,
                f"{hold.message_id}: {hold.block.worker} holds it from {hold.block.began_at:.3f} to {hold.until:.3f}, "
                f"{others[0].worker} received it at {others[0].answered_at:.3f}. Its last extension of "
                f"{last.timeout_seconds:g} s was at {last.asked_at:.3f}; {free:.1f} s of its last third were free",
            )


def _away(evidence: Evidence, worker: str) -> list[tuple[float, float]]:
    """The times when a worker, or its service, or the one that was to take over from it, was away."""
    away = [
        (window.began_at, window.ended_at)
        for window in evidence.windows
        if (window.kind is None or window.kind in AWAY) and window.worker in {None, worker}
    ]
    if evidence.takeover is not None:
        gone = _gone(evidence.windows, evidence.takeover, worker)
        away += gone
        away += _meanwhile(evidence.windows, evidence.takeover, worker, gone)
    return sorted(away)


def _gone(windows: Iterable[Window], takeover: Takeover, worker: str) -> list[tuple[float, float]]:
    """The times when a worker was gone for so long that another one takes its leases over, and had not done so yet."""
    merged: list[Window] = []
    for window in sorted(windows, key=lambda each: each.began_at):
        if not (window.kind is None or window.kind in GONE) or window.worker not in {None, worker}:
            continue
        if merged and window.began_at <= merged[-1].ended_at:
            before = merged.pop()
            kind = Kind.KILL if Kind.KILL in {before.kind, window.kind} else window.kind
            merged.append(Window(kind, worker, before.began_at, max(before.ended_at, window.ended_at)))
        else:
            merged.append(window)
    return [
        (window.began_at, max(window.ended_at, window.began_at + takeover.seconds))
        for window in merged
        if window.kind is Kind.KILL or window.ended_at - window.began_at >= takeover.noticed_after_seconds
    ]


def _meanwhile(
    windows: Sequence[Window], takeover: Takeover, worker: str, gone: Sequence[tuple[float, float]]
) -> Iterator[tuple[float, float]]:
    """While one is gone, the others must be there, and one after the other may not be."""
    for began, ended in gone:
        latest = ended
        for window in sorted(windows, key=lambda each: each.began_at):
            if began <= window.ended_at and window.began_at <= latest and window.worker != worker:
                until = window.ended_at + (takeover.seconds if window.kind in ENDED else 0.0)
                yield window.began_at, until
                latest = max(latest, until)


def _longest_free(away: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """The longest stretch within an interval in which nothing was away."""
    longest, free_from = 0.0, begin
    for began, ended in away:
        if ended <= free_from:
            continue
        if began >= end:
            break
        longest = max(longest, began - free_from)
        free_from = ended
    return max(longest, end - free_from)


def _silent(evidence: Evidence, by_message: Mapping[str, Sequence[Entry]]) -> Iterator[Finding]:
    for hold in _holds(evidence, by_message):
        if not hold.block.is_green or _is_given_back(evidence, hold.block, hold.message_id):
            continue
        entries = by_message[hold.message_id]
        deletes = [entry for entry in entries if entry.kind == "delete" and entry.reception == hold.reception]
        acted = [entry for entry in deletes if entry.acted]
        who = f"{hold.message_id}: a block of {hold.block.worker} ended well at {hold.block.ended_at:.3f}"
        if not acted or acted[0].asked_at > hold.block.ended_at:
            yield Finding(Rule.SILENT, f"{who}, and the message was not deleted by it")
            continue
        for other in entries:
            if (
                other.kind == "receive"
                and other.reception != hold.reception
                and hold.block.began_at < other.answered_at < acted[0].asked_at
            ):
                yield Finding(Rule.SILENT, f"{who}, and {other.worker} had received it at {other.answered_at:.3f}")


def _is_given_back(evidence: Evidence, block: Block, message_id: str) -> bool:
    """Whether a block that ends well returns a message: it failed it, or, on a FIFO queue, one before it."""
    work = evidence.sent.get(message_id)
    failed = [evidence.sent[each] for each in block.failed if each in evidence.sent]
    return message_id in block.failed or (
        evidence.in_order
        and work is not None
        and any(each.group == work.group and each.number < work.number for each in failed)
    )


def _after_the_end(evidence: Evidence, by_message: Mapping[str, Sequence[Entry]]) -> Iterator[Finding]:
    for message_id, entries in by_message.items():
        newest = 0
        settled: dict[int, Entry] = {}
        for entry in sorted(entries, key=lambda each: each.asked_at if each.kind != "receive" else each.answered_at):
            if entry.kind == "receive":
                newest = max(newest, entry.reception)
                continue
            ended = settled.get(entry.reception)
            if (
                ended
                and entry.kind == "change"
                and not entry.is_release
                and entry.asked_at > ended.answered_at
                and not _by_another_process(evidence, ended, entry)
            ):
                yield Finding(
                    Rule.AFTER_THE_END,
                    f"{message_id}: {entry.worker} extended it at {entry.asked_at:.3f}, and had settled it at "
                    f"{ended.asked_at:.3f}",
                )
            if entry.is_release and entry.reception < newest and not _raced(evidence.windows, entry):
                yield Finding(
                    Rule.AFTER_THE_END,
                    f"{message_id}: {entry.worker} released it at {entry.asked_at:.3f}, when another consumer had it",
                )
            if entry.acted and (entry.kind == "delete" or entry.is_release):
                settled.setdefault(entry.reception, entry)


def _by_another_process(evidence: Evidence, ended: Entry, entry: Entry) -> bool:
    """Whether the process that extended a lease could not know that another one had settled it.

    It stood still meanwhile; or it took over from one that is gone, and holds all messages until the orchestrator says
    which of them were settled (docs/airflow.md).
    """
    if evidence.takeover is None:
        return False
    gone = _gone(evidence.windows, evidence.takeover, ended.worker)
    return (entry.worker != ended.worker and _raced(evidence.windows, entry)) or any(
        began <= entry.asked_at and ended.asked_at <= until for began, until in gone
    )


def _raced(windows: Iterable[Window], entry: Entry) -> bool:
    return any(
        window.kind in {None, Kind.STOP}
        and window.worker in {None, entry.worker}
        and window.began_at <= entry.asked_at <= window.ended_at + RACE_SECONDS
        for window in windows
    )


def _too_long(evidence: Evidence, by_message: Mapping[str, Sequence[Entry]]) -> Iterator[Finding]:
    good = {
        hold.reception
        for hold in _holds(evidence, by_message)
        if hold.block.is_green and hold.message_id not in hold.block.failed
    }
    for message_id, entries in by_message.items():
        received = {entry.reception: entry for entry in entries if entry.kind == "receive"}
        last_changes = {entry.reception: entry for entry in entries if entry.kind == "change"}
        for entry in entries:
            if entry.kind != "change" or entry.is_release or entry.reception not in received:
                continue
            if entry.timeout_seconds == evidence.passed_on_seconds:
                continue
            if entry is last_changes[entry.reception] and entry.reception not in good:
                # A release with a delay, which is longer each time that a message fails.
                continue
            reception = received[entry.reception]
            # A worker counts from when it sent the poll, which the proxy does not see; it may have come much later.
            away = _away(evidence, entry.worker)
            on_its_way = sum(
                max(0.0, min(ended, entry.answered_at) - max(began, reception.asked_at - LONGEST_WAY_SECONDS))
                for began, ended in away
            )
            lost_at = [began for began, ended in away if began <= reception.asked_at <= ended + LONGEST_WAY_SECONDS]
            if evidence.in_order and lost_at:
                # It asks again for the messages of a lost answer, and counts from when it asked first.
                on_its_way = max(on_its_way, reception.asked_at - min(lost_at) + POLL_SECONDS)
            worked = entry.answered_at - reception.asked_at
            most = min(max(reception.timeout_seconds, worked + 1 + on_its_way), LONGEST_TIMEOUT_SECONDS)
            if entry.timeout_seconds > most:
                yield Finding(
                    Rule.TOO_LONG,
                    f"{message_id}: {entry.worker} extended it by {entry.timeout_seconds:g} s after {worked:.1f} s",
                )


def _beliefs(evidence: Evidence) -> Iterator[Finding]:
    for belief, latest in unconfirmed(evidence.beliefs, evidence.entries):
        yield Finding(
            Rule.UNCONFIRMED,
            f"{belief.message_id}: at {belief.at:.3f} {belief.holder} relies on it until {belief.until:.3f}, and the "
            f"service hid it until {latest:.3f}",
        )
    for belief, end in taken_after_the_end(evidence.beliefs, evidence.entries):
        if not _may_not_know(evidence, end.asked_at, belief.at):
            yield Finding(
                Rule.NOT_HANDED_OVER,
                f"{belief.message_id}: {belief.holder} took its lease at {belief.at:.3f}, and {end.worker} had ended "
                f"it at {end.asked_at:.3f}",
            )
    for holder, belief in held_by_two(evidence.beliefs):
        if not _may_not_know(evidence, holder.at, belief.at):
            yield Finding(
                Rule.NOT_HANDED_OVER,
                f"{belief.message_id}: {holder.holder} took its lease at {holder.at:.3f}, and {belief.holder} extended "
                f"it at {belief.at:.3f} all the same",
            )
    for writer, taker in of_two_batches(evidence.beliefs):
        yield Finding(
            Rule.NOT_HANDED_OVER,
            f"{taker.message_id}: batch {writer.batch} passed on its lease at {writer.at:.3f}, and batch {taker.batch} "
            f"took it at {taker.at:.3f}",
        )


def _may_not_know(evidence: Evidence, since: float, until: float) -> bool:
    """Whether a process may not have learned in time what another one did.

    One was gone, or the database was; or the machine let one wait for so long that it was taken for gone.
    """
    starved: dict[str | None, float] = defaultdict(float)
    for window in evidence.windows:
        if window.began_at > until or window.ended_at < since - LONGEST_WAY_SECONDS:
            continue
        if window.kind in GONE | ENDED:
            return True
        if window.kind is None:
            starved[window.worker] += window.ended_at - window.began_at
    away = 0.0 if evidence.takeover is None else evidence.takeover.noticed_after_seconds
    return any(seconds >= away for seconds in starved.values())
