"""The rules that say what goes wrong: how often a queue may be called, and how long calls take."""

from __future__ import annotations

from random import Random

import pytest

from sqs_lease.testing import (
    NO_FAULT,
    CallRate,
    Fault,
    FaultRule,
    HeavyTail,
    Operation,
    Outages,
    RandomFaults,
    TransportCall,
)
from sqs_lease.testing.service_errors import ACCESS_DENIED, INTERNAL_ERROR, THROTTLED, UNAVAILABLE

ORDERS = "https://sqs.us-east-1.amazonaws.com/123456789012/orders"
OTHERS = "https://sqs.us-east-1.amazonaws.com/123456789012/others"


def call(at: float = 0.0, *, queue_url: str = ORDERS, operation: Operation = Operation.DELETE) -> TransportCall:
    return TransportCall(operation, queue_url, 10, at)


def let_through(rule: FaultRule, times: list[float]) -> int:
    return sum(rule(call(at)).error is None for at in times)


def test_a_queue_allows_so_many_calls_a_second() -> None:
    rule = CallRate(10)
    # A hundred calls a second for ten seconds: the bucket's ten at first, then ten each second.
    assert let_through(rule, [place / 100 for place in range(1000)]) == 109
    assert rule(call(10.0)).error == THROTTLED


def test_after_a_rest_a_burst_goes_through() -> None:
    rule = CallRate(10, burst=3)
    assert let_through(rule, [0.0] * 5) == 3
    assert let_through(rule, [100.0] * 5) == 3


def test_a_queue_may_allow_less_than_a_call_a_second() -> None:
    assert let_through(CallRate(0.5), [0.0, 1.0, 2.0, 2.5, 4.0]) == 3


def test_throttled_calls_take_nothing_of_the_rate() -> None:
    rule = CallRate(1)
    assert let_through(rule, [0.0, 0.5, 0.9, 1.0]) == 2


def test_every_kind_of_call_counts_and_each_queue_by_itself() -> None:
    rule = CallRate(1)
    assert rule(call(operation=Operation.RECEIVE)).error is None
    assert rule(call(operation=Operation.CHANGE_VISIBILITY)).error == THROTTLED
    assert rule(call(queue_url=OTHERS)).error is None


def test_the_rate_of_one_queue_leaves_the_others_alone() -> None:
    rule = CallRate(1, queue_url=ORDERS)
    assert [rule(call(queue_url=OTHERS)).error for _ in range(3)] == [None] * 3
    assert let_through(rule, [0.0] * 3) == 1


def test_a_call_that_does_not_reach_the_queue_does_not_count() -> None:
    faults = [Fault(unreachable=True), Fault(request_lost=True), Fault(answer_lost=True, carried_out=True), NO_FAULT]
    rule = CallRate(1, lambda _: faults.pop(0))
    assert rule(call()) == Fault(unreachable=True)
    assert rule(call()) == Fault(request_lost=True)
    assert rule(call()) == Fault(answer_lost=True, carried_out=True)
    assert rule(call()) == Fault(error=THROTTLED)


def test_most_calls_take_hardly_any_time_and_a_few_very_long() -> None:
    rule = HeavyTail(random=Random(1))
    faults = [rule(call()) for _ in range(20_000)]
    times = sorted(fault.before_seconds + fault.after_seconds for fault in faults)
    assert times[0] >= 0.01
    assert times[-1] == pytest.approx(10)
    assert times[10_000] == pytest.approx(0.02, rel=0.05)
    assert sum(time > 1 for time in times) == pytest.approx(200, rel=0.2)
    early = sum(fault.before_seconds < fault.after_seconds for fault in faults)
    assert early == pytest.approx(10_000, rel=0.05)


def test_a_thicker_tail_has_more_of_the_long_calls() -> None:
    rule = HeavyTail(random=Random(1), tail=0.5)
    faults = [rule(call()) for _ in range(10_000)]
    assert sum(fault.before_seconds + fault.after_seconds > 1 for fault in faults) == pytest.approx(1000, rel=0.1)


def test_rules_add_to_one_another() -> None:
    random = Random(1)
    some = RandomFaults(random=random, throttled_entries=0.5, failed_entries=0.5)
    rule = Outages([(60, 120)], CallRate(2, HeavyTail(random=random, otherwise=some)))
    first, second, third = (rule(call()) for _ in range(3))
    assert set(first.entry_errors.values()) | set(second.entry_errors.values()) == {THROTTLED, INTERNAL_ERROR}
    assert len(first.entry_errors) == 10
    assert first.before_seconds > 0
    assert third.error == THROTTLED
    assert rule(call(60.0)) == Fault(error=UNAVAILABLE)


def test_one_kind_of_call_can_be_refused_for_a_time() -> None:
    rule = Outages([(60, 120)], error=ACCESS_DENIED, operation=Operation.DELETE)
    assert rule(call(60.0)).error == ACCESS_DENIED
    assert rule(call(60.0, operation=Operation.RECEIVE)) == NO_FAULT
    assert rule(call(120.0)) == NO_FAULT


def test_random_faults_have_the_shares_that_they_were_given() -> None:
    rule = RandomFaults(
        random=Random(1),
        throttled=0.1,
        unavailable=0.1,
        failed=0.1,
        done_but_failed=0.1,
        refused_connections=0.1,
        lost_requests=0.1,
        lost_answers=0.1,
        unstoppable=0.5,
    )
    faults = [rule(call()) for _ in range(10_000)]
    for share in (
        sum(fault.error == THROTTLED for fault in faults),
        sum(fault.error == UNAVAILABLE for fault in faults),
        sum(fault.error == INTERNAL_ERROR for fault in faults) / 2,
        sum(fault.carried_out for fault in faults),
        sum(fault.unreachable for fault in faults),
        sum(fault.request_lost for fault in faults),
        sum(fault.answer_lost for fault in faults),
        sum(fault.unstoppable for fault in faults) / 5,
    ):
        assert share == pytest.approx(1000, rel=0.1)


def test_calls_without_entries_have_no_failed_entries() -> None:
    rule = RandomFaults(random=Random(1), throttled_entries=1.0)
    assert not rule(call(operation=Operation.RECEIVE)).entry_errors
    assert len(rule(call()).entry_errors) == 10
