"""Leases that another machine wrote down, maybe by another clock, and that a process reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.keeper.plain_leases import WrittenBatch, decode_leases
from sqs_lease.testing import VirtualClock

EPOCH = 1_767_225_600.0


def read_later(seconds: float, lease: Lease) -> Lease:
    """A lease that was written down at 1 000 s, as a machine reads it so much later by the calendar, at 50 s."""
    written = WrittenBatch.of("batch", [lease], VirtualClock(1_000, wall_start=EPOCH))
    (read,) = written.leases_now(VirtualClock(50, wall_start=EPOCH + seconds), "https://orders")
    return read


LASTS_30_S = Lease(Receipt("m0", "handle"), 980.0, 1_030.0)


@pytest.mark.parametrize("seconds", [0.0, 10.0, 24.0])
def test_the_next_holder_relies_on_a_deadline_but_for_five_seconds(seconds: float) -> None:
    read = read_later(seconds, LASTS_30_S)
    assert read.deadline == pytest.approx(50 + 30 - seconds - 5)
    assert read.doubtful is False
    assert read.received_at == pytest.approx(50 - 20 - seconds)
    assert read.renewed_at == pytest.approx(50 - seconds)


@pytest.mark.parametrize("seconds", [25.0, 40.0, 43_200.0])
def test_a_lease_that_may_have_ended_is_in_doubt_and_no_older_than_its_deadline_says(seconds: float) -> None:
    read = read_later(seconds, LASTS_30_S)
    assert (read.deadline, read.doubtful) == (50, True)
    assert read.received_at == pytest.approx(50 - 20 - min(seconds, 30))


@pytest.mark.parametrize(("seconds", "doubtful"), [(-4.0, False), (-6.0, True)])
def test_a_calendar_that_is_behind_by_more_than_the_margin_is_not_believed(seconds: float, doubtful: bool) -> None:
    assert read_later(seconds, LASTS_30_S).doubtful is doubtful


def test_a_doubt_goes_from_holder_to_holder() -> None:
    assert read_later(1.0, LASTS_30_S.in_doubt()).doubtful is True


@pytest.mark.parametrize("decode", [decode_leases, WrittenBatch.decode])
def test_an_error_does_not_quote_what_may_have_receipt_handles(decode: Callable[[str], object]) -> None:
    with pytest.raises(ValueError, match="the text is not") as raised:
        decode('[["m0", "a secret handle"]]')
    assert "secret" not in str(raised.value)
