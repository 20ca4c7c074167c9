"""SQS leases for orchestrators: receive, keep invisible while the work runs, delete on success, release on failure.

The public names without an orchestrator: :class:`Consumer` and :class:`AsyncConsumer`, :func:`lease` and
:func:`async_lease` with their batches and errors; failure rules and renewal policies, and the base classes of your own;
the events for listeners; and the keeper, for programs that hold leases in another way.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sqs_lease.version import VERSION

if TYPE_CHECKING:
    from sqs_lease.asynchronous import AsyncConsumer, AsyncLeaseBlock, AsyncLeasedBatch, async_lease
    from sqs_lease.blocking import Consumer, LeaseBlock, LeasedBatch, lease
    from sqs_lease.core.durations import Duration
    from sqs_lease.core.events import Ending, Lapsed, LeaseEvent, Lost, Outcome, Refused, Settled
    from sqs_lease.core.failure_rules import (
        DeadLetter,
        Delete,
        Expire,
        FailureRule,
        MessageFailed,
        Release,
        Settlement,
        backoff,
        by_exception,
        dead_letter,
        discard,
        expire,
        release,
    )
    from sqs_lease.core.messages import Lease, Message, Receipt
    from sqs_lease.core.policies import Buffered, Fixed, Growing, LeaseTimes, Never, RenewalPolicy, Threshold
    from sqs_lease.keeper.batch import Batch, EventListener, KeeperClosedError, LeaseReport, MessageSource, Meter
    from sqs_lease.keeper.keeper import Holding, Keeper, Leaving
    from sqs_lease.keeper.plain_leases import WrittenBatch
    from sqs_lease.keeper.receiver import Receiver, Reception
    from sqs_lease.keeper.session import LeasesLostError, SettlementError
    from sqs_lease.sqs.boto3 import Boto3Transport
    from sqs_lease.sqs.errors import SqsError
    from sqs_lease.sqs.transport import Transport

__version__: Final = VERSION

__all__ = [
    "AsyncConsumer",
    "AsyncLeaseBlock",
    "AsyncLeasedBatch",
    "Batch",
    "Boto3Transport",
    "Buffered",
    "Consumer",
    "DeadLetter",
    "Delete",
    "Duration",
    "Ending",
    "EventListener",
    "Expire",
    "FailureRule",
    "Fixed",
    "Growing",
    "Holding",
    "Keeper",
    "KeeperClosedError",
    "Lapsed",
    "Lease",
    "LeaseBlock",
    "LeaseEvent",
    "LeaseReport",
    "LeaseTimes",
    "LeasedBatch",
    "LeasesLostError",
    "Leaving",
    "Lost",
    "Message",
    "MessageFailed",
    "MessageSource",
    "Meter",
    "Never",
    "Outcome",
    "Receipt",
    "Receiver",
    "Reception",
    "Refused",
    "Release",
    "RenewalPolicy",
    "Settled",
    "Settlement",
    "SettlementError",
    "SqsError",
    "Threshold",
    "Transport",
    "WrittenBatch",
    "async_lease",
    "backoff",
    "by_exception",
    "dead_letter",
    "discard",
    "expire",
    "lease",
    "release",
]

# The modules of the names that are exported.
_MODULES: Final = {
    "asynchronous": "AsyncConsumer AsyncLeaseBlock AsyncLeasedBatch async_lease",
    "blocking": "Consumer LeaseBlock LeasedBatch lease",
    "core.durations": "Duration",
    "core.events": "Ending Lapsed LeaseEvent Lost Outcome Refused Settled",
    "core.failure_rules": "DeadLetter Delete Expire FailureRule MessageFailed Release Settlement "
    "backoff by_exception dead_letter discard expire release",
    "core.messages": "Lease Message Receipt",
    "core.policies": "Buffered Fixed Growing LeaseTimes Never RenewalPolicy Threshold",
    "keeper.batch": "Batch EventListener KeeperClosedError LeaseReport MessageSource Meter",
    "keeper.keeper": "Holding Keeper Leaving",
    "keeper.plain_leases": "WrittenBatch",
    "keeper.receiver": "Receiver Reception",
    "keeper.session": "LeasesLostError SettlementError",
    "sqs.boto3": "Boto3Transport",
    "sqs.errors": "SqsError",
    "sqs.transport": "Transport",
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    # Imported when asked for: what needs one module of this package imports this one, too. A Python worker of Spark's
    # needs neither an event loop nor botocore, which take longer than its own modules.
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
