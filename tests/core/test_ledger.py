"""The ledger keeps its rules whatever the service answers."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from sqs_lease.core.actions import Call, DeleteCall, ExtendCall, ForwardCall, ReleaseCall, VisibilityChange
from sqs_lease.core.events import Ending, Lapsed, Lost, Outcome, Refused, Settled
from sqs_lease.core.leases import Lease
from sqs_lease.core.ledger import Ledger
from sqs_lease.core.messages import Receipt
from sqs_lease.core.policies import Fixed, Growing, Never
from sqs_lease.core.settlements import DeadLetter, Delete, Expire, Release
from sqs_lease.core.verdicts import EntryAnswer, Verdict
from tests.core.service import answers, receipts

POLICY = Fixed(visibility=30, every=20)
FAILED_VERDICTS = [Verdict.TRANSIENT, Verdict.THROTTLED, Verdict.REFUSED]


def ledger_with(*held: Receipt, policy: Fixed = POLICY, received_at: float = 0.0) -> Ledger:
    ledger = Ledger(Random(0))
    for receipt in held:
        ledger.hold(Lease(receipt, received_at, received_at + 30), policy)
    return ledger


def only(calls: list[Call]) -> Call:
    assert len(calls) == 1
    return calls[0]


def deadline_of(ledger: Ledger, receipt: Receipt) -> float:
    lease = ledger.lease(receipt)
    assert lease is not None
    return lease.deadline


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

    def test_a_lease_past_its_deadline_whose_renewal_succeeds_goes_on(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        call = only(ledger.due(33))
        ledger.report(call, answers(call, Verdict.DONE), 33)
        assert deadline_of(ledger, receipt) == 63
        assert ledger.take_events() == [Lapsed(receipt, 3.0)]

    def test_an_unanswered_extension_that_could_have_shortened_the_lease_moves_the_deadline_back(self) -> None:
        receipt = Receipt("message", "handle")
        ledger = Ledger(Random(0))
        ledger.adopt(Lease(receipt, 0.0, 100.0), POLICY)
        call = only(ledger.due(1))
        ledger.report(call, [], 2)
        assert deadline_of(ledger, receipt) == 31

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

    def test_a_throttled_queue_is_called_one_call_at_a_time_the_most_urgent_lease_first(self) -> None:
        ledger = Ledger(Random(0))
        held = receipts(40)
        for index, receipt in enumerate(held):
            # The last ones in are the first to end.
            ledger.hold(Lease(receipt, 0.0, 60.0 - index), Growing(visibility=30))
        throttled = ledger.due(50)
        assert len(throttled) == 4
        for call in throttled:
            ledger.report(call, answers(call, Verdict.THROTTLED), 50)
        now = ledger.next_due()
        assert now is not None
        assert now > 50
        assert ledger.due(50.01) == []
        calls = ledger.due(now)
        assert [set(call.receipts) for call in calls] == [set(held[-10:])]
        later = ledger.next_due()
        assert later is not None
        assert later > now

    def test_throttling_slows_down_call_by_call_and_success_speeds_up_again(self) -> None:
        ledger = ledger_with(*receipts(400))
        now = 20.0
        for call in ledger.due(now):
            ledger.report(call, answers(call, Verdict.THROTTLED), now)
        pauses = []
        for _ in range(5):
            due = ledger.next_due()
            assert due is not None
            pauses.append(due - now)
            now = due
            call = only(ledger.due(now))
            ledger.report(call, answers(call, Verdict.THROTTLED), now)
        assert pauses[-1] > 4 * pauses[0]
        counts = []
        for _ in range(12):
            due = ledger.next_due()
            if due is None:
                break
            now = max(now, due)
            calls = ledger.due(now)
            counts.append(len(calls))
            for call in calls:
                ledger.report(call, answers(call, Verdict.DONE), now)
        assert counts[0] == 1
        assert max(counts) > 1

    def test_limit_leaves_the_rest_due(self) -> None:
        ledger = ledger_with(*receipts(40))
        assert len(ledger.due(20, limit=3)) == 3
        assert ledger.next_due() is not None
        assert len(ledger.due(20)) == 1

    def test_an_adopted_lease_is_extended_at_once_even_past_its_deadline(self) -> None:
        receipt = Receipt("message", "handle")
        ledger = Ledger(Random(0))
        ledger.adopt(Lease(receipt, 0.0, 30.0), POLICY)
        assert ledger.due(500) == [ExtendCall(500, (VisibilityChange(receipt, 30),))]

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
        ledger.adopt(Lease(old, 0.0, 30.0, receive_count=1), POLICY)
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


class TestSettling:
    def test_delete_is_confirmed_before_it_counts(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        assert ledger.settle(receipt, Delete(), 5)
        call = only(ledger.due(5))
        assert call == DeleteCall(5, (receipt,))
        assert ledger.take_events() == []
        ledger.report(call, answers(call, Verdict.DONE), 6)
        assert ledger.take_events() == [Settled(receipt, Outcome.DELETED)]
        assert receipt not in ledger

    def test_settling_twice_or_something_unknown_begins_nothing(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        assert ledger.settle(receipt, Delete(), 5)
        assert not ledger.settle(receipt, Release(), 5)
        assert not ledger.settle(Receipt("unknown", "handle"), Delete(), 5)
        assert [type(call) for call in ledger.due(5)] == [DeleteCall]

    @pytest.mark.parametrize("verdict", [Verdict.DONE, Verdict.CAPPED, *FAILED_VERDICTS])
    def test_settlement_waits_for_the_extension_under_way_and_none_is_sent_after_it(self, verdict: Verdict) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        extension = only(ledger.due(20))
        ledger.settle(receipt, Delete(), 21)
        assert ledger.due(22) == []
        ledger.report(extension, answers(extension, verdict), 23)
        assert [type(call) for call in ledger.due(23)] == [DeleteCall]
        assert ledger.due(1_000) == []

    def test_a_settlement_of_a_lease_whose_extension_under_way_is_refused_ends_as_lost(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        extension = only(ledger.due(20))
        ledger.settle(receipt, Release(), 21)
        ledger.report(extension, answers(extension, Verdict.LOST, text="gone"), 23)
        assert ledger.take_events() == [Settled(receipt, Outcome.LOST, "gone")]
        assert ledger.due(24) == []

    def test_a_lost_lease_is_neither_released_nor_deleted(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        extension = only(ledger.due(20))
        ledger.report(extension, answers(extension, Verdict.LOST), 20)
        assert not ledger.settle(receipt, Release(), 21)
        assert not ledger.settle(receipt, Delete(), 21)
        assert ledger.due(30) == []

    def test_release_with_a_delay_sets_that_visibility_and_nothing_extends_it_later(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        ledger.settle(receipt, Release(90), 5)
        call = only(ledger.due(5))
        assert call == ReleaseCall(5, (VisibilityChange(receipt, 90),))
        ledger.report(call, answers(call, Verdict.DONE), 5)
        assert ledger.take_events() == [Settled(receipt, Outcome.RELEASED)]
        assert ledger.due(1_000) == []

    @pytest.mark.parametrize("now", [28.5, 30.0, 45.0])
    def test_a_lease_about_to_end_or_ended_is_not_released_for_it_may_be_somebody_elses(self, now: float) -> None:
        (receipt,) = held = receipts(1)
        ledger = Ledger(Random(0))
        ledger.hold(Lease(receipt, 0.0, 30.0), Never(visibility=30))
        ledger.settle(receipt, Release(), now)
        assert ledger.due(now) == []
        assert [event.outcome for event in ledger.take_events() if isinstance(event, Settled)] == [Outcome.EXPIRED]
        assert held[0] not in ledger

    def test_a_lease_that_lapsed_is_not_released_even_if_it_was_extended_since(self) -> None:
        # On a standard queue the extension succeeds for an old receipt handle too, while somebody else works on it.
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        late = only(ledger.due(35))
        ledger.report(late, answers(late, Verdict.DONE), 35)
        lease = ledger.lease(receipt)
        assert lease is not None
        assert lease.lapsed
        ledger.settle(receipt, Release(), 40)
        assert ledger.due(40) == []
        assert [event.outcome for event in ledger.take_events() if isinstance(event, Settled)] == [Outcome.EXPIRED]

        successor = Ledger(Random(0))
        successor.adopt(lease, POLICY)
        extension = only(successor.due(41))
        successor.report(extension, answers(extension, Verdict.DONE), 41)
        successor.settle(receipt, Release(), 42)
        assert successor.due(42) == [], "whoever takes it over knows no more"

    def test_a_lease_that_lapsed_is_deleted_all_the_same_when_its_work_succeeded(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        late = only(ledger.due(35))
        ledger.report(late, answers(late, Verdict.DONE), 35)
        ledger.settle(receipt, Delete(), 40)
        assert [type(call) for call in ledger.due(40)] == [DeleteCall]

    def test_a_release_at_once_without_an_answer_is_never_repeated(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        ledger.settle(receipt, Release(), 5)
        call = only(ledger.due(5))
        ledger.report(call, [], 6)
        assert [event.outcome for event in ledger.take_events() if isinstance(event, Settled)] == [Outcome.EXPIRED]
        assert ledger.due(1_000) == []

    def test_a_delayed_release_without_an_answer_is_repeated_only_while_the_message_is_surely_invisible(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        ledger.settle(receipt, Release(10), 5)
        sent = []
        now: float | None = 5.0
        while now is not None:
            for call in ledger.due(now):
                sent.append(now)
                ledger.report(call, [], now)
            following = ledger.next_due()
            now = None if following is None else max(now, following)
        assert len(sent) > 1
        assert max(sent) < 5 + 10

    def test_a_throttled_release_is_repeated_for_it_was_surely_not_carried_out(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        ledger.settle(receipt, Release(), 5)
        call = only(ledger.due(5))
        ledger.report(call, answers(call, Verdict.THROTTLED), 5)
        again = ledger.next_due()
        assert again is not None
        assert [type(call) for call in ledger.due(again)] == [ReleaseCall]

    def test_a_delay_beyond_the_services_12_hours_is_cut_to_them(self) -> None:
        receipt = Receipt("message", "handle")
        ledger = Ledger(Random(0))
        ledger.hold(Lease(receipt, 0.0, 43_000.0), Never(visibility=30))
        ledger.settle(receipt, Release(900), 42_900)
        call = only(ledger.due(42_900))
        assert isinstance(call, ReleaseCall)
        assert 42_900 + call.changes[0].seconds <= 43_200

    def test_a_capped_release_is_made_without_its_delay(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        ledger.settle(receipt, Release(900), 5)
        call = only(ledger.due(5))
        ledger.report(call, answers(call, Verdict.CAPPED), 5)
        assert ledger.due(5) == [ReleaseCall(5, (VisibilityChange(receipt, 0),))]

    @pytest.mark.parametrize("verdict", FAILED_VERDICTS)
    def test_a_delete_that_fails_is_tried_again_and_given_up_as_failed_only_after_the_lease_ended(
        self, verdict: Verdict
    ) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        ledger.settle(receipt, Delete(), 5)
        now: float | None = 5.0
        tries = 0
        while now is not None:
            last = now
            for call in ledger.due(now):
                tries += 1
                ledger.report(call, answers(call, verdict, text="no"), now)
            following = ledger.next_due()
            now = None if following is None else max(now, following)
        assert tries > 5
        assert last > 60
        assert ledger.take_events() == [Settled(receipt, Outcome.FAILED, "no")]

    def test_expire_touches_nothing(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        ledger.settle(receipt, Expire(), 5)
        assert ledger.take_events() == [Settled(receipt, Outcome.EXPIRED)]
        assert ledger.due(1_000) == []

    def test_dead_lettering_deletes_only_what_was_forwarded(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        ledger.settle(receipt, DeadLetter("not JSON"), 5)
        forward = only(ledger.due(5))
        assert forward == ForwardCall(5, receipt, "not JSON")
        ledger.report(forward, answers(forward, Verdict.TRANSIENT), 5)
        again = ledger.next_due()
        assert again is not None
        forward = only(ledger.due(again))
        assert isinstance(forward, ForwardCall)
        ledger.report(forward, answers(forward, Verdict.DONE), again)
        delete = only(ledger.due(again))
        assert delete == DeleteCall(again, (receipt,))
        ledger.report(delete, answers(delete, Verdict.DONE), again)
        assert ledger.take_events() == [Settled(receipt, Outcome.DEAD_LETTERED)]

    def test_settlements_are_batched_by_kind(self) -> None:
        held = receipts(30)
        ledger = ledger_with(*held)
        for index, receipt in enumerate(held):
            ledger.settle(receipt, Delete() if index % 2 else Release(), 5)
        assert [(type(call), len(call.receipts)) for call in ledger.due(5)] == [
            (ReleaseCall, 10),
            (ReleaseCall, 5),
            (DeleteCall, 10),
            (DeleteCall, 5),
        ]

    def test_settlements_beyond_the_limit_stay_due(self) -> None:
        held = receipts(30)
        ledger = ledger_with(*held)
        for receipt in held:
            ledger.settle(receipt, Delete(), 5)
        sent = [receipt for _ in range(3) for call in ledger.due(5, limit=1) for receipt in call.receipts]
        assert sent == held

    def test_urgent_extensions_go_before_settlements(self) -> None:
        held = receipts(2)
        ledger = ledger_with(*held)
        ledger.settle(held[0], Delete(), 20)
        assert [type(call) for call in ledger.due(20)] == [ExtendCall, DeleteCall]


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
