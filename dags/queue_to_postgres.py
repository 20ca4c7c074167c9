"""Orders from a queue into a PostgreSQL table, one row an order: the newest message about it wins.

A message that is not an order goes to the queue's dead-letter queue, with the error as the message attribute
`sqs_lease_reason`.

The address of the database is that of the Airflow connection `orders_database`. It reaches Spark as an environment
variable, so the password is neither in the DAG nor in Airflow's interface. The worker needs
`pip install "sqs-lease[airflow,manifest,spark,postgres]"` and Java 17.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag

from sqs_lease import dead_letter
from sqs_lease.airflow import SqsToSparkOperator, sqs_lease


@dag(schedule=None, max_active_runs=1)  # a real one: schedule="*/15 * * * *", catchup=False
def queue_to_postgres() -> None:
    """Receive a batch, bring the table up to date, settle it."""
    with sqs_lease(
        "orders",
        queue_url="queue-to-postgres",
        max_messages=1000,
        linger=2,
        timeout=60,
        soft_fail=True,
        on_failure=dead_letter(),
    ) as orders:
        SqsToSparkOperator(
            task_id="store",
            messages=orders,
            spec={
                "version": 1,
                "source": {"kind": "json", "schema": "order_id BIGINT NOT NULL, customer STRING, total DOUBLE"},
                "sink": {
                    "kind": "postgres",
                    "url": {"env": "ORDERS_DATABASE"},
                    "table": "orders",
                    "upsert_by": ["order_id"],
                },
                "workspace": "{{ var.value.get('lake_directory', '/tmp/lake') }}/batches",
            },
            connections={"ORDERS_DATABASE": "orders_database"},
            retries=2,
            retry_delay=timedelta(seconds=30),
        )


queue_to_postgres()
