"""The ledger ends each lease once, as it was asked to, and as far as that is safe."""

from __future__ import annotations

from random import Random

import pytest

from sqs_lease.core.calls import DeleteCall, ExtendCall, ForwardCall, ReleaseCall, Verdict, VisibilityChange
from sqs_lease.core.events import Outcome, Settled
from sqs_lease.core.failure_rules import DeadLetter, Delete, Expire, Release, Settlement
from sqs_lease.core.ledger import Ledger
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.policies import Never
from tests.core.ledger.ledgers import FAILED_VERDICTS, PASSING_VERDICTS, POLICY, ledger_with, only
from tests.core.service import answers, receipts


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
    def test_settlement_waits_for_the_extension_under_way_and_no_extension_is_sent_after_it(
        self, verdict: Verdict
    ) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        extension = only(ledger.due(20))
        ledger.settle(receipt, Delete(), 21)
        assert ledger.due(22) == []
        ledger.report(extension, answers(extension, verdict), 23)
        now = ledger.next_due()
        assert now is not None
        assert now < 24
        assert [type(call) for call in ledger.due(max(now, 23))] == [DeleteCall]
        assert ledger.due(1_000) == []

    def test_a_settlement_ends_as_lost_when_the_extension_under_way_is_refused(self) -> None:
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
    def test_a_lease_about_to_end_or_ended_is_not_released_because_others_may_have_it(self, now: float) -> None:
        (receipt,) = held = receipts(1)
        ledger = Ledger(Random(0))
        ledger.hold(Lease(receipt, 0.0, 30.0), Never(visibility=30))
        ledger.settle(receipt, Release(), now)
        assert ledger.due(now) == []
        assert [event.outcome for event in ledger.take_events() if isinstance(event, Settled)] == [Outcome.EXPIRED]
        assert held[0] not in ledger

    def test_a_lease_that_lapsed_is_not_released_even_if_it_was_extended_since(self) -> None:
        # On a standard queue an old receipt handle can be extended, too, while another consumer works on the message.
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        late = only(ledger.due(35))
        ledger.report(late, answers(late, Verdict.DONE), 35)
        lease = ledger.lease(receipt)
        assert lease is not None
        assert lease.doubtful
        ledger.settle(receipt, Release(), 40)
        assert ledger.due(40) == []
        assert [event.outcome for event in ledger.take_events() if isinstance(event, Settled)] == [Outcome.EXPIRED]

        successor = Ledger(Random(0))
        successor.hold(lease, POLICY)
        successor.settle(receipt, Release(), 42)
        assert successor.due(42) == [], "the next holder knows no more"

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

    @pytest.mark.parametrize("verdict", PASSING_VERDICTS)
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

    def test_a_dead_letter_that_the_service_refuses_is_released_and_its_outcome_is_that_it_failed(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        ledger.settle(receipt, DeadLetter("failed"), 5)
        call = only(ledger.due(5))
        ledger.report(call, answers(call, Verdict.REFUSED, text="denied"), 6)
        release = only(ledger.due(6))
        assert isinstance(release, ReleaseCall)
        ledger.report(release, answers(release, Verdict.DONE), 6)
        assert ledger.take_events() == [Settled(receipt, Outcome.FAILED, "denied")]
        assert ledger.due(1_000) == []

    @pytest.mark.parametrize("settlement", [Delete(), Release()])
    def test_a_settlement_that_the_service_refuses_ends_at_once(self, settlement: Settlement) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        ledger.settle(receipt, settlement, 5)
        call = only(ledger.due(5))
        ledger.report(call, answers(call, Verdict.REFUSED, text="denied"), 6)
        assert ledger.take_events() == [Settled(receipt, Outcome.FAILED, "denied", hidden_seconds=24.0)]
        assert ledger.due(1_000) == []

    @pytest.mark.parametrize("verdict", [Verdict.THROTTLED, Verdict.UNAVAILABLE])
    def test_a_release_that_was_certainly_not_carried_out_is_tried_again_soon(self, verdict: Verdict) -> None:
        receipt = Receipt("message", "handle")
        ledger = Ledger(Random(0))
        ledger.hold(Lease(receipt, 0.0, 900.0), Never(visibility=900))
        ledger.settle(receipt, Release(), 5)
        for now in (5.0, 5.3, 6.0):
            call = only(ledger.due(now))
            assert isinstance(call, ReleaseCall)
            ledger.report(call, answers(call, verdict), now)
        due = ledger.next_due()
        assert due is not None
        call = only(ledger.due(due))
        ledger.report(call, answers(call, Verdict.DONE), due)
        assert ledger.take_events() == [Settled(receipt, Outcome.RELEASED)]
        assert due < 10

    def test_the_delete_of_a_lease_that_lapsed_is_not_certain_on_a_standard_queue(self) -> None:
        for fifo, outcome in ((False, Outcome.UNCERTAIN), (True, Outcome.DELETED)):
            (receipt,) = receipts(1)
            ledger = Ledger(Random(0), fifo=fifo)
            ledger.hold(Lease(receipt, 0.0, 30.0), POLICY)
            late = only(ledger.due(35))
            ledger.report(late, answers(late, Verdict.DONE), 35)
            ledger.settle(receipt, Delete(), 40)
            delete = only(ledger.due(40))
            ledger.report(delete, answers(delete, Verdict.DONE), 40)
            ended = [event.outcome for event in ledger.take_events() if isinstance(event, Settled)]
            assert ended == [outcome]

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
