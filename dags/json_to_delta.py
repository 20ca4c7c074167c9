"""JSON messages from a queue into a Delta table, every hour, each exactly once.

Spark runs in a process of its own on the worker: 2 000 orders take seconds. The messages stay invisible meanwhile, and
are deleted when they are in the table. Messages that are not orders go to a table of their own with the reason and are
deleted too, so that the queue needs no manual work. (Without `rejects` they go back to the queue.)

The worker needs `pip install "sqs-lease[airflow,manifest,spark]"` and Java 17. Spark may also be in an environment of
its own (`python="/opt/spark/bin/python"`); the variable `spark_master` puts it on a cluster (`spark://...`) or behind
Spark Connect (`sc://...`).
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag

from sqs_lease.airflow import SqsToSparkOperator, sqs_lease

DIRECTORY = "{{ var.value.get('lake_directory', '/tmp/lake') }}"


@dag(schedule=None, max_active_runs=1)  # a real one: schedule="@hourly", catchup=False
def json_to_delta() -> None:
    """Receive what came in the last hour, store it, settle it."""
    with sqs_lease(
        "orders",
        queue_url="json-to-delta",
        max_messages=2000,  # for more: payload="s3://aws_default@bucket/leases"
        linger=5,
        timeout=60,
        soft_fail=True,
    ) as orders:
        SqsToSparkOperator(
            task_id="store",
            messages=orders,
            spec={
                "version": 1,
                "source": {"kind": "json", "schema": "order_id BIGINT NOT NULL, customer STRING, total DOUBLE"},
                "sink": {"kind": "delta", "path": f"{DIRECTORY}/orders"},
                "rejects": {"kind": "delta", "path": f"{DIRECTORY}/rejected_orders"},
                "workspace": f"{DIRECTORY}/batches",
            },
            spark="{{ var.value.get('spark_master', 'local[2]') }}",
            retries=2,
            retry_delay=timedelta(seconds=30),
        )


json_to_delta()
