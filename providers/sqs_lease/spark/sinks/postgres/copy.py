"""COPY between Arrow and PostgreSQL, as CSV text: in the driver for message ids, in Spark's tasks for rows.

PostgreSQL's text has no NUL character (U+0000), and its times end where Spark's go on. No message may be lost by that,
nor may one hold up its batch: NUL becomes the replacement character U+FFFD, as do bytes that are no UTF-8; dates and
timestamps outside of the years 1 to 9999 become ``infinity`` and ``-infinity``.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from itertools import chain
from typing import Any, Final

import psycopg
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from psycopg.abc import Query
from pyarrow import csv
from pyspark.errors import PythonException
from pyspark.sql.types import StructType

from sqs_lease.spark.batch_parts import BatchParts
from sqs_lease.spark.columns import MESSAGE_ID
from sqs_lease.spark.errors import RowsRefusedError, TableError
from sqs_lease.spark.sinks.postgres.connection import Parameters, connect, explained
from sqs_lease.spark.sinks.postgres.types import is_json, is_unwritable, json_texts

ATTEMPT: Final = "_sqs_lease_attempt"
"""The last column of a staging table: which attempt of which task wrote the row."""

COPIED_DDL: Final = "attempt BIGINT, rows BIGINT, left_messages ARRAY<STRING>"
"""What tasks answer: one row for each attempt that wrote any; and, from parts, one with the messages that are left."""

_COPIED: Final = pa.schema([("attempt", pa.int64()), ("rows", pa.int64()), ("left_messages", pa.list_(pa.string()))])
_CANNOT_BE_WRITTEN: Final = "cannot be written"
_CSV: Final = csv.WriteOptions(include_header=False, quoting_style="needed")
_BATCH_ROWS: Final = 50_000
_REPLACEMENT: Final = "\ufffd".encode()
_FIRST = datetime(1, 1, 1, tzinfo=UTC)
_LAST = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)


def copy_in(cursor: psycopg.Cursor[Any], statement: Query, rows: pa.Table) -> None:
    """Write rows by a statement ``COPY ... FROM STDIN (FORMAT csv)``."""
    with cursor.copy(statement) as copy:
        for batch in rows.to_batches(max_chunksize=_BATCH_ROWS):
            copy.write(to_csv(batch))


def copy_out(cursor: psycopg.Cursor[Any], statement: Query, schema: pa.Schema) -> pa.Table:
    """Read rows by a statement ``COPY ... TO STDOUT (FORMAT csv)``."""
    text = BytesIO()
    with cursor.copy(statement) as copy:
        for block in copy:
            text.write(block)
    if not text.tell():
        return schema.empty_table()
    text.seek(0)
    return csv.read_csv(
        text,
        csv.ReadOptions(column_names=schema.names),
        csv.ParseOptions(newlines_in_values=True),
        csv.ConvertOptions(
            column_types=schema, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    ).cast(schema)


@dataclass(frozen=True, slots=True)
class CopyRows:
    """Writes the rows of one Spark task into a staging table, in one transaction and in bounded memory.

    An attempt that fails leaves nothing. One that ended well, but whose answer was lost, leaves rows that do not count:
    they are marked as those of an attempt that no answer names.

    Attributes:
        parameters: Of the connection. They travel to the executors inside of the pickled function, which Spark shows
            nowhere.
        statement: ``COPY ... FROM STDIN (FORMAT csv)``, with the column :data:`ATTEMPT` at the end.
        place: The table, for errors.
    """

    parameters: Parameters = field(repr=False)
    statement: str
    place: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write what Spark hands over; the answer is given when it is committed."""
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        attempt, rows = secrets.randbits(62), 0
        with (
            explained(f"rows for {self.place} {_CANNOT_BE_WRITTEN}"),
            connect(self.parameters) as connection,
            connection.cursor() as cursor,
        ):
            with cursor.copy(self.statement.encode()) as copy:
                for batch in chain([first], filled):
                    marked = batch.append_column(ATTEMPT, pa.repeat(pa.scalar(attempt, pa.int64()), batch.num_rows))
                    copy.write(to_csv(marked))
                    rows += batch.num_rows
            taken = cursor.rowcount
        if taken != rows:
            raise TableError(f"of {rows} rows for {self.place} PostgreSQL took {taken}: run the batch again")
        yield pa.RecordBatch.from_pylist([{"attempt": attempt, "rows": rows}], schema=_COPIED)


@dataclass(frozen=True, slots=True)
class CopyParts:
    """Makes the rows of one Spark task from its parts of a batch, and writes them as :class:`CopyRows` does."""

    parts: BatchParts
    columns: StructType
    copy: CopyRows

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of the parts whose numbers Spark hands over; answer also with the messages that are left."""
        left: list[pa.Array] = []
        numbers = (number for batch in batches for number in batch.column(0).to_pylist())
        yield from self.copy(self._rows(numbers, left))
        message_ids = pa.concat_arrays([pa.array([], pa.string()), *left])
        if len(message_ids):
            answer = pa.ListArray.from_arrays(pa.array([0, len(message_ids)], pa.int32()), message_ids)
            yield pa.RecordBatch.from_arrays([pa.nulls(1, pa.int64()), pa.nulls(1, pa.int64()), answer], schema=_COPIED)

    def _rows(self, numbers: Iterator[int], left: list[pa.Array]) -> Iterator[pa.RecordBatch]:
        nested = [number for number, field in enumerate(self.columns.fields) if is_json(field.dataType)]
        for made in self.parts.read(numbers):
            left += made.left.chunks
            for batch in made.rows.combine_chunks().to_batches():
                columns = batch.columns
                is_left = pa.repeat(False, batch.num_rows)
                for number in nested:
                    columns[number] = json_texts(columns[number], self.columns.fields[number].dataType)
                    is_left = pc.or_(is_left, is_unwritable(columns[number]))
                left.append(batch[MESSAGE_ID].filter(is_left))
                yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names).filter(pc.invert(is_left))


def refused_in_task(error: PythonException) -> RowsRefusedError | None:
    """What a task was told about its rows, by the text that Spark hands on; None where it failed otherwise."""
    _, raised, text = str(error).rpartition(f"{RowsRefusedError.__name__}: ")
    said = text.partition("\n")[0].strip()
    return RowsRefusedError(said, rule=said.rpartition(_CANNOT_BE_WRITTEN)[2].lstrip(": ")) if raised else None


def to_csv(batch: pa.RecordBatch) -> bytes:
    """Rows as the CSV that COPY reads: what is null is empty, and every text is quoted."""
    text = BytesIO()
    columns = [_bounded(column) for column in batch.columns]
    csv.write_csv(pa.RecordBatch.from_arrays(columns, names=batch.schema.names), text, _CSV)
    return _storable(text.getvalue())


def _storable(text: bytes) -> bytes:
    if b"\0" in text:
        text = text.replace(b"\0", _REPLACEMENT)
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode(errors="replace").encode()
    return text


def _bounded(column: pa.Array) -> pa.Array:
    """Times as text that PostgreSQL reads, whatever the session's time zone is."""
    if pa.types.is_date(column.type):
        first, last = _FIRST.date(), _LAST.date()
        return _within(column, pa.scalar(first, column.type), pa.scalar(last, column.type))
    if pa.types.is_timestamp(column.type):
        zone = None if column.type.tz is None else "UTC"
        column = column.cast(pa.timestamp("us", zone))
        limits = [limit if zone else limit.replace(tzinfo=None) for limit in (_FIRST, _LAST)]
        return _within(column, *(pa.scalar(limit, column.type) for limit in limits))
    return column


def _within(column: pa.Array, first: pa.Scalar, last: pa.Scalar) -> pa.Array:
    early, late = pc.less(column, first), pc.greater(column, last)
    if not pc.any(pc.or_(early, late)).as_py():
        return column
    inside = pc.if_else(pc.or_(early, late), pa.scalar(None, column.type), column).cast(pa.string())
    return pc.if_else(early, "-infinity", pc.if_else(late, "infinity", inside))
