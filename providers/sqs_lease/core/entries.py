"""The ledger's record of one lease, and the two orders it is kept in: by time, and first in first out.

Nothing is ever removed from the middle of either: a record that moved on gets a new token, and the item
it left behind is dropped when it comes up.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from enum import Enum, auto
from heapq import heappop, heappush
from typing import Final

from msgspec import Struct

from sqs_lease.core.failure_rules import Settlement
from sqs_lease.core.limits import MAX_VISIBILITY_SECONDS
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.policies import RenewalPolicy

CAP_MARGIN_SECONDS: Final = 5.0
"""How far the last extension stays below the service's 12 hours: the service counts from when a call *arrives*."""


class Phase(Enum):
    """Where a lease stands; the table in :mod:`sqs_lease.core.ledger` says what leads where."""

    WAITING = auto()
    DUE = auto()
    EXTENDING = auto()
    SETTLING = auto()
    SENT = auto()


class Entry(Struct, eq=False, gc=False):
    """The ledger's mutable record of one lease; it satisfies the policies' ``LeaseTimes``."""

    lease: Lease
    policy: RenewalPolicy
    sequence: int
    renewed_at: float = 0.0
    deadline: float = 0.0
    phase: Phase = Phase.WAITING
    token: int = 0
    renew_at: float = math.inf
    final: bool = False
    lapsed: bool = False
    doubtful: bool = False  # it may be somebody else's as well
    refused: bool = False
    settlement: Settlement | None = None
    began_settling_at: float = math.inf

    def __post_init__(self) -> None:
        self.renewed_at = self.lease.received_at
        self.deadline = self.lease.deadline
        self.doubtful = self.lease.doubtful

    @property
    def received_at(self) -> float:
        """When the receive that returned the message was sent."""
        return self.lease.received_at

    @property
    def ends_at(self) -> float:
        """The end that no extension can go beyond."""
        longest = min(self.policy.max_lease_seconds, MAX_VISIBILITY_SECONDS - CAP_MARGIN_SECONDS)
        return self.lease.received_at + longest

    @property
    def receipt(self) -> Receipt:
        """Which reception this is."""
        return self.lease.receipt


_TOKEN_BITS: Final = 32


class Heap:
    """Entries by time, first in first out among equals; an entry that moved on leaves a stale item behind.

    The items are tuples of plain numbers, which Python's garbage collector need not look through: with tens of
    thousands of leases its pauses are what an event loop waits for longest.
    """

    __slots__ = ("_entries", "_items")

    def __init__(self) -> None:
        self._items: list[tuple[float, int]] = []
        self._entries: dict[int, Entry] = {}

    def push(self, at: float, entry: Entry) -> None:
        """Put an entry in at a time, and drop it wherever else it is."""
        entry.token += 1
        ticket = entry.sequence << _TOKEN_BITS | entry.token
        self._entries[ticket] = entry
        heappush(self._items, (at, ticket))

    def first(self) -> tuple[float, Entry] | None:
        """The earliest item that is not stale."""
        while self._items:
            at, ticket = self._items[0]
            entry = self._entries[ticket]
            if entry.token == ticket & (1 << _TOKEN_BITS) - 1:
                return at, entry
            self.pop()
        return None

    def pop(self) -> Entry:
        """Remove and return what :meth:`first` showed."""
        return self._entries.pop(heappop(self._items)[1])

    def pop_until(self, now: float) -> Iterator[Entry]:
        """Remove and give out all entries up to a time."""
        while (first := self.first()) is not None and first[0] <= now:
            yield self.pop()


class Queue:
    """Entries first in, first out; an entry that moved on leaves a stale item behind."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: deque[tuple[int, Entry]] = deque()

    def push(self, entry: Entry) -> None:
        """Put an entry in at the end, and drop it wherever else it is."""
        entry.token += 1
        self._items.append((entry.token, entry))

    def first(self) -> Entry | None:
        """The oldest item that is not stale."""
        while self._items:
            token, entry = self._items[0]
            if token == entry.token:
                return entry
            self._items.popleft()
        return None

    def pop(self) -> Entry:
        """Remove and return what :meth:`first` showed."""
        return self._items.popleft()[1]
