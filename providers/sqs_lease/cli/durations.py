"""Durations as people type them and as tables show them: ``90``, ``30s``, ``15m``, ``1h30m``, ``2d``."""

from __future__ import annotations

import re
from typing import Final

from sqs_lease.cli.output import CommandError

LONGEST_DAYS: Final = 3_650
"""Longest duration that is accepted."""

_UNITS: Final = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}
_TYPED: Final = re.compile(r"(?:(?P<d>\d+)d)?(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m(?:in)?)?(?:(?P<s>\d+(?:\.\d+)?)s?)?")


def typed_duration(text: str, option: str) -> float:
    """Read a duration that a user typed, in seconds; a number without a unit is seconds.

    Args:
        text: The text that the user typed.
        option: The option, for the error.

    Raises:
        CommandError: It is not a duration, not longer than 0, or longer than :data:`LONGEST_DAYS`.
    """
    found = _TYPED.fullmatch(text.strip().lower().replace(" ", ""))
    parts = {} if found is None else {unit: part for unit, part in found.groupdict().items() if part is not None}
    if not parts:
        raise CommandError(f"{option}: {text!r} is not a duration; write 90, 30s, 15m, 1h30m or 2d")
    seconds = sum(float(part) * _UNITS[unit] for unit, part in parts.items())
    if seconds <= 0:
        raise CommandError(f"{option} must be longer than 0 seconds")
    if seconds > LONGEST_DAYS * _UNITS["d"]:
        raise CommandError(f"{option} must not be longer than {LONGEST_DAYS:,} days")
    return seconds


def shown_duration(seconds: float) -> str:
    """Write a duration for people, in its two largest units: ``30 s``, ``15 min``, ``1 h 30 min``, ``2 d 4 h``."""
    if round(seconds, 1) < 60:
        return f"{round(seconds, 1):g} s"
    whole = round(seconds)
    for size, name, smaller_size, smaller_name in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            many, rest = divmod(whole, size)
            few = rest // smaller_size
            return f"{many} {name} {few} {smaller_name}" if few else f"{many} {name}"
    return f"{whole} s"
