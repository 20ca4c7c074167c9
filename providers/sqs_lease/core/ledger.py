"""The ledger of one queue's leases: the only scheduler of all calls on it. No I/O, no clock.

The caller asks :meth:`Ledger.due` at the time that :meth:`Ledger.next_due` names, performs the calls that it gets,
waits for each answer no longer than :meth:`Ledger.timeout_seconds` says, and reports each call once with
:meth:`Ledger.report`. A lease is in one of these phases; any other change raises:

    phase       left by                                     to
    WAITING     its renewal falls due                       DUE
                its settlement may be sent                  SETTLING
    DUE         due() puts it into a call                   EXTENDING
                it cannot be extended any further           WAITING
                its settlement may be sent                  SETTLING
    EXTENDING   answer                                      WAITING, or DUE when the whole call was throttled
                answer, and a settlement was asked for      SETTLING
    SETTLING    due() puts it into a call                   SENT
    SENT        answer                                      SETTLING to try again, or to delete what was forwarded
    any         answer "lost", settled, forgotten           ENDED

The order of calls, behind one pacing gate for the queue:

* Extensions of live leases go first, the earliest deadline ahead; then releases, deletes by their leases' deadlines,
  and extensions of leases that have lapsed. While calls are spaced, settlements and lapsed leases get every eighth call
  each, so that neither starves; when a live lease is about to end, settlements alone do. Forwards call another queue,
  the dead-letter queue, and have their own gate.
* Slots are reserved: of the 32 calls under way, settlements and forwards leave eight to extensions, and extensions
  leave four to them.
* All batch calls are filled up to ten: extensions by leases that are due soon, settlements by those that wait for
  another try, or for others to fill their call (``within_seconds`` of :meth:`Ledger.settle`). Entries that fail
  together are tried again together.

Rules that the table cannot show:

* A deadline moves only by an answer, and counts from before the call was sent. A release without an answer may
  have been carried out or not: the deadline is then the earlier of the two possible ones.
* A message is released only while it is certainly invisible by that deadline, and never once that has passed, even
  if an extension succeeded since: another consumer may hold it, and on a standard queue an old receipt handle can
  extend, and end, *their* lease. A release at once that got no answer is therefore never repeated; one that was
  certainly not carried out is. A lease in doubt is extended by the visibility timeout at most, whatever its policy asks
  for: when its work fails, the message comes back only when that has passed.
* An extension never shortens a lease. So a lease that its last holder extended for long, as it passed it on, keeps
  its deadline, whatever the policy asks for.
* No extension is sent once settlement began, and settlement waits for the answer to an extension under way.
* A refused settlement ends at once: a repetition would get the same answer. A refused forward becomes a release, and
  its outcome is still that it failed. A settlement that fails in another way is given up once its lease has ended and
  :data:`SETTLE_SECONDS` have passed. If it still waits for its first call then, it is given up only when no other
  settlement of the queue has gone through for that long either.
* Each receipt is in one call under way at most, also when its lease was forgotten and came again meanwhile. If that
  call is an extension, the lease that came again takes its answer; if it is a settlement, the lease is in doubt.
  Nothing else is kept of a lease that ended.
* On a FIFO queue the order within a message group decides when a delete begins, and whether it becomes a release
  (:mod:`sqs_lease.core.group_order`). Until it begins, its lease is extended like any other.

Every operation costs O(log n) comparisons; nothing ever looks at all leases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from random import Random
from typing import Final

from msgspec import Struct

from sqs_lease.core.calls import (
    NOT_CARRIED_OUT,
    PASSING,
    Call,
    DeleteCall,
    EntryAnswer,
    ExtendCall,
    ForwardCall,
    ReleaseCall,
    Verdict,
    VisibilityChange,
)
from sqs_lease.core.events import Ending, Lapsed, LeaseEvent, Lost, Outcome, Refused, Settled
from sqs_lease.core.failure_rules import DeadLetter, Delete, Expire, Release, Settlement
from sqs_lease.core.group_order import GroupOrder
from sqs_lease.core.limits import MAX_BATCH_ENTRIES, MAX_VISIBILITY_SECONDS
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.pacing import AnswerTime, CallPacing, extension_retry_seconds, settlement_retry_seconds
from sqs_lease.core.policies import LastExtension, RenewalPolicy
from sqs_lease.core.timers import ArrivalOrder, Orders, TimeOrder

MAX_CALLS_UNDER_WAY: Final = 32
"""Calls of one queue under way at once; more would only wait for connections, and a call must not wait once decided."""

SLOTS_FOR_EXTENSIONS: Final = 8
"""Calls of those that only extensions may use: settlements never keep a lease from being extended."""

SLOTS_FOR_SETTLEMENTS: Final = 4
"""Calls of those that extensions leave free: failed messages are visible at once, also beside many slow extensions."""

MAX_FORWARDS_UNDER_WAY: Final = 8
"""Forwards under way at once: each may wait for a slow source of its message's content."""

CALL_TIMEOUT_SECONDS: Final = 10.0
"""Longest wait for the answer to one call, by default."""

SECOND_TRY_SECONDS: Final = 2.0
"""With less time left of a lease, a second try at extending it would come too late."""

RELEASE_MARGIN_SECONDS: Final = 2.0
"""With less than this left a release could arrive after the lease ended, so the lease is left to end by itself."""

CAP_MARGIN_SECONDS: Final = 5.0
"""The last extension stays this far below the service's 12 hours: the service counts from when a call *arrives*."""

URGENT_SECONDS: Final = 5.0
"""While a waiting live lease has less time left than this, lapsed leases get no calls of a paced queue before it."""

_PASSED_OVER: Final = 7
"""After so many other calls of a paced queue, settlements and lapsed leases have their turn."""

RIDE_ALONG_SHARE: Final = 0.25
"""A lease may be renewed early, by up to this share of its waiting time, to fill a batch of ten."""

RIDE_ALONG_SECONDS: Final = 1.0
"""A settlement may be tried again this much early, to fill a batch of ten."""

SETTLE_SECONDS: Final = 60.0
"""A settlement is tried for at least this long, if that is safe, before it is given up."""

MOVED_AT_ONCE: Final = 500
"""Most leases that one call of ``due()`` moves on at a time: when all fall due together, the event loop gets turns."""

SLOW_ANSWER_SECONDS: Final = 1.0
"""If answers take longer than this, leases are renewed earlier, by one and a half times the time of an answer."""

_UNCERTAIN_DELETE: Final = "the lease had ended before SQS confirmed the delete: another consumer may have the message"
_UNANSWERED_DELETE: Final = "an earlier delete got no answer, and was probably carried out; to the next SQS said"


class Phase(IntEnum):
    """The phases of a lease; the module's table has the changes between them."""

    WAITING = 0
    DUE = 1
    EXTENDING = 2
    SETTLING = 3
    SENT = 4
    ENDED = 5


_NEXT: Final[Mapping[Phase, tuple[Phase, ...]]] = {
    Phase.WAITING: (Phase.DUE, Phase.SETTLING, Phase.ENDED),
    Phase.DUE: (Phase.EXTENDING, Phase.WAITING, Phase.SETTLING, Phase.ENDED),
    Phase.EXTENDING: (Phase.WAITING, Phase.DUE, Phase.SETTLING, Phase.ENDED),
    Phase.SETTLING: (Phase.SENT, Phase.ENDED),
    Phase.SENT: (Phase.SETTLING, Phase.ENDED),
    Phase.ENDED: (),
}


class Entry(Struct, eq=False, gc=False):
    """The ledger's mutable record of one lease; it satisfies the policies' ``LeaseTimes``."""

    lease: Lease
    policy: RenewalPolicy
    sequence: int
    group: str | None = None  # the key of its group's order: its batch and its message group
    renewed_at: float = 0.0
    deadline: float = 0.0
    ends_at: float = 0.0  # the end that no extension can go beyond
    renew_at: float = math.inf  # when it was last planned to be extended
    phase: Phase = Phase.WAITING
    token: int = 0
    place: int = -1
    joined: int = 0
    rank: int = 0
    final: bool = False  # it cannot be extended beyond its deadline
    has_lapsed: bool = False  # its deadline passed, and no extension was confirmed since
    doubtful: bool = False  # its deadline passed once: another consumer may hold it as well
    refused: bool = False  # the last extension was refused, and an event told so
    settlement: Settlement | None = None
    began_settling_at: float = math.inf
    tries: int = 0  # of its settlement
    behind: bool = False  # its delete waits for earlier messages of its group; the lease is extended meanwhile
    goes_back: bool = False  # an earlier message of its group was returned by the batch that held it before
    forwarded: bool = False  # a copy is in the dead-letter queue; the delete is still to be sent
    forward_refused: str | None = None  # why the dead-letter queue did not take it; it is released instead
    delete_unanswered: bool = False  # a delete may have been carried out: no answer came
    settle_by: float = -math.inf  # the time until which its settlement may wait for others to fill its call
    failed_by: str = "its turn never came: for a minute SQS carried out no settlement of the queue"

    def __post_init__(self) -> None:
        self.renewed_at = self.lease.received_at if self.lease.renewed_at is None else self.lease.renewed_at
        self.deadline = self.lease.deadline
        self.doubtful = self.lease.doubtful
        self.follow(self.policy)

    def follow(self, policy: RenewalPolicy) -> None:
        """Switch to a policy."""
        self.policy = policy
        self.final = False
        longest = min(policy.max_lease_seconds, MAX_VISIBILITY_SECONDS - CAP_MARGIN_SECONDS)
        self.ends_at = self.lease.received_at + longest

    @property
    def received_at(self) -> float:
        """When the receive that returned the message was sent."""
        return self.lease.received_at

    @property
    def receipt(self) -> Receipt:
        """The reception of the message."""
        return self.lease.receipt

    @property
    def is_undecided(self) -> bool:
        """Whether its work goes on."""
        return self.settlement is None

    @property
    def has_ended(self) -> bool:
        """Whether the lease has ended."""
        return self.phase is Phase.ENDED

    @property
    def is_being_settled(self) -> bool:
        """Whether its settlement has begun, so that it is no longer extended."""
        return self.settlement is not None and not self.behind

    def enter(self, phase: Phase) -> None:
        """Change the phase.

        Raises:
            RuntimeError: No such change is in the module's table.
        """
        if phase not in _NEXT[self.phase]:
            raise RuntimeError(f"the lease of {self.receipt} cannot go from {self.phase.name} to {phase.name}")
        self.phase = phase


@dataclass(frozen=True, slots=True)
class Outlook:
    """The next times of some held leases; times are of the ledger's clock.

    Attributes:
        renew_at: When the first of them is to be extended; in the past if that is due or under way, None if no lease
            is extended any more.
        deadline: When the first of them ends unless it is extended; None if no lease is held.
    """

    renew_at: float | None
    deadline: float | None

    @classmethod
    def of_all(cls, parts: Iterable[Outlook]) -> Outlook:
        """Combine the outlooks of several parts."""
        known = list(parts)
        return cls(
            min((part.renew_at for part in known if part.renew_at is not None), default=None),
            min((part.deadline for part in known if part.deadline is not None), default=None),
        )


class Progress:
    """The record of whether settlements go through.

    Attributes:
        went_through_at: When an answer last said that a settlement was carried out, or never will be.
        failed_at: When all entries of a call last failed in a way that allows another try.
    """

    def __init__(self) -> None:
        self.went_through_at = -math.inf
        self.failed_at = -math.inf

    @property
    def is_none(self) -> bool:
        """Whether settlements have failed for :data:`SETTLE_SECONDS`, without one that went through meanwhile."""
        return self.failed_at > self.went_through_at + SETTLE_SECONDS

    def answered(self, answers: Sequence[EntryAnswer], now: float) -> None:
        """Take in the answers to a call."""
        if all(answer.verdict in PASSING for answer in answers):
            self.failed_at = now
        else:
            self.went_through_at = now


class Ledger:
    """The leases of one queue, and the schedule of all calls about them.

    Times are seconds of one clock that never goes back, the same in all calls.

    Args:
        random: Source of the jitter of retries.
        fifo: Whether the queue is a FIFO queue, where the order within a message group is kept and a receipt handle
            that has expired deletes nothing. On a standard queue (the default) a group is the tenant of a fair queue.
        call_timeout_seconds: Longest wait for the answer to one call; 10 s by default.
    """

    def __init__(
        self, random: Random, *, fifo: bool = False, call_timeout_seconds: float = CALL_TIMEOUT_SECONDS
    ) -> None:
        self._random = random
        self._fifo = fifo
        self._call_timeout_seconds = call_timeout_seconds
        self._entries: dict[Receipt, Entry] = {}
        self._by_message: dict[str, Entry] = {}
        self._groups: GroupOrder[Entry] = GroupOrder()
        self._sequence = 0
        self._events: list[LeaseEvent] = []
        self._orders: Orders[Entry] = Orders()
        # Leases that wait for a time.
        self._waiting = self._orders.by_time()  # by renewal; final leases by deadline, to notice that they lapse
        kinds = (Release, Delete, DeadLetter)
        self._retries: dict[type, TimeOrder[Entry]] = {kind: self._orders.by_time() for kind in kinds}
        # Settlements that wait for others to fill their call, by the end of that wait.
        self._gathering: dict[type, TimeOrder[Entry]] = {kind: self._orders.by_time() for kind in kinds}
        # Leases that calls may be about now.
        self._live = self._orders.by_time()  # to be extended, by deadline
        self._lapsed = self._orders.by_time()  # to be extended, by the deadline that has passed
        self._releases = self._orders.by_arrival()
        self._deletes = self._orders.by_time()  # by deadline
        self._forwards = self._orders.by_arrival()
        # Calls.
        self._under_way: dict[int, Call] = {}  # by identity: those that were not reported yet
        self._called: set[Receipt] = set()  # of those calls
        self._settling = Progress()
        self._forwarding = Progress()
        self._now = -math.inf  # the latest time that the caller told
        self._extensions_under_way = 0
        self._forwards_under_way = 0
        self._pacing = CallPacing(random)
        self._forward_pacing = CallPacing(random)
        self._answer_time = AnswerTime()
        self._calls_since_settlement = 0
        self._calls_since_lapsed = 0  # since a lapsed lease was first in line

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, receipt: object) -> bool:
        return receipt in self._entries

    def lease(self, receipt: Receipt) -> Lease | None:
        """Return the lease with its deadline as confirmed so far; None if it is not held (any more)."""
        entry = self._entries.get(receipt)
        if entry is None:
            return None
        held = entry.lease
        # Field by field: dataclasses.replace() takes three times as long, and this runs for every lease.
        return Lease(
            held.receipt,
            held.received_at,
            entry.deadline,
            held.receive_count,
            held.message_group_id,
            entry.doubtful,
            entry.renewed_at,
        )

    def certain_until(self, receipts: Iterable[Receipt]) -> float | None:
        """Return the time until which all held leases of these last; None if no lease is held, or one is doubtful."""
        entries = [entry for receipt in receipts if (entry := self._entries.get(receipt)) is not None]
        if any(entry.doubtful for entry in entries):
            return None
        return min((entry.deadline for entry in entries), default=None)

    def outlook(self, receipts: Iterable[Receipt]) -> Outlook:
        """Return the next times of those of these leases that are held. The cost grows with their number."""
        renew_at = deadline = math.inf
        for receipt in receipts:
            if (entry := self._entries.get(receipt)) is None:
                continue
            if entry.deadline < deadline:
                deadline = entry.deadline
            if entry.renew_at < renew_at and not entry.final and not entry.is_being_settled:
                renew_at = entry.renew_at
        return Outlook(None if renew_at == math.inf else renew_at, None if deadline == math.inf else deadline)

    def take_events(self) -> list[LeaseEvent]:
        """Return what happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def hold(self, lease: Lease, policy: RenewalPolicy, *, batch: int = 0) -> None:
        """Hold a lease, received a moment ago or taken over; its deadline may have passed.

        No call becomes due by that: the policy says when the lease is extended next. A lease that is held already keeps
        its confirmed times and gets the new policy and the new batch. An older lease on the same message is lost by
        that: the service gave the message out again.

        Args:
            lease: The lease.
            policy: Its renewal policy, with a known visibility timeout.
            batch: The number of the batch: the messages of a group are in order within a batch.
        """
        if (held := self._entries.get(lease.receipt)) is not None:
            held.follow(policy)
            self._begin(self._groups.move(held, self._group_of(lease, batch)))
            if held.phase is Phase.WAITING and not held.is_being_settled:
                self._await_renewal(held)
        elif (entry := self._admit(lease, policy, batch)) is not None:
            self._await_renewal(entry)

    def extend_now(self, receipt: Receipt) -> bool:
        """Make an extension due at once, whatever the policy says.

        Returns:
            Whether one will be sent, or is under way: False if the lease is not held, is being settled or cannot be
            extended any further.
        """
        entry = self._entries.get(receipt)
        if entry is None:
            return False
        if entry.phase is Phase.WAITING and not entry.final:
            self._fall_due(entry)
        return entry.phase in (Phase.DUE, Phase.EXTENDING) and not entry.is_being_settled

    def extend_until(self, receipt: Receipt, until: float, now: float) -> bool:
        """Extend a lease once so that it lasts until a time, and no more after that: its holder is about to stop.

        A lease that lasts until then already is left alone. A failed call is tried again. A second request changes
        nothing.

        Returns:
            Whether an extension is planned or under way for that: False if the lease lasts long enough, is not held,
            is being settled or cannot be extended any further.
        """
        entry = self._entries.get(receipt)
        if entry is None or entry.is_being_settled:
            return False
        if not isinstance(entry.policy, LastExtension):
            if entry.final:
                return False
            entry.follow(LastExtension.of(entry.policy, until=until, since=now))
            if entry.phase is Phase.DUE:
                entry.enter(Phase.WAITING)
            self._await_renewal(entry)
        return not entry.final

    def settle(
        self,
        receipt: Receipt,
        settlement: Settlement,
        now: float,
        *,
        in_order: bool = True,
        within_seconds: float = 0.0,
    ) -> bool:
        """Begin to end a lease; :class:`~sqs_lease.core.events.Settled` tells how it ended.

        Args:
            receipt: The lease.
            settlement: How to settle the message.
            now: The time.
            in_order: Whether, on a FIFO queue, a delete waits for the earlier messages of its group, and becomes a
                release when one of them was returned. True by default.
            within_seconds: How long it may wait for others to fill a call of ten; 0, the default, does not wait.

        Returns:
            Whether it was decided now: False if the lease is not held, or was decided before.
        """
        entry = self._entries.get(receipt)
        if entry is None or entry.settlement is not None:
            return False
        self._now = now
        entry.settlement = settlement
        entry.settle_by = now + within_seconds
        self._begin(self._groups.decide(entry) if in_order else [entry])
        return True

    def waits_for_work(self, receipt: Receipt) -> bool:
        """Return whether a delete waits for an earlier message of its group that is not decided yet."""
        entry = self._entries.get(receipt)
        return entry is not None and self._groups.waits_for_work(entry)

    def forget(self, receipt: Receipt) -> None:
        """Stop tracking a lease, without a call or an event: another holder has it now."""
        entry = self._entries.get(receipt)
        if entry is not None:
            self._remove(entry, done=False)

    # Deciding what to call

    def next_due(self) -> float | None:
        """Return when :meth:`due` has calls next.

        Returns:
            A time; one in the past means now. None: not before a call is reported or a lease changes.
        """
        orders = (self._waiting, *self._retries.values(), *self._gathering.values())
        times = [first[0] for order in orders if (first := order.first()) is not None]
        if (self._extension_slots() and self._wants_extension()) or (
            self._settlement_slots() and self._wants_settlement()
        ):
            times.append(self._pacing.open_at)
        if self._forward_slots() and self._forwards.head() is not None:
            times.append(self._forward_pacing.open_at)
        return min(times, default=None)

    def earliest_deadline(self, now: float) -> float | None:
        """Return the earliest deadline of all live, undecided leases. The cost grows with the number of leases."""
        entries = self._entries.values()
        return min((one.deadline for one in entries if one.is_undecided and one.deadline > now), default=None)

    def due(self, now: float, limit: int | None = None) -> list[Call]:
        """Return the calls to make now, in the order of the module's docstring.

        The caller must make them at once, and report each one, whatever the result.

        Args:
            now: The time.
            limit: Most calls to return; the others stay due. None: no limit.
        """
        self._now = now
        calls: list[Call] = []
        self._process_timers(now)
        while limit is None or len(calls) < limit:
            if (call := self._next_call(now)) is None:
                if not self._process_timers(now):
                    break
                continue
            self._under_way[id(call)] = call
            self._called.update(call.receipts)
            self._extensions_under_way += isinstance(call, ExtendCall)
            self._forwards_under_way += isinstance(call, ForwardCall)
            calls.append(call)
        return calls

    def timeout_seconds(self, call: Call) -> float:
        """Return how long to wait for the answer to a call.

        An extension leaves time for a second try within the most urgent lease that has enough time left, unless recent
        answers took longer. If a second try would come too late for all of its leases, or they have lapsed, the call
        gets the full time-out: its answer still counts after the deadline.
        """
        if not isinstance(call, ExtendCall):
            return self._call_timeout_seconds
        entries = [self._entries.get(receipt) for receipt in call.receipts]
        left = [entry.deadline - call.asked_at for entry in entries if entry is not None]
        remaining = min((seconds for seconds in left if seconds >= SECOND_TRY_SECONDS), default=None)
        if remaining is None:
            return self._call_timeout_seconds
        return min(max(remaining / 2, 2 * self._answer_time.expected_seconds), self._call_timeout_seconds)

    def report(self, call: Call, answers: Sequence[EntryAnswer], now: float) -> None:
        """Take in the answers to a call, one per entry; entries without one count as unanswered.

        An answer about a lease that was forgotten meanwhile changes nothing, unless the same lease came again.

        Raises:
            ValueError: :meth:`due` did not return this call, it was reported before, or an answer is not of it.
        """
        if self._under_way.get(id(call)) is not call:
            raise ValueError("this call is not under way: it was reported before, or never asked for")
        by_receipt = {answer.receipt: answer for answer in answers}
        if not by_receipt.keys() <= set(call.receipts):
            raise ValueError("an answer is about a message that the call did not concern")
        self._now = now
        del self._under_way[id(call)]
        self._called.difference_update(call.receipts)
        self._extensions_under_way -= isinstance(call, ExtendCall)
        self._forwards_under_way -= isinstance(call, ForwardCall)
        whole = [by_receipt.get(receipt) or _unanswered(receipt) for receipt in call.receipts]
        throttled = self._learn_from(call, whole, now)
        if isinstance(call, ExtendCall):
            self._extensions_answered(call, whole, now, throttled=throttled)
        else:
            self._settlements_answered(call, whole, now, throttled=throttled)

    # Holding

    def _admit(self, lease: Lease, policy: RenewalPolicy, batch: int) -> Entry | None:
        other = self._by_message.get(lease.receipt.message_id)
        if other is not None and other.lease.receive_count > lease.receive_count:
            # Handed over late: the ledger already holds the newer reception.
            self._events.append(Lost(lease.receipt, "the message was received again"))
            return None
        self._sequence += 1
        entry = Entry(lease, policy, self._sequence, self._group_of(lease, batch))
        if entry.receipt in self._called:
            # It was forgotten while a call about it was under way; no other call is sent beside that one.
            entry.phase = Phase.EXTENDING
        self._groups.join(entry)
        if other is not None:
            self._lose(other, "the message was received again", took_place=other.group == entry.group)
        self._entries[lease.receipt] = entry
        self._by_message[lease.receipt.message_id] = entry
        return entry

    def _group_of(self, lease: Lease, batch: int) -> str | None:
        return None if not self._fifo or lease.message_group_id is None else f"{batch}/{lease.message_group_id}"

    def _remove(self, entry: Entry, *, done: bool) -> None:
        """Stop tracking a lease.

        Args:
            entry: The lease.
            done: Whether its message has left the group: deleted, or in the dead-letter queue.
        """
        entry.enter(Phase.ENDED)
        self._orders.take_out(entry)
        del self._entries[entry.receipt]
        if self._by_message.get(entry.receipt.message_id) is entry:
            del self._by_message[entry.receipt.message_id]
        self._begin(self._groups.end(entry, done=done))

    def _await_renewal(self, entry: Entry) -> None:
        """Let a lease wait for its renewal, or for its end if it cannot be renewed."""
        renew_at = entry.policy.renew_at(entry)
        if entry.phase is not Phase.WAITING:
            return  # a call of an earlier holder is under way, or the policy dropped the lease
        if renew_at is None or renew_at == math.inf or entry.ends_at - entry.deadline < 1:
            announced = renew_at is not None and entry.policy.max_lease_seconds > 0
            self._await_end(entry, announced=announced)
            return
        renew_at = min(renew_at, entry.deadline)
        expected = self._answer_time.expected_seconds
        if expected > SLOW_ANSWER_SECONDS:
            # At most twice as often as the policy says.
            earliest = (renew_at + entry.renewed_at) / 2
            renew_at = min(renew_at, max(entry.deadline - 1.5 * expected, earliest))
        entry.renew_at = renew_at
        self._waiting.push(renew_at, entry)

    def _await_end(self, entry: Entry, *, announced: bool) -> None:
        """Wait for the end of a lease that cannot be extended beyond its deadline; announce that once."""
        entry.final = True
        if announced:
            self._events.append(Ending(entry.receipt, entry.deadline))
        self._waiting.push(entry.deadline, entry)

    def _fall_due(self, entry: Entry) -> None:
        entry.enter(Phase.DUE)
        self._live.push(entry.deadline, entry)

    def _lose(self, entry: Entry, detail: str, *, took_place: bool = False) -> None:
        """End a lost lease, with one event: ``Settled`` if a settlement waits for its outcome, ``Lost`` otherwise.

        Args:
            entry: The lease.
            detail: The reason.
            took_place: Whether a newer reception of its message took its place within its group.
        """
        self._remove(entry, done=took_place)
        if entry.settlement is None:
            self._events.append(Lost(entry.receipt, detail))
        else:
            self._events.append(Settled(entry.receipt, Outcome.LOST, detail))

    def _note_lapse(self, entry: Entry, now: float) -> None:
        if not entry.has_lapsed and now > entry.deadline - 1e-9:
            entry.has_lapsed = entry.doubtful = True
            self._events.append(Lapsed(entry.receipt, now - entry.deadline))

    # Choosing calls

    def _process_timers(self, now: float) -> bool:
        """Process the timers that are due; return whether there were any."""
        moved = False
        for entry in self._waiting.pop_until(now, MOVED_AT_ONCE):
            moved = True
            if entry.final:
                self._note_lapse(entry, now)
            else:
                self._fall_due(entry)
        # A throttled queue may be called about some leases only after they have lapsed.
        for entry in self._live.pop_until(now, MOVED_AT_ONCE):
            moved = True
            if not self._pacing.admits(now):
                self._note_lapse(entry, now)
            self._lapsed.push(entry.deadline, entry)
        for later in (*self._retries.values(), *self._gathering.values()):
            for entry in later.pop_until(now, MOVED_AT_ONCE):
                moved = True
                self._offer(entry)
        for waiting, progress in ((self._deletes, self._settling), (self._forwards, self._forwarding)):
            if progress.is_none:
                moved = self._give_up(waiting, progress.failed_at) or moved
        return moved

    def _give_up(self, waiting: TimeOrder[Entry] | ArrivalOrder[Entry], failed_at: float) -> bool:
        """End settlements that wait for a call and were too old when others last failed; return whether one ended."""
        for ended in range(MOVED_AT_ONCE):
            if (entry := waiting.head()) is None or failed_at < _given_up_at(entry):
                return ended > 0
            self._end(entry, Outcome.FAILED, entry.failed_by)
        return True

    def _total_slots(self) -> int:
        return MAX_CALLS_UNDER_WAY - len(self._under_way)

    def _extension_slots(self) -> bool:
        free = MAX_CALLS_UNDER_WAY - SLOTS_FOR_SETTLEMENTS - self._extensions_under_way
        return min(self._total_slots(), free) > 0

    def _settlement_slots(self) -> bool:
        settlements = len(self._under_way) - self._extensions_under_way
        return min(self._total_slots(), MAX_CALLS_UNDER_WAY - SLOTS_FOR_EXTENSIONS - settlements) > 0

    def _forward_slots(self) -> bool:
        return self._settlement_slots() and self._forwards_under_way < MAX_FORWARDS_UNDER_WAY

    def _wants_extension(self) -> bool:
        return self._live.first() is not None or self._lapsed.first() is not None

    def _wants_settlement(self) -> bool:
        return self._releases.head() is not None or self._deletes.first() is not None

    def _next_call(self, now: float) -> Call | None:
        if self._pacing.admits(now):
            for make in self._next_kinds(now):
                if (call := make(now)) is not None:
                    is_extension = isinstance(call, ExtendCall)
                    self._calls_since_settlement = self._calls_since_settlement + 1 if is_extension else 0
                    self._calls_since_lapsed = 0 if make == self._lapsed_call else self._calls_since_lapsed + 1
                    self._pacing.sent(now)
                    return call
        if self._forwards.head() is not None and self._forward_pacing.admits(now) and self._forward_slots():
            return self._forward_call(now)
        return None

    def _next_kinds(self, now: float) -> Sequence[Callable[[float], Call | None]]:
        """Return the kinds of calls to try, the one that has its turn first."""
        if not self._wants_extension():
            return (self._settlement_call,)
        if not self._pacing.is_pacing:
            return (self._live_call, self._lapsed_call, self._settlement_call)
        if self._calls_since_settlement >= _PASSED_OVER and self._wants_settlement():
            return (self._settlement_call, self._live_call, self._lapsed_call)
        if self._calls_since_lapsed >= _PASSED_OVER:
            first = self._live.first()
            near = URGENT_SECONDS + 2 * self._answer_time.expected_seconds
            if first is None or first[0] - now >= near:
                return (self._lapsed_call, self._live_call, self._settlement_call)
        return (self._live_call, self._settlement_call, self._lapsed_call)

    def _live_call(self, now: float) -> Call | None:
        return self._extension_call((self._live, self._lapsed), now)

    def _lapsed_call(self, now: float) -> Call | None:
        return self._extension_call((self._lapsed, self._live), now)

    def _extension_call(self, orders: Sequence[TimeOrder[Entry]], now: float) -> Call | None:
        """Make a call that extends the first lease of the first of these orders, filled up from all of them."""
        if not self._extension_slots():
            return None
        changes: list[VisibilityChange] = []
        # Only a lease that is due makes a call; others ride along to fill it.
        while len(changes) < MAX_BATCH_ENTRIES and (changes or orders[0].first() is not None):
            if (entry := self._next_to_extend(orders, now)) is None:
                break
            seconds = self._extension_seconds(entry, now)
            if entry.has_ended:
                continue  # the policy dropped the lease
            if seconds < 1:
                entry.enter(Phase.WAITING)
                self._await_end(entry, announced=True)
                continue
            entry.enter(Phase.EXTENDING)
            changes.append(VisibilityChange(entry.receipt, seconds))
        return ExtendCall(now, tuple(changes)) if changes else None

    def _next_to_extend(self, orders: Sequence[TimeOrder[Entry]], now: float) -> Entry | None:
        """Return the most urgent lease that is due, or else one that may ride along."""
        for order in orders:
            if order.first() is not None:
                return order.pop()
        first = self._waiting.first()
        if first is None or first[1].final:
            return None
        renew_at, entry = first
        if renew_at - now > RIDE_ALONG_SHARE * (renew_at - entry.renewed_at):
            return None
        self._waiting.pop()
        entry.enter(Phase.DUE)
        return entry

    @staticmethod
    def _extension_seconds(entry: Entry, now: float) -> int:
        """Return the policy's extension, rounded up and cut to the lease's end; below 1 if that gains no time."""
        most = MAX_VISIBILITY_SECONDS
        if entry.doubtful or now > entry.deadline:
            most = entry.policy.visibility_seconds  # it cannot be released early
        wanted = math.ceil(max(min(entry.policy.extension_seconds(entry, now), most), entry.deadline - now) - 1e-9)
        longest = entry.ends_at - now
        if wanted > longest and now + longest < entry.deadline + 1:
            return 0
        return min(wanted, math.floor(longest + 1e-9))

    def _settlement_call(self, now: float) -> Call | None:
        if not self._wants_settlement() or not self._settlement_slots():
            return None
        return self._release_call(now) or self._delete_call(now)

    def _release_call(self, now: float) -> Call | None:
        changes: list[VisibilityChange] = []
        while len(changes) < MAX_BATCH_ENTRIES:
            if self._releases.head() is not None:
                entry = self._releases.pop()
            elif changes and (early := self._next_retry(Release, now)) is not None:
                entry = early
            else:
                break
            if entry.doubtful or entry.deadline - now < RELEASE_MARGIN_SECONDS:
                self._end(entry, Outcome.EXPIRED, "the lease was about to end, or had ended, by itself")
                continue
            entry.enter(Phase.SENT)
            changes.append(VisibilityChange(entry.receipt, self._release_seconds(entry, now)))
        return ReleaseCall(now, tuple(changes)) if changes else None

    @staticmethod
    def _release_seconds(entry: Entry, now: float) -> int:
        # The service counts the delay into its 12 hours as well.
        longest = math.floor(entry.received_at + MAX_VISIBILITY_SECONDS - CAP_MARGIN_SECONDS - now)
        delay = entry.settlement.delay_seconds if isinstance(entry.settlement, Release) else 0
        return max(0, min(delay, longest))

    def _delete_call(self, now: float) -> Call | None:
        deleted: list[Receipt] = []
        while len(deleted) < MAX_BATCH_ENTRIES:
            if self._deletes.first() is not None:
                entry = self._deletes.pop()
            elif deleted and (early := self._next_retry(Delete, now)) is not None:
                entry = early
            else:
                break
            entry.enter(Phase.SENT)
            deleted.append(entry.receipt)
        return DeleteCall(now, tuple(deleted)) if deleted else None

    def _next_retry(self, kind: type, now: float) -> Entry | None:
        """Return a settlement that waits for others, or is due for another try soon, to fill a call made anyway."""
        if self._gathering[kind].first() is not None:
            return self._gathering[kind].pop()
        first = self._retries[kind].first()
        if first is None or first[0] > now + RIDE_ALONG_SECONDS:
            return None
        return self._retries[kind].pop()

    def _forward_call(self, now: float) -> Call:
        entry = self._forwards.pop()
        entry.enter(Phase.SENT)
        self._forward_pacing.sent(now)
        reason = entry.settlement.reason if isinstance(entry.settlement, DeadLetter) else ""
        return ForwardCall(now, entry.receipt, reason)

    # Learning from answers

    def _learn_from(self, call: Call, answers: Sequence[EntryAnswer], now: float) -> bool:
        """Adapt the pace and the time-outs; return whether the call was throttled as a whole."""
        verdicts = [answer.verdict for answer in answers]
        pacing = self._forward_pacing if isinstance(call, ForwardCall) else self._pacing
        throttled = verdicts.count(Verdict.THROTTLED) == len(verdicts)
        answered = any(verdict not in (Verdict.TRANSIENT, Verdict.UNAVAILABLE) for verdict in verdicts)
        if throttled:
            pacing.throttled(call.asked_at, now)
        elif answered:
            pacing.went_through(call.asked_at, now)
        if isinstance(call, ForwardCall):
            return throttled  # its time includes that of the message's source
        if answered:
            self._answer_time.answered(now - call.asked_at)
        elif Verdict.TRANSIENT in verdicts:
            self._answer_time.unanswered(now - call.asked_at)
        return throttled

    def _extensions_answered(
        self, call: ExtendCall, answers: Sequence[EntryAnswer], now: float, *, throttled: bool
    ) -> None:
        failed: list[Entry] = []
        for change, answer in zip(call.changes, answers, strict=True):
            # By its receipt: the answer also holds for a lease that was forgotten and came again meanwhile.
            if (entry := self._entries.get(change.receipt)) is None:
                continue
            if answer.verdict is Verdict.LOST:
                self._lose(entry, _detail(answer))
                continue
            self._note_lapse(entry, now)
            if answer.verdict is Verdict.DONE:
                entry.renewed_at = call.asked_at
                entry.deadline = call.asked_at + change.seconds
                entry.has_lapsed = entry.refused = False
            if entry.is_being_settled:
                self._begin_settling(entry)
            elif answer.verdict is Verdict.DONE:
                entry.enter(Phase.WAITING)
                self._await_renewal(entry)
            elif answer.verdict is Verdict.CAPPED:
                entry.enter(Phase.WAITING)
                self._await_end(entry, announced=True)
            elif throttled:
                self._fall_due(entry)
            else:
                self._note_refusal(entry, answer)
                failed.append(entry)
        # A lost lease may have returned later members of its group, which this loop had passed already.
        for entry in failed:
            if entry.is_being_settled:
                self._begin_settling(entry)
        failed = [entry for entry in failed if entry.phase is Phase.EXTENDING]
        refused = all(answer.verdict is Verdict.REFUSED for answer in answers)
        # A refused call did nothing, so there is no hurry after the deadline.
        seconds = MAX_VISIBILITY_SECONDS if refused else min(change.seconds for change in call.changes)
        self._extend_again(failed, seconds, now)

    def _note_refusal(self, entry: Entry, answer: EntryAnswer) -> None:
        if answer.verdict is Verdict.REFUSED and not entry.refused:
            entry.refused = True
            self._events.append(Refused(entry.receipt, _detail(answer)))

    def _extend_again(self, failed: Sequence[Entry], seconds: int, now: float) -> None:
        """Try all that failed in one call again together, at the time for the most urgent of them."""
        if not failed:
            return
        left = [entry.deadline - now for entry in failed]
        most_urgent = min((one for one in left if one > 0), default=math.inf)
        lapsed_last = max((one for one in left if one <= 0), default=math.inf)
        pauses = [extension_retry_seconds(one, seconds, self._random) for one in (most_urgent, lapsed_last)]
        again_at = now + min(pauses)
        for entry in failed:
            entry.enter(Phase.WAITING)
            self._waiting.push(again_at, entry)

    # Settling

    def _begin(self, entries: Iterable[Entry]) -> None:
        """Begin to settle leases, unless an extension is under way: its answer comes first."""
        for entry in entries:
            if entry.phase is not Phase.EXTENDING:
                self._begin_settling(entry)

    def _begin_settling(self, entry: Entry) -> None:
        if isinstance(entry.settlement, Expire):
            self._end(entry, Outcome.EXPIRED)
            return
        entry.began_settling_at = self._now
        entry.enter(Phase.SETTLING)
        if entry.settle_by <= self._now:
            self._offer(entry)
            return
        gathering = self._gathering[type(entry.settlement)]
        gathering.push(entry.settle_by, entry)
        if gathering.count >= MAX_BATCH_ENTRIES:
            while gathering.head() is not None:
                self._offer(gathering.pop())

    def _offer(self, entry: Entry) -> None:
        """Let a settlement be sent as soon as its turn comes."""
        if isinstance(entry.settlement, Release):
            self._releases.push(entry)
        elif isinstance(entry.settlement, Delete):
            self._deletes.push(entry.deadline, entry)
        else:
            self._forwards.push(entry)

    def _end(self, entry: Entry, outcome: Outcome, detail: str = "") -> None:
        hidden_seconds = max(entry.deadline - self._now, 0.0) if outcome is Outcome.FAILED else 0.0
        if entry.forward_refused is not None and outcome in (Outcome.RELEASED, Outcome.EXPIRED):
            outcome, detail = Outcome.FAILED, entry.forward_refused
        self._events.append(Settled(entry.receipt, outcome, detail, hidden_seconds))
        self._remove(entry, done=outcome in (Outcome.DELETED, Outcome.DEAD_LETTERED))

    def _settlements_answered(
        self,
        call: DeleteCall | ReleaseCall | ForwardCall,
        answers: Sequence[EntryAnswer],
        now: float,
        *,
        throttled: bool,
    ) -> None:
        (self._forwarding if isinstance(call, ForwardCall) else self._settling).answered(answers, now)
        failed: list[tuple[Entry, EntryAnswer]] = []
        for index, answer in enumerate(answers):
            if (entry := self._entries.get(answer.receipt)) is None:
                continue
            if entry.phase is Phase.EXTENDING:
                self._go_on(entry, answer.verdict)
                continue
            match call, answer.verdict:
                case _, Verdict.DONE:
                    self._settled(entry, call, now)
                case DeleteCall(), Verdict.LOST if entry.delete_unanswered:
                    outcome = Outcome.DEAD_LETTERED if entry.forwarded else Outcome.UNCERTAIN
                    self._end(entry, outcome, f"{_UNANSWERED_DELETE} {_detail(answer)}")
                case _, Verdict.LOST:
                    self._end(entry, Outcome.LOST, _detail(answer))
                case ForwardCall(), Verdict.REFUSED:
                    # Released, not held until its lease ends: that may take a quarter of an hour.
                    entry.forward_refused = _detail(answer)
                    entry.settlement = Release(0)
                    entry.tries = 0
                    entry.enter(Phase.SETTLING)
                    self._offer(entry)
                case _, Verdict.REFUSED:
                    self._end(entry, Outcome.FAILED, _detail(answer))
                case ReleaseCall() as release, Verdict.CAPPED if release.changes[index].seconds:
                    entry.settlement = Release(0)
                    entry.enter(Phase.SETTLING)
                    self._offer(entry)
                case ReleaseCall() as release, Verdict.TRANSIENT:
                    # Carried out or not: the message is certainly invisible only until the earlier of the two ends.
                    entry.deadline = min(entry.deadline, release.asked_at + release.changes[index].seconds)
                    failed.append((entry, answer))
                case _:
                    entry.delete_unanswered |= isinstance(call, DeleteCall) and answer.verdict is Verdict.TRANSIENT
                    failed.append((entry, answer))
        self._settle_again(failed, now, throttled=throttled)

    def _go_on(self, entry: Entry, verdict: Verdict) -> None:
        """Continue to hold a lease that came again while a settlement of an earlier holder was under way."""
        entry.enter(Phase.WAITING)
        was_made = verdict not in NOT_CARRIED_OUT
        entry.doubtful |= was_made
        if entry.is_being_settled:
            self._begin_settling(entry)
        elif was_made:
            self._fall_due(entry)
        else:
            self._await_renewal(entry)

    def _settled(self, entry: Entry, call: DeleteCall | ReleaseCall | ForwardCall, now: float) -> None:
        match call:
            case ForwardCall():
                # The copy is in the dead-letter queue, so delete it here; the outcome still names the forwarding.
                entry.began_settling_at = now
                entry.forwarded = True
                entry.settlement = Delete()
                entry.tries = 0
                entry.enter(Phase.SETTLING)
                self._offer(entry)
            case ReleaseCall():
                self._end(entry, Outcome.RELEASED)
            case DeleteCall():
                is_certain = self._fifo or not (entry.doubtful or now > entry.deadline)
                if entry.forwarded:
                    self._end(entry, Outcome.DEAD_LETTERED, "" if is_certain else _UNCERTAIN_DELETE)
                elif is_certain:
                    self._end(entry, Outcome.DELETED)
                else:
                    self._end(entry, Outcome.UNCERTAIN, _UNCERTAIN_DELETE)

    def _settle_again(self, failed: Sequence[tuple[Entry, EntryAnswer]], now: float, *, throttled: bool) -> None:
        """Try all that failed in one call again together, as long as that is safe and has a chance."""
        again: list[Entry] = []
        for entry, answer in failed:
            entry.tries += 1
            entry.failed_by = _detail(answer)
            if isinstance(entry.settlement, Release):
                if entry.deadline - now < RELEASE_MARGIN_SECONDS:
                    self._end(entry, Outcome.EXPIRED, _detail(answer))
                    continue
            elif not throttled and now >= _given_up_at(entry):
                self._end(entry, Outcome.FAILED, _detail(answer))
                continue
            again.append(entry)
        if not again:
            return
        left = min((entry.deadline - now for entry in again if entry.deadline > now), default=math.inf)
        again_at = now + settlement_retry_seconds(min(entry.tries for entry in again), left, self._random)
        # The last try comes when the first of them is old enough to be given up, not up to half a minute later.
        given_up_at = (_given_up_at(entry) for entry in again if not isinstance(entry.settlement, Release))
        again_at = min([again_at, *given_up_at])
        for entry in again:
            entry.enter(Phase.SETTLING)
            if throttled:
                self._offer(entry)  # the pacing gate says when
            else:
                self._retries[type(entry.settlement)].push(again_at, entry)


def _given_up_at(entry: Entry) -> float:
    """Return the time from which a delete or a forward that fails, or never got its turn, is not tried again."""
    return max(entry.deadline, entry.began_settling_at + SETTLE_SECONDS)


def _unanswered(receipt: Receipt) -> EntryAnswer:
    return EntryAnswer(receipt, Verdict.TRANSIENT, text="no answer")


def _detail(answer: EntryAnswer) -> str:
    return f"{answer.code}: {answer.text}" if answer.code else answer.text
