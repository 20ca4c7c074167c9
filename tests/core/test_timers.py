"""The orders of a ledger keep what is live in order, and no operation on them takes long."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sqs_lease.core.timers import Orders, TimeOrder

TIMES = st.integers(0, 20).map(float)


@dataclass(slots=True, eq=False)
class Item:
    sequence: int
    token: int = 0
    place: int = -1


class OrdersAgainstSortedLists(RuleBasedStateMachine):
    """Two orders by time do what two sorted lists do, also while their items move to a new heap."""

    def __init__(self) -> None:
        super().__init__()
        self.orders: Orders[Item] = Orders()
        self.by_time = (self.orders.by_time(), self.orders.by_time())
        self.expected: tuple[dict[int, float], dict[int, float]] = ({}, {})
        self.records: list[Item] = []

    @rule(which=st.integers(0, 1), times=st.lists(TIMES, min_size=1, max_size=300))
    def push_new_ones(self, which: int, times: list[float]) -> None:
        for at in times:
            record = Item(len(self.records))
            self.records.append(record)
            self.push(which, at, record)

    @precondition(lambda self: self.records)
    @rule(which=st.integers(0, 1), at=TIMES, share=st.integers(1, 10))
    def push_again(self, which: int, at: float, share: int) -> None:
        for record in self.records[::share]:
            self.push(which, at, record)

    def push(self, which: int, at: float, record: Item) -> None:
        for expected in self.expected:
            expected.pop(record.sequence, None)
        self.by_time[which].push(at, record)
        self.expected[which][record.sequence] = at

    @precondition(lambda self: self.records)
    @rule(start=st.integers(0, 9), share=st.integers(1, 10))
    def take_out(self, start: int, share: int) -> None:
        for record in self.records[start::share]:
            self.orders.take_out(record)
            for expected in self.expected:
                expected.pop(record.sequence, None)

    @rule(which=st.integers(0, 1), now=TIMES, most=st.integers(1, 50))
    def pop_until(self, which: int, now: float, most: int) -> None:
        popped = [record.sequence for record in self.by_time[which].pop_until(now, most)]
        due = sorted((at, sequence) for sequence, at in self.expected[which].items() if at <= now)
        assert popped == [sequence for _, sequence in due[:most]]
        for sequence in popped:
            del self.expected[which][sequence]

    @invariant()
    def the_first_is_the_earliest(self) -> None:
        for order, expected in zip(self.by_time, self.expected, strict=True):
            first = order.first()
            shown = None if first is None else (first[0], first[1].sequence)
            assert shown == min(((at, sequence) for sequence, at in expected.items()), default=None)


TestOrders = OrdersAgainstSortedLists.TestCase
TestOrders.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def filled(orders: Orders[Item], count: int) -> tuple[TimeOrder[Item], list[Item]]:
    order = orders.by_time()
    records = [Item(number) for number in range(count)]
    for record in records:
        order.push(float(record.sequence), record)
    return order, records


def test_no_single_operation_drops_more_than_a_few_items() -> None:
    orders: Orders[Item] = Orders()
    order, records = filled(orders, 10_000)
    dropped = []
    for record in records[::-1]:
        before = len(order)
        orders.take_out(record)
        dropped.append(before - len(order))
    assert 0 < max(dropped) < 20


def test_the_first_stays_the_earliest_while_the_items_move_to_a_new_heap() -> None:
    orders: Orders[Item] = Orders()
    order, records = filled(orders, 1_000)
    for record in records[:300:-1]:
        orders.take_out(record)
        assert order.head() is records[0]


def test_stale_items_are_soon_dropped() -> None:
    orders: Orders[Item] = Orders()
    order, records = filled(orders, 10_000)
    for live, record in zip(range(9_999, 0, -1), records, strict=False):
        orders.take_out(record)
        assert len(order) <= 2.5 * live + 100
