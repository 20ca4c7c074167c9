"""How fast to try again: the delay after a failed call, and the pace of calls on a throttled queue."""

from __future__ import annotations

import math
from random import Random
from typing import Final

FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 2.0
SHORTEST_RETRY_SECONDS: Final = 0.2
LONGEST_RETRY_SECONDS: Final = 30.0


def retry_delay_seconds(remaining_seconds: float, random: Random) -> float:
    """How long to wait before a failed call about a lease is tried again.

    A quarter of what is left, jittered down to an eighth: faster as the deadline nears, so that several
    tries fit in. Past the deadline it slows down again in the same measure.

    Args:
        remaining_seconds: Time to the lease's deadline; negative when it has passed.
        random: Source of the jitter.

    Returns:
        Seconds, from 0.2 to 30 (before jitter).
    """
    delay = min(max(abs(remaining_seconds) / 4, SHORTEST_RETRY_SECONDS), LONGEST_RETRY_SECONDS)
    return delay * (0.5 + 0.5 * random.random())


class CallPacing:
    """Spaces the calls on one queue while the service throttles them, and not at all otherwise.

    Each throttled answer doubles the pause between calls (0.1 s to 2 s, jittered); each success halves it.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._pause_seconds = 0.0
        self._slowed_at = -math.inf
        self.open_at = -math.inf
        """From when the next call may be sent."""

    def admits(self, now: float) -> bool:
        """Whether a call may be sent now."""
        return now >= self.open_at

    def sent(self, now: float) -> None:
        """A call was sent: the next one waits for the pause, if there is one."""
        if self._pause_seconds:
            self.open_at = now + self._pause_seconds

    def throttled(self, asked_at: float, now: float) -> None:
        """The service throttled a call that was decided at ``asked_at``."""
        if asked_at <= self._slowed_at:
            return  # sent before the last slow-down, which already answers it
        self._slowed_at = now
        doubled = max(self._pause_seconds * 2, FIRST_PAUSE_SECONDS)
        self._pause_seconds = min(doubled, LONGEST_PAUSE_SECONDS)
        self.open_at = now + self._pause_seconds * (0.5 + 0.5 * self._random.random())

    def succeeded(self) -> None:
        """A call went through."""
        self._pause_seconds /= 2
        if self._pause_seconds < FIRST_PAUSE_SECONDS / 2:
            self._pause_seconds = 0.0
            self.open_at = -math.inf
