"""The queues of the examples in `dags/` and `dagster_defs/`, and messages for each of them.

One message in ten is one that the example cannot work on, where the example shows what becomes of those.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from demo.flights import bodies
from demo.queues import create_with_dead_letters, send

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient
    from types_boto3_sqs.type_defs import SendMessageBatchRequestEntryTypeDef

VISIBILITY_SECONDS: Final = 30
"""The visibility timeout of the queues: shorter than much of the work."""

MAX_RECEIVE_COUNT: Final = 3
"""How often a message is delivered before it goes to the dead-letter queue."""

FLIGHTS: Final = ("flights", "dagster-flights")
"""Where test messages go when no queue is named: to Airflow's flights, and to Dagster's."""


def _flights(count: int) -> Iterator[str]:
    return (body.text for body in bodies(count))


def _order(number: int) -> dict[str, object]:
    return {"order_id": number, "customer": f"customer {number % 7}", "total": 10.0 + number}


def _orders(count: int, flawed: Callable[[int], str] | None = None) -> Iterator[str]:
    """Orders as JSON; every tenth is what `flawed` makes of its number."""
    for number in range(1, count + 1):
        if flawed is not None and number % 10 == 0:
            yield flawed(number)
        else:
            yield json.dumps(_order(number))


def _orders_that_are_none(count: int) -> Iterator[str]:
    return _orders(count, lambda number: f"this is not an order: {number}")


def _orders_without_total(count: int) -> Iterator[str]:
    return _orders(count, lambda number: json.dumps({"order_id": number, "customer": "customer 0"}))


def _orders_below_zero(count: int) -> Iterator[str]:
    return _orders(count, lambda number: json.dumps({**_order(number), "total": -1.0}))


def _orders_of_all_kinds(count: int) -> Iterator[str]:
    for number, text in enumerate(_orders_that_are_none(count), start=1):
        yield json.dumps({**_order(number), "customer": "unreachable"}) if number % 10 == 5 else text


def _bookings(count: int) -> Iterator[str]:
    for number in range(1, count + 1):
        yield json.dumps({"booking_id": number, "amount": -1.0 if number % 10 == 0 else 10.0 + number})


def _deliveries(count: int) -> Iterator[str]:
    return (json.dumps({"item": f"item {number}"}) for number in range(1, count + 1))


def _customers(count: int) -> Iterator[str]:
    for number in range(1, count + 1):
        customer: dict[str, object] = {"customer_id": number, "city": f"city {number % 3}"}
        yield json.dumps(customer if number % 10 == 0 else {**customer, "name": f"customer {number}"})


QUEUES: Final[Mapping[str, Callable[[int], Iterator[str]]]] = {
    "flights": _flights,
    # The DAG of the README.
    "orders": _orders,
    "orders-in-one-batch": _orders,
    "orders-one-by-one": _orders_below_zero,
    "orders-that-start-runs": _orders,
    "orders-with-backoff": _orders_of_all_kinds,
    "orders-with-partial-failures": _orders_without_total,
    "bookings-in-order.fifo": _bookings,
    "json-to-delta": _orders_that_are_none,
    "queue-to-postgres": _orders_that_are_none,
    "dagster-flights": _flights,
    "dagster-bookings.fifo": _bookings,
    "dagster-customers": _customers,
    "dagster-deliveries": _deliveries,
    "dagster-orders": _orders_without_total,
}
"""Each queue, and what makes the bodies of so many messages for it."""

ACCOUNTS: Final = 5
"""The message groups of the FIFO queues."""


def create_queues(client: SQSClient) -> None:
    """Make all queues with their dead-letter queues; those that are there stay as they are."""
    for name in QUEUES:
        create_with_dead_letters(
            client, name, visibility_seconds=VISIBILITY_SECONDS, max_receive_count=MAX_RECEIVE_COUNT
        )


def publish(client: SQSClient, name: str, count: int) -> None:
    """Send test messages to a queue.

    Args:
        client: With which to send them.
        name: The queue, one of :data:`QUEUES`.
        count: How many.

    Raises:
        demo.queues.PublishError: The service refused some.
    """
    entries: list[SendMessageBatchRequestEntryTypeDef] = []
    for number, body in enumerate(QUEUES[name](count)):
        entry: SendMessageBatchRequestEntryTypeDef = {"Id": str(number), "MessageBody": body}
        if name.endswith(".fifo"):
            entry["MessageGroupId"] = f"account-{number % ACCOUNTS}"
            # Without one, a message that is published again within five minutes would be taken for the same.
            entry["MessageDeduplicationId"] = str(uuid4())
        entries.append(entry)
    send(client, client.get_queue_url(QueueName=name)["QueueUrl"], entries)
