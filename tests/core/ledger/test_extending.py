"""The ledger extends leases, and keeps its rules whatever the service answers."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from sqs_lease.core.calls import DeleteCall, EntryAnswer, ExtendCall, Verdict, VisibilityChange
from sqs_lease.core.events import Ending, Lapsed, Lost, Refused
from sqs_lease.core.failure_rules import Delete, Release
from sqs_lease.core.ledger import Entry, Ledger, Outlook, Phase
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.policies import Fixed, Growing, Never
from tests.core.ledger.ledgers import FAILED_VERDICTS, POLICY, deadline_of, ledger_with, only
from tests.core.service import answers, receipts


class TestExtending:
    def test_leases_due_together_are_extended_by_calls_of_ten(self) -> None:
        ledger = ledger_with(*receipts(25))
        assert ledger.next_due() == 20
        assert [len(call.receipts) for call in ledger.due(20)] == [10, 10, 5]

    def test_nothing_is_due_before_its_time_nor_twice(self) -> None:
        ledger = ledger_with(*receipts(3))
        assert ledger.due(19.9) == []
        assert len(ledger.due(20)) == 1
        assert ledger.due(20) == []
        assert ledger.next_due() is None, "everything waits for an answer"

    def test_leases_due_soon_ride_along_to_fill_a_call_but_do_not_make_one_of_their_own(self) -> None:
        ledger = ledger_with(*receipts(4))
        late = Receipt("later", "handle")
        far = Receipt("much later", "handle")
        ledger.hold(Lease(late, 4.0, 34.0), POLICY)
        ledger.hold(Lease(far, 10.0, 40.0), POLICY)
        call = only(ledger.due(20))
        assert late in call.receipts
        assert far not in call.receipts

    def test_a_deadline_moves_only_when_confirmed_and_counts_from_before_the_call(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        call = only(ledger.due(20))
        assert deadline_of(ledger, receipt) == 30
        ledger.report(call, answers(call, Verdict.DONE), now=27)
        assert deadline_of(ledger, receipt) == 50

    def test_each_entry_of_a_call_has_its_own_answer(self) -> None:
        first, second, third = held = receipts(3)
        ledger = ledger_with(*held)
        call = only(ledger.due(20))
        ledger.report(call, [EntryAnswer(second, Verdict.LOST, "Code", "gone"), EntryAnswer(first, Verdict.DONE)], 20)
        assert deadline_of(ledger, first) == 50
        assert second not in ledger
        assert deadline_of(ledger, third) == 30, "an entry without an answer is not confirmed"
        assert ledger.take_events() == [Lost(second, "Code: gone")]

    @pytest.mark.parametrize("verdict", FAILED_VERDICTS)
    def test_a_failed_extension_is_tried_again_within_the_lease_faster_as_the_deadline_nears(
        self, verdict: Verdict
    ) -> None:
        ledger = ledger_with(*receipts(1))
        now = 20.0
        tries = []
        while now < 30:
            call = only(ledger.due(now))
            tries.append(now)
            ledger.report(call, answers(call, verdict), now)
            due = ledger.next_due()
            assert due is not None
            now = max(now, due)
        assert len(tries) >= 4
        if verdict is Verdict.TRANSIENT:
            waits = [later - earlier for earlier, later in itertools.pairwise(tries)]
            assert waits[-1] < waits[0] / 2

    def test_a_lease_past_its_deadline_goes_on_when_its_renewal_succeeds(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        call = only(ledger.due(33))
        ledger.report(call, answers(call, Verdict.DONE), 33)
        assert deadline_of(ledger, receipt) == 63
        assert ledger.take_events() == [Lapsed(receipt, 3.0)]

    def test_a_lease_that_lapses_again_is_told_of_again(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        for now in (33.0, 70.0):
            call = only(ledger.due(now))
            ledger.report(call, answers(call, Verdict.DONE), now)
        assert ledger.take_events() == [Lapsed(receipt, 3.0), Lapsed(receipt, 7.0)]

    def test_a_lease_that_is_being_settled_cannot_be_extended_again(self) -> None:
        (receipt,) = receipts(1)
        entry = Entry(Lease(receipt, 0.0, 30.0), POLICY, 1)
        entry.enter(Phase.SETTLING)
        with pytest.raises(RuntimeError, match="cannot go from SETTLING to EXTENDING"):
            entry.enter(Phase.EXTENDING)

    def test_an_extension_never_shortens_a_lease(self) -> None:
        receipt = Receipt("message", "handle")
        ledger = Ledger(Random(0))
        ledger.hold(Lease(receipt, 0.0, 100.0), POLICY)
        call = only(ledger.due(20))
        assert call == ExtendCall(20, (VisibilityChange(receipt, 80),))
        ledger.report(call, [], 21)
        assert deadline_of(ledger, receipt) == 100, "nor does an answer that did not come"

    def test_the_services_cap_ends_extending_and_is_announced_with_the_time_left(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        call = only(ledger.due(20))
        ledger.report(call, answers(call, Verdict.CAPPED), 20)
        assert ledger.take_events() == [Ending(receipt, 30.0)]
        assert ledger.due(29) == []
        assert ledger.due(31) == []
        assert ledger.take_events() == [Lapsed(receipt, 1.0)]
        assert receipt in ledger, "it can still be deleted"

    def test_a_refused_extension_says_so_once_until_it_succeeds_again(self) -> None:
        ledger = ledger_with(*receipts(1))
        refusals = []
        for now in (20.0, 25.0, 28.0):
            call = only(ledger.due(now))
            ledger.report(call, answers(call, Verdict.REFUSED, text="denied"), now)
            refusals += [event for event in ledger.take_events() if isinstance(event, Refused)]
        assert len(refusals) == 1
        call = only(ledger.due(29.9))
        ledger.report(call, answers(call, Verdict.DONE), 29.9)
        call = only(ledger.due(49.9))
        ledger.report(call, answers(call, Verdict.REFUSED), 49.9)
        assert [type(event) for event in ledger.take_events()] == [Refused]

    def test_a_throttled_queue_is_called_one_call_at_a_time_the_most_urgent_live_lease_first(self) -> None:
        ledger = Ledger(Random(0))
        held = receipts(40)
        for index, receipt in enumerate(held):
            # The last ones in are the first to end, and the first ten of them have lapsed.
            ledger.hold(Lease(receipt, 0.0, 80.5 - index), Growing(visibility=30))
        throttled = ledger.due(51)
        assert len(throttled) == 4
        for call in throttled:
            ledger.report(call, answers(call, Verdict.THROTTLED), 51)
        called = []
        now = 51.0
        for _ in range(4):
            due = ledger.next_due()
            assert due is not None
            assert due > now
            now = due
            call = only(ledger.due(now))
            called.append(set(call.receipts))
        assert called[0] == set(held[20:30]), "a lease that has lapsed has nothing left to lose"
        assert called[3] == set(held[30:])

    def test_throttling_slows_down_call_by_call_and_success_speeds_up_again(self) -> None:
        ledger = ledger_with(*receipts(400))
        now = 20.0
        for call in ledger.due(now):
            ledger.report(call, answers(call, Verdict.THROTTLED), now)
        pauses = []
        for _ in range(10):
            due = ledger.next_due()
            assert due is not None
            pauses.append(due - now)
            now = due
            call = only(ledger.due(now))
            ledger.report(call, answers(call, Verdict.THROTTLED), now)
        assert pauses[-1] > 4 * pauses[0]
        counts: list[int] = []
        throttled_until = now
        while max(counts, default=0) <= 1:
            due = ledger.next_due()
            assert due is not None
            now = max(now, due)
            calls = ledger.due(now)
            counts.append(len(calls))
            for call in calls:
                ledger.report(call, answers(call, Verdict.DONE), now)
        assert counts[0] == 1
        assert now - throttled_until < 10

    def test_limit_leaves_the_rest_due(self) -> None:
        ledger = ledger_with(*receipts(40))
        assert len(ledger.due(20, limit=3)) == 3
        assert ledger.next_due() is not None
        assert len(ledger.due(20)) == 1

    def test_a_lease_that_is_taken_over_past_its_deadline_is_extended_at_once(self) -> None:
        receipt = Receipt("message", "handle")
        ledger = Ledger(Random(0))
        ledger.hold(Lease(receipt, 0.0, 30.0), POLICY)
        assert ledger.due(500) == [ExtendCall(500, (VisibilityChange(receipt, 30),))]

    def test_a_lease_that_is_taken_over_is_extended_when_the_policy_says_so_and_not_before(self) -> None:
        receipt = Receipt("message", "handle")
        ledger = Ledger(Random(0))
        # Received at 0, and written down at 100 after an extension by 300 s.
        ledger.hold(Lease(receipt, 0.0, 400.0, renewed_at=100.0), Growing(visibility=30))
        assert ledger.next_due() == 300, "a third of what it had is left then"
        assert ledger.due(300) == [ExtendCall(300, (VisibilityChange(receipt, 300),))]

    def test_extend_now_makes_an_extension_due_whatever_the_policy_says(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        assert ledger.extend_now(receipt)
        assert [type(call) for call in ledger.due(1)] == [ExtendCall]

    def test_extend_now_does_nothing_for_a_lease_that_is_never_extended_settled_or_unknown(self) -> None:
        never, settled, unknown = receipts(3)
        ledger = Ledger(Random(0))
        ledger.hold(Lease(never, 0.0, 30.0), Never(visibility=30))
        ledger.hold(Lease(settled, 0.0, 30.0), POLICY)
        ledger.settle(settled, Delete(), 1)
        assert not any(map(ledger.extend_now, (never, settled, unknown)))
        assert [type(call) for call in ledger.due(1)] == [DeleteCall]


class TestRedelivery:
    def test_a_redelivered_message_is_a_new_lease_and_the_old_one_is_lost(self) -> None:
        old, new = Receipt("message", "old"), Receipt("message", "new")
        ledger = ledger_with(old)
        ledger.hold(Lease(new, 10.0, 40.0), POLICY)
        assert ledger.take_events() == [Lost(old, "the message was received again")]
        assert not ledger.settle(old, Release(), 11), "a stale release would end the new lease"
        assert ledger.due(11) == []

    def test_an_older_reception_that_is_handed_over_late_does_not_take_the_place_of_the_newer_one(self) -> None:
        old, new = Receipt("message", "old"), Receipt("message", "new")
        ledger = Ledger(Random(0))
        ledger.hold(Lease(new, 40.0, 70.0, receive_count=2), POLICY)
        ledger.hold(Lease(old, 0.0, 30.0, receive_count=1), POLICY)
        assert ledger.take_events() == [Lost(old, "the message was received again")]
        assert new in ledger
        assert old not in ledger
        assert ledger.due(41) == []

    def test_holding_the_same_receipt_again_changes_nothing(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        ledger.hold(Lease(receipt, 10.0, 500.0), POLICY)
        assert deadline_of(ledger, receipt) == 30
        assert len(ledger) == 1


class TestForgetting:
    def test_a_forgotten_lease_is_not_called_for_and_answers_about_it_are_ignored(self) -> None:
        first, second = held = receipts(2)
        ledger = ledger_with(*held)
        call = only(ledger.due(20))
        ledger.forget(first)
        ledger.report(call, answers(call, Verdict.LOST), 20)
        assert [event.receipt for event in ledger.take_events()] == [second]
        assert ledger.due(1_000) == []
        assert len(ledger) == 0


class TestCost:
    def test_a_tick_looks_only_at_what_is_due_however_many_leases_are_held(self) -> None:
        asked = 0

        class Counting(Fixed):
            def renew_at(self, lease: object) -> float:
                nonlocal asked
                asked += 1
                return super().renew_at(lease)  # type: ignore[arg-type]

        ledger = Ledger(Random(0))
        policy = Counting(visibility=60, every=30)
        for number in range(10_000):
            ledger.hold(Lease(Receipt(f"message-{number}", "handle"), number / 1_000, 60.0), policy)
        assert asked == 10_000
        for tick in range(1_000):
            assert ledger.due(tick / 50) == []
        assert asked == 10_000, "waiting leases cost nothing"
        calls = ledger.due(30.01)
        for call in calls:
            ledger.report(call, answers(call, Verdict.DONE), 30.01)
        extended = sum(len(call.receipts) for call in calls)
        assert extended < 100
        assert asked == 10_000 + extended


class TestAdopting:
    def test_the_end_of_a_lease_that_cannot_be_extended_any_more_is_announced_to_its_new_holder(self) -> None:
        (receipt,) = receipts(1)
        ledger = Ledger(Random(0))
        ledger.hold(Lease(receipt, received_at=0, deadline=60), Growing(visibility=30, max_lease=60))
        assert ledger.take_events() == [Ending(receipt, 60)]
        assert ledger.due(40) == []


class TestOutlook:
    def test_the_next_renewal_and_deadline_are_those_of_the_first_lease(self) -> None:
        held = receipts(2)
        ledger = ledger_with(*held)
        later = Receipt("later", "handle")
        ledger.hold(Lease(later, 10.0, 40.0), POLICY)
        assert ledger.outlook([*held, later]) == Outlook(renew_at=20, deadline=30)
        assert ledger.outlook([later]) == Outlook(renew_at=30, deadline=40)

    def test_it_moves_on_with_an_extension(self) -> None:
        held = receipts(1)
        ledger = ledger_with(*held)
        call = only(ledger.due(20))
        assert ledger.outlook(held) == Outlook(renew_at=20, deadline=30), "under way is not done"
        ledger.report(call, answers(call, Verdict.DONE), now=20)
        assert ledger.outlook(held) == Outlook(renew_at=40, deadline=50)

    def test_leases_that_are_being_settled_or_are_never_extended_have_no_renewal(self) -> None:
        settled, kept = held = receipts(2)
        ledger = ledger_with(*held)
        ledger.settle(settled, Delete(), 0.0)
        assert ledger.outlook([settled]) == Outlook(renew_at=None, deadline=30)
        never = Receipt("never", "handle")
        ledger.hold(Lease(never, 0.0, 30.0), Never(visibility=30))
        assert ledger.outlook([never]) == Outlook(renew_at=None, deadline=30)
        assert ledger.outlook([kept]).renew_at == 20

    def test_the_next_moment_of_several_parts_is_the_first_of_all(self) -> None:
        parts = [Outlook(None, 50), Outlook(30, 40), Outlook(20, 60), Outlook(None, None)]
        assert Outlook.of_all(parts) == Outlook(renew_at=20, deadline=40)
        assert Outlook.of_all([]) == Outlook(renew_at=None, deadline=None)

    def test_of_leases_that_are_not_held_nothing_comes_next(self) -> None:
        assert ledger_with().outlook(receipts(1)) == Outlook(renew_at=None, deadline=None)
