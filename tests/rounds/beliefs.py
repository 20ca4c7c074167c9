"""Compares what holders believe about their leases with what the service confirmed.

Holders record their beliefs (:mod:`tests.rounds.recorder`), and the proxy before the service writes down the facts. A
message that another consumer receives shows a missed extension only by luck: mostly the work is over by then. A belief
shows it at once, whether or not a consumer was there to notice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tests.rounds.ledger import Entry, Ledger
from tests.rounds.notebook import read_lines

CLOCK_SECONDS: Final = 0.25
"""By how much the times of two processes may differ: each reads two clocks, one after the other."""

What = Literal["holds", "extends", "settles", "ended", "writes", "takes"]


@dataclass(frozen=True, slots=True)
class Belief:
    """The belief of one holder about one lease from a moment on. Times are by the machine's monotonic clock.

    Attributes:
        holder: The process and its ledger.
        what: Whether it took the lease, had an answer to an extension or a settlement, or has done with it; or whether
            a batch wrote it down for its next holder, or took it.
        message_id: The message.
        reception: The number of its reception in the ledger of the stack; 0 if no call of that handle was seen.
        at: When the belief began.
        until: Until when it relies on the lease; None if it does not.
        asked_at: When the call was decided that brought the belief; None if a call did not.
        batch: The id of the batch that wrote the lease down or took it; None if it has none yet.
    """

    holder: str
    what: What
    message_id: str
    reception: int
    at: float
    until: float | None
    asked_at: float | None = None
    batch: str | None = None


def read_beliefs(directory: Path, ledger: Ledger, since: float) -> list[Belief]:
    """Read what the processes of a stack recorded since a moment, in the order of time.

    Lines from before that moment count, too: a batch of now must not take a lease of another batch of then.
    """
    lines = (line for file in directory.glob("*.jsonl") for line in read_lines(file))
    beliefs = [
        Belief(
            line["holder"],
            line["what"],
            line["id"],
            ledger.reception_of(line["key"]),
            line["at"],
            line.get("until"),
            line.get("asked_at"),
            line.get("batch"),
        )
        for line in lines
        if line["at"] >= since or line["what"] == "writes"
    ]
    return sorted(beliefs, key=lambda belief: belief.at)


def unconfirmed(beliefs: Iterable[Belief], entries: Sequence[Entry]) -> Iterator[tuple[Belief, float]]:
    """Find deadlines that no call had confirmed when a holder began to rely on them.

    A holder counts from before it sent the call, so it is never later than the service. Of several calls that were
    under way together the latest counts, because the service may have done them in any order. An extension replaces
    what was answered before it was decided: the service hides the message no longer than the newest call says.

    Yields:
        The belief, and the latest deadline that the service had confirmed by then.
    """
    confirmed = _by_reception(entry for entry in entries if entry.acted and entry.kind != "delete")
    found: set[tuple[str, int, float]] = set()
    for belief in beliefs:
        if belief.until is None or belief.reception not in confirmed:
            continue
        known = [each for each in confirmed[belief.reception] if each.asked_at <= belief.at]
        if belief.what == "extends" and belief.asked_at is not None:
            decided_at = belief.asked_at - CLOCK_SECONDS
            known = [each for each in known if each.answered_at >= decided_at] or known
        latest = max((each.asked_at + each.timeout_seconds for each in known), default=belief.until)
        # Later beliefs repeat the deadline until it moves.
        same = (belief.holder, belief.reception, round(belief.until, 1))
        if belief.until > latest + CLOCK_SECONDS and same not in found:
            found.add(same)
            yield belief, latest


def taken_after_the_end(beliefs: Iterable[Belief], entries: Sequence[Entry]) -> Iterator[tuple[Belief, Entry]]:
    """Find leases that a holder took and relied on, although they had been deleted or released before.

    A FIFO receive that is repeated may bring a message again by the handle with which it was released.

    Yields:
        The belief, and the call that ended the lease.
    """
    ends = _by_reception(entry for entry in entries if entry.acted and (entry.kind == "delete" or entry.is_release))
    receives = _by_reception(entry for entry in entries if entry.kind == "receive")
    for belief in beliefs:
        if belief.what != "holds" or belief.until is None or belief.until <= belief.at:
            continue
        again = [each.answered_at for each in receives.get(belief.reception, ()) if each.answered_at <= belief.at]
        received_at = max(again, default=0.0)
        before = [
            each
            for each in ends.get(belief.reception, ())
            if received_at < each.answered_at and each.answered_at + CLOCK_SECONDS < belief.at
        ]
        if before:
            yield belief, before[0]


def held_by_two(beliefs: Iterable[Belief]) -> Iterator[tuple[Belief, Belief]]:
    """Find extensions by a holder from which another one had taken the lease before the call was decided.

    Yields:
        The belief with which the other holder began, and the one that the extension brought.
    """
    newest: dict[int, Belief] = {}
    for belief in beliefs:
        if belief.what == "holds":
            newest[belief.reception] = belief
        elif belief.what == "extends" and belief.reception and belief.asked_at is not None:
            holder = newest.get(belief.reception)
            if holder is not None and holder.holder != belief.holder and holder.at + CLOCK_SECONDS < belief.asked_at:
                yield holder, belief


def of_two_batches(beliefs: Iterable[Belief]) -> Iterator[tuple[Belief, Belief]]:
    """Find leases that one batch wrote down for its next holder, and another batch took.

    Yields:
        The belief of the batch that wrote it, and that of the batch that took it.
    """
    written: dict[int, Belief] = {}
    for belief in beliefs:
        if belief.what == "writes":
            written[belief.reception] = belief
        elif belief.what == "takes" and belief.reception and belief.batch is not None:
            writer = written.get(belief.reception)
            if writer is not None and writer.batch != belief.batch:
                yield writer, belief


def _by_reception(entries: Iterable[Entry]) -> dict[int, list[Entry]]:
    found: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        # 0 stands for all handles that were never seen.
        if entry.reception:
            found[entry.reception].append(entry)
    return found
