"""Every lease comes to an end in bounded time, and the ledger keeps nothing of it."""

from __future__ import annotations

from random import Random

import pytest

from sqs_lease.core.calls import Call, DeleteCall, EntryAnswer, ExtendCall, ForwardCall, ReleaseCall, Verdict
from sqs_lease.core.events import Lost, Outcome, Settled
from sqs_lease.core.failure_rules import DeadLetter, Delete, Release, Settlement
from sqs_lease.core.ledger import SETTLE_SECONDS, Ledger
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.policies import Fixed, Growing
from sqs_lease.core.timers import TimeOrder
from tests.core.ledger.busy_service import BusyService
from tests.core.ledger.ledgers import POLICY, ledger_with, only
from tests.core.service import answers, receipts


def assert_empty(ledger: Ledger) -> None:
    assert len(ledger) == 0
    assert ledger.next_due() is None
    for name, kept in vars(ledger).items():
        orders = isinstance(kept, dict) and any(isinstance(one, TimeOrder) for one in kept.values())
        containers = kept.values() if orders else [kept]
        assert not any(len(one) for one in containers if hasattr(one, "__len__")), name


def settle(ledger: Ledger, receipt: Receipt, settlement: Settlement, verdict: Verdict, now: float) -> None:
    ledger.settle(receipt, settlement, now)
    call = only(ledger.due(now))
    ledger.report(call, answers(call, verdict), now)


class TestWhatComesAgain:
    def test_a_lease_is_extended_when_another_batch_takes_it_after_its_delete_was_refused(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        settle(ledger, receipt, Delete(), Verdict.REFUSED, 5)
        ledger.hold(Lease(receipt, 0.0, 30.0), POLICY, batch=2)
        assert isinstance(only(ledger.due(20)), ExtendCall)

    def test_a_lease_goes_on_with_the_extension_that_was_under_way_when_it_was_forgotten(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        extension = only(ledger.due(20))
        ledger.forget(receipt)
        ledger.hold(Lease(receipt, 0.0, 30.0), POLICY, batch=2)
        assert ledger.due(21) == [], "two calls about one receipt could arrive in either order"
        ledger.report(extension, answers(extension, Verdict.DONE), 22)
        lease = ledger.lease(receipt)
        assert lease is not None
        assert lease.deadline == 50

    def test_a_lease_is_lost_by_the_extension_that_was_under_way_when_it_was_forgotten(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        extension = only(ledger.due(20))
        ledger.forget(receipt)
        ledger.hold(Lease(receipt, 0.0, 30.0), POLICY, batch=2)
        ledger.report(extension, answers(extension, Verdict.LOST, text="gone"), 22)
        assert ledger.take_events() == [Lost(receipt, "gone")]
        assert_empty(ledger)

    @pytest.mark.parametrize("verdict", [Verdict.DONE, Verdict.LOST, Verdict.CAPPED, Verdict.TRANSIENT])
    @pytest.mark.parametrize("settlement", [Delete(), Release(), Release(60), DeadLetter("failed")], ids=repr)
    def test_a_lease_that_was_forgotten_while_a_settlement_was_under_way_is_in_doubt_when_it_comes_again(
        self, settlement: Settlement, verdict: Verdict
    ) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        ledger.settle(receipt, settlement, 5)
        call = only(ledger.due(5))
        ledger.forget(receipt)
        ledger.hold(Lease(receipt, 0.0, 30.0), POLICY, batch=2)
        ledger.report(call, answers(call, verdict), 6)
        lease = ledger.lease(receipt)
        assert lease is not None
        assert lease.doubtful, "the message may be visible, or gone"
        assert isinstance(only(ledger.due(6)), ExtendCall)

    @pytest.mark.parametrize("verdict", [Verdict.THROTTLED, Verdict.UNAVAILABLE, Verdict.REFUSED])
    def test_a_lease_that_was_forgotten_goes_on_where_its_settlement_was_certainly_not_carried_out(
        self, verdict: Verdict
    ) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        ledger.settle(receipt, Release(), 5)
        call = only(ledger.due(5))
        ledger.forget(receipt)
        ledger.hold(Lease(receipt, 0.0, 30.0), POLICY, batch=2)
        ledger.report(call, answers(call, verdict), 6)
        assert ledger.due(19) == []
        assert isinstance(only(ledger.due(20)), ExtendCall)

    def test_forgotten_leases_leave_nothing_when_their_calls_are_answered(self) -> None:
        held = receipts(25)
        ledger = ledger_with(*held)
        for receipt in held[:5]:
            ledger.settle(receipt, Delete(), 20)
        calls = ledger.due(20)
        for receipt in held:
            ledger.forget(receipt)
        for call in calls:
            ledger.report(call, answers(call, Verdict.DONE), 21)
        assert_empty(ledger)


@pytest.mark.parametrize("verdict", [Verdict.DONE, Verdict.LOST, Verdict.REFUSED])
@pytest.mark.parametrize("settlement", [Delete(), Release(), DeadLetter("failed")], ids=repr)
@pytest.mark.parametrize("fifo", [False, True])
def test_nothing_of_a_settled_lease_stays(settlement: Settlement, verdict: Verdict, *, fifo: bool) -> None:
    ledger = Ledger(Random(0), fifo=fifo)
    for number, receipt in enumerate(receipts(2_000)):
        ledger.hold(Lease(receipt, 0.0, 30.0, message_group_id=f"group {number % 7}"), POLICY)
    for receipt in receipts(2_000):
        ledger.settle(receipt, settlement, 5)
    while calls := ledger.due(5):
        for call in calls:
            ledger.report(call, answers(call, verdict), 5)
    assert len(ledger.take_events()) == 2_000
    assert_empty(ledger)


class TestAge:
    @pytest.mark.parametrize("messages", [10, 1_000, 10_000])
    @pytest.mark.parametrize("settlement", [Delete(), DeadLetter("failed")], ids=repr)
    def test_settlements_that_are_throttled_for_ever_end_by_their_age_however_many_there_are(
        self, settlement: Settlement, messages: int
    ) -> None:
        def throttled(call: Call, receipt: Receipt, now: float) -> Verdict:
            return Verdict.THROTTLED

        service = BusyService(Ledger(Random(0)), judge=throttled)
        for receipt in receipts(messages):
            service.ledger.hold(Lease(receipt, 0.0, 30.0), POLICY)
            service.ledger.settle(receipt, settlement, 0)
        service.run_until(SETTLE_SECONDS + 5)
        assert service.outcomes() == {Outcome.FAILED: messages}
        assert_empty(service.ledger)

    @pytest.mark.parametrize("jitter", range(20))
    @pytest.mark.parametrize("settlement", [Delete(), DeadLetter("failed")], ids=repr)
    def test_a_settlement_is_tried_last_at_the_end_of_its_age(self, settlement: Settlement, jitter: int) -> None:
        def unavailable(call: Call, receipt: Receipt, now: float) -> Verdict:
            return Verdict.UNAVAILABLE

        service = BusyService(Ledger(Random(jitter)), judge=unavailable)
        (receipt,) = receipts(1)
        service.ledger.hold(Lease(receipt, 0.0, 30.0), POLICY)
        service.ledger.settle(receipt, settlement, 0)
        service.run_until(SETTLE_SECONDS - 0.1)
        assert service.outcomes() == {}
        service.run_until(SETTLE_SECONDS + 1)
        assert service.outcomes() == {Outcome.FAILED: 1}

    def test_settlements_during_an_outage_end_by_their_age_though_not_each_was_tried(self) -> None:
        service = BusyService(Ledger(Random(0)), answer_seconds=lambda _: 60.0)
        for receipt in receipts(10_000):
            service.ledger.hold(Lease(receipt, 0.0, 30.0), POLICY)
            service.ledger.settle(receipt, Delete(), 0)
        service.run_until(SETTLE_SECONDS + 35)
        assert service.outcomes() == {Outcome.FAILED: 10_000}

    def test_a_queue_that_deletes_slowly_deletes_all(self) -> None:
        service = BusyService(Ledger(Random(0)), calls_per_second=2.0)
        for receipt in receipts(4_000):
            service.ledger.hold(Lease(receipt, 0.0, 30.0), POLICY)
            service.ledger.settle(receipt, Delete(), 0)
        service.run_until(600)
        assert service.outcomes().get(Outcome.FAILED) is None
        assert_empty(service.ledger)

    def test_a_long_lease_gives_its_settlement_the_time_that_it_has(self) -> None:
        def away_until_200(call: Call, receipt: Receipt, now: float) -> Verdict:
            return Verdict.UNAVAILABLE if now < 200 else Verdict.DONE

        service = BusyService(Ledger(Random(0)), judge=away_until_200)
        for receipt in receipts(100):
            service.ledger.hold(Lease(receipt, 0.0, 900.0), Growing(visibility=900))
            service.ledger.settle(receipt, Delete(), 0)
        service.run_until(300)
        assert service.outcomes() == {Outcome.DELETED: 100}

    def test_a_process_that_stood_still_tries_before_it_gives_up(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        ledger.settle(receipt, Delete(), 5)
        assert ledger.due(500) == [DeleteCall(500, (receipt,))]


class TestUncertain:
    def test_a_delete_that_is_refused_after_one_without_an_answer_is_uncertain_and_not_lost(self) -> None:
        held = receipts(10)
        ledger = ledger_with(*held)
        for receipt in held:
            ledger.settle(receipt, Delete(), 5)
        first = only(ledger.due(5))
        ledger.report(first, [], 15)
        now = ledger.next_due()
        assert now is not None
        second = only(ledger.due(now))
        ledger.report(second, answers(second, Verdict.LOST, text="no such receipt"), now)
        ended = ledger.take_events()
        assert {event.outcome for event in ended if isinstance(event, Settled)} == {Outcome.UNCERTAIN}
        assert all("no such receipt" in event.detail for event in ended if isinstance(event, Settled))

    def test_a_delete_that_is_refused_at_its_first_try_is_lost(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        settle(ledger, receipt, Delete(), Verdict.LOST, 5)
        assert [event.outcome for event in ledger.take_events() if isinstance(event, Settled)] == [Outcome.LOST]

    def test_a_dead_lettered_message_stays_so_when_its_unanswered_delete_is_refused(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        settle(ledger, receipt, DeadLetter("failed"), Verdict.DONE, 5)
        ledger.report(only(ledger.due(5)), [], 15)
        now = ledger.next_due()
        assert now is not None
        second = only(ledger.due(now))
        ledger.report(second, answers(second, Verdict.LOST), now)
        (ended,) = ledger.take_events()
        assert isinstance(ended, Settled)
        assert ended.outcome is Outcome.DEAD_LETTERED


class TestFilledCalls:
    def test_settlements_wait_for_one_another_until_ten_fill_a_call(self) -> None:
        held = receipts(10)
        ledger = ledger_with(*held)
        for receipt in held[:9]:
            ledger.settle(receipt, Delete(), 5, within_seconds=0.1)
            assert ledger.due(5) == []
        ledger.settle(held[9], Delete(), 5, within_seconds=0.1)
        assert set(only(ledger.due(5)).receipts) == set(held)

    def test_a_settlement_that_stays_alone_waits_no_longer_than_it_may(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        ledger.settle(receipt, Release(), 5, within_seconds=0.1)
        assert ledger.next_due() == pytest.approx(5.1)
        assert [type(call) for call in ledger.due(5.1)] == [ReleaseCall]

    def test_those_that_wait_fill_a_call_that_is_made_anyway(self) -> None:
        held = receipts(3)
        ledger = ledger_with(*held)
        for receipt in held[:2]:
            ledger.settle(receipt, Delete(), 5, within_seconds=0.1)
        ledger.settle(held[2], Delete(), 5)
        assert set(only(ledger.due(5)).receipts) == set(held)

    def test_settlements_that_wait_for_another_try_are_not_hurried_by_new_ones(self) -> None:
        held = receipts(20)
        ledger = ledger_with(*held)
        for receipt in held[:10]:
            ledger.settle(receipt, Delete(), 5, within_seconds=0.1)
        failed = only(ledger.due(5))
        ledger.report(failed, answers(failed, Verdict.UNAVAILABLE), 5)
        for receipt in held[10:]:
            ledger.settle(receipt, Delete(), 5, within_seconds=0.1)
        assert set(only(ledger.due(5)).receipts) == set(held[10:])

    def test_another_try_fills_a_call_only_where_it_is_due_within_a_second(self) -> None:
        failing, beside = held = receipts(2)
        ledger = ledger_with(*held)
        ledger.settle(failing, Delete(), 5)
        now, tries_at = 5.0, [5.0]
        while tries_at[-1] - now <= 1:
            now = tries_at[-1]
            call = only(ledger.due(now))
            ledger.report(call, answers(call, Verdict.UNAVAILABLE), now)
            tries_at.append(ledger.next_due() or now)
        ledger.settle(beside, Delete(), now)
        assert only(ledger.due(now)).receipts == (beside,)


class TestLastExtension:
    def test_a_short_lease_is_extended_once_until_the_time_and_no_more(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        assert ledger.extend_until(receipt, 305, 5)
        call = only(ledger.due(5))
        assert isinstance(call, ExtendCall)
        assert call.changes[0].seconds == 300
        ledger.report(call, answers(call, Verdict.DONE), 6)
        assert not ledger.extend_until(receipt, 305, 6)
        assert ledger.due(304) == []

    def test_a_lease_that_lasts_longer_is_left_alone(self) -> None:
        receipt = Receipt("message", "handle")
        ledger = Ledger(Random(0))
        ledger.hold(Lease(receipt, 0.0, 400.0), POLICY)
        assert not ledger.extend_until(receipt, 300, 5)
        assert ledger.due(399) == []

    @pytest.mark.parametrize("verdict", [Verdict.UNAVAILABLE, Verdict.TRANSIENT, Verdict.THROTTLED])
    def test_a_failed_one_is_tried_again(self, verdict: Verdict) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        ledger.extend_until(receipt, 305, 5)
        call = only(ledger.due(5))
        ledger.report(call, answers(call, verdict), 5)
        assert ledger.extend_until(receipt, 305, 5)
        now = ledger.next_due()
        assert now is not None
        assert now < 13
        assert isinstance(only(ledger.due(now)), ExtendCall)

    def test_an_extension_under_way_is_awaited_and_followed_by_the_last_one(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        call = only(ledger.due(20))
        assert ledger.extend_until(receipt, 321, 21)
        ledger.report(call, answers(call, Verdict.DONE), 22)
        assert ledger.extend_until(receipt, 321, 22)
        last = only(ledger.due(22))
        assert isinstance(last, ExtendCall)
        assert last.changes[0].seconds == 299

    def test_a_lease_in_doubt_is_extended_by_its_visibility_timeout_at_most_and_once(self) -> None:
        receipt = Receipt("message", "handle")
        ledger = Ledger(Random(0))
        ledger.hold(Lease(receipt, 0.0, 30.0, doubtful=True), POLICY)
        assert ledger.extend_until(receipt, 305, 5)
        call = only(ledger.due(5.1))
        assert isinstance(call, ExtendCall)
        assert call.changes[0].seconds == 30
        ledger.report(call, answers(call, Verdict.DONE), 6)
        assert not ledger.extend_until(receipt, 305, 6)
        assert ledger.due(34) == []

    def test_a_lease_that_is_due_but_long_enough_is_left_alone(self) -> None:
        receipt = Receipt("message", "handle")
        ledger = Ledger(Random(0))
        ledger.hold(Lease(receipt, 0.0, 100.0), Fixed(visibility=90, every=20))
        ledger.extend_now(receipt)
        assert not ledger.extend_until(receipt, 90, 5)
        assert ledger.due(5) == []

    def test_a_lease_that_is_being_settled_is_not_extended(self) -> None:
        (receipt,) = held = receipts(1)
        ledger = ledger_with(*held)
        ledger.settle(receipt, Delete(), 5)
        assert not ledger.extend_until(receipt, 305, 5)
        assert not any(isinstance(call, ExtendCall) for call in ledger.due(5))


def test_a_refused_forward_of_one_does_not_end_the_others() -> None:
    held = receipts(2)
    ledger = ledger_with(*held)
    for receipt in held:
        ledger.settle(receipt, DeadLetter("failed"), 5)
    first, second = ledger.due(5)
    assert isinstance(first, ForwardCall)
    ledger.report(first, answers(first, Verdict.REFUSED), 5)
    ledger.report(second, [EntryAnswer(receipt, Verdict.DONE) for receipt in second.receipts], 5)
    for call in ledger.due(5):
        ledger.report(call, answers(call, Verdict.DONE), 5)
    outcomes = [event.outcome for event in ledger.take_events() if isinstance(event, Settled)]
    assert outcomes == [Outcome.FAILED, Outcome.DEAD_LETTERED]


def test_a_lease_in_doubt_that_is_passed_on_is_extended_once_also_by_a_call_that_takes_no_time() -> None:
    (receipt,) = receipts(1)
    ledger = Ledger(Random(0))
    ledger.hold(Lease(receipt, 0.0, 30.0, doubtful=True), POLICY)
    assert ledger.extend_until(receipt, 310, 10)
    call = only(ledger.due(10))
    ledger.report(call, answers(call, Verdict.DONE), 10)
    assert ledger.due(10) == []
    assert not ledger.extend_until(receipt, 310, 10)
