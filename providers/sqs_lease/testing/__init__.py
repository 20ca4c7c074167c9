"""Public helpers for tests: an in-memory SQS with the real service's semantics, on a virtual clock."""

from sqs_lease.testing.virtual_time import (
    VirtualClock,
    VirtualDeadlockError,
    VirtualLivelockError,
    VirtualLoop,
    run_virtual,
)

__all__ = [
    "VirtualClock",
    "VirtualDeadlockError",
    "VirtualLivelockError",
    "VirtualLoop",
    "run_virtual",
]
