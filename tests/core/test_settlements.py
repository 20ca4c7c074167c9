"""Failure rules give each failed message the settlement that their user asked for."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest

from sqs_lease.core.settlements import DeadLetter, Expire, FailureRule, Release, backoff, dead_letter, expire, release


def settlement(rule: FailureRule, receive_count: int = 1, seed: int = 0) -> object:
    return rule.settlement(receive_count=receive_count, reason="it broke", random=Random(seed))


def delays(rule: FailureRule, receive_counts: range, seed: int = 0) -> list[int]:
    found = [settlement(rule, count, seed) for count in receive_counts]
    return [one.delay_seconds for one in found if isinstance(one, Release)]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (release(), Release(0)),
        (release(90), Release(90)),
        (release(timedelta(minutes=2)), Release(120)),
        (expire(), Expire()),
        (dead_letter(), DeadLetter("it broke")),
    ],
    ids=repr,
)
def test_each_rule_gives_its_settlement(rule: FailureRule, expected: object) -> None:
    assert settlement(rule) == expected


def test_backoff_doubles_by_receive_count_up_to_its_maximum() -> None:
    assert delays(backoff(10, jitter=0, maximum=100), range(1, 7)) == [10, 20, 40, 80, 100, 100]


def test_backoff_stays_at_its_maximum_for_any_receive_count() -> None:
    assert delays(backoff(10, factor=100, jitter=0), range(10_000, 10_001)) == [900]


def test_backoff_jitter_shortens_by_at_most_its_share_and_differs_between_messages() -> None:
    found = {delays(backoff(100, jitter=0.2), range(1, 2), seed)[0] for seed in range(50)}
    assert min(found) >= 80
    assert max(found) <= 100
    assert len(found) > 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: release(-1),
        lambda: release(43_201),
        lambda: backoff(0),
        lambda: backoff(factor=0.5),
        lambda: backoff(jitter=1.5),
        lambda: backoff(maximum=timedelta(hours=13)),
        lambda: Release(-1),
        lambda: Release(43_201),
    ],
)
def test_impossible_rules_are_refused_when_they_are_made(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=r"delay|initial|factor|jitter|maximum"):
        make()
