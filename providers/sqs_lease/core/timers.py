"""The orders that a ledger keeps its records in: by time, and first in first out.

Nothing is removed from the middle of either. A record that moves on gets a new token, and the item that it left
behind is stale: it is dropped when it comes up, or when stale items outnumber the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, Protocol, TypeVar

_TOKEN_BITS: Final = 32
_FEW_ITEMS: Final = 64


class Record(Protocol):
    """What can be kept in these orders.

    Attributes:
        sequence: A number of its own; among equal times the lower one comes first.
        token: Says which item of the record is not stale; the orders count it up.
    """

    sequence: int
    token: int


_Record = TypeVar("_Record", bound=Record)


class TimeOrder(Generic[_Record]):
    """Records by time; a heap, so that each operation costs O(log n).

    The items are tuples of plain numbers, which Python's garbage collector does not look through: with tens of
    thousands of leases its pauses are what an event loop waits for longest.
    """

    __slots__ = ("_items", "_prune_above", "_records")

    def __init__(self) -> None:
        self._items: list[tuple[float, int]] = []
        self._records: dict[int, _Record] = {}
        self._prune_above = _FEW_ITEMS

    def __len__(self) -> int:
        """How many items it has, stale ones included."""
        return len(self._items)

    def push(self, at: float, record: _Record) -> None:
        """Put a record in at a time; wherever else it is, its item is stale from now on."""
        record.token += 1
        ticket = record.sequence << _TOKEN_BITS | record.token
        self._records[ticket] = record
        heappush(self._items, (at, ticket))
        if len(self._items) > self._prune_above:
            self._prune()

    def first(self) -> tuple[float, _Record] | None:
        """The earliest item that is not stale."""
        while self._items:
            at, ticket = self._items[0]
            record = self._records[ticket]
            if _is_current(record, ticket):
                return at, record
            self.pop()
        return None

    def pop(self) -> _Record:
        """Remove and return what :meth:`first` showed."""
        return self._records.pop(heappop(self._items)[1])

    def pop_until(self, now: float) -> Iterator[_Record]:
        """Remove and give out all records up to a time."""
        while (first := self.first()) is not None and first[0] <= now:
            yield self.pop()

    def _prune(self) -> None:
        """Drop all stale items; this happens at most once in as many pushes as items are left."""
        self._records = {ticket: one for ticket, one in self._records.items() if _is_current(one, ticket)}
        self._items = [item for item in self._items if item[1] in self._records]
        heapify(self._items)
        self._prune_above = max(2 * len(self._items), _FEW_ITEMS)


class ArrivalOrder(Generic[_Record]):
    """Records first in, first out."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: deque[tuple[int, _Record]] = deque()

    def push(self, record: _Record) -> None:
        """Put a record in at the end; wherever else it is, its item is stale from now on."""
        record.token += 1
        self._items.append((record.token, record))

    def first(self) -> _Record | None:
        """The oldest item that is not stale."""
        while self._items:
            token, record = self._items[0]
            if token == record.token:
                return record
            self._items.popleft()
        return None

    def pop(self) -> _Record:
        """Remove and return what :meth:`first` showed."""
        return self._items.popleft()[1]


def _is_current(record: Record, ticket: int) -> bool:
    return record.token == ticket & (1 << _TOKEN_BITS) - 1
