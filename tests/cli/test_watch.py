"""`sqs-lease watch`: how deep queues are."""

from __future__ import annotations

import asyncio
import json

import pytest

from sqs_lease.cli.queue_readings import WatchedQueue, sparkline
from sqs_lease.testing import MemorySqs, MemoryTransport, VirtualClock
from sqs_lease.testing.leased_queues import LeasedQueues
from sqs_lease.testing.pytest_plugin import leased_queues
from sqs_lease.testing.service_errors import MemorySqsError, ServiceError
from tests.cli.commands import sqs_lease

__all__ = ["leased_queues"]


def test_one_reading_has_all_counts(leased_queues: LeasedQueues) -> None:
    orders = leased_queues.create("orders", *"abc")
    orders.send("later", delay_seconds=600)
    leased_queues.sqs.receive(orders.url, max_messages=1, visibility_seconds=600)
    leased_queues.sqs.send(orders.dead_letter_url, "failed")
    ran = sqs_lease("watch", "orders", "orders-dead-letters", "--json")

    assert ran.exit_code == 0
    first, second = json.loads(ran.out)["queues"]
    assert first == {
        "queue": "orders",
        "queue_url": orders.url,
        "visible": 2,
        "in_flight": 1,
        "delayed": 1,
        "dead_letter_arn": "arn:aws:sqs:us-east-1:123456789012:orders-dead-letters",
        "dead_letters": 1,
    }
    assert (second["visible"], second["dead_letters"]) == (1, None)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_where_the_output_is_no_terminal_it_prints_one_table(leased_queues: LeasedQueues, columns: int) -> None:
    leased_queues.create("orders-of-a-shop-with-a-very-long-name", *"abc")
    ran = sqs_lease("watch", "orders-of-a-shop-with-a-very-long-name", columns=columns)

    assert ran.exit_code == 0
    assert "visible" in ran.out
    assert "…" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= columns
    assert ran.out == sqs_lease("watch", "orders-of-a-shop-with-a-very-long-name", "--once", columns=columns).out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "there is no such queue"),
        (["not a queue"], "'not a queue' is not a queue name"),
        (["orders", "--interval", "0"], "Invalid value for '--interval'"),
        ([], "Missing argument 'QUEUE"),
    ],
)
def test_what_it_cannot_use_is_one_line_and_exit_code_2(
    leased_queues: LeasedQueues, arguments: list[str], says: str
) -> None:
    ran = sqs_lease("watch", *arguments)

    assert (ran.exit_code, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.count("\n") == 1


class Ground:
    """A watched queue on virtual time."""

    def __init__(self) -> None:
        self.clock = VirtualClock(start=1000)
        self.sqs = MemorySqs(self.clock)
        self.url = self.sqs.create_queue("orders")
        self.queue = WatchedQueue("orders", MemoryTransport(self.sqs), self.clock)

    def read_after(self, seconds: float, *bodies: str) -> None:
        self.clock.advance(seconds)
        for body in bodies:
            self.sqs.send(self.url, body)
        asyncio.run(self.queue.read())


def test_the_change_is_that_of_the_last_minute() -> None:
    ground = Ground()
    ground.read_after(0, *map(str, range(100)))
    assert ground.queue.change_a_minute() is None
    ground.read_after(600)
    assert ground.queue.change_a_minute() == 0
    ground.read_after(30, *"abc")
    assert ground.queue.change_a_minute() == 6
    # Messages that are in flight have not left the queue.
    ground.sqs.receive(ground.url, max_messages=10, visibility_seconds=600)
    ground.read_after(30)
    assert ground.queue.change_a_minute() == 3


def test_a_reading_that_fails_leaves_the_last_one_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    ground = Ground()
    ground.read_after(0, "a")

    def refuse(url: str) -> None:
        raise MemorySqsError(ServiceError("AccessDenied", "no"))

    with monkeypatch.context() as patched:
        patched.setattr(ground.sqs, "attributes", refuse)
        ground.read_after(5)
        assert "denied" in ground.queue.trouble
        assert len(ground.queue.readings) == 1
    ground.read_after(5)
    assert ground.queue.trouble == ""
    assert len(ground.queue.readings) == 2


@pytest.mark.parametrize(
    ("values", "bars"), [([], ""), ([0, 0], "▁▁"), ([0, 7, 14], "▁▅█"), ([1], "█"), ([9, 9, 0, 4, 8], "▁▅█")]
)
def test_a_sparkline_goes_from_zero_to_the_largest_of_the_last_values(values: list[float], bars: str) -> None:
    assert sparkline(values, 3) == bars
