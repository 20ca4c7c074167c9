"""The ledger of one queue's leases: says what to call and when, and learns from the answers. No I/O, no clock.

The caller asks :meth:`Ledger.due` at the time that :meth:`Ledger.next_due` names, performs the calls it gets
and reports each with :meth:`Ledger.report`. A lease is in one of these phases:

    phase       left by                      to
    WAITING     its renewal falls due        DUE
                settle()                     SETTLING
    DUE         due() puts it into a call    EXTENDING
                settle()                     SETTLING
    EXTENDING   answer                       WAITING (DUE when throttled), or SETTLING if that was asked meanwhile
                answer "lost"                (gone)
    SETTLING    due() puts it into a call    SENT
                its time has run out         (gone)
    SENT        answer                       (gone), or SETTLING to try again, or to delete what was forwarded

Rules that the table cannot show:

* A deadline moves only by an answer, and counts from before the call was sent. A call without an answer may
  have been carried out or not: the deadline is then the earlier of the two possible ones.
* A message is released only while it is certainly invisible by that deadline, and never once that has passed, even
  if an extension succeeded since: somebody else may hold it, and on a standard queue an old receipt handle can
  extend, and end, *their* lease. A release at once that got no answer is therefore never repeated.
* No extension is sent once settlement began, and settlement waits for the answer to an extension under way.

Every operation costs O(log n) comparisons; nothing ever looks at all leases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from random import Random
from typing import Final

from sqs_lease.core.calls import (
    Call,
    DeleteCall,
    EntryAnswer,
    ExtendCall,
    ForwardCall,
    ReleaseCall,
    Verdict,
    VisibilityChange,
)
from sqs_lease.core.entries import CAP_MARGIN_SECONDS, Entry, Heap, Phase, Queue
from sqs_lease.core.events import Ending, Lapsed, LeaseEvent, Lost, Outcome, Refused, Settled
from sqs_lease.core.failure_rules import DeadLetter, Delete, Expire, Release, Settlement
from sqs_lease.core.limits import MAX_BATCH_ENTRIES, MAX_VISIBILITY_SECONDS
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.pacing import CallPacing, retry_delay_seconds
from sqs_lease.core.policies import RenewalPolicy

RELEASE_MARGIN_SECONDS: Final = 2.0
"""With less than this left a release could arrive after the lease ended, so the lease is left to end by itself."""

RIDE_ALONG_SHARE: Final = 0.25
"""A lease may be renewed early, by up to this share of its waiting time, to fill a batch of ten."""

SETTLE_SECONDS: Final = 60.0
"""How long a settlement is tried at least, where that is safe, before it is given up."""

_FORWARDED: Final = Delete()
"""The delete that follows a confirmed forward to the dead-letter queue; told apart by identity."""


class Ledger:
    """Holds the leases of one queue.

    Times are seconds of one clock that never goes back, the same in all calls.

    Args:
        random: Source of the jitter of retries.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._entries: dict[Receipt, Entry] = {}
        self._by_message: dict[str, Entry] = {}
        self._sequence = 0
        self._waiting = Heap()  # by renewal time; final leases by deadline, to notice that they lapse
        self._urgent = Heap()  # what is due, by deadline: a throttled queue serves the most urgent first
        self._pausing = Heap()  # settlements to try again, by time
        self._ready: dict[type, Queue] = {
            kind: Queue() for kind in (Release, Delete, DeadLetter)
        }  # settlements to send now
        self._events: list[LeaseEvent] = []
        self._pacing = CallPacing(random)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, receipt: object) -> bool:
        return receipt in self._entries

    def lease(self, receipt: Receipt) -> Lease | None:
        """The lease as it stands, with its deadline as confirmed so far; None when it is not (or no longer) held."""
        entry = self._entries.get(receipt)
        if entry is None:
            return None
        held = entry.lease
        # Field by field: dataclasses.replace() takes three times as long, and this is asked for every lease.
        return Lease(
            held.receipt,
            held.received_at,
            entry.deadline,
            held.receive_count,
            held.message_group_id,
            entry.doubtful,
        )

    def take_events(self) -> list[LeaseEvent]:
        """Return what happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def hold(self, lease: Lease, policy: RenewalPolicy) -> None:
        """Hold a lease that was just received; holding it again changes nothing.

        An older lease on the same message is lost by that: the service gave the message out again.

        Args:
            lease: The lease.
            policy: Its renewal policy, with a known visibility timeout.
        """
        if (entry := self._admit(lease, policy)) is not None:
            self._wait(entry)

    def adopt(self, lease: Lease, policy: RenewalPolicy) -> None:
        """Hold a lease that somebody else held until now, and extend it at once; its deadline may have passed."""
        if (entry := self._admit(lease, policy)) is not None:
            self._wait(entry)
            self._hurry(entry)
            if entry.final and policy.renew_at(entry) is not None:
                # Its end was announced, if at all, to whoever held it before.
                self._events.append(Ending(entry.receipt, entry.deadline))

    def extend_now(self, receipt: Receipt) -> bool:
        """Make an extension due at once, whatever the policy says.

        Returns:
            Whether one will be sent, or is under way: False where the lease is not held, is being settled
            or cannot be extended any further.
        """
        entry = self._entries.get(receipt)
        if entry is None:
            return False
        self._hurry(entry)
        return entry.phase in (Phase.DUE, Phase.EXTENDING) and entry.settlement is None

    def settle(self, receipt: Receipt, settlement: Settlement, now: float) -> bool:
        """Begin to end a lease; :class:`~sqs_lease.core.events.Settled` tells how it ended.

        Returns:
            Whether it began now: False where the lease is not held, or is being settled already.
        """
        entry = self._entries.get(receipt)
        if entry is None or entry.settlement is not None:
            return False
        entry.settlement = settlement
        entry.began_settling_at = now
        if entry.phase is not Phase.EXTENDING:
            self._begin_settling(entry)
        return True

    def forget(self, receipt: Receipt) -> None:
        """Hold a lease no longer, without a call or an event: somebody else holds it now."""
        entry = self._entries.get(receipt)
        if entry is not None:
            self._remove(entry)

    def next_due(self) -> float | None:
        """When :meth:`due` has something to say next; a time in the past means now, None means not by itself."""
        if any(queue.first() is not None for queue in self._ready.values()):
            return -math.inf
        times = [first[0] for first in (self._waiting.first(), self._pausing.first()) if first is not None]
        if self._urgent.first() is not None:
            times.append(self._pacing.open_at)
        return min(times, default=None)

    def due(self, now: float, limit: int | None = None) -> list[Call]:
        """The calls to make now, the most urgent extensions first, then settlements.

        They are to be made at once, and each must be reported, however it went.

        Args:
            now: The time.
            limit: Most calls to return; what is left over is due still. None: no limit.
        """
        for entry in self._pausing.pop_until(now):
            self._make_ready(entry)
        for entry in self._waiting.pop_until(now):
            self._fall_due(entry, now)
        return list(islice(chain(self._extension_calls(now), self._settlement_calls(now)), limit))

    def report(self, call: Call, answers: Sequence[EntryAnswer], now: float) -> None:
        """Take in the answers to a call, one per entry; entries without one count as unanswered.

        Answers about leases that were forgotten meanwhile are ignored.
        """
        by_receipt = {answer.receipt: answer for answer in answers}
        for index, receipt in enumerate(call.receipts):
            entry = self._entries.get(receipt)
            answer = by_receipt.get(receipt, EntryAnswer(receipt, Verdict.TRANSIENT, text="no answer"))
            if answer.verdict is Verdict.THROTTLED:
                self._pacing.throttled(call.asked_at, now)
            if entry is None:
                continue
            if isinstance(call, ExtendCall) and entry.phase is Phase.EXTENDING:
                self._extension_answered(entry, call.asked_at + call.changes[index].seconds, answer, call.asked_at, now)
            elif not isinstance(call, ExtendCall) and entry.phase is Phase.SENT:
                self._settlement_answered(entry, call, index, answer, now)
        if isinstance(call, ExtendCall) and any(answer.verdict is Verdict.DONE for answer in answers):
            self._pacing.succeeded()

    # Holding

    def _admit(self, lease: Lease, policy: RenewalPolicy) -> Entry | None:
        if lease.receipt in self._entries:
            return None
        other = self._by_message.get(lease.receipt.message_id)
        if other is not None and other.lease.receive_count > lease.receive_count:
            # Handed over late: what is held already is the newer reception.
            self._events.append(Lost(lease.receipt, "the message was received again"))
            return None
        if other is not None:
            self._lose(other, "the message was received again")
        self._sequence += 1
        entry = Entry(lease, policy, self._sequence)
        self._entries[lease.receipt] = entry
        self._by_message[lease.receipt.message_id] = entry
        return entry

    def _remove(self, entry: Entry) -> None:
        entry.token += 1
        del self._entries[entry.receipt]
        if self._by_message.get(entry.receipt.message_id) is entry:
            del self._by_message[entry.receipt.message_id]

    def _wait(self, entry: Entry) -> None:
        """Put a lease to wait for its renewal, or for its end if there is none."""
        entry.phase = Phase.WAITING
        renew_at = entry.policy.renew_at(entry)
        if renew_at is None or entry.ends_at - entry.deadline < 1:
            entry.final = True
            entry.renew_at = entry.deadline
        else:
            entry.renew_at = renew_at
        self._waiting.push(entry.renew_at, entry)

    def _hurry(self, entry: Entry) -> None:
        if entry.phase is Phase.WAITING and not entry.final:
            entry.phase = Phase.DUE
            self._urgent.push(entry.deadline, entry)

    def _lose(self, entry: Entry, detail: str) -> None:
        """A lease is lost: one event says so, whichever waits for it."""
        self._remove(entry)
        if entry.settlement is None:
            self._events.append(Lost(entry.receipt, detail))
        else:
            self._events.append(Settled(entry.receipt, Outcome.LOST, detail))

    # Extending

    def _fall_due(self, entry: Entry, now: float) -> None:
        if not entry.final:
            entry.phase = Phase.DUE
            self._urgent.push(entry.deadline, entry)
            return
        if now >= entry.deadline:
            self._note_lapse(entry, now)

    def _note_lapse(self, entry: Entry, now: float) -> None:
        if not entry.lapsed and now > entry.deadline - 1e-9:
            entry.lapsed = entry.doubtful = True
            self._events.append(Lapsed(entry.receipt, now - entry.deadline))

    def _extension_calls(self, now: float) -> Iterator[Call]:
        while self._urgent.first() is not None and self._pacing.admits(now):
            changes: list[VisibilityChange] = []
            while len(changes) < MAX_BATCH_ENTRIES and (entry := self._next_to_extend(now)) is not None:
                seconds = self._extension_seconds(entry, now)
                if seconds < 1:
                    self._end(entry)
                    continue
                entry.phase = Phase.EXTENDING
                changes.append(VisibilityChange(entry.receipt, seconds))
            if changes:
                self._pacing.sent(now)
                yield ExtendCall(now, tuple(changes))

    def _next_to_extend(self, now: float) -> Entry | None:
        """The most urgent lease that is due, else one that may ride along."""
        if self._urgent.first() is not None:
            return self._urgent.pop()
        first = self._waiting.first()
        if first is None or first[1].final:
            return None
        renew_at, entry = first
        if renew_at - now > RIDE_ALONG_SHARE * (renew_at - entry.renewed_at):
            return None
        return self._waiting.pop()

    @staticmethod
    def _extension_seconds(entry: Entry, now: float) -> int:
        """What the policy asks for, cut to whole seconds and to the lease's end; below 1 where nothing is gained."""
        wanted = min(entry.policy.extension_seconds(entry, now), MAX_VISIBILITY_SECONDS)
        longest = entry.ends_at - now
        if wanted > longest and now + longest < entry.deadline + 1:
            return 0
        return math.floor(min(wanted, longest) + 1e-9)

    def _end(self, entry: Entry) -> None:
        """The lease cannot go on beyond its deadline: say so once, and wait for its settlement."""
        entry.phase = Phase.WAITING
        entry.final = True
        entry.renew_at = entry.deadline
        self._events.append(Ending(entry.receipt, entry.deadline))
        self._waiting.push(entry.deadline, entry)

    def _extension_answered(
        self, entry: Entry, deadline: float, answer: EntryAnswer, asked_at: float, now: float
    ) -> None:
        if answer.verdict is Verdict.LOST:
            self._lose(entry, _detail(answer))
            return
        self._note_lapse(entry, now)
        if answer.verdict is Verdict.DONE:
            entry.renewed_at = asked_at
            entry.deadline = deadline
            entry.lapsed = entry.refused = False
        elif answer.verdict is Verdict.TRANSIENT:
            entry.deadline = min(entry.deadline, deadline)
        if entry.settlement is not None:
            self._begin_settling(entry)
        elif answer.verdict is Verdict.DONE:
            self._wait(entry)
            if entry.final:
                self._events.append(Ending(entry.receipt, entry.deadline))
        elif answer.verdict is Verdict.CAPPED:
            self._end(entry)
        elif answer.verdict is Verdict.THROTTLED:
            entry.phase = Phase.DUE
            self._urgent.push(entry.deadline, entry)
        else:
            if answer.verdict is Verdict.REFUSED and not entry.refused:
                entry.refused = True
                self._events.append(Refused(entry.receipt, _detail(answer)))
            entry.phase = Phase.WAITING
            entry.renew_at = now + retry_delay_seconds(entry.deadline - now, self._random)
            self._waiting.push(entry.renew_at, entry)

    # Settling

    def _begin_settling(self, entry: Entry) -> None:
        if isinstance(entry.settlement, Expire):
            self._settled(entry, Outcome.EXPIRED)
            return
        self._make_ready(entry)

    def _make_ready(self, entry: Entry) -> None:
        entry.phase = Phase.SETTLING
        self._ready[type(entry.settlement)].push(entry)

    def _settled(self, entry: Entry, outcome: Outcome, detail: str = "") -> None:
        self._remove(entry)
        self._events.append(Settled(entry.receipt, outcome, detail))

    def _settlement_calls(self, now: float) -> Iterator[Call]:
        # The next kind is looked at only when the caller wants one call more: what is not sent stays ready.
        while releases := [*islice(self._releases_to_send(now), MAX_BATCH_ENTRIES)]:
            yield ReleaseCall(now, tuple(releases))
        while deletes := [*islice(self._to_send(Delete), MAX_BATCH_ENTRIES)]:
            yield DeleteCall(now, tuple(entry.receipt for entry in deletes))
        for entry in self._to_send(DeadLetter):
            assert isinstance(entry.settlement, DeadLetter)  # noqa: S101 - that is what its queue holds
            yield ForwardCall(now, entry.receipt, entry.settlement.reason)

    def _to_send(self, kind: type) -> Iterator[Entry]:
        queue = self._ready[kind]
        while (entry := queue.first()) is not None:
            queue.pop()
            entry.phase = Phase.SENT
            yield entry

    def _releases_to_send(self, now: float) -> Iterator[VisibilityChange]:
        for entry in self._to_send(Release):
            if entry.doubtful or entry.deadline - now < RELEASE_MARGIN_SECONDS:
                self._settled(entry, Outcome.EXPIRED, "the lease was about to end, or had ended, by itself")
                continue
            assert isinstance(entry.settlement, Release)  # noqa: S101 - that is what its queue holds
            # The service counts the delay into its 12 hours as well.
            longest = entry.received_at + MAX_VISIBILITY_SECONDS - CAP_MARGIN_SECONDS - now
            seconds = max(0, min(entry.settlement.delay_seconds, math.floor(longest)))
            yield VisibilityChange(entry.receipt, seconds)

    def _settlement_answered(
        self, entry: Entry, call: DeleteCall | ReleaseCall | ForwardCall, index: int, answer: EntryAnswer, now: float
    ) -> None:
        match call, answer.verdict:
            case ForwardCall(), Verdict.DONE:
                # What is in the dead-letter queue now is deleted here; the outcome still names the forwarding.
                entry.settlement = _FORWARDED
                self._make_ready(entry)
            case DeleteCall(), Verdict.DONE:
                forwarded = entry.settlement is _FORWARDED
                self._settled(entry, Outcome.DEAD_LETTERED if forwarded else Outcome.DELETED)
            case ReleaseCall(), Verdict.DONE:
                self._settled(entry, Outcome.RELEASED)
            case _, Verdict.LOST:
                self._settled(entry, Outcome.LOST, _detail(answer))
            case ReleaseCall(), Verdict.CAPPED:
                entry.settlement = Release(0)
                self._make_ready(entry)
            case ReleaseCall() as release, Verdict.TRANSIENT:
                # Carried out or not: it is certainly invisible only until the earlier of the two ends.
                entry.deadline = min(entry.deadline, release.asked_at + release.changes[index].seconds)
                self._try_again(entry, answer, now)
            case _:
                self._try_again(entry, answer, now)

    def _try_again(self, entry: Entry, answer: EntryAnswer, now: float) -> None:
        if isinstance(entry.settlement, Release):
            if entry.deadline - now < RELEASE_MARGIN_SECONDS:
                self._settled(entry, Outcome.EXPIRED, _detail(answer))
                return
        elif now > max(entry.deadline, entry.began_settling_at + SETTLE_SECONDS):
            self._settled(entry, Outcome.FAILED, _detail(answer))
            return
        entry.phase = Phase.SETTLING
        self._pausing.push(now + retry_delay_seconds(entry.deadline - now, self._random), entry)


def _detail(answer: EntryAnswer) -> str:
    return f"{answer.code}: {answer.text}" if answer.code else answer.text
