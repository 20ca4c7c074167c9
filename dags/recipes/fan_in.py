"""Several queues into one DAG: a lease for each queue, side by side, and one task behind all of them.

The leases are independent: an empty queue skips its own tasks only, and failed messages go back to their own queue. A
failure in one of the queues still shows in the run's state.
"""

from __future__ import annotations

import json
from typing import Any

from airflow.sdk import dag, task

from sqs_lease.airflow import sqs_lease

REGIONS = ("eu", "us", "asia")


@dag(schedule=None, max_active_runs=1)  # a real one: schedule="*/5 * * * *", catchup=False
def orders_of_all_regions() -> None:
    """Receive from each region's queue, and add up the totals."""

    @task(retries=2)
    def load(messages: Any) -> float:
        return sum(float(json.loads(message["Body"])["total"]) for message in messages)

    totals = []
    for region in REGIONS:
        with sqs_lease(
            f"orders_{region}",
            queue_url=f"orders-{region}",
            max_messages=500,
            linger=5,
            timeout=10,
            soft_fail=True,  # a queue without messages skips its own tasks
        ) as messages:
            totals.append(load.override(task_id=f"load_{region}")(messages))

    # Outside the leases: the messages are settled before, so a failure of this task does not affect them.
    @task(trigger_rule="none_failed_min_one_success")
    def add_up(totals: Any) -> float:
        return sum(float(total) for total in totals if total is not None)

    add_up(totals)


orders_of_all_regions()
