"""A whole batch by one task: up to 500 orders a run, into one file.

This is the simplest shape. The messages stay invisible for as long as `store` needs, with all of its tries. They are
deleted when it has succeeded; if it fails for good, they are all visible again at once.
"""

from __future__ import annotations

import json
from typing import Any

from airflow.sdk import ObjectStoragePath, dag, task

from sqs_lease.airflow import sqs_lease


@dag(schedule=None, max_active_runs=1)  # a real one: schedule="*/5 * * * *"
def orders_in_one_batch() -> None:
    """Receive a batch, store it, settle it."""

    @task(retries=2)
    def store(messages: Any, directory: str, run_id: Any = None) -> int:
        orders = [json.loads(message["Body"]) for message in messages]
        # Named after the run: another try writes the same file again, so nothing is stored twice.
        path = ObjectStoragePath(directory) / f"{run_id.replace(':', '-')}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{json.dumps(order)}\n" for order in orders))
        return len(orders)

    with sqs_lease(
        "orders",
        queue_url="orders-in-one-batch",  # a name, a URL or an ARN
        max_messages=500,
        linger=5,  # how long to wait for more after the first message
        timeout=60,  # how long to wait for the first ...
        soft_fail=True,  # ... before the run is skipped instead of failed
    ) as messages:
        store(messages, directory="{{ var.value.get('orders_directory', 'file:///tmp/orders') }}")


orders_in_one_batch()
