"""Plug-ins of users and hosts in a keeper, with the defect that they raise now and then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from sqs_lease.core.events import Outcome
from sqs_lease.core.failure_rules import FailureRule, Release, Settlement
from sqs_lease.core.messages import Receipt
from sqs_lease.core.policies import Growing, LeaseTimes, RenewalPolicy


class PlugInError(Exception):
    """A plug-in failed."""


@dataclass(slots=True)
class Failing:
    """Decides when a plug-in fails.

    Attributes:
        share: Of all questions, from 0 to 1.
        now: The world's time.
        failed_at: When it failed first; None for not yet.
    """

    share: float
    random: Random
    now: Callable[[], float]
    failed_at: float | None = None

    def maybe(self) -> None:
        """Fail, or do not.

        Raises:
            PlugInError: It fails.
            SystemExit: It fails in another way.
        """
        if self.random.random() < self.share:
            if self.failed_at is None:
                self.failed_at = self.now()
            raise SystemExit if self.random.random() < 0.2 else PlugInError


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingPolicy(RenewalPolicy):
    """A policy that answers like another one until it fails."""

    inner: RenewalPolicy
    failing: Failing

    def renew_at(self, lease: LeaseTimes) -> float | None:
        """As the other one says."""
        self.failing.maybe()
        return self.inner.renew_at(lease)

    def extension_seconds(self, lease: LeaseTimes, now: float) -> float:
        """As the other one says."""
        self.failing.maybe()
        return self.inner.extension_seconds(lease, now)


def with_failures(policy: RenewalPolicy, failing: Failing) -> RenewalPolicy:
    """The policy, which fails now and then."""
    if not failing.share:
        return policy
    return FailingPolicy(visibility=policy.visibility, max_lease=policy.max_lease, inner=policy, failing=failing)


def policies_in_force(policy: RenewalPolicy, at: float) -> list[RenewalPolicy]:
    """The policies that a keeper may go by at a time; two at the moment of a failure."""
    if not isinstance(policy, FailingPolicy):
        return [policy]
    failed_at = policy.failing.failed_at
    instead = Growing(visibility=policy.visibility_seconds, max_lease=policy.max_lease)
    if failed_at is None or at < failed_at:
        return [policy.inner]
    return [policy.inner, instead] if at == failed_at else [instead]


@dataclass(frozen=True, slots=True)
class RecordingRule(FailureRule):
    """A failure rule that tells what becomes of the receipts that it is asked about in order."""

    inner: FailureRule
    asked: list[Receipt]
    decided: Callable[[Receipt, Settlement], None]
    failing: Failing

    def settlement(self, *, receive_count: int, reason: str, random: Random) -> Settlement:
        """Decide by the inner rule, or fail."""
        receipt = self.asked.pop(0)
        try:
            self.failing.maybe()
        except BaseException:
            self.decided(receipt, Release())
            raise
        settlement = self.inner.settlement(receive_count=receive_count, reason=reason, random=random)
        self.decided(receipt, settlement)
        return settlement


@dataclass(slots=True)
class FailingMeter:
    """A meter that counts how leases ended, and fails now and then."""

    failing: Failing
    ended_leases: dict[Outcome, int] = field(default_factory=dict)

    def held(self, queue_url: str, change: int) -> None:
        """Not counted."""
        self.failing.maybe()

    def batches(self, queue_url: str, change: int) -> None:
        """Not counted."""
        self.failing.maybe()

    def extended(self, queue_url: str, leases: int) -> None:
        """Not counted."""
        self.failing.maybe()

    def late(self, queue_url: str) -> None:
        """Not counted."""
        self.failing.maybe()

    def ended(self, queue_url: str, outcome: Outcome, settling_seconds: float | None) -> None:
        """Count it."""
        self.ended_leases[outcome] = self.ended_leases.get(outcome, 0) + 1
        self.failing.maybe()
