"""How long a visibility timeout must be, so that a lease outlives the process that extends it until another takes over.

What counts is how much of the visibility timeout is left when a lease is about to be renewed: a process that dies
just then leaves no more. ``Growing`` leaves a third of the period, so its visibility timeout must be three times as
long as a takeover takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from sqs_lease.core.durations import seconds_of
from sqs_lease.core.limits import MAX_VISIBILITY_SECONDS
from sqs_lease.core.policies import Fixed, Growing, RenewalPolicy

_DEFAULT_MARGIN: Final = 1 / 3

_Policy = TypeVar("_Policy", bound=RenewalPolicy)


@dataclass(frozen=True, slots=True)
class _FreshLease:
    """A lease that was received a moment ago, as a policy sees it."""

    received_at: float
    renewed_at: float
    deadline: float


def default_visibility_seconds(policy: RenewalPolicy, takeover_seconds: float) -> int:
    """The shortest visibility timeout of which the policy leaves enough for a takeover, where that is possible.

    For policies that leave a fixed time, however long the timeout is, it is that of ``Growing``. At most 12 hours.

    Args:
        policy: The policy.
        takeover_seconds: How long nobody extends a lease while it is taken over.
    """
    if isinstance(policy, Fixed):
        shortest = seconds_of(policy.every, name="every") + takeover_seconds
    else:
        margin = policy.margin if isinstance(policy, Growing) else _DEFAULT_MARGIN
        shortest = takeover_seconds / margin
    return min(math.ceil(shortest - 1e-9), MAX_VISIBILITY_SECONDS)


def with_visibility(policy: _Policy, takeover_seconds: float, queue_seconds: float = 0.0) -> _Policy:
    """Return the policy with a visibility timeout, by default one that survives a takeover.

    Args:
        policy: The policy; one with a visibility timeout of its own is returned as it is.
        takeover_seconds: How long nobody extends a lease while it is taken over.
        queue_seconds: The queue's own visibility timeout, which is taken where it is longer than the default.
    """
    if policy.visibility is not None:
        return policy
    return replace(policy, visibility=max(queue_seconds, default_visibility_seconds(policy, takeover_seconds)))


def seconds_left_at_worst(policy: RenewalPolicy) -> float | None:
    """How much of a lease is left when it is about to be renewed; None where it is never extended.

    Args:
        policy: The policy, with its visibility timeout.
    """
    seconds = policy.visibility_seconds
    renew_at = policy.renew_at(_FreshLease(0.0, 0.0, seconds))
    return None if renew_at is None else max(seconds - max(renew_at, 0.0), 0.0)
