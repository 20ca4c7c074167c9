"""What a sensor tells whoever receives for it, as plain values: its trigger, or a thread of its own process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqs_lease.airflow.handover.payload import INLINE_BYTES
from sqs_lease.airflow.receiving.collecting import CollectOptions
from sqs_lease.airflow.receiving.filtering import encode_unmatched
from sqs_lease.core.failure_rules import expire, release
from sqs_lease.core.specs import encode_failure_rule


@dataclass(frozen=True, slots=True)
class ReceiveOptions:
    """The options of one receive.

    Attributes:
        queue: The queue's URL, name or ARN.
        batch_id: Names the batch for its keeper.
        connection: How AWS is reached, as :meth:`AwsConnection.encode` gives it.
        policy: The renewal policy, as :func:`~sqs_lease.core.specs.encode_policy` gives it.
        max_messages: Most messages.
        linger_seconds: How long to wait for more after the first.
        deferred_at: When the task deferred, in seconds since the epoch.
        expires_at: Until when to wait for a first message, in seconds since the epoch.
        skip_when_expired: Whether the task is then skipped instead of failed.
        keeper_task_id: The keeper's task in the same run.
        handoff_timeout_seconds: How long the batch is held for the keeper.
        mapped_over: Whether a task is expanded over the messages.
        payload: Where messages and leases are stored; None publishes them as XComs.
        filter: The arguments of a ``MessageFilter``; None lets every message through.
        unmatched: What becomes of the others, as ``encode_unmatched()`` gives it.
        on_failure: The keeper's rule for failed messages, as ``encode_failure_rule()`` gives it: what Airflow cannot
            publish is settled by it.
    """

    queue: str
    batch_id: str
    connection: dict[str, Any]
    policy: dict[str, Any]
    max_messages: int
    linger_seconds: float
    deferred_at: float
    expires_at: float
    skip_when_expired: bool
    keeper_task_id: str
    handoff_timeout_seconds: float
    mapped_over: bool
    payload: str | None = None
    filter: dict[str, Any] | None = None
    unmatched: dict[str, Any] = field(default_factory=lambda: encode_unmatched(expire()))
    on_failure: dict[str, Any] = field(default_factory=lambda: encode_failure_rule(release()))

    @property
    def most_bytes(self) -> int | None:
        """The size at which the batch ends, in bytes; None where it is stored."""
        return INLINE_BYTES if self.payload is None else None

    def collecting(self) -> CollectOptions:
        """What concerns the collection alone."""
        return CollectOptions(
            self.queue,
            self.policy,
            self.max_messages,
            self.linger_seconds,
            self.filter,
            self.unmatched,
            stored=self.payload is not None,
            on_failure=self.on_failure,
        )
