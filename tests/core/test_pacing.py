"""How fast a queue that throttles is called, and how soon a failed call is made again: rules with figures."""

from __future__ import annotations

import math
from random import Random

import pytest

from sqs_lease.core.pacing import (
    LAST_TRY_SECONDS,
    SLOWEST_CALLS_PER_SECOND,
    CallPacing,
    extension_retry_seconds,
    settlement_retry_seconds,
)


def throttled_once() -> CallPacing:
    """A pacing whose calls were throttled for the first time at 0 s, while others went through."""
    pacing = CallPacing(Random(0))
    for _ in range(3):
        pacing.went_through(-0.1, 0.0)
        pacing.throttled(-0.1, 0.0)
    return pacing


def calls_until(pacing: CallPacing, since: float, until: float) -> int:
    """Make as many calls as are admitted, each answered at once; return how many."""
    now, calls = since, 0
    while pacing.is_pacing and (now := max(now, pacing.open_at)) < until:
        pacing.sent(now)
        pacing.went_through(now, now)
        calls += 1
    return calls


def calls_per_second(pacing: CallPacing, now: float) -> float:
    """The pace in force."""
    pacing.sent(now)
    return 1 / (pacing.open_at - now)


def test_calls_that_are_throttled_together_slow_down_once() -> None:
    pacing = CallPacing(Random(0))
    for _ in range(8):
        pacing.throttled(0.0, 0.1)
    assert calls_per_second(pacing, 1.0) == pytest.approx(5)


def test_the_pace_becomes_three_quarters_of_what_the_queue_bore() -> None:
    assert calls_per_second(throttled_once(), 1.0) == pytest.approx(7.5)


def test_a_queue_that_throttles_everything_is_called_every_two_seconds() -> None:
    pacing = CallPacing(Random(0))
    for second in range(0, 100, 2):
        pacing.throttled(second, second + 0.1)
    assert calls_per_second(pacing, 100.0) == pytest.approx(SLOWEST_CALLS_PER_SECOND)


def test_beyond_where_throttling_began_the_pace_grows_by_a_tenth_a_second_while_calls_are_made() -> None:
    pacing = throttled_once()
    seconds = [calls_until(pacing, float(second), second + 1.0) for second in range(15)]
    assert seconds[0] <= 8
    assert 16 <= seconds[-1] <= 20


def test_calls_are_spaced_no_more_after_15_s_without_a_throttled_one() -> None:
    pacing = throttled_once()
    calls_until(pacing, 0.0, 14.9)
    assert pacing.is_pacing
    calls_until(pacing, 14.9, 15.2)
    assert not pacing.is_pacing


@pytest.mark.parametrize(("tries", "longest"), [(1, 0.2), (2, 0.4), (5, 3.2), (8, 25.6), (9, 30.0), (1_000, 30.0)])
def test_a_settlement_waits_twice_as_long_after_each_try_up_to_30_s(tries: int, longest: float) -> None:
    for seed in range(20):
        assert longest / 2 <= settlement_retry_seconds(tries, math.inf, Random(seed)) <= longest


def test_a_settlement_waits_no_longer_than_a_quarter_of_what_its_lease_has_left() -> None:
    assert max(settlement_retry_seconds(9, 8.0, Random(seed)) for seed in range(20)) <= 2.0


@pytest.mark.parametrize(("left", "longest"), [(80.0, 20.0), (10.0, 2.5), (1_000.0, 30.0), (-600.0, 5.0)])
def test_an_extension_waits_for_a_quarter_of_what_is_left_or_a_sixth_of_what_was_asked_for(
    left: float, longest: float
) -> None:
    for seed in range(20):
        assert longest / 2 <= extension_retry_seconds(left, 30.0, Random(seed)) <= longest


def test_an_extension_is_tried_for_the_last_time_just_before_the_deadline() -> None:
    assert {extension_retry_seconds(0.1, 30.0, Random(seed)) for seed in range(20)} == {0.1 - LAST_TRY_SECONDS}
