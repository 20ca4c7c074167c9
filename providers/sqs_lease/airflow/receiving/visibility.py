"""How long a visibility timeout must be, so that a lease outlives the triggerer that holds it.

When a triggerer dies, its triggers are given to another one after ``[triggerer] triggerer_health_check_threshold``
(30 s by default), and then it takes until the next heartbeats, the start of the triggers and their first answers from
Airflow before a lease is extended again: 21 to 40 s altogether where that was measured, more on a slow machine. So
:func:`takeover_seconds` is the threshold and half a minute.

What counts is how much of the visibility timeout is left when a lease is about to be renewed: a process that dies
just then leaves no more. ``Growing`` leaves a third of the period, so its visibility timeout must be three times the
takeover: 180 s at Airflow's defaults. That is the default here, where the queue's own timeout is not longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from airflow.sdk.configuration import conf

from sqs_lease.core.durations import seconds_of
from sqs_lease.core.limits import MAX_VISIBILITY_SECONDS
from sqs_lease.core.policies import Fixed, Growing, RenewalPolicy

TAKEOVER_MARGIN_SECONDS: Final = 30.0
"""What a takeover needs beyond Airflow's threshold: heartbeats, the start of triggers, first answers."""

_DEFAULT_MARGIN: Final = 1 / 3

_Policy = TypeVar("_Policy", bound=RenewalPolicy)


class ShortVisibilityWarning(UserWarning):
    """A lease can run out while another triggerer takes over: its visibility timeout is too short for that."""


@dataclass(frozen=True, slots=True)
class _FreshLease:
    """A lease that was received a moment ago, as a policy sees it."""

    received_at: float
    renewed_at: float
    deadline: float


def takeover_seconds() -> float:
    """How long nobody extends a lease when its triggerer dies, at this installation's settings."""
    threshold = conf.getfloat("triggerer", "triggerer_health_check_threshold", fallback=30.0)
    return float(threshold) + TAKEOVER_MARGIN_SECONDS


def default_visibility_seconds(policy: RenewalPolicy) -> int:
    """The shortest visibility timeout of which the policy leaves enough for a takeover, where that is possible.

    For policies that leave a fixed time, however long the timeout is, it is that of ``Growing``. At most 12 hours.
    """
    if isinstance(policy, Fixed):
        shortest = seconds_of(policy.every, name="every") + takeover_seconds()
    else:
        margin = policy.margin if isinstance(policy, Growing) else _DEFAULT_MARGIN
        shortest = takeover_seconds() / margin
    return min(math.ceil(shortest - 1e-9), MAX_VISIBILITY_SECONDS)


def with_visibility(policy: _Policy, queue_seconds: float = 0.0) -> _Policy:
    """Return the policy with a visibility timeout, by default one that survives a takeover.

    Args:
        policy: The policy; one with a visibility timeout of its own is returned as it is.
        queue_seconds: The queue's own visibility timeout, which is taken where it is longer than the default.
    """
    if policy.visibility is not None:
        return policy
    return replace(policy, visibility=max(queue_seconds, default_visibility_seconds(policy)))


def takeover_risk(policy: RenewalPolicy) -> str | None:
    """Say why leases could run out during a takeover, for people; None where they outlive it, or are never extended.

    Args:
        policy: The policy, with its visibility timeout.
    """
    seconds = policy.visibility_seconds
    renew_at = policy.renew_at(_FreshLease(0.0, 0.0, seconds))
    if renew_at is None:
        return None
    left, needed = max(seconds - max(renew_at, 0.0), 0.0), takeover_seconds()
    if left >= needed - 1e-9:
        return None
    return (
        f"a visibility timeout of {seconds:g} s with {type(policy).__name__} leaves {left:g} s at worst when a "
        f"triggerer dies, but another one needs up to {needed:g} s to take over ([triggerer] "
        f"triggerer_health_check_threshold and {TAKEOVER_MARGIN_SECONDS:g} s): others could receive the messages while "
        f"the DAG works on them. Leave visibility out, or use Growing with at least "
        f"{default_visibility_seconds(Growing())} s"
    )
