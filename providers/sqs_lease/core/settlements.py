"""How a lease ends, and the rules that decide it for failed work.

A :class:`Settlement` is what is done to one message. A :class:`FailureRule` is what a user sets once per
lease: it gives the settlement of each failed message, by its receive count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import TypeAlias

from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.core.limits import MAX_VISIBILITY_SECONDS


@dataclass(frozen=True, slots=True)
class Delete:
    """The work succeeded: delete the message."""


@dataclass(frozen=True, slots=True)
class Release:
    """Give the message back: visible after ``delay_seconds`` (whole seconds, up to 12 hours), 0 is at once."""

    delay_seconds: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.delay_seconds <= MAX_VISIBILITY_SECONDS:
            raise ValueError(f"delay_seconds must be between 0 and {MAX_VISIBILITY_SECONDS}, not {self.delay_seconds}")


@dataclass(frozen=True, slots=True)
class Expire:
    """Stop extending and touch nothing: the message is visible again when its visibility timeout ends."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Send the message to the dead-letter queue with ``reason`` as a message attribute, then delete it here."""

    reason: str


Settlement: TypeAlias = Delete | Release | Expire | DeadLetter


@dataclass(frozen=True, slots=True)
class FailureRule(ABC):
    """Decides what becomes of a message whose work failed for good."""

    @abstractmethod
    def settlement(self, *, receive_count: int, reason: str, random: Random) -> Settlement:
        """Return the settlement of one failed message.

        Args:
            receive_count: How often it was received so far, at least 1.
            reason: Why the work failed, for people.
            random: Source of jitter.
        """


@dataclass(frozen=True, slots=True)
class ReleaseRule(FailureRule):
    """See :func:`release`."""

    delay: Duration = 0.0

    def __post_init__(self) -> None:
        seconds_of(self.delay, name="delay", maximum=MAX_VISIBILITY_SECONDS)

    def settlement(self, *, receive_count: int, reason: str, random: Random) -> Release:
        """The same delay for every message."""
        return Release(int(seconds_of(self.delay, name="delay")))


@dataclass(frozen=True, slots=True)
class BackoffRule(FailureRule):
    """See :func:`backoff`."""

    initial: Duration = 10.0
    factor: float = 2.0
    maximum: Duration = timedelta(minutes=15)
    jitter: float = 0.2

    def __post_init__(self) -> None:
        seconds_of(self.initial, name="initial", minimum=1, maximum=MAX_VISIBILITY_SECONDS)
        seconds_of(self.maximum, name="maximum", minimum=1, maximum=MAX_VISIBILITY_SECONDS)
        if not 1 <= self.factor <= 100:
            raise ValueError(f"factor must lie between 1 and 100, not {self.factor!r}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must lie between 0 and 1, not {self.jitter!r}")

    def settlement(self, *, receive_count: int, reason: str, random: Random) -> Release:
        """``initial x factor ** (receive count - 1)``, at most ``maximum``, shortened by up to ``jitter`` of it."""
        initial = seconds_of(self.initial, name="initial")
        maximum = seconds_of(self.maximum, name="maximum")
        # SQS counts receives without bound; 64 doublings are past every maximum and still a float.
        delay = min(initial * self.factor ** min(max(receive_count, 1) - 1, 64), maximum)
        return Release(int(delay * (1 - self.jitter * random.random())))


@dataclass(frozen=True, slots=True)
class ExpireRule(FailureRule):
    """See :func:`expire`."""

    def settlement(self, *, receive_count: int, reason: str, random: Random) -> Expire:
        """Let it run out."""
        return Expire()


@dataclass(frozen=True, slots=True)
class DeadLetterRule(FailureRule):
    """See :func:`dead_letter`."""

    def settlement(self, *, receive_count: int, reason: str, random: Random) -> DeadLetter:
        """To the dead-letter queue, with the reason."""
        return DeadLetter(reason)


def release(delay: Duration = 0.0) -> FailureRule:
    """A failed message is visible again at once (the default), or after ``delay``.

    Args:
        delay: Seconds or a ``timedelta``, up to 12 hours; whole seconds count.
    """
    return ReleaseRule(delay)


def backoff(
    initial: Duration = 10.0,
    factor: float = 2.0,
    maximum: Duration = timedelta(minutes=15),
    jitter: float = 0.2,
) -> FailureRule:
    """A failed message is visible again after a delay that grows with its receive count.

    Args:
        initial: Delay after the first receive, at least 1 s; 10 s by default.
        factor: By how much each further receive multiplies it; 2 by default.
        maximum: Longest delay; 15 minutes by default.
        jitter: Largest share by which the delay is shortened at random, so that messages which failed
            together do not come back together; 0.2 by default.
    """
    return BackoffRule(initial, factor, maximum, jitter)


def expire() -> FailureRule:
    """A failed message is left alone: it is visible again when its visibility timeout ends."""
    return ExpireRule()


def dead_letter() -> FailureRule:
    """A failed message goes to the queue's dead-letter queue at once, with the reason as a message attribute."""
    return DeadLetterRule()
