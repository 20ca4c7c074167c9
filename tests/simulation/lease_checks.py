"""The duties of a process for each lease that it holds, by its knowledge: when to extend it, and when to settle it.

The times come from the documentation (docs/how-it-works.md): a lease is extended when its policy says so, and again
after a failed call within a quarter of what is left; a settlement is sent when it was decided, and again after pauses
that double. A call that comes later than that is a violation, with these exceptions, which the documentation makes:

- The process did not run, or had just gone on and gave its host the time to tell what it still holds.
- As many calls were under way as there may be at once.
- The queue throttles calls. Then they are spaced, but by two seconds at most, and most of those that were sent
  instead extended leases; with each second in which a call goes through, whatever it is answered, spacing gets less.

A message is not looked at here, only calls: so it does not matter whether an extension that came too late was in time.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sqs_lease.core.calls import Verdict
from sqs_lease.core.events import Outcome
from sqs_lease.core.failure_rules import DeadLetter, Delete, Expire, Release
from sqs_lease.core.limits import MAX_BATCH_ENTRIES, MAX_VISIBILITY_SECONDS
from sqs_lease.core.messages import Receipt
from sqs_lease.core.policies import LastExtension
from sqs_lease.testing import AuditTrail
from tests.simulation.journal import Holding, Journal, Kind, LeaseRecord, SentCall
from tests.simulation.plan import Plan
from tests.simulation.plug_ins import policies_in_force
from tests.simulation.store import Run, Store

SLACK_SECONDS = 0.05
STALL_SECONDS = 10.0
SPACED_BY_SECONDS = ((4, 2.0), (14, 1.6), (40, 1.0))
"""By how many answers, a second apart, came since a call was throttled: how far apart calls may be at most.

An answer that took longer than a second counts less: it says late what the queue bore.
"""
CALM_SECONDS = 10.0
THROTTLED_IN_A_ROW = 20
SPACED_AT_LEAST_SECONDS = 0.4
"""After so many calls in a row that were throttled, each sent after the answer to the one before it."""
SLOTS = 32
SLOTS_FOR_EXTENSIONS = 8
MOST_FORWARDS = 8
SHORTEST_RETRY_SECONDS = 0.2
LONGEST_RETRY_SECONDS = 30.0
RELEASE_MARGIN_SECONDS = 2.0
CAP_MARGIN_SECONDS = 5.0
SETTLE_SECONDS = 60.0
LONGEST_SPACING_SECONDS = 2.0
TURN_COMES_AFTER_CALLS = 8
"""While calls are spaced and a live lease is about to end, others get every eighth."""
UNCOUNTED_IN_A_ROW = 4


@dataclass(frozen=True, slots=True)
class Times:
    """A lease, as a policy sees it."""

    received_at: float
    renewed_at: float
    deadline: float


@dataclass(frozen=True, slots=True)
class _Held:
    """One lease while one process has to extend it."""

    process: str
    run: Run
    record: LeaseRecord
    holding: Holding
    until: float


class LeaseChecker:
    """Checks all leases of one schedule after its end.

    Args:
        away: By process: from when until when it was dead or frozen.
        ended_at: When the schedule ended.
    """

    def __init__(
        self,
        plan: Plan,
        trail: AuditTrail,
        store: Store,
        journal: Journal,
        *,
        away: Mapping[str, Collection[tuple[float, float]]],
        ended_at: float,
    ) -> None:
        self._plan = plan
        self._trail = trail
        self._store = store
        self._journal = journal
        self._away = away
        self._ended_at = ended_at
        self._throttled = {
            place: sorted(call.ended_at for call in calls if call.is_throttled and call.ended_at is not None)
            for place, calls in journal.all_calls().items()
        }
        self._progress: dict[tuple[str, str], Sequence[float]] = {}
        self._answered = {
            place: sorted(
                (call.ended_at, call.ended_at - call.sent_at)
                for call in calls
                if call.went_through and call.ended_at is not None
            )
            for place, calls in journal.all_calls().items()
        }

    def check(self) -> None:
        """Check all leases."""
        for (process, receipt), record in tuple(self._journal.leases().items()):
            run = self._store.by_handle[receipt.handle]
            for place, holding in enumerate(record.holdings):
                later = record.holdings[place + 1].at if place + 1 < len(record.holdings) else math.inf
                held = _Held(process, run, record, holding, min(later, self._held_until(process, run, record, holding)))
                self._check_deadline(held)
                self._check_extensions(held)
            self._check_counted(process, record)
            self._check_settlement(process, run, record)
            self._check_end(process, run, record)
        for (process, queue_url), calls in self._journal.all_calls().items():
            self._check_batches(process, calls)
            self._check_pace(process, queue_url, calls)

    # Extensions

    def _held_until(self, process: str, run: Run, record: LeaseRecord, holding: Holding) -> float:
        """Until when the process has to extend a lease that was put into a batch."""
        ends = [self._ended_at, self._gone_at(process)]
        ends += [at for at in (record.lost_at, record.settled_at) if at is not None]
        # A lease that is put into another batch while it is held stays what it is.
        since = min(one.at for one in record.holdings if one.forgotten_before == holding.forgotten_before)
        ends += [at for at in record.ending_at if at >= since]
        ends += record.forgotten_after(holding)
        ends += [at for at, owner in run.owners if at > holding.at and owner != process]
        if record.began_at is not None:
            ends.append(self._settled_from(process, run, record))
        return min(ends)

    def _settled_from(self, process: str, run: Run, record: LeaseRecord) -> float:
        """From when a settlement is carried out: a delete waits for the earlier messages of its group."""
        assert record.began_at is not None
        if not isinstance(record.began, Delete):
            return record.began_at
        ends: list[float] = []
        returned: list[float] = []
        taken_at = record.taken_at(record.began_at)
        for message_id in run.earlier_in_group(record.receipt.message_id):
            earlier = self._journal.lease(process, run.messages[message_id].receipt)
            holding = earlier.holding_at(record.began_at)
            if holding is None or earlier.lost_at == holding.at:
                continue  # never held, or superseded by the time it was
            ended = (earlier.ended_at, *earlier.forgotten_after(holding))
            ended_at = min((at for at in ended if at is not None), default=math.inf)
            if ended_at < taken_at:
                continue  # it was no longer held when this one was taken over
            ends.append(ended_at)
            outcome = None if earlier.settled is None else earlier.settled.outcome
            if isinstance(earlier.began, Release | Expire) and earlier.began_at is not None:
                returned.append(earlier.began_at)
            elif outcome not in (Outcome.DELETED, Outcome.DEAD_LETTERED):
                returned.append(ended_at)
        return max(record.began_at, min(max(ends, default=0.0), min(returned, default=math.inf)))

    def _gone_at(self, process: str) -> float:
        return min((start for start, end in self._away.get(process, ()) if end == math.inf), default=math.inf)

    def _check_deadline(self, held: _Held) -> None:
        """A process never believes that a lease lasts longer than it does."""
        if held.holding.doubtful or isinstance(held.holding.policy, LastExtension):
            return
        lasts_until = None
        for entry in self._trail.of(held.record.receipt.message_id):
            if (
                entry.handle == held.record.receipt.handle
                and entry.at <= held.holding.at
                and entry.until is not None
                and not self._journal.was_given_up(entry)
            ):
                # At that very moment the holder before, or the next one, may have extended it.
                is_now = lasts_until is not None and entry.at == held.holding.at
                lasts_until = max(lasts_until or 0.0, entry.until) if is_now else entry.until
        if lasts_until is not None and held.holding.deadline > lasts_until + held.holding.optimism + 1e-6:
            detail = f"{held.record.receipt} by {held.process}: {held.holding.deadline:.3f} for {lasts_until:.3f}"
            self._journal.violated("2 a deadline is never later than the service's", detail, at=held.holding.at)

    def _check_extensions(self, held: _Held) -> None:
        for due, at, deadline in self._extensions_due(held):
            # Once it has lapsed, its turn comes less often.
            lapses_at = min(max(deadline, due), at)
            if not (
                self._is_excused(held, due, lapses_at, Kind.EXTEND, live=True)
                and self._is_excused(held, lapses_at, at, Kind.EXTEND, live=False)
            ):
                detail = (
                    f"{held.record.receipt} of {held.run} by {held.process} was due at {due:.3f}, deadline "
                    f"{deadline:.3f}, and nothing was called until {at:.3f}; {held.holding.policy}"
                )
                self._journal.violated("2 what is held is extended in time", detail, at=at)
                return

    def _extensions_due(self, held: _Held) -> Iterator[tuple[float, float, float]]:
        """When each call was due, when it was sent (or until when it was not), and the deadline then."""
        holding = held.holding
        times = Times(holding.received_at, holding.renewed_at, holding.deadline)
        due = self._renewal(holding, times, holding.at)
        tries = [
            call
            for call in held.record.calls[holding.heard :]
            if call.kind is Kind.EXTEND and call.sent_at <= held.until
        ]
        deadline = holding.deadline
        for call in tries:
            if due is None:
                return
            if call.sent_at > max(due, holding.at) + SLACK_SECONDS:
                yield max(due, holding.at), call.sent_at, deadline
            if call.ended_at is None:
                return
            seconds = call.seconds_of(held.record.receipt)
            match call.verdict(held.record.receipt):
                case Verdict.DONE:
                    deadline = call.sent_at + seconds
                    times = Times(holding.received_at, call.sent_at, deadline)
                    due = self._renewal(holding, times, call.ended_at)
                    due = None if due is None else max(due, call.ended_at)
                    continue
                case Verdict.LOST | Verdict.CAPPED:
                    return
                case Verdict.TRANSIENT:
                    deadline = min(deadline, call.sent_at + seconds)
            due = call.ended_at
            if not call.is_throttled:
                # A call that was refused as a whole was certainly not carried out.
                seconds = MAX_VISIBILITY_SECONDS if call.is_refused else seconds
                due += _extension_retry_seconds(deadline - call.ended_at, seconds)
        if due is not None and held.until > max(due, holding.at) + SLACK_SECONDS:
            yield max(due, holding.at), held.until, deadline

    def _renewal(self, holding: Holding, times: Times, at: float) -> float | None:
        """When the lease is to be extended next; None for never."""
        due: float = -math.inf
        for policy in policies_in_force(holding.policy, at):
            ends_at = times.received_at + min(policy.max_lease_seconds, MAX_VISIBILITY_SECONDS - CAP_MARGIN_SECONDS)
            renew_at = policy.renew_at(times)
            if renew_at is None or ends_at - times.deadline < 1:
                return None
            due = max(due, min(renew_at, times.deadline))
        return due

    def _check_counted(self, process: str, record: LeaseRecord) -> None:
        """An extension whose answer comes within the time-out counts, at the latest when several came like that."""
        in_a_row = 0
        for call in record.calls:
            if call.kind is not Kind.EXTEND or call.ended_at is None:
                continue
            if call.verdicts is not None:
                in_a_row = 0 if call.verdict(record.receipt) is Verdict.DONE else in_a_row
            elif call.confirms(record.receipt, self._plan.call_timeout_seconds - SLACK_SECONDS) and not self._was_away(
                process, call.sent_at, call.ended_at
            ):
                in_a_row += 1
            if in_a_row == UNCOUNTED_IN_A_ROW:
                detail = f"{record.receipt} by {process}: gave up {in_a_row} calls in a row before their answers came"
                self._journal.violated("2 what the service confirms counts", detail, at=call.ended_at)
                return

    # Settlements

    def _check_settlement(self, process: str, run: Run, record: LeaseRecord) -> None:
        if record.began_at is None or not record.holdings or isinstance(record.began, Expire):
            return
        if record.settled is not None and record.settled_at is not None:
            self._check_outcome(process, record)
        if isinstance(record.began, DeadLetter):
            return  # its calls go to the dead-letter queue
        due = self._settled_from(process, run, record)
        holding = max((one for one in record.holdings if one.at <= due), key=lambda one: one.at, default=None)
        if holding is None or not math.isfinite(due):
            return
        until = min(
            [self._ended_at, self._gone_at(process)]
            + [at for at in (record.lost_at, record.settled_at) if at is not None]
            + list(record.forgotten_after(holding))
        )
        for call in record.calls:
            if call.kind is Kind.EXTEND and call.overlaps(due, due):
                due = math.inf if call.ended_at is None else call.ended_at
        held = _Held(process, run, record, holding, until)
        tries = 0
        for call in record.calls:
            if call.kind is Kind.EXTEND or call.sent_at > until:
                continue
            self._check_settled_in_time(held, due, call.sent_at)
            tries += 1
            if call.ended_at is None or call.verdict(record.receipt) in (Verdict.DONE, Verdict.LOST, Verdict.REFUSED):
                return
            due = call.ended_at
            if not call.is_throttled:
                due += _settlement_retry_seconds(tries)
        self._check_settled_in_time(held, due, until)

    def _check_settled_in_time(self, held: _Held, due: float, at: float) -> None:
        due += held.run.settle_within_seconds
        if at > due + SLACK_SECONDS and not self._is_excused(held, due, at, Kind.DELETE, live=True):
            detail = (
                f"{held.record.receipt} of {held.run} by {held.process} was due at {due:.3f}, and nothing was called "
                f"until {at:.3f}; {held.record.began}"
            )
            self._journal.violated("5 what is decided is carried out", detail, at=at)

    def _check_outcome(self, process: str, record: LeaseRecord) -> None:
        assert record.settled is not None
        assert record.settled_at is not None
        assert record.began_at is not None
        tries = [call for call in record.calls if call.kind is not Kind.EXTEND and call.ended_at is not None]
        verdicts = [call.verdict(record.receipt) for call in tries]
        what = f"{record.receipt} by {process}: {record.settled.detail}"
        match record.settled.outcome:
            case Outcome.FAILED if not isinstance(record.began, DeadLetter):
                refused = Verdict.REFUSED in verdicts
                ends_at = max(record.began_at + SETTLE_SECONDS, record.deadline_at(record.settled_at))
                if not refused and (Verdict.DONE in verdicts or record.settled_at < ends_at):
                    self._journal.violated("5 what is finished does not fail", what, at=record.settled_at)
            case Outcome.EXPIRED if isinstance(record.began, Release):
                unknown = any(
                    call.kind is Kind.RELEASE and call.verdict(record.receipt) is Verdict.TRANSIENT for call in tries
                )
                left = record.deadline_at(record.settled_at) - record.settled_at
                doubtful = unknown or record.lapsed_at or any(holding.doubtful for holding in record.holdings)
                if left > RELEASE_MARGIN_SECONDS + SLACK_SECONDS and not doubtful:
                    detail = f"{what}; {left:.1f} s were left"
                    self._journal.violated("5 what failed comes back at once", detail, at=record.settled_at)

    def _check_end(self, process: str, run: Run, record: LeaseRecord) -> None:
        """Every lease comes to an end, and its settlement by its age."""
        if not record.holdings:
            return
        ended = [at for at in (record.lost_at, record.settled_at) if at is not None]
        ended += record.forgotten_after(record.holdings[-1])
        ended_at = min([*ended, self._gone_at(process)])
        if ended_at == math.inf:
            self._journal.violated("1 every lease comes to an end", f"{record.receipt} by {process}")
        if record.began_at is None or isinstance(record.began, Expire):
            return
        began_at = self._settled_from(process, run, record)
        if began_at >= ended_at or record.holdings[-1].at > began_at:
            return
        # A release may become an end by itself, a dead-lettered message is deleted after that: a settlement each.
        began = [began_at, *self._forwarded_between(process, record, began_at, ended_at)]
        latest = max(max(began) + SETTLE_SECONDS, record.deadline_at(began_at))
        for at in self._went_through(process, record.queue_url):
            if began_at <= at <= latest + self._slack_seconds:
                latest = max(latest, at + SETTLE_SECONDS)
        for since, until in self._away.get(process, ()):
            if since < latest + self._slack_seconds and until < math.inf:
                latest = max(latest, until + self._plan.quiet_after_stall_seconds + SETTLE_SECONDS)
        if ended_at > latest + self._slack_seconds:
            # Those that wait are given up in the order of their deadlines: one that began later may be first in line.
            latest = max(latest, self._last_began(process, record, ended_at) + SETTLE_SECONDS)
        if ended_at > latest + self._slack_seconds:
            detail = (
                f"{record.receipt} by {process}: {record.began} began at {began_at:.3f}, the lease lasted until "
                f"{record.deadline_at(began_at):.3f}, and it ended at {ended_at:.3f}"
            )
            self._journal.violated("1 a settlement ends by its age", detail, at=ended_at)

    def _last_began(self, process: str, record: LeaseRecord, before: float) -> float:
        """When the last settlement began, before a time, of those whose leases ended no later than this one."""
        return max(
            other.began_at
            for (who, _), other in self._journal.leases().items()
            if who == process and other.queue_url == record.queue_url
            if other.began_at is not None and other.began_at < before
            if other.deadline_at(other.began_at) <= record.deadline_at(before) + SLACK_SECONDS
        )

    @property
    def _slack_seconds(self) -> float:
        """How much later than its age a settlement may end: with the answer to its last try, whose turn must come."""
        return self._plan.call_timeout_seconds + TURN_COMES_AFTER_CALLS * LONGEST_SPACING_SECONDS

    def _went_through(self, process: str, queue_url: str) -> Sequence[float]:
        """When a process heard that a settlement of a queue was carried out, or never will be; in order."""
        key = (process, queue_url)
        if key not in self._progress:
            passing = (Verdict.THROTTLED, Verdict.TRANSIENT, Verdict.UNAVAILABLE)
            self._progress[key] = sorted(
                [
                    call.ended_at
                    for call in self._journal.calls(process, queue_url)
                    if call.kind is not Kind.EXTEND
                    and call.ended_at is not None
                    and any(verdict not in passing for verdict in call.verdicts or ())
                ]
                + self._journal.forwarded.get(process, [])
                + [
                    record.settled_at
                    for (who, _), record in self._journal.leases().items()
                    if who == process and record.settled_at is not None and _was_refused_a_forward(record)
                ]
            )
        return self._progress[key]

    def _forwarded_between(self, process: str, record: LeaseRecord, start: float, end: float) -> Sequence[float]:
        if not isinstance(record.began, DeadLetter):
            return ()
        return [at for at in self._journal.forwarded.get(process, ()) if start <= at <= end]

    # Batches

    def _check_batches(self, process: str, calls: Sequence[SentCall]) -> None:
        """Leases that fail together are tried again together."""
        after: dict[tuple[Receipt, Kind], list[int]] = {}
        for place, call in enumerate(calls):
            for receipt in call.receipts:
                after.setdefault((receipt, call.kind), []).append(place)
        for place, call in enumerate(calls):
            failed = call.verdicts is None or call.verdicts.count(call.verdicts[0]) == len(call.verdicts)
            if len(call.receipts) < MAX_BATCH_ENTRIES / 2 or not failed or call.ended_at is None:
                continue
            if call.verdicts is not None and call.verdicts[0] in (Verdict.DONE, Verdict.LOST, Verdict.REFUSED):
                continue
            again: list[int] = []
            for receipt in call.receipts:
                places = after[receipt, call.kind]
                following = bisect_right(places, place)
                if following < len(places):
                    again.append(len(calls[places[following]].receipts))
            if len(again) >= MAX_BATCH_ENTRIES / 2 and sum(again) / len(again) < len(again) / 3:
                detail = f"{process} {call.kind.value} {len(again)} messages again, {again} at once"
                self._journal.violated("5 what fails together is tried again together", detail, at=call.ended_at)
                return

    # The pace

    def _check_pace(self, process: str, queue_url: str, calls: Sequence[SentCall]) -> None:
        """Calls on a queue that throttles one after another are spaced, whatever they ask for."""
        answers = sorted(
            (call.ended_at, call.sent_at, call.is_throttled)
            for call in calls
            if call.ended_at is not None and (call.is_throttled or call.went_through)
        )
        in_a_row, counted_at, spaced_from = 0, -math.inf, math.inf
        heard = 0
        for earlier, call in pairwise(calls):
            while heard < len(answers) and answers[heard][0] <= call.sent_at:
                answered_at, sent_at, throttled = answers[heard]
                heard += 1
                if not throttled or answered_at > counted_at + CALM_SECONDS:
                    in_a_row, spaced_from = 0, math.inf
                if throttled and sent_at > counted_at:
                    in_a_row, counted_at = in_a_row + 1, answered_at
                    spaced_from = answered_at if in_a_row == THROTTLED_IN_A_ROW else spaced_from
            if earlier.sent_at > spaced_from and call.sent_at - earlier.sent_at < SPACED_AT_LEAST_SECONDS:
                detail = (
                    f"{process} {call.kind.value} messages of {queue_url} {call.sent_at - earlier.sent_at:.3f} s after "
                    f"another call, although the last {in_a_row} were throttled"
                )
                self._journal.violated("5 calls are spaced while the queue throttles them", detail, at=call.sent_at)
                return

    # Excuses

    def _was_away(self, process: str, start: float, end: float) -> bool:
        return any(began <= end and ended >= start for began, ended in self._away.get(process, ()))

    def _is_excused(self, held: _Held, due: float, at: float, kind: Kind, *, live: bool) -> bool:
        """Whether a call that was due may have been sent no sooner than this."""
        place = (held.process, held.record.queue_url)
        calls = self._journal.calls(*place)
        start = due
        while at > start + SLACK_SECONDS:
            ready = self._slots_free_from(calls, self._runs_from(held.process, start), at, kind)
            if ready > start:
                start = ready
                continue
            # It may have been frozen meanwhile: then it was not late by then.
            frozen_at = min((began for began, _ in self._away.get(held.process, ()) if start < began < at), default=at)
            late = frozen_at > start + SLACK_SECONDS
            if late and not self._is_spaced_well(place, start, frozen_at, kind, live=live):
                return False
            start = frozen_at
        return True

    def _runs_from(self, process: str, start: float) -> float:
        """When the process runs at this time, or goes on, with the time that it leaves to its host."""
        for began, ended in self._away.get(process, ()):
            quiet = self._plan.quiet_after_stall_seconds if ended - began > STALL_SECONDS else 0.0
            if began <= start < ended + quiet:
                return ended + quiet
        return start

    @staticmethod
    def _slots_free_from(calls: Sequence[SentCall], start: float, end: float, kind: Kind) -> float:
        """When there is room for one call more; ``end`` if not before."""
        if len(calls) < SLOTS_FOR_EXTENSIONS:
            return start
        near = [call for call in calls if call.overlaps(start, end)]
        moments = sorted(
            {start, *(call.ended_at for call in near if call.ended_at is not None and call.ended_at > start)}
        )
        for moment in moments:
            under_way = [
                call for call in near if call.sent_at <= moment and (call.ended_at is None or call.ended_at > moment)
            ]
            extensions = sum(call.kind is Kind.EXTEND for call in under_way)
            settlements = len(under_way) - extensions + MOST_FORWARDS
            if kind is Kind.EXTEND:
                taken = extensions >= SLOTS_FOR_EXTENSIONS and extensions + settlements >= SLOTS - 4
            else:
                taken = settlements >= SLOTS - SLOTS_FOR_EXTENSIONS or extensions + settlements >= SLOTS
            if not taken:
                return moment
        return end

    def _is_spaced_well(self, place: tuple[str, str], start: float, end: float, kind: Kind, *, live: bool) -> bool:
        """Whether calls went on meanwhile, not too far apart, and in the order of their urgency."""
        calls = self._journal.calls(*place)
        first = bisect_left(calls, start, key=lambda call: call.sent_at)
        last = bisect_left(calls, end, key=lambda call: call.sent_at)
        before = [at for call in calls[max(first - SLOTS, 0) : last] for at in (call.sent_at, call.ended_at or end)]
        moments = sorted({start, end, *(at for at in before if at <= end)})
        for earlier, later in pairwise(moments[bisect_left(moments, start) :]):
            if later - earlier > self._spaced_by(place, earlier) + SLACK_SECONDS:
                return False
        sent = calls[first:last]
        extensions = sum(call.kind is Kind.EXTEND for call in sent)
        if kind is Kind.EXTEND and live:
            return len(sent) - extensions <= len(sent) / 4 + 2
        if kind is Kind.EXTEND:
            return extensions >= len(sent) / 8 - 2
        return len(sent) - extensions >= len(sent) / 8 - 2

    def _spaced_by(self, place: tuple[str, str], at: float) -> float:
        """How far apart calls may be at most."""
        throttled = self._throttled.get(place, [])
        last = bisect_right(throttled, at)
        if not last:
            return 0.0
        answered = self._answered[place]
        count, counted_at = 0.0, throttled[last - 1]
        for answered_at, took in answered[bisect_right(answered, (counted_at, math.inf)) :]:
            if answered_at > at:
                break
            if answered_at >= counted_at + 1:
                count, counted_at = count + 1 / max(took, 1.0), answered_at
        return next((seconds for fewer, seconds in SPACED_BY_SECONDS if count < fewer), 0.0)


def _was_refused_a_forward(record: LeaseRecord) -> bool:
    """Whether a message cannot be dead-lettered, however often it is tried."""
    settled = record.settled
    return (
        isinstance(record.began, DeadLetter)
        and settled is not None
        and settled.outcome is Outcome.FAILED
        and settled.detail.startswith(("the message's content cannot be read again", "the queue has no dead-letter"))
    )


def _extension_retry_seconds(remaining_seconds: float, extension_seconds: float) -> float:
    """After how long at most a failed extension is tried again."""
    if remaining_seconds > 0:
        delay = min(remaining_seconds / 4, LONGEST_RETRY_SECONDS)
    else:
        # A call without an answer may have been carried out: the message is invisible for so long from then on.
        delay = min(extension_seconds / 6, LONGEST_RETRY_SECONDS)
    return max(delay, SHORTEST_RETRY_SECONDS)


def _settlement_retry_seconds(tries: int) -> float:
    """After how long at most a failed settlement is tried again."""
    return min(SHORTEST_RETRY_SECONDS * 2.0 ** min(tries - 1, 10), LONGEST_RETRY_SECONDS)
