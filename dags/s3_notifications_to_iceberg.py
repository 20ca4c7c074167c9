"""The records of new files on S3 into an Iceberg table, by S3's notifications.

The bucket sends its notifications to the queue (directly, through SNS or EventBridge). Each message may name several
files; their records are stored exactly once, and then the message is deleted. If a file is missing, may not be read or
has a line that is not an order, its message is given back, and goes to the dead-letter queue by the queue's redrive
policy.

Iceberg comes as a jar that Spark fetches from Maven Central, and is made for one version of Spark: docs/sink-native.md
says which were tested. So Spark is in an environment of its own here, which a variable names. The catalog is a
directory; a real one is a REST or Glue catalog. Its namespace (`sales`) must exist.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag

from sqs_lease.airflow import SqsToSparkOperator, sqs_lease

DIRECTORY = "{{ var.value.get('lake_directory', '/tmp/lake') }}"


@dag(schedule=None, max_active_runs=1)  # a real one: schedule="@hourly", catchup=False
def s3_notifications_to_iceberg() -> None:
    """Receive notifications, store the records of their files, settle them."""
    with sqs_lease(
        "notifications",
        queue_url="s3-notifications-to-iceberg",
        max_messages=1000,
        linger=5,
        timeout=60,
        soft_fail=True,
    ) as notifications:
        SqsToSparkOperator(
            task_id="store",
            messages=notifications,
            spec={
                "version": 1,
                "source": {
                    "kind": "s3-events",
                    "format": "jsonl",  # or csv or parquet; .gz is decompressed
                    "schema": "order_id BIGINT NOT NULL, customer STRING, total DOUBLE",
                },
                "sink": {
                    "kind": "iceberg",
                    "table": "lake.sales.orders",
                    "ledger": f"{DIRECTORY}/sales_orders_ledger",
                    "partition_by": ["days(_sent_at)"],
                },
                "workspace": f"{DIRECTORY}/batches",
                "spark_conf": {
                    "spark.jars.packages": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
                    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
                    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
                    "spark.sql.catalog.lake.type": "hadoop",
                    "spark.sql.catalog.lake.warehouse": f"{DIRECTORY}/warehouse",
                },
            },
            python="{{ var.value.get('spark_4_1_python', '/opt/spark-4.1/bin/python') }}",
            aws_conn_id="aws_default",  # with which the files are read
            retries=2,
            retry_delay=timedelta(seconds=30),
        )


s3_notifications_to_iceberg()
