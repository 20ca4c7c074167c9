"""The timing of calls: the pace on a queue that throttles, the delay after a failed call, the time for an answer.

**The pace.** A queue's limit is not known, and differs a hundredfold between queues and emulators. So
:class:`CallPacing` follows the rule of congestion control (back off to what went through, then probe for more), and not
a fixed pause. It backs off only when three of 16 calls were throttled: a single throttled call has other causes, and an
idle queue shows little of its limit. All calls on a queue share one gate. Without that, settlements starve
extensions: on a queue that allowed ten calls a second, 1 000 deletes took 24 000 calls, all of 500 held leases lapsed,
and 150 messages that were done came back. With one gate no lease lapses, and every delete carries ten messages.

**The time for an answer.** A fixed time-out is wrong in both directions. Ten seconds leave no second try within a short
lease; with half of the time left, a service that answers after three seconds looks dead. So the time-out is half of the
time that the most urgent live lease has left, or twice the longest recent answer if that is more (:class:`AnswerTime`).

**The delay after a failed call.** The client retries nothing (:func:`sqs_lease.sqs.client.client_config`): a retry
inside botocore would not know how much time a lease has left, and would repeat a release. So the ledger retries, and
the delay depends on the time left.
"""

from __future__ import annotations

import math
from collections import deque
from random import Random
from typing import Final

SLOWEST_CALLS_PER_SECOND: Final = 0.5
"""The slowest pace: a call every two seconds shows soon enough that throttling has ended."""

_FIRST_CALLS_PER_SECOND: Final = 10.0
"""The assumed pace when a call is throttled for the first time."""

_RECENT_CALLS: Final = 16
_MOST_THROTTLED: Final = 3
"""How many of the recent calls must be throttled before calls are spaced wider."""

_BEST_SECOND_LASTS_SECONDS: Final = 10.0

_CALM_SECONDS: Final = 15.0
"""After this long without a throttled call, calls are no longer spaced."""

SHORTEST_PAUSE_SECONDS: Final = 0.04
"""Shortest wait after a throttled call."""

_UNPACED_CALLS_PER_SECOND: Final = 200.0
"""Above this pace calls are no longer spaced: all slots together hardly make more."""

_BACK_OFF: Final = 0.75
"""The share of the pace at which throttling began that is left after backing off."""

_PROBE_PER_SECOND: Final = 0.05
"""The share by which the pace grows per second near the pace that was throttled last."""

_PROBE_BEYOND_PER_SECOND: Final = 0.1
"""The share by which it grows per second beyond that pace, up to twice as much."""

SHORTEST_RETRY_SECONDS: Final = 0.2
LONGEST_RETRY_SECONDS: Final = 30.0

LAST_TRY_SECONDS: Final = 0.05
"""How long before a lease's deadline its extension is tried for the last time: an outage may end just before it."""


def extension_retry_seconds(remaining_seconds: float, extension_seconds: float, random: Random) -> float:
    """Return how long to wait before a failed extension is tried again.

    The delay is a quarter of the time left, jittered down to an eighth: shorter as the deadline nears, so that several
    tries fit in. The last one is :data:`LAST_TRY_SECONDS` before the deadline.
    After the deadline, it is at most a sixth of the extension: a call without an answer may have been carried out, and
    then the message is invisible for the length of the extension from that call on.

    Args:
        remaining_seconds: Time to the lease's deadline; negative when it has passed.
        extension_seconds: The visibility timeout that the failed call asked for.
        random: Source of the jitter.

    Returns:
        Seconds, from 0.2 to 30 (before jitter).
    """
    longest = LONGEST_RETRY_SECONDS if remaining_seconds > 0 else min(LONGEST_RETRY_SECONDS, extension_seconds / 6)
    delay = max(min(abs(remaining_seconds) / 4, longest), SHORTEST_RETRY_SECONDS) * (0.5 + 0.5 * random.random())
    last = remaining_seconds - LAST_TRY_SECONDS
    # Time must go on by more than a rounding error.
    return last if LAST_TRY_SECONDS / 2 < last < delay else delay


def settlement_retry_seconds(tries: int, remaining_seconds: float, random: Random) -> float:
    """Return how long to wait before a failed settlement is tried again: 0.2 s at first, doubling to 30 s, jittered.

    A long lease does not make it longer: a message that is to be visible at once must not wait because of its lease.
    But the delay is at most a quarter of the time left.

    Args:
        tries: How often it was tried, at least 1.
        remaining_seconds: Time to the lease's deadline; infinite when it has passed.
        random: Source of the jitter.
    """
    delay = min(SHORTEST_RETRY_SECONDS * 2.0 ** min(tries - 1, 10), LONGEST_RETRY_SECONDS)
    delay = max(min(delay, remaining_seconds / 4), SHORTEST_RETRY_SECONDS)
    return delay * (0.5 + 0.5 * random.random())


class CallPacing:
    """The pace of the calls on one queue: calls are spaced only while the service throttles them.

    The rule is congestion control, from the answers:

    - *Slower* when three of the last 16 calls were throttled, or two and none went through: single throttled calls
      cost little, and may have other causes than the pace. The pace becomes three quarters of the pace in force, or of
      the calls that went through in a second if that is more, and never less than half of the calls that went through
      in the best second of the last ten. If no call goes through, it is halved.
    - *Faster* with each call that goes through: twofold up to three quarters of the pace at which throttling began
      last, by a twentieth per second near it, by a tenth beyond it, and twofold per second from twice that on. With
      slow answers it grows more slowly, because its effect shows later. After 15 s without a throttled call, calls are
      no longer spaced.

    Only calls that were sent since the last slow-down count.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._rate = math.inf  # calls a second
        self._throttled_rate = math.inf  # where throttling began last
        self._grown_at = -math.inf
        self._slowed_at = -math.inf
        self._throttled_at = -math.inf
        self._recent: deque[bool] = deque(
            maxlen=_RECENT_CALLS
        )  # of calls since the last slow-down: were they throttled?
        self._went_through: deque[float] = deque()  # when calls of the last second did
        self._best_second = 0
        self._best_at = -math.inf
        self.open_at = -math.inf
        """The time from which the next call may be sent."""

    @property
    def is_pacing(self) -> bool:
        """Whether calls are spaced at present."""
        return self._rate < math.inf

    def admits(self, now: float) -> bool:
        """Return whether a call may be sent now."""
        return now >= self.open_at

    def sent(self, now: float) -> None:
        """Take in that a call was sent: the next one waits for its turn, if calls are spaced."""
        if self._rate < math.inf:
            self.open_at = now + 1 / self._rate

    def throttled(self, asked_at: float, now: float) -> None:
        """Take in that the service throttled a call that was decided at ``asked_at``."""
        self._throttled_at = now
        if asked_at <= self._slowed_at:
            return  # sent before the last slow-down, which already answers it
        self._recent.append(True)
        throttled = self._recent.count(True)
        nothing_goes_through = throttled == len(self._recent)
        if throttled < (_MOST_THROTTLED if not nothing_goes_through else 2):
            # The pace stays, but the next call waits a little.
            self.open_at = max(self.open_at, now + SHORTEST_PAUSE_SECONDS)
            return
        self._slow_down(now, nothing_goes_through=nothing_goes_through)

    def _slow_down(self, now: float, *, nothing_goes_through: bool) -> None:
        self._forget_before(now - 1)
        self._recent.clear()
        self._slowed_at = self._grown_at = now
        in_force = self._rate if self._rate < math.inf else _FIRST_CALLS_PER_SECOND
        if nothing_goes_through:
            slower = in_force / 2
        else:
            self._throttled_rate = max(in_force, len(self._went_through))
            if self._rate < math.inf:
                self._throttled_rate = min(self._throttled_rate, self._rate)
            slower = max(_BACK_OFF * self._throttled_rate, self._best_second / 2)
        self._rate = max(slower, SLOWEST_CALLS_PER_SECOND)
        self.open_at = now + (0.5 + 0.5 * self._random.random()) / self._rate

    def went_through(self, asked_at: float, now: float) -> None:
        """Take in that the service answered a call and did not throttle it, whatever it said about single entries."""
        self._forget_before(now - 1)
        self._went_through.append(now)
        through = len(self._went_through)
        if through >= self._best_second or now - self._best_at > _BEST_SECOND_LASTS_SECONDS:
            self._best_second, self._best_at = through, now
        if asked_at <= self._slowed_at:
            return
        self._recent.append(False)
        if self._rate == math.inf:
            return
        self._throttled_rate = max(self._throttled_rate, through)
        elapsed = min(now - self._grown_at, 1.0) / max(now - asked_at, 1.0)
        self._grown_at = now
        borne = _BACK_OFF * self._throttled_rate
        if self._rate < borne:
            faster = min(self._rate * 2, borne)
        elif self._rate < self._throttled_rate:
            faster = self._rate * (1 + _PROBE_PER_SECOND * elapsed)
        elif self._rate < 2 * self._throttled_rate:
            faster = self._rate * (1 + _PROBE_BEYOND_PER_SECOND * elapsed)
        else:
            faster = self._rate * 2.0**elapsed
        # The wait at the slower pace may now be shorter.
        self.open_at = min(self.open_at, now + 1 / faster)
        self._rate = faster
        if self._rate > _UNPACED_CALLS_PER_SECOND or now - self._throttled_at > _CALM_SECONDS:
            self._rate = math.inf
            self.open_at = -math.inf

    def _forget_before(self, moment: float) -> None:
        while self._went_through and self._went_through[0] < moment:
            self._went_through.popleft()


class AnswerTime:
    """The time that the service takes to answer, learned from calls: for time-outs, and for renewing early enough.

    Attributes:
        expected_seconds: The longest recent answer, forgotten by a tenth with each quicker one; 0 at first.
    """

    def __init__(self) -> None:
        self.expected_seconds = 0.0
        self._unanswered = 0  # calls since the last answer
        self._waited_seconds = 0.0  # the longest time that one of them was waited for

    def answered(self, seconds: float) -> None:
        """Take in that an answer came after ``seconds``."""
        self._unanswered, self._waited_seconds = 0, 0.0
        self.expected_seconds = max(seconds, self.expected_seconds * 0.9)

    def unanswered(self, seconds: float) -> None:
        """Take in that no answer came within ``seconds``.

        A single answer may be lost; several in a row mean that answers take longer.
        """
        self._unanswered += 1
        # The first of them may have been waited for longest: later ones are about leases that have less left.
        self._waited_seconds = max(self._waited_seconds, seconds)
        if self._unanswered > 1:
            self.expected_seconds = max(self.expected_seconds, self._waited_seconds)
