"""Native Delta and Iceberg tables as subjects of the contract tests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DayTimeIntervalType

from sqs_lease.spark.ledger import OpenLedger
from sqs_lease.spark.sinks.iceberg_sink import IcebergSink, IcebergTable
from sqs_lease.spark.sinks.native_delta_sink import NativeDeltaSink, NativeDeltaTable
from sqs_lease.spark.sinks.write_ahead import AppliedMarks
from sqs_lease.testing.sink_contract import Subject, interrupted
from tests.processes.spark.engines.table_formats.conftest import CATALOG


def iceberg_subject(
    spark: SparkSession, root: Path, upsert_by: tuple[str, ...] = (), *, catalog: str = CATALOG
) -> Subject:
    """A subject for an Iceberg table that does not exist yet."""
    table = f"{catalog}.tests.t{uuid4().hex}"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.tests")

    def read_rows() -> list[dict[str, Any]]:
        spark.sql(f"REFRESH TABLE {table}")
        return _values(spark.table(table))

    return _subject(
        spark,
        lambda: IcebergSink(table, root / "ledger", ("days(_sent_at)",), upsert_by),
        read_rows,
        root / "ledger",
        {
            "before the branch is written": partial(interrupted, IcebergTable, "_write", "before"),
            "before the fast-forward": partial(interrupted, IcebergTable, "_write", "after"),
            "after the fast-forward": partial(interrupted, IcebergTable, "_take", "after"),
        },
    )


def native_delta_subject(spark: SparkSession, root: Path, upsert_by: tuple[str, ...] = ()) -> Subject:
    """A subject for a Delta table that does not exist yet, at a path that is not easy to spell."""
    path = root / "it's a table"
    return _subject(
        spark,
        lambda: NativeDeltaSink(path, (), upsert_by),
        lambda: _values(spark.read.format("delta").load(str(path))),
        path / "_sqs_lease/ledger",
        {
            "before the commit": partial(interrupted, NativeDeltaTable, "_take", "before"),
            "after the commit": partial(interrupted, NativeDeltaTable, "_take", "after"),
        },
    )


def staged_files(ledger: Path) -> list[str]:
    """The rows that wait beside a ledger."""
    return [str(file) for file in (ledger / "_staged").rglob("*.parquet")]


def _values(rows: DataFrame) -> list[dict[str, Any]]:
    values: list[dict[str, Any]] = rows.toArrow().to_pylist(maps_as_pydicts="strict")
    return values


def _subject(
    spark: SparkSession,
    new_sink: Callable[[], Any],
    read_rows: Callable[[], list[dict[str, Any]]],
    ledger: Path,
    moments: dict[str, Callable[[], AbstractContextManager[object]]],
) -> Subject:
    return Subject(
        spark=spark,
        new_sink=new_sink,
        read_rows=read_rows,
        leftovers=partial(staged_files, ledger),
        interruptions={
            "before the admission": partial(interrupted, OpenLedger, "admit", "before"),
            **moments,
            "after the mark": partial(interrupted, AppliedMarks, "add", "after"),
        },
        refused_types=[DayTimeIntervalType()],
    )
