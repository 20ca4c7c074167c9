"""Defects put back on purpose, each a change of the real code: the simulator must notice every one of them.

Each mutant is a function that takes pytest's ``monkeypatch``. Those of the first group break rules that every version
had; those of the second are defects that were shown once, as a stranger saw them. Those of the last break the rules on
how leases end, and on how a batch goes from one holder to the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace as replace_struct

from sqs_lease.core import ledger as ledger_module
from sqs_lease.core.calls import Call, EntryAnswer, ExtendCall, ReleaseCall, Verdict, VisibilityChange
from sqs_lease.core.events import Outcome
from sqs_lease.core.failure_rules import Settlement
from sqs_lease.core.group_order import GroupOrder
from sqs_lease.core.ledger import Entry, Ledger, Phase, Progress
from sqs_lease.core.messages import Lease, Message, Receipt
from sqs_lease.core.pacing import CallPacing
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.keeper import batch as batch_module
from sqs_lease.keeper import plain_leases
from sqs_lease.keeper.batch import Batch
from sqs_lease.keeper.driver import QueueDriver
from sqs_lease.keeper.plain_leases import WrittenBatch
from sqs_lease.keeper.plug_ins import PlugIns

Mutant = Callable[[pytest.MonkeyPatch], None]


def extends_after_settling(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat that does not know that the settlement began."""
    settle, due, report = Ledger.settle, Ledger.due, Ledger.report
    beating: dict[int, list[Receipt]] = {}
    strangers: set[int] = set()

    def remembered(self: Ledger, receipt: Receipt, settlement: Settlement, now: float, **how: Any) -> bool:
        beating.setdefault(id(self), []).append(receipt)
        return settle(self, receipt, settlement, now, **how)

    def due_and_beating(self: Ledger, now: float, limit: int | None = None) -> list[Call]:
        calls = due(self, now, limit)
        if not calls and (left := beating.get(id(self))):
            calls = [ExtendCall(now, (VisibilityChange(left.pop(0), 30),))]
            strangers.add(id(calls[0]))
        return calls

    def heard(self: Ledger, call: Call, answers: Sequence[EntryAnswer], now: float) -> None:
        if id(call) not in strangers:
            report(self, call, answers, now)

    patch.setattr(Ledger, "settle", remembered)
    patch.setattr(Ledger, "due", due_and_beating)
    patch.setattr(Ledger, "report", heard)


def moves_deadlines_unconfirmed(patch: pytest.MonkeyPatch) -> None:
    """Takes an extension for granted once it was sent."""
    report = Ledger.report

    def granted(self: Ledger, call: Call, answers: Sequence[EntryAnswer], now: float) -> None:
        if isinstance(call, ExtendCall):
            answers = [EntryAnswer(receipt, Verdict.DONE) for receipt in call.receipts]
        report(self, call, answers, now)

    patch.setattr(Ledger, "report", granted)


def gives_up_without_answer(patch: pytest.MonkeyPatch) -> None:
    """Takes an extension that got no answer for a lost lease."""
    answered = Ledger._extensions_answered

    def lost(self: Ledger, call: ExtendCall, answers: Sequence[EntryAnswer], now: float, *, throttled: bool) -> None:
        answered(
            self, call, [_instead(one, Verdict.TRANSIENT, Verdict.LOST) for one in answers], now, throttled=throttled
        )

    patch.setattr(Ledger, "_extensions_answered", lost)


def retries_too_late(patch: pytest.MonkeyPatch) -> None:
    """Tries a failed extension again only when the lease has ended."""
    patch.setattr(
        ledger_module,
        "extension_retry_seconds",
        lambda remaining, seconds, random: max(remaining, 0) + 5,
    )


def releases_too_late(patch: pytest.MonkeyPatch) -> None:
    """Releases however little is left of a lease, and what has lapsed."""
    patch.setattr(ledger_module, "RELEASE_MARGIN_SECONDS", -math.inf)
    lapse = Ledger._note_lapse

    def certain(self: Ledger, entry: Entry, now: float) -> None:
        lapse(self, entry, now)
        entry.doubtful = False

    patch.setattr(Ledger, "_note_lapse", certain)


# Defects that were shown


def settlements_ignore_the_pace(patch: pytest.MonkeyPatch) -> None:
    """Only extensions pass the gate; a throttled settlement is tried again like one that failed otherwise."""
    next_call, next_due, settle_again = Ledger._next_call, Ledger.next_due, Ledger._settle_again

    def at_once(self: Ledger, now: float) -> Call | None:
        return self._settlement_call(now) or next_call(self, now)

    def due_at_once(self: Ledger) -> float | None:
        waits = self._settlement_slots() and self._wants_settlement()
        return -math.inf if waits else next_due(self)

    def after_a_pause(self: Ledger, failed: Sequence[Any], now: float, *, throttled: bool) -> None:
        settle_again(self, failed, now, throttled=False)

    patch.setattr(Ledger, "_next_call", at_once)
    patch.setattr(Ledger, "next_due", due_at_once)
    patch.setattr(Ledger, "_settle_again", after_a_pause)


def reserves_no_slots(patch: pytest.MonkeyPatch) -> None:
    """Forwards and other settlements may take every slot."""
    patch.setattr(ledger_module, "SLOTS_FOR_EXTENSIONS", 0)
    patch.setattr(ledger_module, "MAX_FORWARDS_UNDER_WAY", ledger_module.MAX_CALLS_UNDER_WAY)


def counts_only_what_was_done_as_gone_through(patch: pytest.MonkeyPatch) -> None:
    """A call that was answered "lost" does not end a pause."""
    learn, went_through = Ledger._learn_from, CallPacing.went_through

    def only_done(self: Ledger, call: Call, answers: Sequence[EntryAnswer], now: float) -> bool:
        done = any(answer.verdict is Verdict.DONE for answer in answers) and isinstance(call, ExtendCall)
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(CallPacing, "went_through", went_through if done else lambda *_: None)
            return learn(self, call, answers, now)

    patch.setattr(Ledger, "_learn_from", only_done)


def gives_a_lapsed_lease_one_second(patch: pytest.MonkeyPatch) -> None:
    """The time-out of an extension is half of what is left, and one second where nothing is."""

    def cut(self: Ledger, call: Call) -> float:
        if not isinstance(call, ExtendCall):
            return self._call_timeout_seconds
        leases = [self.lease(receipt) for receipt in call.receipts]
        remaining = min((lease.deadline - call.asked_at for lease in leases if lease is not None), default=math.inf)
        return min(max(remaining / 2, 1.0), self._call_timeout_seconds)

    patch.setattr(Ledger, "timeout_seconds", cut)


def keeps_no_group_order(patch: pytest.MonkeyPatch) -> None:
    """A delete neither waits for earlier messages of its group nor becomes a release."""
    patch.setattr(GroupOrder, "decide", lambda self, member: [member])


def deletes_behind_what_went_back(patch: pytest.MonkeyPatch) -> None:
    """A delete waits for earlier messages of its group, and happens whatever became of them."""
    patch.setattr(GroupOrder, "_return_from", staticmethod(lambda *_: []))


def takes_a_refused_release_for_a_lost_answer(patch: pytest.MonkeyPatch) -> None:
    """A release that was certainly not carried out is not repeated."""
    _change_settlement_answers(patch, ReleaseCall, Verdict.UNAVAILABLE, Verdict.TRANSIENT)


def repeats_what_is_refused(patch: pytest.MonkeyPatch) -> None:
    """A settlement that cannot succeed is tried for a minute."""
    _change_settlement_answers(patch, object, Verdict.REFUSED, Verdict.UNAVAILABLE)


def crumbles_what_failed(patch: pytest.MonkeyPatch) -> None:
    """Each message of a failed call is tried again at a time of its own."""
    extend, settle = Ledger._extend_again, Ledger._settle_again

    def extend_alone(self: Ledger, failed: Sequence[Entry], seconds: int, now: float) -> None:
        for entry in failed:
            extend(self, [entry], seconds, now)

    def settle_alone(self: Ledger, failed: Sequence[Any], now: float, *, throttled: bool) -> None:
        for one in failed:
            settle(self, [one], now, throttled=throttled)

    patch.setattr(Ledger, "_extend_again", extend_alone)
    patch.setattr(Ledger, "_settle_again", settle_alone)
    patch.setattr(Ledger, "_next_retry", lambda *_: None)


def forgets_a_lapsed_lease_for_long(patch: pytest.MonkeyPatch) -> None:
    """A lapsed lease is tried again later and later, although a lost answer may have extended it for a while only."""

    def later(remaining: float, seconds: float, random: Random) -> float:
        return min(max(abs(remaining) / 4, 0.2), 30.0) * (0.5 + 0.5 * random.random())

    patch.setattr(ledger_module, "extension_retry_seconds", later)


def tells_owners_before_the_ledger(patch: pytest.MonkeyPatch) -> None:
    """A meter that raises leaves leases under way for ever."""
    answered = QueueDriver._answered

    def owners_first(self: QueueDriver, call: Call, answers: Sequence[EntryAnswer]) -> None:
        if isinstance(call, ExtendCall):
            self._unreported.discard(id(call))
            self._tell_of_extensions(call, answers)
        answered(self, call, answers)

    patch.setattr(QueueDriver, "_answered", owners_first)
    _call_unguarded(patch)


def lets_plug_ins_raise(patch: pytest.MonkeyPatch) -> None:
    """A listener that raises stops the loop of its queue."""
    _call_unguarded(patch)


def lets_policies_raise(patch: pytest.MonkeyPatch) -> None:
    """A policy that raises stops every batch of the queue."""

    def unguarded(policy: RenewalPolicy, *_: object) -> RenewalPolicy:
        return policy

    patch.setattr(batch_module, "guarded", unguarded)


def lets_an_older_reception_win(patch: pytest.MonkeyPatch) -> None:
    """The reception that is handed over last is taken for the newest one."""
    put = Batch._put
    puts = 0

    def newest(self: Batch, leases: Sequence[Lease], messages: Iterable[Message]) -> None:
        nonlocal puts
        puts += 1
        put(self, [replace_struct(lease, receive_count=1_000_000 + puts) for lease in leases], messages)

    patch.setattr(Batch, "_put", newest)


def forgets_what_another_batch_adopted(patch: pytest.MonkeyPatch) -> None:
    """A batch that is dropped takes its former leases with it."""

    def every_owner(self: QueueDriver, receipt: Receipt, owner: object) -> None:
        self._ledger.forget(receipt)
        self._drop(receipt)

    def whose_it_was(self: Batch, receipt: Receipt) -> None:
        """The batch counts the lease as its own still."""

    patch.setattr(QueueDriver, "forget", every_owner)
    patch.setattr(Batch, "handed_over", whose_it_was)


def rounds_the_visibility_down_where_it_receives(patch: pytest.MonkeyPatch) -> None:
    """The lease counts the fraction of a second that the service was not asked for."""
    seconds: Callable[[RenewalPolicy], int] = vars(RenewalPolicy)["visibility_seconds"].fget
    patch.setattr(RenewalPolicy, "visibility_seconds", property(lambda self: max(seconds(self) - 1, 1)))
    add = Batch.add

    def with_fraction(self: Batch, messages: Sequence[Message], **times: float) -> None:
        self._visibility_seconds += 1
        try:
            add(self, messages, **times)
        finally:
            self._visibility_seconds -= 1

    patch.setattr(Batch, "add", with_fraction)


def says_deleted_after_a_lapse(patch: pytest.MonkeyPatch) -> None:
    """Every delete that is answered with success counts as deleted."""
    settled = Ledger._settled

    def trusting(self: Ledger, entry: Entry, call: Any, now: float) -> None:
        entry.doubtful = False
        settled(self, entry, call, min(now, entry.deadline))

    patch.setattr(Ledger, "_settled", trusting)


def extends_what_goes_back_with_a_lost_message(patch: pytest.MonkeyPatch) -> None:
    """A failed extension is repeated although a settlement was decided meanwhile."""
    begin = Ledger._begin_settling

    def later(self: Ledger, entry: Entry) -> None:
        if entry.phase is not Phase.EXTENDING or entry.settlement is None:
            begin(self, entry)

    patch.setattr(Ledger, "_begin_settling", later)


# Defects of the ends of leases, and of how batches are passed on


def parks_what_was_forgotten_during_a_call(patch: pytest.MonkeyPatch) -> None:
    """A lease that is forgotten while a call about it is under way is kept for when it comes again."""
    forget = Ledger.forget

    def park(self: Ledger, receipt: Receipt) -> None:
        if receipt in self._called:
            vars(self).setdefault("_orphans", []).append(receipt)
        forget(self, receipt)

    patch.setattr(Ledger, "forget", park)


def keeps_who_waits_for_an_answer(patch: pytest.MonkeyPatch) -> None:
    """A driver keeps those who waited for the extension of a lease that it forgot."""

    def without_waking(self: QueueDriver, receipt: Receipt) -> None:
        self._owners.pop(receipt, None)

    patch.setattr(QueueDriver, "_drop", without_waking)


def gives_up_settling_by_tries(patch: pytest.MonkeyPatch) -> None:
    """A settlement ends after a number of tries, and so never while it is throttled or waits for its turn."""

    def after_ten_tries(entry: Entry) -> float:
        return entry.began_settling_at + 60 if entry.tries >= 10 else math.inf

    patch.setattr(ledger_module, "_given_up_at", after_ten_tries)


def gives_up_nothing_that_waits(patch: pytest.MonkeyPatch) -> None:
    """Settlements that wait for their turn wait for ever where the queue carries out none."""
    patch.setattr(Progress, "is_none", property(lambda self: False))


def gives_up_settling_within_the_lease(patch: pytest.MonkeyPatch) -> None:
    """A settlement ends after a minute, although its lease lasts longer."""
    patch.setattr(ledger_module, "_given_up_at", lambda entry: entry.began_settling_at + 60)


def loses_what_an_unanswered_delete_deleted(patch: pytest.MonkeyPatch) -> None:
    """A delete that is refused after one without an answer counts as lost."""
    answered = Ledger._settlements_answered

    def forgetful(self: Ledger, call: Any, answers: Sequence[EntryAnswer], now: float, *, throttled: bool) -> None:
        for receipt in call.receipts:
            if (entry := self._entries.get(receipt)) is not None:
                entry.delete_unanswered = False
        answered(self, call, answers, now, throttled=throttled)

    patch.setattr(Ledger, "_settlements_answered", forgetful)


def counts_what_expired_as_deleted(patch: pytest.MonkeyPatch) -> None:
    """A lease that ended by itself is counted as deleted."""
    end = Ledger._end

    def deleted(self: Ledger, entry: Entry, outcome: Outcome, detail: str = "") -> None:
        end(self, entry, Outcome.DELETED if outcome is Outcome.EXPIRED else outcome, detail)

    patch.setattr(Ledger, "_end", deleted)


def extends_what_it_adopts_by_the_policy(patch: pytest.MonkeyPatch) -> None:
    """Adoption extends at once, by the policy's visibility timeout, and so shortens what its last holder extended."""
    adopt = Batch.adopt

    def at_once(self: Batch, written: Any, messages: Iterable[Message] = ()) -> None:
        adopt(self, written, messages)
        for receipt in self._receipts():
            self._driver._ledger.extend_now(receipt)

    def as_the_policy_says(entry: Entry, now: float) -> int:
        return math.floor(min(entry.policy.extension_seconds(entry, now), entry.ends_at - now))

    patch.setattr(Batch, "adopt", at_once)
    patch.setattr(Ledger, "_extension_seconds", staticmethod(as_the_policy_says))


def passes_on_without_extending(patch: pytest.MonkeyPatch) -> None:
    """The holder that passes a batch on writes it down as it is."""

    async def nothing(self: QueueDriver, receipts: Iterable[Receipt], until: float) -> None:
        """No call."""

    patch.setattr(QueueDriver, "extend_until", nothing)


def writes_the_deadline_that_it_wishes(patch: pytest.MonkeyPatch) -> None:
    """The deadline that was asked for is written, whether or not SQS confirmed it."""
    pass_on = Batch.pass_on

    async def wished(self: Batch, seconds: float) -> WrittenBatch:
        written = await pass_on(self, seconds)
        until = written.written_at + seconds
        return replace(written, leases=tuple(lease.lasting_until(until) for lease in written.leases))

    patch.setattr(Batch, "pass_on", wished)


def passes_on_and_keeps(patch: pytest.MonkeyPatch) -> None:
    """The holder that passes a batch on goes on extending it until it is dropped, and later."""
    patch.setattr(Batch, "forget", lambda self: None)


def believes_a_clock_that_is_behind(patch: pytest.MonkeyPatch) -> None:
    """A calendar before the time of writing counts as no time passed."""
    _read_by(patch, lambda self, lease, elapsed, now, in_doubt: (elapsed, False))


def takes_no_margin_for_clocks(patch: pytest.MonkeyPatch) -> None:
    """A deadline is believed to its last second."""
    patch.setattr(plain_leases, "CLOCK_ERROR_SECONDS", 0.0)


def counts_the_hours_of_a_wrong_clock(patch: pytest.MonkeyPatch) -> None:
    """A calendar's time beyond a deadline makes a lease older."""
    read = WrittenBatch._lease_now

    def older(self: WrittenBatch, lease: Lease, elapsed: float, now: float, *, in_doubt: bool) -> Lease:
        return replace_struct(
            read(self, lease, elapsed, now, in_doubt=in_doubt),
            received_at=now - elapsed - (self.written_at - lease.received_at),
        )

    patch.setattr(WrittenBatch, "_lease_now", older)


def doubts_all_that_it_adopts(patch: pytest.MonkeyPatch) -> None:
    """No deadline is believed, whatever the clocks say."""
    _read_by(patch, lambda self, lease, elapsed, now, in_doubt: (elapsed, True))


def _read_by(patch: pytest.MonkeyPatch, change: Callable[..., tuple[float, bool]]) -> None:
    read = WrittenBatch._lease_now

    def changed(self: WrittenBatch, lease: Lease, elapsed: float, now: float, *, in_doubt: bool) -> Lease:
        elapsed, in_doubt = change(self, lease, elapsed, now, in_doubt)
        return read(self, lease, elapsed, now, in_doubt=in_doubt)

    patch.setattr(WrittenBatch, "_lease_now", changed)


def _instead(answer: EntryAnswer, verdict: Verdict, other: Verdict) -> EntryAnswer:
    return replace(answer, verdict=other) if answer.verdict is verdict else answer


def _change_settlement_answers(patch: pytest.MonkeyPatch, kind: type, verdict: Verdict, other: Verdict) -> None:
    answered = Ledger._settlements_answered

    def changed(self: Ledger, call: Any, answers: Sequence[EntryAnswer], now: float, *, throttled: bool) -> None:
        if isinstance(call, kind):
            answers = [_instead(answer, verdict, other) for answer in answers]
        answered(self, call, answers, now, throttled=throttled)

    patch.setattr(Ledger, "_settlements_answered", changed)


def _call_unguarded(patch: pytest.MonkeyPatch) -> None:
    def call(self: PlugIns, name: str, function: Callable[[], Any], instead: object) -> Any:
        return function()

    patch.setattr(PlugIns, "call", call)
