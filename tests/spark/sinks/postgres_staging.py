"""Rows for a table in PostgreSQL, staged as Spark's tasks stage them, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from sqs_lease.spark.columns import MESSAGE_ID
from sqs_lease.spark.schemas import arrow_schema
from sqs_lease.spark.sinks.postgres.copy import CopyRows, staged_schema
from sqs_lease.spark.sinks.postgres.sink import PostgresTable
from sqs_lease.spark.sinks.sink import Staged
from sqs_lease.spark.sinks.staging import Staging, TaskWriter, Written, stage_directory

Stage = Callable[[PostgresTable, Sequence[Mapping[str, Any]], str], Staged]
"""Stages rows of a batch."""


def in_a_table(
    table: PostgresTable,
    rows: Sequence[Mapping[str, Any]],
    batch_id: str,
    meanwhile: Callable[[], object] = lambda: None,
) -> Staged:
    """In a staging table; something else happens before the rows are copied into it."""
    given = pa.Table.from_pylist(list(rows), schema=arrow_schema(table.columns)).to_batches()

    def write(copy: CopyRows) -> pa.Table:
        meanwhile()
        return pa.Table.from_batches(copy(iter(given)))

    return table._staged(batch_id, write)


def in_files(root: Path, table: PostgresTable, rows: Sequence[Mapping[str, Any]], batch_id: str) -> Staged:
    """In two files below a directory, if there are two rows."""
    schema = staged_schema(table.columns)

    def write(staging: Staging) -> Written:
        files = []
        for part in (rows[0::2], rows[1::2]):
            writer = TaskWriter(staging)
            files += [*writer.write(pa.Table.from_pylist(list(part), schema=schema)), *writer.finish()]
        return Written(files, pa.chunked_array([[row[MESSAGE_ID] for row in rows]], pa.string()))

    directory, message_ids = stage_directory(root, batch_id, schema, write)
    return Staged(str(directory), message_ids)
