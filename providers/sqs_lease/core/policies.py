"""Renewal policies: when a lease is extended next, and by how much. Each is a pure function of the lease.

A policy never looks at the queue, the clock or another lease. The ledger cuts each extension to ``max_lease`` and to
the service's 12-hour limit.

A lease must outlive the process that extends it until another takes over. The worst moment is just before a renewal:
if the process dies then, another one must take over within the rest of the visibility timeout, and an outage of the
service that begins then must end within it. ``Growing`` leaves a third of the period, and of short periods up to
20 s. An early extension of the first period alone would not help: the weak spot only moves to the next one.

Requests are what SQS charges for. ``Growing`` extends by as much time as the work has taken so far, so their number
grows with the logarithm of the work's length, and a crash stays bounded: messages come back after at most as long as
the work had taken, and never later than the ceiling. Requests for 1 000 messages that are held for an hour, at a
visibility timeout of 30 s: ``Growing`` 1 600, ``Buffered`` 12 200, ``Threshold`` 14 500, ``Fixed(15)`` 24 100.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Protocol, Self, TypeVar

from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.core.limits import MAX_VISIBILITY_SECONDS


class LeaseTimes(Protocol):
    """The facts that a policy may know of a lease; times are seconds of the caller's clock."""

    @property
    def received_at(self) -> float:
        """When the receive that returned the message was sent."""

    @property
    def renewed_at(self) -> float:
        """The time from which the deadline counts: the receive, or the last extension that the service confirmed."""

    @property
    def deadline(self) -> float:
        """The time until which the message stays invisible, as far as the service confirmed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalPolicy(ABC):
    """The base of all policies. Durations are numbers of seconds or ``timedelta``s.

    Attributes:
        visibility: The visibility timeout that messages are received with, and that extensions start
            from; up to 12 hours, rounded up to whole seconds. None (the default) takes the queue's own.
        max_lease: How long a message is held at most, counted from its receive. Default and most:
            12 hours, the service's limit. 0: never extend.
    """

    visibility: Duration | None = None
    max_lease: Duration = timedelta(seconds=MAX_VISIBILITY_SECONDS)

    def __post_init__(self) -> None:
        if self.visibility is not None:
            seconds_of(self.visibility, name="visibility", minimum=1, maximum=MAX_VISIBILITY_SECONDS)
        seconds_of(self.max_lease, name="max_lease", maximum=MAX_VISIBILITY_SECONDS)

    @property
    def visibility_seconds(self) -> int:
        """The visibility timeout in whole seconds, rounded up: SQS counts no fractions.

        Raises:
            ValueError: The policy was not told the queue's visibility timeout, see :meth:`for_queue`.
        """
        if self.visibility is None:
            raise ValueError("visibility is None: call for_queue() with the queue's visibility timeout first")
        return math.ceil(_seconds(self.visibility))

    @property
    def max_lease_seconds(self) -> float:
        """The longest hold in seconds."""
        return _seconds(self.max_lease)

    def for_queue(self, visibility_seconds: float) -> Self:
        """Return this policy with the queue's own visibility timeout filled in where none was given.

        A queue whose visibility timeout is 0 has no lease to extend: messages must then be received with
        a visibility timeout of their own.

        Raises:
            ValueError: None was given and the queue's is 0.
        """
        if self.visibility is not None:
            return self
        if visibility_seconds < 1:
            raise ValueError(
                f"the queue's own visibility timeout is {visibility_seconds:g} s: give the lease "
                "another one, visibility=..., or raise the queue's"
            )
        return replace(self, visibility=visibility_seconds)

    @abstractmethod
    def renew_at(self, lease: LeaseTimes) -> float | None:
        """Return when to extend the lease next, in seconds of the caller's clock; None for never."""

    @abstractmethod
    def extension_seconds(self, lease: LeaseTimes, now: float) -> float:
        """Return the new visibility timeout for an extension at ``now``, counted from then."""


def _seconds(duration: Duration) -> float:
    """Return a duration in seconds, without a check: its policy made that, and this runs with each extension."""
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


LEFT_FOR_OUTAGE_SECONDS: Final = 20.0
"""The time that ``Growing`` leaves of a lease at its renewal, if two thirds of the period are that long."""

_LARGEST_MARGIN: Final = 2 / 3
"""The share of a short period that is left for an outage: a third of it is between two renewals, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growing(RenewalPolicy):
    """The default: extensions of ``max(visibility, growth x time already worked)``, at most ``ceiling``.

    The number of calls grows with the logarithm of the job's length until ``ceiling`` is reached, and a
    crash of everything delays redelivery by at most ``growth`` of the work that it destroyed.

    It renews when max(``margin``, min(20 s, two thirds)) of the period is left. With a visibility timeout of 30 s, an
    outage of 20 s costs no lease, whenever it begins, and 1 000 messages take 1 600 requests in an hour. (If the outage
    begins within a twentieth of a second of a renewal, it ends together with the lease, which may be lost.)

    Attributes:
        growth: Share of the time already worked that one extension may cover; 1 by default.
        ceiling: Longest extension; 15 minutes by default. A visibility above it stays in force.
        margin: Share of each period that is left when it is renewed; a third by default. It is the time
            in which failed extensions are retried and another process can take over.
    """

    growth: float = 1.0
    ceiling: Duration = timedelta(minutes=15)
    margin: float = 1 / 3

    def __post_init__(self) -> None:
        # A slotted dataclass is a new class, so the zero-argument super() would look in the old one.
        RenewalPolicy.__post_init__(self)
        seconds_of(self.ceiling, name="ceiling", minimum=1, maximum=MAX_VISIBILITY_SECONDS)
        if not 0 <= self.growth < math.inf:
            raise ValueError(f"growth must be a finite number of at least 0, not {self.growth!r}")
        if not 0 < self.margin < 1:
            raise ValueError(f"margin must lie between 0 and 1, not {self.margin!r}")

    def renew_at(self, lease: LeaseTimes) -> float:
        """Return the time that the class describes, for the confirmed period."""
        period = lease.deadline - lease.renewed_at
        return lease.deadline - max(period * self.margin, min(LEFT_FOR_OUTAGE_SECONDS, period * _LARGEST_MARGIN))

    def extension_seconds(self, lease: LeaseTimes, now: float) -> float:
        """Return the extension that the class describes."""
        worked = now - lease.received_at
        grown = min(self.growth * worked, _seconds(self.ceiling))
        # Rounded down: never beyond the growth, which bounds the delay after a crash.
        return max(self.visibility_seconds, math.floor(grown))


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold(RenewalPolicy):
    """The rule of the AWS Message Processing Framework for .NET.

    Every ``heartbeat``, a lease with no more than ``threshold`` left gets the visibility timeout again.

    Attributes:
        threshold: The time left when a lease is renewed; 5 s by default.
        heartbeat: The time between two checks of a lease, counted from the receive; 1 s by default.
    """

    threshold: Duration = 5.0
    heartbeat: Duration = 1.0

    def __post_init__(self) -> None:
        RenewalPolicy.__post_init__(self)
        seconds_of(self.threshold, name="threshold")
        seconds_of(self.heartbeat, name="heartbeat", minimum=0.001)

    def renew_at(self, lease: LeaseTimes) -> float:
        """Return the first heartbeat after the last renewal at which no more than the threshold is left."""
        heartbeat = _seconds(self.heartbeat)
        due = max(lease.deadline - _seconds(self.threshold), lease.renewed_at)
        # A tolerance, so that sums of floats do not push a beat that is exactly due to the next one.
        beats = math.ceil((due - lease.received_at) / heartbeat - 1e-9)
        return lease.received_at + beats * heartbeat

    def extension_seconds(self, lease: LeaseTimes, now: float) -> float:
        """Return the visibility timeout again."""
        return self.visibility_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffered(RenewalPolicy):
    """The rule of NServiceBus: renew with up to 10 s left, adding what is left (or overdue) to the timeout.

    It waits ``remaining - min(remaining / 2, buffer)``, or not at all below ``immediate``; then it extends by
    ``max(|remaining| + visibility, visibility)``. NServiceBus itself stops after 5 minutes: pass
    ``max_lease=300`` for that.

    Attributes:
        buffer: Longest time left at a renewal; 10 s by default.
        immediate: With less time left than this, it renews at once; 0.4 s by default.
    """

    buffer: Duration = 10.0
    immediate: Duration = 0.4

    def __post_init__(self) -> None:
        RenewalPolicy.__post_init__(self)
        seconds_of(self.buffer, name="buffer")
        seconds_of(self.immediate, name="immediate")

    def wait_seconds(self, remaining_seconds: float) -> float:
        """Return how long to wait for the next renewal when ``remaining_seconds`` are left."""
        if remaining_seconds < _seconds(self.immediate):
            return 0.0
        return remaining_seconds - min(remaining_seconds / 2, _seconds(self.buffer))

    def renew_at(self, lease: LeaseTimes) -> float:
        """Return the time that the class describes, counted from the last renewal."""
        return lease.renewed_at + self.wait_seconds(lease.deadline - lease.renewed_at)

    def extension_seconds(self, lease: LeaseTimes, now: float) -> float:
        """Return the extension that the class describes."""
        return abs(lease.deadline - now) + self.visibility_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed(RenewalPolicy):
    """An extension by the visibility timeout every ``every``, as bbc/sqs-consumer does with its heartbeat.

    Attributes:
        every: Time between renewals; must be shorter than ``visibility``.
    """

    every: Duration

    def __post_init__(self) -> None:
        RenewalPolicy.__post_init__(self)
        every = seconds_of(self.every, name="every", minimum=0.001)
        if self.visibility is not None and every >= self.visibility_seconds:
            raise ValueError(
                f"every ({every:g} s) must be shorter than visibility ({self.visibility_seconds:g} s): "
                "messages would be visible between two renewals"
            )

    def renew_at(self, lease: LeaseTimes) -> float:
        """Return the time ``every`` after the last renewal."""
        return lease.renewed_at + _seconds(self.every)

    def extension_seconds(self, lease: LeaseTimes, now: float) -> float:
        """Return the visibility timeout again."""
        return self.visibility_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Never(RenewalPolicy):
    """No extension: the work must end within the visibility timeout, or others receive the message."""

    def renew_at(self, lease: LeaseTimes) -> None:
        """Return None: it never renews."""

    def extension_seconds(self, lease: LeaseTimes, now: float) -> float:
        """Return 0."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LastExtension(RenewalPolicy):
    """A single extension to a given time: the policy that a keeper follows while it passes a lease on.

    Attributes:
        until: The time until which the lease is to last.
        since: The time at which the keeper began to pass it on: an extension that was sent before does not count, nor
            does the receive. A lease in doubt is extended by the visibility timeout at most, and only once as well.
    """

    until: float
    since: float

    @classmethod
    def of(cls, policy: RenewalPolicy, *, until: float, since: float) -> LastExtension:
        """Build it for a lease that another policy has extended so far; the bounds of that policy stay in force."""
        return cls(visibility=policy.visibility, max_lease=policy.max_lease, until=until, since=since)

    def renew_at(self, lease: LeaseTimes) -> float | None:
        """Return a time in the past, so that it is due at once, if the lease is too short; None otherwise."""
        was_extended = lease.renewed_at >= self.since and lease.renewed_at > lease.received_at
        return None if lease.deadline >= self.until or was_extended else self.since

    def extension_seconds(self, lease: LeaseTimes, now: float) -> float:
        """Return the time from now to ``until``."""
        return max(self.until - now, 0.0)


_DEFAULT_MARGIN: Final = 1 / 3

_Policy = TypeVar("_Policy", bound=RenewalPolicy)


@dataclass(frozen=True, slots=True)
class _FreshLease:
    """A lease that was received a moment ago, as a policy sees it."""

    received_at: float
    renewed_at: float
    deadline: float


def default_visibility_seconds(policy: RenewalPolicy, takeover_seconds: float) -> int:
    """Return the shortest visibility timeout with which the policy leaves enough time for a takeover.

    Some policies leave a fixed time, however long the timeout is: for those it is the timeout of ``Growing``. It is at
    most 12 hours.

    Args:
        policy: The policy.
        takeover_seconds: How long a takeover lasts, in which no process extends the lease.
    """
    if isinstance(policy, Fixed):
        shortest = seconds_of(policy.every, name="every") + takeover_seconds
    else:
        margin = policy.margin if isinstance(policy, Growing) else _DEFAULT_MARGIN
        if takeover_seconds <= LEFT_FOR_OUTAGE_SECONDS:
            margin = max(margin, _LARGEST_MARGIN)
        shortest = takeover_seconds / margin
    return min(math.ceil(shortest - 1e-9), MAX_VISIBILITY_SECONDS)


def with_visibility(policy: _Policy, takeover_seconds: float, queue_seconds: float = 0.0) -> _Policy:
    """Return the policy with a visibility timeout, by default one that survives a takeover.

    Args:
        policy: The policy; one with a visibility timeout of its own is returned as it is.
        takeover_seconds: How long a takeover lasts, in which no process extends the lease.
        queue_seconds: The queue's own visibility timeout, which is used if it is longer than the default.
    """
    if policy.visibility is not None:
        return policy
    return replace(policy, visibility=max(queue_seconds, default_visibility_seconds(policy, takeover_seconds)))


def seconds_left_at_worst(policy: RenewalPolicy) -> float | None:
    """Return the time that is left of a lease when it is about to be renewed; None if it is never extended.

    Args:
        policy: The policy, with its visibility timeout.
    """
    seconds = policy.visibility_seconds
    renew_at = policy.renew_at(_FreshLease(0.0, 0.0, seconds))
    return None if renew_at is None else max(seconds - max(renew_at, 0.0), 0.0)
