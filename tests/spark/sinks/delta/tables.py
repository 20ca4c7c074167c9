"""Delta tables without Spark: rows staged as a task of Spark stages them, and added as ingestion adds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from sqs_lease.spark.columns import BATCH_ID, MESSAGE_ID, SENT_AT, table_columns
from sqs_lease.spark.delta_places import load_table
from sqs_lease.spark.places import Place
from sqs_lease.spark.sinks.delta.schema import delta_schema
from sqs_lease.spark.sinks.delta.sink import OpenDelta
from sqs_lease.spark.sinks.staging import StagedFile, Staging, TaskWriter, Written
from sqs_lease.spark.sinks.write_ahead import Application


def columns_of(**more: DataType) -> StructType:
    """The columns of a table: a required ``id``, and these."""
    required = StructField("id", LongType(), nullable=False)
    return table_columns(StructType([required, *(StructField(name, kind) for name, kind in more.items())]))


COLUMNS = columns_of(name=StringType())
TABLE_SCHEMA = delta_schema(COLUMNS)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def row(number: int, message_id: str, *, later: float | None = 0, **more: Any) -> dict[str, Any]:
    """A row of a message that was sent some seconds after noon; None: at an unknown time."""
    sent_at = None if later is None else NOON + timedelta(seconds=later)
    return {"id": number, "name": f"n{number}", MESSAGE_ID: message_id, SENT_AT: sent_at, BATCH_ID: "b", **more}


def arrow_schema(columns: StructType = COLUMNS) -> pa.Schema:
    return pa.schema(delta_schema(columns).to_arrow())


def open_table(
    place: Path | Place,
    *,
    columns: StructType = COLUMNS,
    partition_by: Sequence[str] = (),
    upsert_by: Sequence[str] = (),
    widen: bool = False,
) -> OpenDelta:
    storage = place if isinstance(place, Place) else Place.of(place)
    table = OpenDelta(storage, columns, partition_by, upsert_by)
    table.prepare(widen=widen)
    return table


def write_files(
    table: OpenDelta, directory: str, rows: Iterable[Mapping[str, Any]], *, one_by_one: bool = False
) -> list[StagedFile]:
    """Write rows, each into a file of its own or all of a partition into one."""
    schema = arrow_schema(table.columns)
    given = pa.Table.from_pylist([dict(one) for one in rows], schema=schema)
    files: list[StagedFile] = []
    for part in [given.slice(n, 1) for n in range(len(given))] if one_by_one else [given]:
        writer = TaskWriter(Staging(table.storage, directory, schema, table.partition_by))
        files += [*writer.write(part), *writer.finish()]
    return files


def stage(
    table: OpenDelta, rows: Iterable[Mapping[str, Any]], *, batch: str = "batch", one_by_one: bool = False
) -> str:
    """Stage rows, and return their location."""

    def write(staging: Staging) -> Written:
        return staging.read_back(write_files(table, staging.directory, rows, one_by_one=one_by_one))

    return table._staged(batch, write).location


def application(number: int, *, ledger_id: str = "ledger") -> Application:
    return Application(ledger_id, number, f"batch-{number}")


def stored(table: OpenDelta) -> list[tuple[int, str]]:
    """Record id and message id of every row that a reader sees."""
    loaded = load_table(table.storage)
    assert loaded is not None
    found = loaded.to_pyarrow_table(columns=["id", MESSAGE_ID]).to_pylist()
    return sorted((one["id"], one[MESSAGE_ID]) for one in found)
