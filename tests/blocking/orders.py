"""Queues in memory that ``lease`` and ``async_lease`` take from, with what goes wrong on the way."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep

from sqs_lease import Message
from sqs_lease.clock import Clock, SystemClock
from sqs_lease.testing import (
    Fault,
    FaultRule,
    LeasedQueue,
    MemorySqs,
    MemoryTransport,
    MessageState,
    Operation,
    no_faults,
)
from sqs_lease.testing.service_errors import ACCESS_DENIED, HANDLE_EXPIRED, ServiceError

DENIED = Fault(error=ACCESS_DENIED)
NAME = "orders"


class Orders:
    """The queue ``orders``, or ``orders.fifo``, and its dead-letter queue.

    Attributes:
        faults: The faults of calls of transports that are made from now on.
        transports: Those that were made.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.sqs = MemorySqs(SystemClock() if clock is None else clock)
        self.faults: FaultRule = no_faults
        self.transports: list[MemoryTransport] = []
        self.queue = self._create(NAME)
        self.fifo = self._create(f"{NAME}.fifo")

    def _create(self, name: str) -> LeasedQueue:
        stem, _, kind = name.partition(".")
        fifo = bool(kind)
        dead = self.sqs.create_queue(f"{stem}-dead" + (".fifo" if fifo else ""), content_based_deduplication=fifo)
        url = self.sqs.create_queue(
            name,
            visibility_seconds=600,
            dead_letter_queue_url=dead,
            max_receive_count=10,
            content_based_deduplication=fifo,
        )
        return LeasedQueue(name, url, dead, self.sqs)

    def transport(self) -> MemoryTransport:
        made = MemoryTransport(self.sqs, faults=self.faults)
        self.transports.append(made)
        return made

    def states(self) -> list[MessageState]:
        return list(self.sqs.contents(self.queue.url).values())


def refused(operation: Operation, error: ServiceError = ACCESS_DENIED, *, places: int | None = None) -> FaultRule:
    """The service refuses a kind of call, or so many of the first entries of each."""

    def rule(call: object) -> Fault:
        if getattr(call, "operation", None) is not operation:
            return Fault()
        return Fault(error=error) if places is None else Fault(entry_errors=dict.fromkeys(range(places), error))

    return rule


def lost(operation: Operation, places: int) -> FaultRule:
    """The service says that another consumer has so many of the first entries of each call."""
    return refused(operation, HANDLE_EXPIRED, places=places)


def eventually(is_so: Callable[[], bool]) -> None:
    """Wait for what another thread does, in small steps."""
    ends_at = monotonic() + 60
    while not is_so():
        assert monotonic() < ends_at
        sleep(0.005)


@contextmanager
def no_message_left() -> Iterator[None]:
    """Check that the block leaves no message in memory, also where the garbage collector does not run."""

    def in_memory() -> list[Message]:
        return [one for one in gc.get_objects() if type(one) is Message]

    gc.collect()
    gc.disable()
    try:
        before = in_memory()
        yield
        assert [one.body for one in in_memory() if all(one is not other for other in before)] == []
    finally:
        gc.enable()
