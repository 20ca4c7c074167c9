"""Durations as people type and read them."""

from __future__ import annotations

import pytest

from sqs_lease.cli.durations import shown_duration, typed_duration
from sqs_lease.cli.output import CommandError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0.5", 0.5),
        ("30s", 30),
        ("15m", 900),
        ("15min", 900),
        ("1h30m", 5_400),
        ("2d", 172_800),
        ("1H", 3_600),
    ],
)
def test_a_duration_is_a_number_of_seconds_or_has_units(text: str, seconds: float) -> None:
    assert typed_duration(text, "--work") == seconds


@pytest.mark.parametrize("text", ["", " ", "h", "1x", "-5", "5m1h", "nan", "1.5h"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match=r"--work: .* is not a duration"):
        typed_duration(text, "--work")


def test_nothing_lasts_no_time() -> None:
    with pytest.raises(CommandError, match="--every must be longer than 0 seconds"):
        typed_duration("0s", "--every")


@pytest.mark.parametrize("text", ["3651d", "9" * 400])
def test_a_time_that_is_longer_than_any_queue_allows_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="--every must not be longer than 3,650 days"):
        typed_duration(text, "--every")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (0.04, "0 s"),
        (9.94, "9.9 s"),
        (30, "30 s"),
        (59.96, "1 min"),
        (90, "1 min 30 s"),
        (900, "15 min"),
        (5_400, "1 h 30 min"),
        (43_194.02, "11 h 59 min"),
        (86_400, "1 d"),
        (187_200, "2 d 4 h"),
    ],
)
def test_it_is_shown_in_its_two_largest_units(seconds: float, shown: str) -> None:
    assert shown_duration(seconds) == shown
