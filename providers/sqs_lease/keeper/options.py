"""The options of a lease: their defaults and their checks, for all that receive messages.

Public functions keep their flat parameters, which take their defaults from here, and make a :class:`LeaseOptions` of
them by :meth:`LeaseOptions.of`. From there on the options travel as that one value, which needs no further checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.core.failure_rules import FailureRule, release
from sqs_lease.core.limits import MAX_IN_FLIGHT
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.core.specs import resolve_policy

DEFAULT_MAX_MESSAGES: Final = 10
"""Most messages of a batch: as many as one answer of ``ReceiveMessage`` brings."""

DEFAULT_WAIT_SECONDS: Final = 20.0
"""How long to wait for a first message, in seconds: one longest poll of ``ReceiveMessage``."""

DEFAULT_LINGER_SECONDS: Final = 1.0
"""How long to wait for more messages after the first ones, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOptions:
    """The options for receiving, keeping and giving back a batch, checked and with all defaults filled in.

    Attributes:
        max_messages: Most messages to receive, 1 to 120 000: as many as one queue can have in flight
            (:data:`MAX_IN_FLIGHT <sqs_lease.core.limits.MAX_IN_FLIGHT>`).
        wait_seconds: How long to wait for a first message, in seconds, 0 or more; 0 looks once. SQS bounds one poll
            (:data:`MAX_WAIT_SECONDS <sqs_lease.core.limits.MAX_WAIT_SECONDS>`), not this: polls are repeated.
        linger_seconds: How long to wait for more after the first ones, in seconds, 0 or more; 0 takes what the first
            answer brings.
        policy: When to extend, and the visibility timeout to receive with, 1 s to 12 hours
            (:data:`MAX_VISIBILITY_SECONDS <sqs_lease.core.limits.MAX_VISIBILITY_SECONDS>`); a policy without one
            stands for the queue's own.
        on_failure: How to settle failed messages.

    Raises:
        ValueError: A value is out of range; the text names the option.
        TypeError: A value is of another type; the text names the option.
    """

    max_messages: int
    wait_seconds: float
    linger_seconds: float
    policy: RenewalPolicy
    on_failure: FailureRule

    def __post_init__(self) -> None:
        number = self.max_messages
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_IN_FLIGHT:
            raise ValueError(
                f"max_messages must be an integer from 1 to {MAX_IN_FLIGHT} (so many messages of a queue can be in "
                f"flight), not {number!r}"
            )
        seconds_of(self.wait_seconds, name="wait")
        seconds_of(self.linger_seconds, name="linger")
        if not isinstance(self.on_failure, FailureRule):
            raise TypeError(f"on_failure must be a failure rule such as dead_letter(), not {self.on_failure!r}")

    @classmethod
    def of(
        cls,
        *,
        max_messages: int = DEFAULT_MAX_MESSAGES,
        wait: Duration = DEFAULT_WAIT_SECONDS,
        linger: Duration = DEFAULT_LINGER_SECONDS,
        policy: RenewalPolicy | str | None = None,
        visibility: Duration | None = None,
        on_failure: FailureRule | None = None,
    ) -> Self:
        """Make the options from the values that a user gave.

        Args:
            max_messages: Most messages to receive; 10 by default.
            wait: How long to wait for a first message, in seconds or as a ``timedelta``; 20 s by default.
            linger: How long to wait for more once one came, as ``wait``; 1 s by default.
            policy: A renewal policy or its name; ``Growing`` by default.
            visibility: The policy's visibility timeout, as ``wait``; the policy's by default, or else the queue's own.
            on_failure: How to settle failed messages; visible again at once by default.

        Raises:
            ValueError: A value is out of range, or ``visibility`` contradicts the policy; the text names the option.
            TypeError: A value is of another type; the text names the option.
        """
        return cls(
            max_messages=max_messages,
            wait_seconds=seconds_of(wait, name="wait"),
            linger_seconds=seconds_of(linger, name="linger"),
            policy=resolve_policy(policy, visibility=visibility),
            on_failure=release() if on_failure is None else on_failure,
        )
