"""When each policy extends, and how much of a lease is left then: rules that are promised with figures."""

from __future__ import annotations

import pytest

from sqs_lease.core.ledger import Entry
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.policies import (
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
