"""A chain of tasks for each message: settled one by one, as soon as its own chain is done.

A message whose chain failed for good goes back to the queue while the others go on; one that is done is deleted while
the others are still worked on. Airflow expands a group to at most `[core] max_map_length` (1024) instances.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from airflow.sdk import ObjectStoragePath, dag, task, task_group

from sqs_lease.airflow import sqs_lease


@dag(schedule=None, max_active_runs=1)
def orders_one_by_one() -> None:
    """Receive, check and store each order by itself."""

    @task(retries=1, retry_delay=timedelta(seconds=2))
    def check(message: Any) -> dict[str, Any]:
        order: dict[str, Any] = json.loads(message["Body"])
        if order["total"] < 0:
            raise ValueError(f"order {order['order_id']} has a negative total")
        return order

    @task
    def store(order: Any, directory: str) -> None:
        path = ObjectStoragePath(directory) / f"{order['order_id']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(order))

    # A group, so that each `store` waits for its own `check` only. If `store` were expanded over the results of
    # `check`, Airflow would start it only after all of `check` has succeeded.
    @task_group
    def handle(message: Any) -> None:
        store(check(message), directory="{{ var.value.get('orders_directory', 'file:///tmp/orders') }}")

    with sqs_lease(
        "orders", queue_url="orders-one-by-one", max_messages=100, linger=2, timeout=60, soft_fail=True
    ) as messages:
        handle.expand(message=messages)


orders_one_by_one()
