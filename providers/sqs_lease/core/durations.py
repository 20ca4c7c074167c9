"""Durations as users write them, a number of seconds or a ``timedelta``, turned into seconds and checked."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, TypeAlias

Duration: TypeAlias = float | timedelta
"""A length of time: a ``timedelta``, or a number of seconds."""

_TOO_LONG: Final = 10**300


def seconds_of(duration: Duration, *, name: str, minimum: float = 0.0, maximum: float | None = None) -> float:
    """Return a duration in seconds.

    Args:
        duration: A ``timedelta``, or a number of seconds.
        name: The caller's name of the duration; the error begins with it.
        minimum: Smallest value allowed, in seconds.
        maximum: Largest value allowed, in seconds; None for no bound.

    Raises:
        TypeError: It is neither a number nor a ``timedelta``.
        ValueError: It is out of range, or not a finite number.
    """
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        # An integer that no float can hold is longer than any bound.
        seconds = float(duration) if abs(duration) < _TOO_LONG else float("inf")
    else:
        raise TypeError(f"{name} must be a number of seconds or a timedelta, not {duration!r}")
    upper = float("inf") if maximum is None else maximum
    # Written so that NaN, which compares false with everything, is refused too.
    if not minimum <= seconds <= upper or seconds == float("inf"):
        bounds = f"at least {minimum:g}" if maximum is None else f"between {minimum:g} and {maximum:g}"
        raise ValueError(f"{name} must be {bounds} seconds, not {seconds:g}")
    return seconds
