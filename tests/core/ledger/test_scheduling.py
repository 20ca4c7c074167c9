"""The ledger schedules every call, and no call costs a held lease, on a queue that is throttled, slow or was away."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import pytest

from sqs_lease.core.calls import Call, DeleteCall, ExtendCall, ForwardCall, ReleaseCall, Verdict
from sqs_lease.core.events import Outcome
from sqs_lease.core.failure_rules import DeadLetter, Delete, Release
from sqs_lease.core.ledger import (
    MAX_CALLS_UNDER_WAY,
    MAX_FORWARDS_UNDER_WAY,
    SLOTS_FOR_EXTENSIONS,
    Ledger,
)
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.pacing import AnswerTime
from sqs_lease.core.policies import Buffered, Fixed, Growing, Never, RenewalPolicy, Threshold
from tests.core.ledger.busy_service import BusyService, heavy_tailed_seconds
from tests.core.ledger.ledgers import only
from tests.core.service import answers, receipts

POLICY = Growing(visibility=30)


def batch_of(ledger: Ledger, count: int, *, received_at: float = 0.0, name: str = "held") -> list[Receipt]:
    held = [Receipt(f"{name}-{number}", "handle") for number in range(count)]
    for receipt in held:
        ledger.hold(Lease(receipt, received_at, received_at + 30), POLICY)
    return held


class TestCallRate:
    @pytest.mark.parametrize(("calls_per_second", "deletes"), [(10, 1_000), (50, 5_000)])
    @pytest.mark.parametrize("settled_at", [0.0, 5.0, 19.0])
    def test_deletes_beside_held_leases_cost_no_lease_and_come_through_in_full_calls(
        self, calls_per_second: float, deletes: int, settled_at: float
    ) -> None:
        service = BusyService(Ledger(Random(0)), calls_per_second)
        batch_of(service.ledger, 500)
        done = batch_of(service.ledger, deletes, name="done")
        service.run_until(settled_at)
        for receipt in done:
            service.ledger.settle(receipt, Delete(), service.now)
        service.run_until(settled_at + 60)
        assert service.lapses() == 0
        assert len(service.ledger) == 500
        assert set(service.outcomes()) <= {Outcome.DELETED, Outcome.UNCERTAIN}
        deleting = service.called(DeleteCall)
        assert sum(len(call.receipts) for _, call in deleting) / len(deleting) >= 9.5
        assert len(service.calls) <= 1.5 * (len(service.calls) - service.throttled)
        assert len(deleting) <= 1.5 * deletes / 10

    @pytest.mark.parametrize("settlement", [Release(), Release(60)])
    def test_releases_beside_held_leases_cost_no_lease(self, settlement: Release) -> None:
        service = BusyService(Ledger(Random(0)), 10)
        batch_of(service.ledger, 500)
        failed = batch_of(service.ledger, 1_000, name="failed")
        for receipt in failed:
            service.ledger.settle(receipt, settlement, 0)
        service.run_until(60)
        assert service.lapses() == 0
        assert service.outcomes() == {Outcome.RELEASED: 1_000}
        assert service.throttled < 50

    def test_a_settlement_does_not_starve_while_extensions_take_all_that_the_queue_allows(self) -> None:
        service = BusyService(Ledger(Random(0)), 10)
        for wave in range(20):
            batch_of(service.ledger, 100, received_at=wave / 10, name=f"wave-{wave}")
        service.run_until(25)
        (receipt,) = batch_of(service.ledger, 1, received_at=25, name="failed")
        service.ledger.settle(receipt, Release(), 25)
        service.run_until(28)
        assert service.outcomes() == {Outcome.RELEASED: 1}

    @pytest.mark.parametrize("urgent_calls", [1, 2, 3, 4, 5])
    @pytest.mark.parametrize("first_urgent", range(8))
    def test_a_settlement_waits_for_seven_calls_at_most_however_often_leases_become_urgent(
        self, urgent_calls: int, first_urgent: int
    ) -> None:
        ledger = Ledger(Random(0))
        ledger.hold(Lease(Receipt("held", "handle"), 0, 10_000), Fixed(visibility=10_000, every=1))
        now, before, kinds = 0.0, 16, list[type[Call]]()
        while len(kinds) < before + 40:
            due_at = ledger.next_due()
            assert due_at is not None
            now = max(now, due_at)
            if len(kinds) == before:
                ledger.hold(Lease(Receipt("done", "handle"), now, now + 10_000), Never(visibility=10_000))
                ledger.settle(Receipt("done", "handle"), Delete(), now)
            # A lease that is about to end comes and goes: other leases are received and settled.
            urgent = Receipt(f"urgent-{len(kinds)}", "handle")
            if (len(kinds) - first_urgent) % 8 < urgent_calls:
                ledger.hold(Lease(urgent, now - 29, now + 1), Fixed(visibility=30, every=1))
            for call in ledger.due(now):
                kinds.append(type(call))
                ledger.report(call, answers(call, Verdict.THROTTLED), now + 0.01)
            ledger.forget(urgent)
        assert DeleteCall in kinds[before : before + 8]

    @pytest.mark.parametrize(("live_until", "is_first"), [(110.0, True), (14.0, False)])
    def test_a_lapsed_lease_has_every_eighth_call_unless_a_live_one_is_about_to_end(
        self, live_until: float, is_first: bool
    ) -> None:
        ledger = Ledger(Random(0))
        for receipt in receipts(300):
            ledger.hold(Lease(receipt, 0, live_until), Fixed(visibility=100, every=1))
        lapsed = Receipt("lapsed", "handle")
        ledger.hold(Lease(lapsed, 0, 9), Fixed(visibility=100, every=1))
        (done,) = batch_of(ledger, 1, name="done")
        for number, call in enumerate(ledger.due(10, 6)):
            ledger.report(call, answers(call, Verdict.DONE if number < 3 else Verdict.THROTTLED), 10)
        ledger.settle(done, Delete(), 10)
        now, calls = 10.0, list[Call]()
        while len(calls) < 9:
            now = max(now, ledger.next_due() or now)
            for call in ledger.due(now, 1):
                calls.append(call)
                ledger.report(call, answers(call, Verdict.DONE), now)
        assert 11 < now < 13, "calls are spaced"
        assert any(lapsed in call.receipts for call in calls) is is_first

    @pytest.mark.parametrize("lost", [200, 1_000])
    def test_live_leases_go_on_when_throttling_ends_20_s_before_their_deadlines_although_others_are_lost(
        self, lost: int
    ) -> None:
        def away_until_110(call: Call, receipt: Receipt, now: float) -> Verdict:
            if now < 110:
                return Verdict.THROTTLED
            return Verdict.LOST if receipt.message_id.startswith("lost") else Verdict.DONE

        service = BusyService(Ledger(Random(0)), judge=away_until_110)
        batch_of(service.ledger, lost, received_at=60, name="lost")
        service.run_until(100)
        batch_of(service.ledger, 100, received_at=100)
        service.run_until(135)
        assert len(service.ledger) == 100
        assert not [event for event in service.events if "held" in event.receipt.message_id]

    def test_single_throttled_entries_neither_stop_the_others_nor_crumble_the_calls(self) -> None:
        random = Random(3)

        def three_in_ten_throttled(call: Call, receipt: Receipt, now: float) -> Verdict:
            return Verdict.THROTTLED if random.random() < 0.3 else Verdict.DONE

        service = BusyService(Ledger(Random(0)), judge=three_in_ten_throttled)
        batch_of(service.ledger, 500)
        for receipt in batch_of(service.ledger, 1_000, name="done"):
            service.ledger.settle(receipt, Delete(), 0)
        service.run_until(60)
        assert service.lapses() == 0
        assert service.outcomes() == {Outcome.DELETED: 1_000}
        assert len(service.called(DeleteCall)) < 1_000 / 10 / 0.7 * 1.5

    def test_a_throttled_dead_letter_queue_does_not_slow_down_extensions(self) -> None:
        def full(call: Call, receipt: Receipt, now: float) -> Verdict:
            return Verdict.THROTTLED if isinstance(call, ForwardCall) else Verdict.DONE

        service = BusyService(Ledger(Random(0)), judge=full)
        batch_of(service.ledger, 500)
        for receipt in batch_of(service.ledger, 100, name="failed"):
            service.ledger.settle(receipt, DeadLetter("failed"), 0)
        service.run_until(60)
        assert service.lapses() == 0
        assert service.throttled == 0
        assert {at for at, call in service.called(ExtendCall) if at < 30} <= {10.0, 10.02, 20.0, 20.02, 20.04}

    @pytest.mark.parametrize("share", [0.05, 0.1])
    @pytest.mark.parametrize("policy", [Growing(visibility=30), Fixed(visibility=30, every=20)])
    def test_calls_that_are_throttled_now_and_then_cost_no_lease(self, share: float, policy: RenewalPolicy) -> None:
        random = Random(2)
        throttled: dict[int, bool] = {}

        def now_and_then(call: Call, receipt: Receipt, now: float) -> Verdict:
            is_throttled = throttled.setdefault(id(call), random.random() < share)
            return Verdict.THROTTLED if is_throttled else Verdict.DONE

        service = BusyService(Ledger(Random(0)), judge=now_and_then)
        for receipt in receipts(500):
            service.ledger.hold(Lease(receipt, 0, 30), policy)
        service.run_until(900)
        assert service.lapses() == 0

    def test_one_throttled_call_on_an_idle_queue_does_not_slow_down_what_falls_due_next(self) -> None:
        def first_call(call: Call, receipt: Receipt, now: float) -> Verdict:
            return Verdict.THROTTLED if now < 19.6 else Verdict.DONE

        service = BusyService(Ledger(Random(0)), judge=first_call)
        batch_of(service.ledger, 1_000)
        (done,) = batch_of(service.ledger, 1, name="done")
        service.run_until(19.5)
        service.ledger.settle(done, Delete(), 19.5)
        service.run_until(60)
        assert service.lapses() == 0

    def test_a_lapsed_lease_has_every_eighth_call_of_a_paced_queue_also_where_nothing_is_settled(
        self,
    ) -> None:
        ledger = Ledger(Random(0))
        for receipt in receipts(300):
            ledger.hold(Lease(receipt, 0, 110), Fixed(visibility=100, every=1))
        lapsed = Receipt("lapsed", "handle")
        ledger.hold(Lease(lapsed, 0, 9), Fixed(visibility=100, every=1))
        for number, call in enumerate(ledger.due(10, 6)):
            ledger.report(call, answers(call, Verdict.DONE if number < 3 else Verdict.THROTTLED), 10)
        now, calls = 10.0, list[Call]()
        while len(calls) < 9:
            now = max(now, ledger.next_due() or now)
            for call in ledger.due(now, 1):
                calls.append(call)
                ledger.report(call, answers(call, Verdict.DONE), now)
        assert 11 < now < 13, "calls are spaced"
        assert any(lapsed in call.receipts for call in calls)


class TestSlowAnswers:
    @pytest.mark.parametrize("answer_seconds", [1.2, 3.0, 8.0])
    def test_a_lapsed_lease_that_was_not_taken_recovers_by_its_first_answered_extension(
        self, answer_seconds: float
    ) -> None:
        def away_until_50(call: Call) -> float:
            return 60.0 if service.now < 50 else answer_seconds

        service = BusyService(Ledger(Random(0)), answer_seconds=away_until_50)
        held = batch_of(service.ledger, 100)
        service.run_until(50)
        assert service.lapses() == 100
        while not _live(service, held):
            service.run_until(service.now + 0.5)
        # An extension sent just before the service was back takes its full time-out. The next one waits for a sixth of
        # what was asked for: the 50 s or so that were worked.
        assert service.now <= 50 + 10 + 10 + answer_seconds + 1
        service.run_until(300)
        assert len(service.ledger) == 100

    def test_one_overdue_lease_in_ten_does_not_cost_the_other_nine(self) -> None:
        service = BusyService(Ledger(Random(0)), answer_seconds=lambda _: 1.2, now=35.0)
        for number, receipt in enumerate(receipts(70)):
            deadline = 20.0 if number % 10 == 0 else 50.0
            service.ledger.hold(Lease(receipt, deadline - 30, deadline), POLICY)
        service.run_until(40)
        assert len([receipt for receipt in receipts(70) if _deadline(service, receipt) >= 60]) == 70
        assert service.lapses() == 7

    @pytest.mark.parametrize(("visibility", "answer_seconds"), [(10, 3.0), (30, 8.0)])
    def test_leases_outlive_a_service_that_is_always_slow(self, visibility: int, answer_seconds: float) -> None:
        service = BusyService(Ledger(Random(0)), answer_seconds=lambda _: answer_seconds)
        policy = Fixed(visibility=visibility, every=visibility * 2 / 3)
        for receipt in receipts(100):
            service.ledger.hold(Lease(receipt, 0, visibility), policy)
        service.run_until(60)
        lapsed_while_learning = service.lapses()
        service.run_until(600)
        assert service.lapses() == lapsed_while_learning

    @pytest.mark.parametrize(("answer_seconds", "renewed_at"), [(0.5, 56.0), (4.0, 52.0), (20.0, 42.0)])
    def test_renewals_come_earlier_where_answers_take_long_and_twice_as_often_at_most(
        self, answer_seconds: float, renewed_at: float
    ) -> None:
        ledger = Ledger(Random(0))
        ledger.hold(Lease(Receipt("held", "handle"), 0, 30), Fixed(visibility=30, every=28))
        call = only(ledger.due(28))
        ledger.report(call, answers(call, Verdict.DONE), 28 + answer_seconds)
        assert ledger.next_due() == pytest.approx(renewed_at)

    def test_answers_with_a_heavy_tail_cost_nothing(self) -> None:
        random = Random(5)
        service = BusyService(Ledger(Random(0)), answer_seconds=lambda _: heavy_tailed_seconds(random))
        batch_of(service.ledger, 500)
        service.run_until(600)
        assert len(service.ledger) == 500
        assert service.lapses() < 25, "one call in a hundred lapses at most"

    def test_the_time_out_of_an_extension_follows_its_most_urgent_live_lease(self) -> None:
        cases = {12.0: 6.0, 4.0: 2.0, 1.5: 10.0, -5.0: 10.0}
        for left, expected in cases.items():
            ledger = Ledger(Random(0))
            lapsed, urgent = receipts(2)
            ledger.hold(Lease(lapsed, 0, 90), POLICY)
            ledger.hold(Lease(urgent, 0, 100 + left), POLICY)
            assert ledger.timeout_seconds(only(ledger.due(100))) == expected, left

    def test_after_two_calls_in_vain_the_longer_wait_says_how_long_answers_take(self) -> None:
        """Seed 10013766: each next call was given less time, and four in a row were given up before their answers."""
        answers_take = AnswerTime()
        answers_take.unanswered(2.9)
        answers_take.unanswered(1.3)
        assert answers_take.expected_seconds == 2.9
        answers_take.answered(0.1)
        answers_take.unanswered(5.0)
        assert answers_take.expected_seconds < 2.9, "one alone was lost"

    def test_one_lease_about_to_end_does_not_cost_the_other_nine_their_second_try(self) -> None:
        lost = iter([True])
        service = BusyService(
            Ledger(Random(0)), answer_seconds=lambda _: 60.0 if next(lost, False) else 0.02, now=100.0
        )
        for number, receipt in enumerate(receipts(10)):
            deadline = 101.9 if number == 0 else 109.9
            service.ledger.hold(Lease(receipt, deadline - 30, deadline), POLICY)
        service.run_until(120)
        assert service.lapses() == 1


class TestLeasesThatChange:
    @pytest.mark.parametrize("policy", [Never(visibility=30), Growing(visibility=30, max_lease=20)])
    def test_an_adopted_lease_goes_on_by_the_new_policy(self, policy: RenewalPolicy) -> None:
        ledger = Ledger(Random(0))
        (receipt,) = receipts(1)
        ledger.hold(Lease(receipt, 0, 30), policy)
        ledger.hold(Lease(receipt, 0, 30), POLICY)
        assert ledger.due(9) == []
        assert isinstance(only(ledger.due(10)), ExtendCall)

    @pytest.mark.parametrize(
        "policy", [Growing(visibility=30), Buffered(visibility=30), Fixed(visibility=30, every=20)]
    )
    @pytest.mark.parametrize("lapsed_before", [True, False])
    def test_a_lease_that_lapsed_is_extended_by_no_more_than_the_visibility_timeout(
        self, policy: RenewalPolicy, *, lapsed_before: bool
    ) -> None:
        """It cannot be released early, so failed work stays invisible for as long as the longest extension."""
        ledger = Ledger(Random(0))
        (receipt,) = receipts(1)
        # Ten hours old, by a clock that may be wrong.
        deadline = 36_030.0 if lapsed_before else 30.0
        ledger.hold(Lease(receipt, 0, deadline, doubtful=lapsed_before), policy)
        ledger.extend_now(receipt)
        now = 36_000.0
        for _ in range(3):
            call = only(ledger.due(now))
            assert isinstance(call, ExtendCall)
            assert call.changes[0].seconds <= 30
            ledger.report(call, answers(call, Verdict.DONE), now)
            due_at = ledger.next_due()
            assert due_at is not None
            now = due_at

    def test_a_lease_that_is_taken_in_again_waits_for_the_call_that_is_still_under_way(self) -> None:
        ledger = Ledger(Random(0))
        (receipt,) = batch_of(ledger, 1)
        extension = only(ledger.due(20))
        ledger.forget(receipt)
        ledger.hold(Lease(receipt, 0, 30), POLICY)
        ledger.settle(receipt, Release(), 21)
        assert ledger.due(21) == [], "the extension may arrive after the release"
        ledger.report(extension, answers(extension, Verdict.DONE), 22)
        assert isinstance(only(ledger.due(22)), ReleaseCall)

    def test_a_policy_that_asks_for_a_renewal_after_the_deadline_gets_it_at_the_deadline(self) -> None:
        ledger = Ledger(Random(0))
        (receipt,) = receipts(1)
        ledger.hold(Lease(receipt, 0, 30), Threshold(visibility=30, heartbeat=100))
        assert ledger.next_due() == 30

    def test_a_release_is_repeated_until_two_seconds_before_the_lease_ends(self) -> None:
        def away_until_45(call: Call, receipt: Receipt, now: float) -> Verdict:
            return Verdict.UNAVAILABLE if now < 45 else Verdict.DONE

        service = BusyService(Ledger(Random(0)), judge=away_until_45)
        for receipt in receipts(200):
            service.ledger.hold(Lease(receipt, 0, 60), Never(visibility=60))
            service.ledger.settle(receipt, Release(), 1)
        service.run_until(60)
        assert service.outcomes() == {Outcome.RELEASED: 200}


class TestSlots:
    def test_forwards_behind_a_slow_source_delay_no_extension(self) -> None:
        def slow_source(call: Call) -> float:
            return 9.0 if isinstance(call, ForwardCall) else 0.02

        service = BusyService(Ledger(Random(0)), answer_seconds=slow_source)
        batch_of(service.ledger, 500)
        for receipt in batch_of(service.ledger, 64, name="failed"):
            service.ledger.settle(receipt, DeadLetter("failed"), 0)
        service.run_until(19)
        for receipt in batch_of(service.ledger, 100, received_at=19, name="done"):
            service.ledger.settle(receipt, Delete(), 19)
        service.run_until(19.5)
        assert service.outcomes()[Outcome.DELETED] == 100
        service.run_until(90)
        assert service.lapses() == 0
        assert max(at for at, call in service.called(ExtendCall) if at < 30) < 21
        assert service.outcomes() == {Outcome.DELETED: 100, Outcome.DEAD_LETTERED: 64}

    def test_deletes_that_get_no_answer_leave_slots_to_extensions(self) -> None:
        def silent_about_deletes(call: Call) -> float:
            return 60.0 if isinstance(call, DeleteCall) else 0.02

        service = BusyService(Ledger(Random(0)), answer_seconds=silent_about_deletes)
        batch_of(service.ledger, 500)
        for receipt in batch_of(service.ledger, 1_000, received_at=15, name="done"):
            service.ledger.settle(receipt, Delete(), 15)
        service.run_until(40)
        assert service.lapses() == 0

    def test_deletes_without_answers_leave_slots_free_for_an_extension_that_falls_due(self) -> None:
        ledger = Ledger(Random(0))
        batch_of(ledger, 1)
        for receipt in batch_of(ledger, 500, name="done"):
            ledger.settle(receipt, Delete(), 0)
        assert len(ledger.due(0)) == MAX_CALLS_UNDER_WAY - SLOTS_FOR_EXTENSIONS
        assert [type(call) for call in ledger.due(20)] == [ExtendCall]

    def test_no_more_forwards_are_under_way_than_have_slots(self) -> None:
        ledger = Ledger(Random(0))
        for receipt in batch_of(ledger, 64):
            ledger.settle(receipt, DeadLetter("failed"), 0)
        assert len(ledger.due(0)) == MAX_FORWARDS_UNDER_WAY
        assert ledger.next_due() is None or ledger.next_due() == 20


class TestReleasesBesideExtensions:
    def test_a_release_does_not_wait_for_many_slow_extensions(self) -> None:
        service = BusyService(Ledger(Random(0)), answer_seconds=lambda _: 5.0)
        batch_of(service.ledger, 2_000)
        service.run_until(20.1)
        (receipt,) = batch_of(service.ledger, 1, received_at=20.1, name="failed")
        service.ledger.settle(receipt, Release(), 20.1)
        service.run_until(20.2)
        assert [at for at, _ in service.called(ReleaseCall)] == [20.1]


class TestMisuse:
    def test_a_call_is_reported_once(self) -> None:
        ledger = Ledger(Random(0))
        batch_of(ledger, 1)
        call = only(ledger.due(20))
        ledger.report(call, answers(call, Verdict.DONE), 20)
        with pytest.raises(ValueError, match="not under way"):
            ledger.report(call, answers(call, Verdict.DONE), 20)

    def test_a_call_that_was_never_asked_for_is_not_reported(self) -> None:
        ledger = Ledger(Random(0))
        (receipt,) = batch_of(ledger, 1)
        with pytest.raises(ValueError, match="not under way"):
            ledger.report(DeleteCall(5, (receipt,)), [], 5)

    def test_an_answer_belongs_to_its_call(self) -> None:
        ledger = Ledger(Random(0))
        batch_of(ledger, 1)
        call = only(ledger.due(20))
        stranger = DeleteCall(5, (Receipt("stranger", "handle"),))
        with pytest.raises(ValueError, match="did not concern"):
            ledger.report(call, answers(stranger, Verdict.DONE), 20)


class TestCost:
    def test_extending_one_lease_again_and_again_leaves_no_items_behind(self) -> None:
        ledger = Ledger(Random(0))
        (receipt,) = batch_of(ledger, 1)
        for second in range(50_000):
            ledger.extend_now(receipt)
            call = only(ledger.due(second / 10))
            ledger.report(call, answers(call, Verdict.DONE), second / 10)
        assert sum(len(order) for order in (ledger._waiting, ledger._live, ledger._lapsed)) < 200

    def test_successes_one_by_one_on_a_fifo_queue_cost_no_more_each_when_there_are_many(self) -> None:
        def instructions(count: int) -> float:
            ledger = Ledger(Random(0), fifo=True)
            held = [Receipt(f"m-{number}", "handle") for number in range(count)]
            for receipt in held:
                ledger.hold(Lease(receipt, 0.0, 30.0, message_group_id="group"), POLICY)
            executed = 0

            def count_lines(frame: object, event: str, argument: object) -> Any:
                nonlocal executed
                executed += 1
                return count_lines

            sys.settrace(count_lines)
            try:
                for receipt in reversed(held):
                    ledger.settle(receipt, Delete(), 1)
                    ledger.waits_for_work(receipt)
                while len(ledger):
                    for call in ledger.due(1):
                        ledger.report(call, answers(call, Verdict.DONE), 1)
            finally:
                sys.settrace(None)
            return executed / count

        assert instructions(2_000) < 1.5 * instructions(200)


def _deadline(service: BusyService, receipt: Receipt) -> float:
    lease = service.ledger.lease(receipt)
    return 0.0 if lease is None else lease.deadline


def _live(service: BusyService, held: list[Receipt]) -> bool:
    return all(_deadline(service, receipt) > service.now for receipt in held)
