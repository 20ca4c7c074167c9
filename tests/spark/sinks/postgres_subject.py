"""PostgreSQL tables as subjects of the contract tests."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DayTimeIntervalType, VarcharType

from sqs_lease.spark.sinks.postgres.sink import PostgresSink, PostgresTable
from sqs_lease.testing.sink_contract import Subject, interrupted
from tests.spark.sinks.conftest import Database


def subject_of(spark: SparkSession, database: Database, **options: Any) -> Subject:
    return Subject(
        spark=spark,
        new_sink=lambda: PostgresSink(database.url, "orders", **options),
        read_rows=lambda: database.read("SELECT * FROM orders"),
        leftovers=database.staging_tables,
        interruptions={
            "after the entries": lambda: interrupted(PostgresTable, "_admit", "after"),
            "after the rows": lambda: interrupted(PostgresTable, "_take", "after"),
            "after the commit": lambda: interrupted(PostgresTable, "_tidy", "before"),
        },
        refused_types=[DayTimeIntervalType(), VarcharType(3), ArrayType(DayTimeIntervalType())],
    )
