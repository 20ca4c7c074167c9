"""How fast to call: the pace on a queue that throttles, the delay after a failed call, and how long an answer takes."""

from __future__ import annotations

import math
from collections import deque
from random import Random
from typing import Final

SLOWEST_CALLS_PER_SECOND: Final = 0.5
"""The slowest pace: a call every two seconds shows soon enough that throttling has ended."""

_FIRST_CALLS_PER_SECOND: Final = 10.0
"""The pace after the first throttled call where no call went through in the last second."""

_UNPACED_CALLS_PER_SECOND: Final = 200.0
"""From this pace on calls are not spaced any more: all the slots together hardly make more."""

_BACK_OFF: Final = 0.75
"""What a throttled call leaves of the pace that the queue was seen to bear."""

_PROBE_PER_SECOND: Final = 0.1
"""By which share a second the pace grows near the one that was throttled last."""

_WINDOW_SECONDS: Final = 1.0

SHORTEST_RETRY_SECONDS: Final = 0.2
LONGEST_RETRY_SECONDS: Final = 30.0


def extension_retry_seconds(remaining_seconds: float, extension_seconds: float, random: Random) -> float:
    """How long to wait before a failed extension is tried again.

    A quarter of what is left, jittered down to an eighth: faster as the deadline nears, so that several tries fit in.
    After the deadline, a sixth of the extension at most: a call without an answer may have been carried out, and then
    the message is invisible for so long from that call on.

    Args:
        remaining_seconds: Time to the lease's deadline; negative when it has passed.
        extension_seconds: The visibility timeout that the failed call asked for.
        random: Source of the jitter.

    Returns:
        Seconds, from 0.2 to 30 (before jitter).
    """
    longest = LONGEST_RETRY_SECONDS if remaining_seconds > 0 else min(LONGEST_RETRY_SECONDS, extension_seconds / 6)
    delay = max(min(abs(remaining_seconds) / 4, longest), SHORTEST_RETRY_SECONDS)
    return delay * (0.5 + 0.5 * random.random())


def settlement_retry_seconds(tries: int, random: Random) -> float:
    """How long to wait before a failed settlement is tried again: 0.2 s at first, doubling to 30 s, jittered.

    It does not depend on what is left of the lease: a message that is to be visible at once must not wait longer
    because its lease is long.

    Args:
        tries: How often it was tried, at least 1.
        random: Source of the jitter.
    """
    delay = min(SHORTEST_RETRY_SECONDS * 2.0 ** min(tries - 1, 10), LONGEST_RETRY_SECONDS)
    return delay * (0.5 + 0.5 * random.random())


class CallPacing:
    """Spaces the calls on one queue while the service throttles them, and not at all otherwise.

    The rule is that of congestion control. A throttled call sets the pace to three quarters of what went through in
    the last second, or halves it where nothing did. Each call that goes through doubles the pace up to where throttling
    began last; there it grows by a tenth a second, and beyond it twofold a second, until calls are not spaced any more.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._rate = math.inf  # calls a second
        self._throttled_rate = math.inf  # where throttling began last
        self._grown_at = -math.inf
        self._slowed_at = -math.inf
        self._went_through: deque[float] = deque()  # when calls of the last second did
        self.open_at = -math.inf
        """From when the next call may be sent."""

    @property
    def is_pacing(self) -> bool:
        """Whether calls are spaced at present."""
        return self._rate < math.inf

    def admits(self, now: float) -> bool:
        """Whether a call may be sent now."""
        return now >= self.open_at

    def sent(self, now: float) -> None:
        """A call was sent: the next one waits for its turn, if calls are spaced."""
        if self._rate < math.inf:
            self.open_at = now + 1 / self._rate

    def throttled(self, asked_at: float, now: float) -> None:
        """The service throttled a call that was decided at ``asked_at``."""
        if asked_at <= self._slowed_at:
            return  # sent before the last slow-down, which already answers it
        self._slowed_at = self._grown_at = now
        self._forget_before(now - _WINDOW_SECONDS)
        if self._went_through:
            self._throttled_rate = min(self._rate, len(self._went_through) / _WINDOW_SECONDS)
            slower = _BACK_OFF * self._throttled_rate
        else:
            slower = self._rate / 2 if self._rate < math.inf else _FIRST_CALLS_PER_SECOND
        self._rate = max(slower, SLOWEST_CALLS_PER_SECOND)
        self.open_at = now + (0.5 + 0.5 * self._random.random()) / self._rate

    def went_through(self, now: float) -> None:
        """The service answered a call and did not throttle it, whatever it said about single entries."""
        self._forget_before(now - _WINDOW_SECONDS)
        self._went_through.append(now)
        if self._rate == math.inf:
            return
        elapsed = min(now - self._grown_at, 1.0)
        self._grown_at = now
        borne = _BACK_OFF * self._throttled_rate
        if self._rate < borne:
            faster = min(self._rate * 2, borne)
        elif self._rate < self._throttled_rate:
            faster = self._rate * (1 + _PROBE_PER_SECOND * elapsed)
        else:
            faster = self._rate * 2.0**elapsed
        # What was waited for at the slower pace need not be waited for any more.
        self.open_at = min(self.open_at, now + 1 / faster)
        self._rate = faster
        if self._rate > _UNPACED_CALLS_PER_SECOND:
            self._rate = math.inf
            self.open_at = -math.inf

    def _forget_before(self, moment: float) -> None:
        while self._went_through and self._went_through[0] < moment:
            self._went_through.popleft()


class AnswerTime:
    """How long the service takes to answer, learned from calls: how long to wait, and how early to ask.

    Attributes:
        expected_seconds: The longest recent answer, forgotten by a tenth with each quicker one; 0 at first.
    """

    def __init__(self) -> None:
        self.expected_seconds = 0.0
        self._unanswered = 0

    def answered(self, seconds: float) -> None:
        """An answer came after ``seconds``."""
        self._unanswered = 0
        self.expected_seconds = max(seconds, self.expected_seconds * 0.9)

    def unanswered(self, seconds: float) -> None:
        """No answer came within ``seconds``. One alone was lost; several in a row say that answers take longer."""
        self._unanswered += 1
        if self._unanswered > 1:
            self.expected_seconds = max(self.expected_seconds, seconds)
