"""COPY between Arrow and PostgreSQL: in the driver for message ids, in Spark's tasks for rows.

Writing uses the binary format, in which the server takes rows in two thirds of the time of CSV. The little that is read
comes as CSV, which Arrow can read.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, Final, TypeAlias

import psycopg
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from psycopg.abc import Query
from pyarrow import csv
from pyspark.errors import PythonException
from pyspark.sql.types import StringType, StructField, StructType

from sqs_lease.spark.errors import RowsRefusedError, TableError
from sqs_lease.spark.message_ids import mapped
from sqs_lease.spark.schemas import arrow_schema
from sqs_lease.spark.sinks.postgres.binary import END, SIGNATURE, to_binary
from sqs_lease.spark.sinks.postgres.connection import Parameters, connect, explained
from sqs_lease.spark.sinks.postgres.types import is_json, is_unwritable, json_texts
from sqs_lease.spark.sources.source import ArrowParser

ATTEMPT: Final = "_sqs_lease_attempt"
"""The last column of a staging table: the attempt of a task that wrote the row."""

ATTEMPT_KIND: Final = "bigint"
"""The type of that column."""

COPIED_DDL: Final = "attempt BIGINT, rows BIGINT"
"""The columns of the tasks' answers: one row for each attempt that wrote rows."""

_COPIED: Final = pa.schema([("attempt", pa.int64()), ("rows", pa.int64())])
_CANNOT_BE_WRITTEN: Final = "cannot be written"
# The bytes of an answer of the server in memory; more goes into a temporary file.
_IN_MEMORY_BYTES: Final = 32 * 1024 * 1024
# The bytes of a piece: a record batch of Spark may have any size.
_AT_ONCE_BYTES: Final = 4 * 1024 * 1024
_PIECES_AHEAD: Final = 8
_ROWS_AT_ONCE: Final = 8192

Piece: TypeAlias = tuple[pa.Buffer, int]
"""Encoded rows, and their number."""


def copy_in(
    cursor: psycopg.Cursor[Any], statement: Query, batches: Iterable[pa.RecordBatch], kinds: Sequence[str]
) -> int:
    """Write rows with a statement ``COPY ... FROM STDIN (FORMAT binary)``; ``kinds`` are the types of its columns.

    Returns:
        The number of rows.
    """
    rows = 0
    try:
        with cursor.copy(statement) as copy:
            copy.write(SIGNATURE)
            with closing(_ahead(_pieces(batches, kinds))) as pieces:
                for piece, count in pieces:
                    copy.write(memoryview(piece))
                    rows += count
            copy.write(END)
    except ValueError as error:
        if not cursor.connection.closed:
            raise
        # PgBouncer answers twice when its connection to the server ends. Psycopg expects one answer, and raises
        # ValueError.
        raise psycopg.OperationalError("the connection was lost while rows were copied") from error
    return rows


def _pieces(batches: Iterable[pa.RecordBatch], kinds: Sequence[str]) -> Iterator[Piece]:
    """Encode rows in pieces of a few rows."""
    for batch in batches:
        at_once = max(1, batch.num_rows * _AT_ONCE_BYTES // max(batch.nbytes, 1))
        for start in range(0, batch.num_rows, at_once):
            rows = batch.slice(start, at_once)
            yield to_binary(rows, kinds), rows.num_rows


def _ahead(pieces: Iterator[Piece]) -> Generator[Piece, None, None]:
    """Make the next pieces while one is written, so that the server does not wait for them.

    Eight pieces are made ahead, because the first rows of a row group take longer: its columns are read and
    decompressed with them. The server's waiting for rows made an ingestion 1.36 to 1.5 times as long as a plain COPY.
    """
    with ThreadPoolExecutor(1, "sqs-lease rows") as maker:
        coming = deque(maker.submit(next, pieces, None) for _ in range(_PIECES_AHEAD))
        try:
            while (piece := coming.popleft().result()) is not None:
                coming.append(maker.submit(next, pieces, None))
                yield piece
        finally:
            maker.shutdown(cancel_futures=True)


def copy_out(cursor: psycopg.Cursor[Any], statement: Query, schema: pa.Schema) -> pa.Table:
    """Read rows with a statement ``COPY ... TO STDOUT (FORMAT csv)``."""
    with SpooledTemporaryFile(_IN_MEMORY_BYTES) as text:
        with cursor.copy(statement) as copy:
            for block in copy:
                text.write(block)
        if not text.tell():
            return schema.empty_table()
        text.seek(0)
        rows = csv.open_csv(
            text,
            csv.ReadOptions(column_names=schema.names),
            csv.ParseOptions(newlines_in_values=True),
            csv.ConvertOptions(
                column_types=schema, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )
        return mapped((pa.Table.from_batches([batch]).cast(schema) for batch in rows), schema)


@dataclass(frozen=True, slots=True)
class CopyRows:
    """Task that writes its rows into a staging table, in one transaction and in bounded memory.

    A failed attempt leaves no rows. An attempt that succeeded, but whose answer was lost, leaves rows that do not
    count: each row has the number of its attempt, and only attempts with an answer count.

    Attributes:
        parameters: The parameters of the connection. They travel to the executors inside the pickled function, which
            Spark never shows.
        statement: ``COPY ... FROM STDIN (FORMAT binary)``, with the column :data:`ATTEMPT` at the end.
        kinds: The types of these columns, as ``format_type`` writes them.
        place: The table, for errors.
    """

    parameters: Parameters = field(repr=False)
    statement: str
    kinds: Sequence[str]
    place: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows that Spark passes, and answer when they are committed."""
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        attempt = secrets.randbits(62)
        marked = (
            batch.append_column(ATTEMPT, pa.repeat(pa.scalar(attempt, pa.int64()), batch.num_rows))
            for batch in chain([first], filled)
        )
        with (
            explained(f"rows for {self.place} {_CANNOT_BE_WRITTEN}"),
            connect(self.parameters) as connection,
            connection.cursor() as cursor,
        ):
            rows = copy_in(cursor, self.statement.encode(), marked, self.kinds)
            taken = cursor.rowcount
        if taken != rows:
            raise TableError(f"of {rows} rows for {self.place} PostgreSQL took {taken}: run the batch again")
        yield pa.RecordBatch.from_pylist([{"attempt": attempt, "rows": rows}], schema=_COPIED)


@dataclass(frozen=True, slots=True)
class WithJsonTexts:
    """Parser of records with JSON texts for nested values: see :class:`...sources.source.ArrowParser`.

    Attributes:
        parser: The inner parser.
        columns: The table's columns; the first ones are those of a record.
    """

    parser: ArrowParser
    columns: StructType

    def __call__(self, bodies: pa.Array) -> tuple[pa.Table, pa.Array]:
        """Make records."""
        records, reasons = self.parser(bodies)
        for number, column in enumerate(self.columns.fields[: records.num_columns]):
            if is_json(column.dataType):
                texts = json_texts(records.column(number).combine_chunks(), column.dataType)
                records = records.set_column(number, records.field(number).name, texts)
        return records, reasons


@dataclass(frozen=True, slots=True)
class UnwritableTexts:
    """Finds in a task the rows of which Spark is to write the nested values.

    Attributes:
        names: The columns of these.
    """

    names: Sequence[str]

    def __call__(self, rows: pa.Table) -> pa.ChunkedArray:
        """Say of each row whether it is one."""
        found = [is_unwritable(rows[name].combine_chunks()) for name in self.names]
        nothing = pa.repeat(False, rows.num_rows)
        return pa.chunked_array([reduce(pc.or_, found, nothing)])


def staged_schema(columns: StructType) -> pa.Schema:
    """Return the columns of a staged file: those of the table, with nested values as JSON texts."""
    return arrow_schema(
        StructType(
            [StructField(one.name, StringType() if is_json(one.dataType) else one.dataType) for one in columns.fields]
        )
    )


def staged_rows(directory: Path) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all staged files, a few at a time.

    Raises:
        OSError: A file cannot be read, or is gone.
    """
    for path in sorted(directory.iterdir()):
        try:
            # With pre_buffer the whole file would be read ahead.
            with pq.ParquetFile(path, pre_buffer=False) as file:
                yield from file.iter_batches(_rows_at_once(file.metadata))
        except pa.ArrowInvalid as error:
            raise OSError(f"{path.name} is not a complete Parquet file") from error


def _rows_at_once(file: pq.FileMetaData) -> int:
    """Choose how many rows to read at once: few, even from Spark's row groups, which end by their compressed size."""
    rows: int = file.num_rows
    size: int = sum(file.row_group(number).total_byte_size for number in range(file.num_row_groups))
    return max(1, min(_ROWS_AT_ONCE, rows * _AT_ONCE_BYTES // max(size, 1)))


def refused_in_task(error: PythonException) -> RowsRefusedError | None:
    """Read a refusal of rows from the text of a task's error that Spark passes on; None for other errors."""
    _, raised, text = str(error).rpartition(f"{RowsRefusedError.__name__}: ")
    line = text.partition("\n")[0].strip()
    return RowsRefusedError(line, rule=line.rpartition(_CANNOT_BE_WRITTEN)[2].lstrip(": ")) if raised else None
