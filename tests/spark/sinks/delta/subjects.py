"""Delta tables as subjects of the contract tests: on disk and on S3."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from deltalake import DeltaTable
from pyarrow.fs import FileSelector, FileType  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.types import DayTimeIntervalType, StructField, StructType, YearMonthIntervalType

from sqs_lease.spark import DeltaSink
from sqs_lease.spark.ledger import OpenLedger
from sqs_lease.spark.places import Place
from sqs_lease.spark.sinks.delta.files import FILES
from sqs_lease.spark.sinks.delta.sink import OpenDelta
from sqs_lease.testing.sink_contract import Subject, interrupted

REFUSED_TYPES = (DayTimeIntervalType(), StructType([StructField("a", YearMonthIntervalType())]))


def load(sink: DeltaSink) -> DeltaTable:
    """The table as a reader finds it."""
    return DeltaTable(str(sink.path), storage_options=dict(sink.storage_options or {}))


def read_rows(sink: DeltaSink) -> list[dict[str, Any]]:
    """Read the table as a reader sees it."""
    read: list[dict[str, Any]] = load(sink).to_pyarrow_table().to_pylist(maps_as_pydicts="strict")
    return read


def leftovers(sink: DeltaSink) -> list[str]:
    """Data files of batches that the table does not name."""
    storage = Place.of(sink.path, sink.storage_options)
    table = load(sink)
    return [
        file
        for file in below(storage, FILES)
        if file.endswith(".parquet") and file not in set(table.get_add_actions()["path"].to_pylist())
    ]


def below(storage: Place, directory: str) -> list[str]:
    """The files of a directory, by their paths relative to the table."""
    found = storage.file_system().get_file_info(FileSelector(directory, recursive=True, allow_not_found=True))
    return [entry.path for entry in found if entry.type == FileType.File]


def delta_subject(spark: SparkSession, sink: DeltaSink) -> Subject:
    """A subject for a table that does not exist yet."""
    moments: Sequence[tuple[str, Callable[[], AbstractContextManager[None]]]] = (
        ("before the admission", lambda: interrupted(OpenLedger, "admit", "before")),
        ("after the admission", lambda: interrupted(OpenLedger, "admit", "after")),
        ("after the commit", lambda: interrupted(OpenDelta, "_commit", "after")),
        ("after all", lambda: interrupted(OpenDelta, "apply", "after")),
    )
    return Subject(
        spark=spark,
        new_sink=lambda: DeltaSink(sink.path, sink.partition_by, sink.upsert_by, sink.storage_options),
        read_rows=lambda: read_rows(sink),
        leftovers=lambda: leftovers(sink),
        interruptions=dict(moments),
        refused_types=REFUSED_TYPES,
    )
