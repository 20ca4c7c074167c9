"""Properties of the ledger under any sequence of leases, calls, answers and settlements (hypothesis, stateful).

The machine plays the keeper and the service: it lets time pass, makes the calls that the ledger asks for, answers them
late, in any order and with any verdict, and knows of each lease what may and what must happen to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, precondition, rule

from sqs_lease.core.calls import Call, DeleteCall, EntryAnswer, ExtendCall, ForwardCall, ReleaseCall, Verdict
from sqs_lease.core.events import Ending, Lapsed, Lost, Outcome, Refused, Settled
from sqs_lease.core.failure_rules import DeadLetter, Delete, Expire, Release, Settlement
from sqs_lease.core.ledger import RELEASE_MARGIN_SECONDS, Ledger
from sqs_lease.core.limits import MAX_BATCH_ENTRIES, MAX_VISIBILITY_SECONDS
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.pacing import SLOWEST_CALLS_PER_SECOND
from sqs_lease.core.policies import Buffered, Fixed, Growing, Never, RenewalPolicy, Threshold
from tests.core.ledger.test_lease_ends import assert_empty

VISIBILITY = 30.0
TOLERANCE = 1e-6

policies = st.one_of(
    st.builds(
        Growing,
        visibility=st.just(VISIBILITY),
        max_lease=st.sampled_from([0.0, 45.0, 300.0, 43_200.0]),
        growth=st.sampled_from([0.0, 0.5, 2.0]),
        margin=st.sampled_from([0.1, 1 / 3, 0.9]),
    ),
    st.builds(Threshold, visibility=st.just(VISIBILITY), max_lease=st.sampled_from([300.0, 43_200.0])),
    st.builds(Buffered, visibility=st.just(VISIBILITY), max_lease=st.sampled_from([300.0, 43_200.0])),
    st.builds(Fixed, visibility=st.just(VISIBILITY), every=st.sampled_from([1.0, 10.0, 29.0])),
    st.builds(Never, visibility=st.just(VISIBILITY)),
)
settlements = st.one_of(
    st.just(Delete()),
    st.builds(Release, delay_seconds=st.sampled_from([0, 0, 5, 600])),
    st.just(Expire()),
    st.just(DeadLetter("it failed")),
)


@dataclass(slots=True)
class Known:
    """The machine's knowledge of one lease."""

    policy: RenewalPolicy
    received_at: float
    deadline: float
    settlement: Settlement | None = None
    forwarded: bool = False
    under_way: bool = False
    forgotten: bool = False
    ended: Settled | Lost | None = None
    announced: bool = False
    lapsed: bool = False
    last: Verdict | None = None
    """The last answer about it."""
    delete_unanswered: bool = False
    passing_on: bool = False

    @property
    def held(self) -> bool:
        return self.ended is None and not self.forgotten


class LedgerMachine(RuleBasedStateMachine):
    """Anything that can happen to a ledger."""

    receipts = Bundle("receipts")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(Random(0))
        self.now = 1000.0
        self.known: dict[Receipt, Known] = {}
        self.newest: dict[str, int] = {}
        self.messages = 0
        self.pending: list[Call] = []
        self.own: dict[int, set[Receipt]] = {}  # by call: about which it was made, and which were not forgotten since

    # Actions of the host

    @rule(target=receipts, policy=policies, age=st.sampled_from([0.0, 0.5, 10.0]), count=st.integers(1, 25))
    def receive(self, policy: RenewalPolicy, age: float, count: int) -> object:
        taken = []
        for _ in range(count):
            self.messages += 1
            taken.append(self._hold(Receipt(f"m{self.messages}", "h1"), policy, age))
        return multiple(*taken)

    @rule(target=receipts, receipt=receipts, policy=policies)
    def receive_again(self, receipt: Receipt, policy: RenewalPolicy) -> Receipt:
        number = self.newest[receipt.message_id] + 1
        return self._hold(Receipt(receipt.message_id, f"h{number}"), policy, 0.0, number=number)

    @rule(target=receipts, receipt=receipts, policy=policies, lapsed=st.booleans())
    def adopt_what_was_received_before(self, receipt: Receipt, policy: RenewalPolicy, *, lapsed: bool) -> Receipt:
        """A lease is handed over although the message was received again since."""
        number = self.newest[receipt.message_id]
        newest = Receipt(receipt.message_id, f"h{number}")
        late = Receipt(receipt.message_id, f"late{len(self.known)}")
        held = self.known[newest].held
        lease = Lease(late, self.now - 100, self.now - 10, number - 1, doubtful=lapsed)
        self.known[late] = Known(policy, lease.received_at, lease.deadline, lapsed=lapsed)
        self.ledger.hold(lease, policy)
        self._take_events()
        if held:
            assert self.known[newest].held, "a newer reception was given up for an older one"
            assert not self.known[late].held
        return late

    @rule(receipt=receipts)
    def hold_what_is_held(self, receipt: Receipt) -> None:
        known = self.known[receipt]
        if known.held:
            self.ledger.hold(Lease(receipt, self.now, self.now + 1), known.policy)
            self._take_events()

    @rule(target=receipts, policy=policies, overdue=st.sampled_from([-20.0, 0.0, 100.0]))
    def adopt(self, policy: RenewalPolicy, overdue: float) -> Receipt:
        self.messages += 1
        receipt = Receipt(f"m{self.messages}", "h1")
        lease = Lease(receipt, self.now - overdue - VISIBILITY, self.now - overdue)
        self._know(lease, policy, 1)
        self.ledger.hold(lease, policy)
        self._take_events()
        return receipt

    @rule(receipt=receipts, policy=policies)
    def hold_again_what_was_forgotten(self, receipt: Receipt, policy: RenewalPolicy) -> None:
        former = self.known[receipt]
        superseded = f"h{self.newest[receipt.message_id]}" != receipt.handle
        if superseded or not former.forgotten or former.ended is not None:
            return
        lease = Lease(receipt, former.received_at, former.deadline, doubtful=former.lapsed)
        self.known[receipt] = Known(policy, former.received_at, former.deadline, lapsed=former.lapsed)
        # A call about it may be under way still.
        self.known[receipt].under_way = any(receipt in call.receipts for call in self.pending)
        self.ledger.hold(lease, policy)
        self._take_events()

    @rule(receipt=receipts, seconds=st.sampled_from([5.0, 60.0, 300.0]))
    def pass_on(self, receipt: Receipt, seconds: float) -> None:
        known = self.known[receipt]
        known.passing_on = known.passing_on or (known.held and known.settlement is None)
        wanted = self.ledger.extend_until(receipt, self.now + seconds, self.now)
        assert not wanted or (known.held and known.settlement is None)

    @rule(receipt=receipts, settlement=settlements, within_seconds=st.sampled_from([0.0, 0.1]))
    def settle(self, receipt: Receipt, settlement: Settlement, within_seconds: float) -> None:
        known = self.known[receipt]
        began = self.ledger.settle(receipt, settlement, self.now, within_seconds=within_seconds)
        assert began == (known.held and known.settlement is None)
        if began:
            known.settlement = settlement
        self._take_events()

    @rule(receipt=receipts)
    def forget(self, receipt: Receipt) -> None:
        self.ledger.forget(receipt)
        self.known[receipt].forgotten = True
        for receipts_of_call in self.own.values():
            receipts_of_call.discard(receipt)
        self._take_events()

    @rule(receipt=receipts)
    def extend_now(self, receipt: Receipt) -> None:
        promised = self.ledger.extend_now(receipt)
        known = self.known[receipt]
        assert not promised or (known.held and known.settlement is None)

    @rule(seconds=st.one_of(st.sampled_from([0.1, 1.0, 5.0, 10.0, 20.0, 100.0]), st.floats(0, 4000)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def time_passes_until_something_is_due(self) -> None:
        due = self.ledger.next_due()
        if due is not None:
            self.now = max(self.now, due)

    # Calls and answers

    @rule(limit=st.sampled_from([None, None, 1, 3]))
    def make_calls(self, limit: int | None) -> None:
        calls = self.ledger.due(self.now, limit)
        assert limit is None or len(calls) <= limit
        for call in calls:
            self._check_call(call)
            self.pending.append(call)
        self._take_events()
        if limit is None:
            # A lease that turns out to be unable to go on may have one thing more to say.
            assert not self.ledger.due(self.now)
            self._take_events()
            due = self.ledger.next_due()
            assert due is None or due > self.now, "the driver would spin"

    @precondition(lambda self: self.pending)
    @rule(place=st.integers(0, 9), verdicts=st.lists(st.sampled_from(list(Verdict)), min_size=10, max_size=10))
    def answer(self, place: int, verdicts: list[Verdict]) -> None:
        call = self.pending.pop(place % len(self.pending))
        self._answer(call, verdicts[: len(call.receipts)])

    @precondition(lambda self: self.pending)
    @rule(place=st.integers(0, 9), verdict=st.sampled_from(list(Verdict)))
    def answer_alike(self, place: int, verdict: Verdict) -> None:
        call = self.pending.pop(place % len(self.pending))
        self._answer(call, [verdict] * len(call.receipts))

    @precondition(lambda self: self.pending)
    @rule(place=st.integers(0, 9))
    def get_no_answer(self, place: int) -> None:
        call = self.pending.pop(place % len(self.pending))
        self._answer(call, [])

    # Invariants

    @invariant()
    def the_ledger_holds_exactly_what_has_not_ended(self) -> None:
        held = [receipt for receipt, known in self.known.items() if known.held]
        assert len(self.ledger) == len(held)
        assert all(receipt in self.ledger for receipt in held)

    @invariant()
    def deadlines_are_those_that_the_service_confirmed(self) -> None:
        for receipt, known in self.known.items():
            lease = self.ledger.lease(receipt)
            assert (lease is not None) == known.held
            if lease is not None:
                assert abs(lease.deadline - known.deadline) < TOLERANCE

    @invariant()
    def what_is_to_be_settled_is_due(self) -> None:
        if any(known.held and known.settlement is not None and not known.under_way for known in self.known.values()):
            assert self.ledger.next_due() is not None

    @invariant()
    def no_deadline_is_slept_through(self) -> None:
        known = self.known.values()
        waiting = [one.deadline for one in known if one.held and not one.under_way and one.deadline > self.now]
        if waiting:
            due = self.ledger.next_due()
            assert due is not None
            assert due <= min(waiting) + 1 / SLOWEST_CALLS_PER_SECOND

    def teardown(self) -> None:
        """A service that answers well lets everything come to its end."""
        for receipt, known in self.known.items():
            if known.held and known.settlement is None:
                assert self.ledger.settle(receipt, Delete(), self.now)
                known.settlement = Delete()
        self._take_events()
        for _ in range(1000):
            while self.pending:
                call = self.pending.pop()
                self._answer(call, [Verdict.DONE] * len(call.receipts))
            if not len(self.ledger):
                assert_empty(self.ledger)
                return
            due = self.ledger.next_due()
            assert due is not None
            self.now = max(self.now, due)
            self.make_calls(None)
        raise AssertionError(f"{len(self.ledger)} leases do not come to an end")

    # Helpers

    def _hold(self, receipt: Receipt, policy: RenewalPolicy, age: float, *, number: int = 1) -> Receipt:
        received_at = self.now - age
        lease = Lease(receipt, received_at, received_at + VISIBILITY, number)
        self._know(lease, policy, number)
        self.ledger.hold(lease, policy)
        self._take_events()
        return receipt

    def _know(self, lease: Lease, policy: RenewalPolicy, number: int) -> None:
        self.known[lease.receipt] = Known(policy, lease.received_at, lease.deadline)
        self.newest[lease.receipt.message_id] = number

    def _check_call(self, call: Call) -> None:
        assert call.asked_at == self.now
        assert 1 <= len(call.receipts) <= MAX_BATCH_ENTRIES
        assert len(set(call.receipts)) == len(call.receipts)
        for receipt in call.receipts:
            known = self.known[receipt]
            assert known.held, "a call about a lease that is not held"
            assert not known.under_way, "two calls about one lease at once"
            known.under_way = True
        self.own[id(call)] = set(call.receipts)
        match call:
            case ExtendCall():
                for change in call.changes:
                    self._check_extension(self.known[change.receipt], change.seconds)
            case ReleaseCall():
                for change in call.changes:
                    known = self.known[change.receipt]
                    assert isinstance(known.settlement, Release)
                    assert change.seconds <= known.settlement.delay_seconds
                    assert known.deadline - self.now >= RELEASE_MARGIN_SECONDS, "another consumer may have it"
                    assert not known.lapsed, "another consumer may have it since"
            case DeleteCall():
                for receipt in call.receipts:
                    known = self.known[receipt]
                    assert isinstance(known.settlement, Delete) or known.forwarded
            case ForwardCall():
                known = self.known[call.receipt]
                assert isinstance(known.settlement, DeadLetter)
                assert not known.forwarded

    def _check_extension(self, known: Known, seconds: int) -> None:
        assert known.settlement is None, "an extension after settlement began"
        assert 1 <= seconds <= MAX_VISIBILITY_SECONDS
        longest = min(known.policy.max_lease_seconds, MAX_VISIBILITY_SECONDS)
        assert self.now + seconds <= known.received_at + longest + TOLERANCE
        assert not isinstance(known.policy, Never)

    def _answer(self, call: Call, verdicts: list[Verdict]) -> None:
        """Report answers, in any order; leases without one count as unanswered."""
        answers = [EntryAnswer(receipt, verdict) for receipt, verdict in zip(call.receipts, verdicts, strict=False)]
        for place, receipt in enumerate(call.receipts):
            known = self.known[receipt]
            if known.held and known.under_way:
                known.under_way = False
                verdict = verdicts[place] if place < len(verdicts) else Verdict.TRANSIENT
                if isinstance(call, ExtendCall) or receipt in self.own.get(id(call), ()):
                    self._learn(known, call, place, verdict)
                else:
                    known.lapsed = True  # it was forgotten while this settlement was under way
        self.ledger.report(call, answers[::-1], self.now)
        self._take_events()

    @staticmethod
    def _learn(known: Known, call: Call, place: int, verdict: Verdict) -> None:
        known.last = verdict
        match call:
            case ExtendCall() | ReleaseCall():
                deadline = call.asked_at + call.changes[place].seconds
                if verdict is Verdict.DONE and isinstance(call, ExtendCall):
                    known.deadline = deadline
                elif verdict is Verdict.TRANSIENT:
                    # Carried out or not: only until the earlier one is it certainly invisible.
                    known.deadline = min(known.deadline, deadline)
            case DeleteCall() if verdict is Verdict.TRANSIENT:
                known.delete_unanswered = True
            case ForwardCall() if verdict is Verdict.DONE:
                known.forwarded = True

    def _take_events(self) -> None:
        for event in self.ledger.take_events():
            known = self.known[event.receipt]
            assert known.held, f"{event} about a lease that is not held"
            match event:
                case Lost():
                    assert known.settlement is None
                    self._check_loss(event.receipt, known)
                    known.ended = event
                case Settled():
                    assert known.settlement is not None
                    self._check_outcome(event, known)
                    known.ended = event
                case Ending():
                    assert not known.announced or known.passing_on
                    known.announced = True
                case Lapsed():
                    assert event.overdue_seconds >= -TOLERANCE
                    known.lapsed = True
                case Refused():
                    assert known.last is Verdict.REFUSED

    def _check_loss(self, receipt: Receipt, known: Known) -> None:
        superseded = f"h{self.newest[receipt.message_id]}" != receipt.handle
        assert known.last is Verdict.LOST or superseded

    def _check_outcome(self, event: Settled, known: Known) -> None:
        match event.outcome:
            case Outcome.DELETED:
                assert isinstance(known.settlement, Delete)
                assert known.last is Verdict.DONE
                assert not known.lapsed
                assert self.now <= known.deadline, "another consumer may have it"
            case Outcome.DEAD_LETTERED:
                assert known.forwarded
                assert known.last is Verdict.DONE or known.delete_unanswered
            case Outcome.RELEASED:
                assert isinstance(known.settlement, Release)
                assert known.last is Verdict.DONE
            case Outcome.EXPIRED:
                ends = known.lapsed or known.deadline - self.now < RELEASE_MARGIN_SECONDS
                assert isinstance(known.settlement, Expire) or (isinstance(known.settlement, Release) and ends)
            case Outcome.UNCERTAIN:
                assert isinstance(known.settlement, Delete)
                if known.last is Verdict.LOST:
                    assert known.delete_unanswered
                else:
                    assert known.last is Verdict.DONE
                    assert known.lapsed or self.now > known.deadline
            case Outcome.LOST:
                self._check_loss(event.receipt, known)
            case Outcome.FAILED if known.last is Verdict.REFUSED:
                pass
            case Outcome.FAILED:
                assert isinstance(known.settlement, Delete | DeadLetter)
                # Its turn may never have come, while all others failed.
                assert known.last not in (Verdict.DONE, Verdict.LOST)
                assert self.now > known.deadline


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    # The same examples each time: a test run says something about the change, not about its luck.
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
