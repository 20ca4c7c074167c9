"""What a process makes of leases that another machine wrote down, whose clock may differ."""

from __future__ import annotations

import pytest

from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.keeper.plain_leases import from_wall_time, to_wall_time
from sqs_lease.testing import VirtualClock

EPOCH = 1_767_225_600.0


def a_lease(received_at: float) -> Lease:
    return Lease(Receipt("m0", "handle"), received_at, received_at + 30)


@pytest.mark.parametrize("ahead_seconds", [5.1, 60.0, 43_200.0])
def test_a_lease_from_the_future_counts_as_received_now_and_is_doubtful(ahead_seconds: float) -> None:
    clock = VirtualClock(100, wall_start=EPOCH)
    (lease,) = from_wall_time([a_lease(EPOCH + ahead_seconds)], clock)
    assert [lease.received_at, lease.deadline] == pytest.approx([100, 130])
    assert lease.doubtful is True


@pytest.mark.parametrize("ahead_seconds", [0.0, 0.2, 5.0])
def test_clocks_may_differ_a_little(ahead_seconds: float) -> None:
    clock = VirtualClock(100, wall_start=EPOCH)
    (lease,) = from_wall_time([a_lease(EPOCH + ahead_seconds)], clock)
    assert [lease.received_at, lease.deadline] == pytest.approx([100, 130])
    assert lease.doubtful is False


def test_a_lease_comes_back_as_it_was() -> None:
    clock = VirtualClock(100, wall_start=EPOCH)
    assert from_wall_time(to_wall_time([a_lease(90)], clock), clock) == [a_lease(90)]
