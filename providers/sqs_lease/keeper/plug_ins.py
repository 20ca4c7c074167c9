"""Guarded calls of the plug-ins of users and hosts: a plug-in may raise, or block for a while, without harm to leases.

Policies, failure rules, listeners, meters and sources of messages may be a user's own. Each call of one is guarded, and
the ledger gets each answer of the service before a plug-in hears of it. A policy that raises, or takes too long, is
replaced by the default one for its batch.

Each plug-in's first failure is logged with its traceback, further ones are not: a policy is called for every lease.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from sqs_lease.clock import Clock
from sqs_lease.core.policies import Buffered, Fixed, Growing, LeaseTimes, Never, RenewalPolicy, Threshold

logger = logging.getLogger(__name__)

LONGEST_ANSWER_SECONDS: Final = 0.25
"""A policy that takes longer keeps all leases of the process waiting; it is not called again."""

SHORTEST_PERIOD_SECONDS: Final = 0.5
"""The time between two renewals of a lease by a policy of the user's own, at least; less for a lease that is shorter
than twice that."""

_OURS: Final = (Growing, Threshold, Buffered, Fixed, Never)

_T = TypeVar("_T")


@dataclass(slots=True)
class PlugIns:
    """The plug-ins of one batch, with guarded calls.

    Attributes:
        queue_url: The batch's queue, for the log.
    """

    queue_url: str
    _failed: set[str] = field(default_factory=set)

    def call(self, name: str, function: Callable[[], _T], instead: _T) -> _T:
        """Call a plug-in.

        Args:
            name: Its name in the log, e.g. ``listener``.
            function: Calls it.
            instead: The value to return when it raises.
        """
        try:
            return function()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - also SystemExit, and the error of another task's cancellation
            self.failed(name, error)
            return instead

    def failed(self, name: str, error: BaseException) -> None:
        """Log the first failure of a plug-in."""
        if name not in self._failed:
            self._failed.add(name)
            logger.error(
                "The %s of a batch of %s failed; its leases go on. Further failures of it are not logged",
                name,
                self.queue_url,
                exc_info=error,
            )


def guarded(policy: RenewalPolicy, plug_ins: PlugIns, clock: Clock) -> RenewalPolicy:
    """Return a policy that never raises, and answers with times: one of the user's own is replaced when it fails."""
    if type(policy) in _OURS:
        return policy
    return _GuardedPolicy(
        visibility=policy.visibility_seconds,
        max_lease=policy.max_lease,
        guard=_Guard(
            policy, Growing(visibility=policy.visibility_seconds, max_lease=policy.max_lease), plug_ins, clock
        ),
    )


class _Guard:
    """A guard that asks a policy until it fails, and from then on its replacement."""

    def __init__(self, policy: RenewalPolicy, instead: RenewalPolicy, plug_ins: PlugIns, clock: Clock) -> None:
        self._policy = policy
        self._instead = instead
        self._plug_ins = plug_ins
        self._clock = clock

    def ask(self, question: Callable[[RenewalPolicy], float | None]) -> float | None:
        """Return the policy's answer, a number or None."""
        try:
            return self._asked(question)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - also SystemExit, and the error of another task's cancellation
            self._plug_ins.failed(
                f"renewal policy ({type(self._policy).__name__}), replaced by the default one,", error
            )
            self._policy = self._instead
            return question(self._policy)

    def _asked(self, question: Callable[[RenewalPolicy], float | None]) -> float | None:
        began = self._clock.now()
        answer = question(self._policy)
        if answer is not None and ((answer := float(answer)) == -math.inf or math.isnan(answer)):
            raise ValueError(f"a renewal policy must return a number of seconds, not {answer}")
        if self._clock.now() - began > LONGEST_ANSWER_SECONDS:
            raise TimeoutError("a renewal policy must answer at once: all leases wait for it")
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class _GuardedPolicy(RenewalPolicy):
    """A policy behind a guard."""

    guard: _Guard

    def renew_at(self, lease: LeaseTimes) -> float | None:
        """Return the time of the next renewal, by the policy or its replacement; None for never."""
        at = self.guard.ask(lambda policy: policy.renew_at(lease))
        if at is None:
            return None
        # A time that has always passed would make one call after the other, thousands a second.
        return max(at, lease.renewed_at + min(SHORTEST_PERIOD_SECONDS, (lease.deadline - lease.renewed_at) / 2))

    def extension_seconds(self, lease: LeaseTimes, now: float) -> float:
        """Return the extension in seconds, by the policy or its replacement; 0 if that gives no number."""
        return self.guard.ask(lambda policy: policy.extension_seconds(lease, now)) or 0.0
