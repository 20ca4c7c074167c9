"""Native Delta and Iceberg as kinds of tables that random messages go into."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from sqs_lease.spark.sinks.iceberg_sink import IcebergSink
from sqs_lease.spark.sinks.native_delta_sink import NativeDeltaSink
from tests.processes.spark.engines.table_formats.conftest import CATALOG
from tests.spark.fuzz.cases import KindOfTable, Rows


def table_formats(spark: SparkSession) -> Sequence[KindOfTable]:
    """The kinds of tables of a session."""
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.fuzz")

    def name(directory: Path) -> str:
        return f"{CATALOG}.fuzz.{directory.parent.name}"

    def delta_rows(directory: Path, columns: Sequence[str]) -> Rows:
        found = spark.read.format("delta").load(str(directory)).select(*columns)
        rows: Rows = found.toArrow().to_pylist()
        return rows

    def iceberg_rows(directory: Path, columns: Sequence[str]) -> Rows:
        spark.sql(f"REFRESH TABLE {name(directory)}")
        rows: Rows = spark.table(name(directory)).select(*columns).toArrow().to_pylist()
        return rows

    return (
        KindOfTable(
            "native-delta",
            lambda directory, upsert_by: NativeDeltaSink(directory, (), upsert_by),
            delta_rows,
            takes_variants=False,
        ),
        KindOfTable(
            "iceberg",
            lambda directory, upsert_by: IcebergSink(name(directory), directory / "ledger", (), upsert_by),
            iceberg_rows,
            takes_variants=False,
        ),
    )
