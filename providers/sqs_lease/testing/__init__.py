"""Public helpers for tests: an in-memory SQS with the real service's semantics, on a virtual clock."""

from sqs_lease.testing.audit import AuditEntry, AuditKind, AuditTrail
from sqs_lease.testing.memory_queue import MessageState, ServiceChoices
from sqs_lease.testing.memory_sqs import MemorySqs
from sqs_lease.testing.service_errors import MemorySqsError, ServiceError
from sqs_lease.testing.virtual_time import (
    VirtualClock,
    VirtualDeadlockError,
    VirtualLivelockError,
    VirtualLoop,
    run_virtual,
)

__all__ = [
    "AuditEntry",
    "AuditKind",
    "AuditTrail",
    "MemorySqs",
    "MemorySqsError",
    "MessageState",
    "ServiceChoices",
    "ServiceError",
    "VirtualClock",
    "VirtualDeadlockError",
    "VirtualLivelockError",
    "VirtualLoop",
    "run_virtual",
]
