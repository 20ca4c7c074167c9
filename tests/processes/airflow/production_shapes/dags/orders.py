"""DAGs of production shapes: mapped work over the messages of a queue that is named like the DAG."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import dag, task

from sqs_lease.airflow import sqs_lease
from tests.processes.airflow.production_shapes.gated_work import do

VISIBILITY_SECONDS = float(os.environ["VISIBILITY_SECONDS"])


@task(retries=1, retry_delay=timedelta(seconds=0))
def check(message: dict[str, Any]) -> None:
    """Do what the message says; once more when its process was killed."""
    do(message)


def mapped(name: str, work: Any, **arguments: Any) -> None:
    """A DAG with a lease over mapped work."""

    @dag(dag_id=name, schedule=None)
    def one_lease() -> None:
        with sqs_lease(
            "orders", queue_url=name, max_messages=20, linger=3, **{"visibility": VISIBILITY_SECONDS, **arguments}
        ) as orders:
            work.expand(message=orders)

    one_lease()


mapped("kept", check)
mapped("given_back", check.override(retries=0))
