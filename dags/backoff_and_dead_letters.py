"""Failed messages, settled by the error that failed them.

A message that can never be processed goes to the queue's dead-letter queue at once, with the reason as a message
attribute. A message that failed because a service was away comes back after a delay that grows with each receive. All
others are visible again at once. (The queue's own redrive policy still moves messages that are received too often.)
"""

from __future__ import annotations

import json
from typing import Any

from airflow.sdk import dag, task

from sqs_lease import backoff, by_exception, dead_letter, release
from sqs_lease.airflow import sqs_lease


@dag(schedule=None, max_active_runs=1)
def orders_with_backoff() -> None:
    """Receive orders and ship each of them."""

    @task
    def ship(message: Any) -> None:
        order = json.loads(message["Body"])  # A body that is not JSON raises a ValueError.
        if order["customer"] == "unreachable":
            raise ConnectionError("the carrier does not answer")
        print(f"order {order['order_id']} is on its way")

    with sqs_lease(
        "orders",
        queue_url="orders-with-backoff",
        max_messages=100,
        linger=2,
        timeout=60,
        soft_fail=True,
        on_failure=by_exception(
            {ValueError: dead_letter(), ConnectionError: backoff(initial=30, maximum=900)}, otherwise=release()
        ),
    ) as messages:
        ship.expand(message=messages)


orders_with_backoff()
