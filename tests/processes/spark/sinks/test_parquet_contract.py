"""Directories of Parquet files keep the contract of sinks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.dataset as pds  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DayTimeIntervalType, StructField, StructType

from sqs_lease.spark.ledger import OpenLedger
from sqs_lease.spark.sinks.parquet_sink import NUMBER_COLUMN, ParquetSink, ParquetTable
from sqs_lease.spark.sinks.write_ahead import AppliedMarks
from sqs_lease.testing.sink_contract import SinkContract, Subject, interrupted
from sqs_lease.testing.sink_subject import record
from tests.spark.sinks.parquet_sink.test_commits import staged_directories

pytestmark = pytest.mark.processes


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read as a reader does; the columns of all files, as with Spark's ``mergeSchema``."""
    data = pds.dataset(path, format="parquet", partitioning="hive")
    schema = pa.unify_schemas([fragment.physical_schema for fragment in data.get_fragments()] or [pa.schema([])])
    rows: list[dict[str, Any]] = data.replace_schema(schema).to_table().to_pylist(maps_as_pydicts="strict")
    return rows


class TestParquetSink(SinkContract):
    @pytest.fixture
    def subject(self, spark: SparkSession, tmp_path: Path) -> Subject:
        path = tmp_path / "a table"
        return Subject(
            spark=spark,
            new_sink=lambda: ParquetSink(path),
            read_rows=lambda: read_rows(path),
            leftovers=lambda: staged_directories(path),
            interruptions={
                "before the admission": lambda: interrupted(OpenLedger, "admit", "before"),
                "after the admission": lambda: interrupted(OpenLedger, "admit", "after"),
                "before the rename": lambda: interrupted(AppliedMarks, "add", "after"),
                "after the rename": lambda: interrupted(AppliedMarks, "remove_old_tries", "before"),
                "after all": lambda: interrupted(ParquetTable, "apply", "after"),
            },
            refused_types=[DayTimeIntervalType(), StructType([StructField("a", DayTimeIntervalType())])],
        )

    def test_spark_reads_the_table_with_the_batches_as_a_column(self, subject: Subject, tmp_path: Path) -> None:
        table = subject.open()
        subject.store(table, "b", [record("m1", 1)])
        subject.store(table, "c", [record("m2", 2)])
        rows = subject.spark.read.parquet(str(tmp_path / "a table")).orderBy("id").collect()
        assert [row[NUMBER_COLUMN].partition("-")[0] for row in rows] == ["000000000001", "000000000002"]
