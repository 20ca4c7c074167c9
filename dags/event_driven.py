"""Runs that messages start: a run starts when there are orders, so that runs do not wait for them.

The trigger in the asset's watcher counts the messages, and the run receives them. The next run takes all messages that
arrive while a run is at work. docs/event-driven.md describes paused DAGs, failing runs, and the costs.
"""

from __future__ import annotations

import json
from typing import Any

from airflow.sdk import Asset, AssetWatcher, dag, task

from sqs_lease.airflow import SqsLeaseTrigger, sqs_lease

arriving_orders = Asset(
    "arriving_orders",
    watchers=[
        AssetWatcher(
            "arriving_orders_watcher",
            trigger=SqsLeaseTrigger("orders-that-start-runs"),  # a name, a URL or an ARN
        )
    ],
)


@dag(schedule=arriving_orders, max_active_runs=1)
def orders_that_start_runs() -> None:
    """Work on the orders that started the run."""

    @task(retries=2)
    def total(messages: Any) -> float:
        return sum(float(json.loads(message["Body"])["total"]) for message in messages)

    # The queue is the watcher's; `linger` says how long to wait for more after the first message.
    with sqs_lease("orders", event=arriving_orders, max_messages=100, linger=2) as orders:
        total(orders)


orders_that_start_runs()
