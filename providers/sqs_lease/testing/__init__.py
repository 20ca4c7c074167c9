"""Public helpers for tests: an in-memory SQS with the real service's semantics, on a virtual clock.

A test of code that consumes a queue, without a server, without waiting, and the same way every time::

    clock = VirtualClock()
    sqs = MemorySqs(clock)
    queue_url = sqs.create_queue("orders", visibility_seconds=30)
    sqs.send(queue_url, "an order")
    transport = MemoryTransport(sqs, faults=ScriptedFaults(Fault(answer_lost=True)))

    run_virtual(lambda: consume(transport, clock), clock=clock)

    assert not sqs.contents(queue_url)

Tests of DAGs by ``dag.test()`` use the fixture of :mod:`sqs_lease.testing.pytest_plugin`.
"""

from sqs_lease.sqs.move_tasks import MoveTask
from sqs_lease.testing.audit import AuditEntry, AuditKind, AuditTrail
from sqs_lease.testing.faults import (
    NO_FAULT,
    CallRate,
    Fault,
    FaultRule,
    HeavyTail,
    Operation,
    Outages,
    RandomFaults,
    ScriptedFaults,
    TransportCall,
    no_faults,
)
from sqs_lease.testing.leased_queues import LeasedQueue, LeasedQueues
from sqs_lease.testing.memory_queue import MessageState, ServiceChoices
from sqs_lease.testing.memory_sqs import MemorySqs
from sqs_lease.testing.memory_transport import MemoryTransport
from sqs_lease.testing.service_errors import MemorySqsError, ServiceError
from sqs_lease.testing.virtual_time import (
    VirtualClock,
    VirtualDeadlockError,
    VirtualLivelockError,
    VirtualLoop,
    run_virtual,
)

__all__ = [
    "NO_FAULT",
    "AuditEntry",
    "AuditKind",
    "AuditTrail",
    "CallRate",
    "Fault",
    "FaultRule",
    "HeavyTail",
    "LeasedQueue",
    "LeasedQueues",
    "MemorySqs",
    "MemorySqsError",
    "MemoryTransport",
    "MessageState",
    "MoveTask",
    "Operation",
    "Outages",
    "RandomFaults",
    "ScriptedFaults",
    "ServiceChoices",
    "ServiceError",
    "TransportCall",
    "VirtualClock",
    "VirtualDeadlockError",
    "VirtualLivelockError",
    "VirtualLoop",
    "no_faults",
    "run_virtual",
]
