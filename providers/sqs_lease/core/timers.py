"""The orders that a ledger keeps its records in: by time, and first in first out. A record is in one of them at a time.

Nothing is searched for in the middle of an order. A record that moves on gets a new token, and the item that it left
behind is stale: it is dropped when it comes up, or soon after half of the items are stale.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final, Generic, Protocol, TypeVar

_TOKEN_BITS: Final = 32
_TOKEN_MASK: Final = (1 << _TOKEN_BITS) - 1
_FEW_ITEMS: Final = 64

_MOVED_AT_ONCE: Final = 8
"""How many items move to the new heap with each new stale one: all have moved long before half of those are stale."""


class Record(Protocol):
    """A record that these orders can keep."""

    sequence: int
    """A unique number; among equal times the lower one comes first."""
    token: int
    """The token of the record's one item that is not stale; the orders increase it."""
    place: int
    """The number of the order that it is in; -1 if it is in none."""


_Record = TypeVar("_Record", bound=Record)


class Orders(Generic[_Record]):
    """The orders of one ledger. Putting a record into one of them takes it out of the one that it was in."""

    def __init__(self) -> None:
        self._by_time: list[TimeOrder[_Record] | None] = []

    def by_time(self) -> TimeOrder[_Record]:
        """Add an order by time."""
        order: TimeOrder[_Record] = TimeOrder(self, len(self._by_time))
        self._by_time.append(order)
        return order

    def by_arrival(self) -> ArrivalOrder[_Record]:
        """Add an order first in, first out."""
        self._by_time.append(None)
        return ArrivalOrder(self, len(self._by_time) - 1)

    def take_out(self, record: _Record) -> None:
        """Take a record out of the order that it is in, if any."""
        record.token += 1
        place, record.place = record.place, -1
        if place >= 0 and (order := self._by_time[place]) is not None:
            order.note_stale()


class TimeOrder(Generic[_Record]):
    """Records by time; a heap, so that each operation costs O(log n). Made by :meth:`Orders.by_time`.

    The items are tuples of plain numbers, which Python's garbage collector does not look through: with tens of
    thousands of leases its pauses are what an event loop waits for longest. For the same reason stale items are not
    dropped all at once: when half of them are stale, the others move to a new heap, a few with each operation. An item
    at the end of a heap can be taken away without a look at the rest.
    """

    __slots__ = ("_items", "_leaving", "_orders", "_place", "_records", "_stale")

    def __init__(self, orders: Orders[_Record], place: int) -> None:
        self._orders = orders
        self._place = place
        self._items: list[tuple[float, int]] = []
        self._leaving: list[tuple[float, int]] = []  # the old heap, while its items move to the new one
        self._records: dict[int, _Record] = {}
        self._stale = 0

    def __len__(self) -> int:
        """Count the items, stale ones included."""
        return len(self._records)

    @property
    def count(self) -> int:
        """How many records it has."""
        return len(self._records) - self._stale

    def push(self, at: float, record: _Record) -> None:
        """Put a record in at a time."""
        if record.place >= 0:
            self._orders.take_out(record)
        record.place = self._place
        ticket = record.sequence << _TOKEN_BITS | record.token
        self._records[ticket] = record
        heappush(self._items, (at, ticket))

    def first(self) -> tuple[float, _Record] | None:
        """Return the earliest item that is not stale, or None."""
        while self._records:
            items = self._earlier_heap() if self._leaving else self._items
            at, ticket = items[0]
            record = self._records[ticket]
            if record.token == ticket & _TOKEN_MASK:
                return at, record
            heappop(items)
            del self._records[ticket]
            self._stale -= 1
        return None

    def head(self) -> _Record | None:
        """Return the earliest record, or None."""
        first = self.first()
        return None if first is None else first[1]

    def pop(self) -> _Record:
        """Remove and return what :meth:`first` showed."""
        items = self._earlier_heap() if self._leaving else self._items
        record = self._records.pop(heappop(items)[1])
        record.place = -1
        return record

    def pop_until(self, now: float, most: int) -> Iterator[_Record]:
        """Remove and yield the records up to a time, at most ``most`` of them."""
        for _ in range(most):
            if (first := self.first()) is None or first[0] > now:
                return
            yield self.pop()

    def note_stale(self) -> None:
        """Take in that one of the items has become stale."""
        self._stale += 1
        if not self._leaving and self._stale > _FEW_ITEMS and 2 * self._stale > len(self._items):
            self._leaving, self._items = self._items, []
        for _ in range(min(_MOVED_AT_ONCE, len(self._leaving))):
            item = self._leaving.pop()
            if self._records[item[1]].token == item[1] & _TOKEN_MASK:
                heappush(self._items, item)
            else:
                del self._records[item[1]]
                self._stale -= 1

    def _earlier_heap(self) -> list[tuple[float, int]]:
        items, leaving = self._items, self._leaving
        return leaving if leaving and (not items or leaving[0] < items[0]) else items


class ArrivalOrder(Generic[_Record]):
    """Records first in, first out. Made by :meth:`Orders.by_arrival`."""

    __slots__ = ("_items", "_orders", "_place")

    def __init__(self, orders: Orders[_Record], place: int) -> None:
        self._orders = orders
        self._place = place
        self._items: deque[tuple[int, _Record]] = deque()

    def push(self, record: _Record) -> None:
        """Put a record in at the end."""
        if record.place >= 0:
            self._orders.take_out(record)
        record.place = self._place
        self._items.append((record.token, record))

    def head(self) -> _Record | None:
        """Return the oldest record, or None."""
        while self._items:
            token, record = self._items[0]
            if token == record.token:
                return record
            self._items.popleft()
        return None

    def pop(self) -> _Record:
        """Remove and return what :meth:`head` showed."""
        record = self._items.popleft()[1]
        record.place = -1
        return record
