"""The calls that holding messages for an hour takes, which the readme and the docs quote, are exact."""

from __future__ import annotations

import pytest

from benchmarks.ledger import calls_in_an_hour
from sqs_lease.core.policies import Buffered, Fixed, Growing, RenewalPolicy, Threshold


@pytest.mark.parametrize(
    ("policy", "calls"),
    [
        (Growing(visibility=30), 160),
        (Threshold(visibility=30), 1_450),
        (Buffered(visibility=30), 1_220),
        (Fixed(visibility=30, every=15), 2_410),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_hundred_messages_take_a_tenth_of_the_calls_that_are_quoted_for_a_thousand(
    policy: RenewalPolicy, calls: int
) -> None:
    assert calls_in_an_hour(policy, count=100) == calls
