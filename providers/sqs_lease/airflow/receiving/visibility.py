"""How long a visibility timeout must be, so that a lease outlives the triggerer that holds it.

When a triggerer dies, its triggers are given to another one after ``[triggerer] triggerer_health_check_threshold``
(30 s by default), and then it takes until the next heartbeats, the start of the triggers and their first answers from
Airflow before a lease is extended again: 21 to 40 s altogether where that was measured, more on a slow machine. So
:func:`takeover_seconds` is the threshold and half a minute, and the default visibility timeout 180 s at Airflow's
defaults (:mod:`sqs_lease.core.policies`), where the queue's own timeout is not longer.
"""

from __future__ import annotations

from typing import Final, TypeVar

from airflow.sdk.configuration import conf

from sqs_lease.core import policies
from sqs_lease.core.policies import Growing, RenewalPolicy

TAKEOVER_MARGIN_SECONDS: Final = 30.0
"""What a takeover needs beyond Airflow's threshold: heartbeats, the start of triggers, first answers."""

_Policy = TypeVar("_Policy", bound=RenewalPolicy)


class ShortVisibilityWarning(UserWarning):
    """A lease can run out while another triggerer takes over: its visibility timeout is too short for that."""


def takeover_seconds() -> float:
    """How long nobody extends a lease when its triggerer dies, at this installation's settings."""
    threshold = conf.getfloat("triggerer", "triggerer_health_check_threshold", fallback=30.0)
    return float(threshold) + TAKEOVER_MARGIN_SECONDS


def default_visibility_seconds(policy: RenewalPolicy) -> int:
    """The shortest visibility timeout of which the policy leaves enough for a takeover by another triggerer."""
    return policies.default_visibility_seconds(policy, takeover_seconds())


def with_visibility(policy: _Policy, queue_seconds: float = 0.0) -> _Policy:
    """Return the policy with a visibility timeout, by default one that survives a takeover.

    Args:
        policy: The policy; one with a visibility timeout of its own is returned as it is.
        queue_seconds: The queue's own visibility timeout, which is taken where it is longer than the default.
    """
    return policies.with_visibility(policy, takeover_seconds(), queue_seconds)


def takeover_risk(policy: RenewalPolicy) -> str | None:
    """Say why leases could run out during a takeover, for people; None where they outlive it, or are never extended.

    Args:
        policy: The policy, with its visibility timeout.
    """
    left, needed = policies.seconds_left_at_worst(policy), takeover_seconds()
    if left is None or left >= needed - 1e-9:
        return None
    return (
        f"a visibility timeout of {policy.visibility_seconds:g} s with {type(policy).__name__} leaves {left:g} s at "
        f"worst when a triggerer dies, but another one needs up to {needed:g} s to take over ([triggerer] "
        f"triggerer_health_check_threshold and {TAKEOVER_MARGIN_SECONDS:g} s): others could receive the messages while "
        f"the DAG works on them. Leave visibility out, or use Growing with at least "
        f"{default_visibility_seconds(Growing())} s"
    )
