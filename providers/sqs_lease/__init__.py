"""SQS leases for orchestrators: receive, keep invisible while the work runs, delete on success, release on failure."""

from sqs_lease.blocking import LeasedBatch, lease
from sqs_lease.core.events import Ending, Lapsed, LeaseEvent, Lost, Outcome, Refused, Settled
from sqs_lease.core.failure_rules import (
    FailureRule,
    MessageFailed,
    backoff,
    by_exception,
    dead_letter,
    discard,
    expire,
    release,
)
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.core.policies import Buffered, Fixed, Growing, Never, RenewalPolicy, Threshold
from sqs_lease.keeper.batch import LeaseReport

__all__ = [
    "Buffered",
    "Ending",
    "FailureRule",
    "Fixed",
    "Growing",
    "Lapsed",
    "LeaseEvent",
    "LeaseReport",
    "LeasedBatch",
    "Lost",
    "Message",
    "MessageFailed",
    "Never",
    "Outcome",
    "Receipt",
    "Refused",
    "RenewalPolicy",
    "Settled",
    "Threshold",
    "backoff",
    "by_exception",
    "dead_letter",
    "discard",
    "expire",
    "lease",
    "release",
]
