"""When each policy extends, to the second, and how much of a lease is left then: rules and published timelines."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sqs_lease.core.events import Ending, Lapsed
from sqs_lease.core.failure_rules import Delete
from sqs_lease.core.ledger import Entry
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.policies import (
    Buffered,
    Fixed,
    Growing,
    LastExtension,
    Never,
    RenewalPolicy,
    Threshold,
    default_visibility_seconds,
    seconds_left_at_worst,
    with_visibility,
)
from tests.core.service import Timeline


@pytest.mark.parametrize(
    ("visibility", "left"),
    [(15, 10.0), (30, 20.0), (45, 20.0), (60, 20.0), (90, 30.0), (900, 300.0)],
    ids="{} s".format,
)
def test_growing_renews_with_a_third_left_and_with_20_s_or_two_thirds_of_a_short_period(
    visibility: int, left: float
) -> None:
    assert seconds_left_at_worst(Growing(visibility=visibility)) == pytest.approx(left)


def test_a_larger_margin_of_growing_counts_where_it_is_more_than_20_s() -> None:
    assert seconds_left_at_worst(Growing(visibility=60, margin=0.5)) == pytest.approx(30)
    assert seconds_left_at_worst(Growing(visibility=60, margin=0.1)) == pytest.approx(20)


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        (Threshold(visibility=30), 5.0),
        (Fixed(visibility=30, every=20), 10.0),
        (Never(visibility=30), None),
    ],
    ids=repr,
)
def test_other_policies_leave_what_they_say(policy: RenewalPolicy, left: float | None) -> None:
    assert seconds_left_at_worst(policy) == (left if left is None else pytest.approx(left))


@pytest.mark.parametrize(
    ("policy", "takeover_seconds", "shortest"),
    [(Growing(), 60, 180), (Growing(), 20, 30), (Growing(), 10, 15), (Growing(margin=0.5), 60, 120)],
    ids=repr,
)
def test_the_default_visibility_timeout_is_the_shortest_of_which_a_takeover_is_left(
    policy: Growing, takeover_seconds: int, shortest: int
) -> None:
    chosen = with_visibility(policy, takeover_seconds)
    assert (chosen.visibility, default_visibility_seconds(policy, takeover_seconds)) == (shortest, shortest)
    left = seconds_left_at_worst(chosen)
    assert left is not None
    assert left >= takeover_seconds - 1e-9


def test_the_last_extension_is_made_once_and_only_where_the_lease_is_shorter() -> None:
    policy = LastExtension.of(Growing(visibility=30), until=100.0, since=50.0)

    def entry(renewed_at: float, deadline: float) -> Entry:
        return Entry(Lease(Receipt("m", "h"), 0.0, deadline, renewed_at=renewed_at), policy, 1)

    def renewed(at: float, deadline: float) -> float | None:
        return policy.renew_at(entry(at, deadline))

    assert renewed(40.0, 70.0) == 50.0
    assert renewed(50.5, 70.0) is None, "it was made, and confirmed less"
    assert renewed(0.0, 30.0) == 50.0, "it was received, and not extended yet"
    assert LastExtension.of(policy, until=100.0, since=0.0).renew_at(entry(0.0, 30.0)) == 0.0, "just received"
    assert renewed(40.0, 100.0) is None, "it lasts so long already"


def test_threshold_extends_once_at_25_s_to_55_s_and_deletes_at_45_s() -> None:
    timeline = Timeline(Threshold(visibility=30, threshold=5, heartbeat=1))

    timeline.run_until(45)
    assert list(timeline.deadlines()) == [55.0]
    timeline.ledger.settle(timeline.receipts[0], Delete(), timeline.now)
    timeline.run_until(100)

    assert timeline.extensions() == [(25.0, 30)]
    assert timeline.deletes() == [45.0]


def test_threshold_waits_for_the_heartbeat_after_the_threshold_is_reached() -> None:
    # 30 s, 5 s left at T+25, which is not a heartbeat of 4 s; the next is T+28.
    timeline = Timeline(Threshold(visibility=30, threshold=5, heartbeat=4))
    timeline.run_until(60)
    assert timeline.extensions() == [(28.0, 30), (56.0, 30)]


@pytest.mark.parametrize(
    ("remaining", "wait"),
    [(0, 0), (0.39, 0), (0.4, 0.2), (1, 0.5), (20, 10), (30, 20), (160, 150), (-2, 0)],
)
def test_buffered_waits_until_half_is_left_or_ten_seconds(remaining: float, wait: float) -> None:
    assert Buffered(visibility=30).wait_seconds(remaining) == pytest.approx(wait)


def test_buffered_renews_at_20_s_by_40_s_then_every_30_s() -> None:
    timeline = Timeline(Buffered(visibility=30))
    timeline.run_until(100)
    assert timeline.extensions() == [(20.0, 40), (50.0, 40), (80.0, 40)]


def test_buffered_with_max_lease_of_five_minutes_does_nothing_after_300_s() -> None:
    timeline = Timeline(Buffered(visibility=30, max_lease=timedelta(minutes=5)))
    timeline.run_until(1_000)
    assert max(at + seconds for at, seconds in timeline.extensions()) == 300
    assert timeline.extensions() == [(20.0 + 30 * number, 40) for number in range(9)]


def test_buffered_overdue_by_two_seconds_extends_by_32_s() -> None:
    policy = Buffered(visibility=30)
    lease = _times(received_at=0, renewed_at=0, deadline=30)
    assert policy.extension_seconds(lease, now=32) == 32


@pytest.mark.parametrize(
    "policy",
    [
        Never(visibility=30),
        Buffered(visibility=30, max_lease=0),
        Growing(visibility=30, max_lease=0),
        Fixed(visibility=30, every=10, max_lease=0),
        Threshold(visibility=30, max_lease=0),
    ],
    ids=repr,
)
def test_never_and_a_max_lease_of_zero_extend_nothing_and_say_when_the_lease_lapsed(policy: RenewalPolicy) -> None:
    timeline = Timeline(policy)
    timeline.run_until(10_000)
    assert timeline.extensions() == []
    assert timeline.ledger.take_events() == [Lapsed(timeline.receipts[0], 0.0)]


def test_fixed_extends_by_the_visibility_every_interval() -> None:
    timeline = Timeline(Fixed(visibility=120, every=60))
    timeline.run_until(200)
    assert timeline.extensions() == [(60.0, 120), (120.0, 120), (180.0, 120)]


def test_growing_holds_1000_messages_for_an_hour_with_at_most_1600_calls() -> None:
    timeline = Timeline(Growing(visibility=30), count=1_000)
    timeline.run_until(3_600)
    for receipt in timeline.receipts:
        timeline.ledger.settle(receipt, Delete(), timeline.now)
    timeline.run_until(3_600)

    receives = 100
    assert len(timeline.deletes()) == 1_000
    assert receives + len(timeline.calls) <= 1_600


@pytest.mark.parametrize("growth", [0.25, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("ceiling", [45, 600, 3_600])
def test_growing_never_puts_the_next_expiry_further_away_than_its_bound(growth: float, ceiling: int) -> None:
    timeline = Timeline(Growing(visibility=30, growth=growth, ceiling=ceiling), count=25)

    def check() -> None:
        bound = max(30, min(growth * timeline.now, ceiling))
        # A tolerance for floats only: one of them is a difference of large numbers.
        assert all(deadline - timeline.now <= bound + 1e-6 for deadline in timeline.deadlines())

    timeline.run_until(4 * 3_600, after_each_call=check)
    assert timeline.extensions()


def test_growing_calls_grow_with_the_logarithm_of_the_job_until_the_ceiling() -> None:
    calls = {}
    for hours in (1, 2, 4, 8):
        timeline = Timeline(Growing(visibility=30, ceiling=timedelta(hours=12)))
        timeline.run_until(hours * 3_600)
        calls[hours] = len(timeline.calls)
    # One doubling of the job adds the same few calls each time.
    assert all(calls[2 * hours] - calls[hours] <= 2 for hours in (1, 2, 4))


@pytest.mark.parametrize(
    "policy",
    [
        Growing(visibility=30),
        Threshold(visibility=30),
        Buffered(visibility=30),
        Fixed(visibility=300, every=100),
    ],
    ids=repr,
)
def test_the_last_extension_is_cut_to_the_services_12_hours_and_the_end_is_announced_before_it_comes(
    policy: RenewalPolicy,
) -> None:
    timeline = Timeline(policy)
    announced: list[float] = []

    def check() -> None:
        for event in timeline.ledger.take_events():
            if isinstance(event, Ending):
                assert timeline.now < event.ends_at
                announced.append(event.ends_at)

    timeline.run_until(13 * 3_600, after_each_call=check)

    latest = max(at + seconds for at, seconds in timeline.extensions())
    assert 43_200 - 10 <= latest < 43_200
    assert announced == [latest]


def _times(*, received_at: float, renewed_at: float, deadline: float) -> _Times:
    return _Times(received_at, renewed_at, deadline)


class _Times:
    def __init__(self, received_at: float, renewed_at: float, deadline: float) -> None:
        self.received_at = received_at
        self.renewed_at = renewed_at
        self.deadline = deadline


def test_a_policy_without_a_visibility_takes_the_queues_own() -> None:
    assert Growing().for_queue(45).visibility_seconds == 45
    assert Growing(visibility=30).for_queue(45).visibility_seconds == 30
    with pytest.raises(ValueError, match="for_queue"):
        _ = Growing().visibility_seconds


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Growing(visibility=43_201), "visibility must be between 1 and 43200 seconds, not 43201"),
        (lambda: Growing(visibility=0), "visibility must be between 1 and 43200"),
        (lambda: Growing(visibility=float("nan")), "visibility must be between"),
        (lambda: Growing(visibility=30, growth=-1), "growth must be"),
        (lambda: Growing(visibility=30, margin=1), "margin must lie between"),
        (lambda: Never(max_lease=timedelta(hours=13)), "max_lease must be between 0 and 43200"),
        (lambda: Fixed(visibility=30, every=30), "every .* must be shorter than visibility"),
        (lambda: Fixed(every=60).for_queue(30), "every .* must be shorter than visibility"),
        (lambda: Threshold(heartbeat=0), "heartbeat must be at least"),
    ],
)
def test_impossible_policies_are_refused_when_they_are_made(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()


def test_a_lease_on_another_clock_has_the_same_times_shifted() -> None:
    timeline = Timeline(Never(visibility=30))
    lease = timeline.ledger.lease(timeline.receipts[0])
    assert lease == Lease(timeline.receipts[0], 0.0, 30.0, renewed_at=0.0)
    assert lease.shifted(1_000) == Lease(timeline.receipts[0], 1_000.0, 1_030.0, renewed_at=1_000.0)
