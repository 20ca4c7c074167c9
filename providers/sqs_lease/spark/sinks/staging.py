"""Staging of a batch's rows as Parquet files that no table names yet, in one Spark action, for all tables of files.

**The writers.** Spark's tasks make the rows of their parts of a batch (:mod:`..batch_parts`) and write them with
pyarrow. Rows that Spark itself made are written by Spark on a shared file system. On S3 Spark would need jars for that,
so each task writes them with pyarrow there.

**Repeated tasks.** Spark may repeat a task, or run it twice at the same time. So two files never have the same name,
and a task answers with the files that it wrote. Only the answers that Spark took count; all other files are never
named. If a whole directory is taken, the files that count are first moved into a directory of their own, because a task
that Spark has given up may still write beside them.

**Message ids.** Which messages have rows is read back from the files. Sending a million ids through Spark took a tenth
of the time of an ingestion, and told only what a task believed. The driver must be able to read what the tasks wrote,
and raises an error if it cannot.

**Dictionaries.** Columns whose values do not repeat get no dictionary: trying one for each took as long as writing the
file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote
from uuid import uuid4

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from sqs_lease.spark.arrow_values import bool_scalar, no_rows, one_list, repeated_text, text_scalar
from sqs_lease.spark.batch_parts import LEFT, BatchParts
from sqs_lease.spark.columns import MESSAGE_ID, NULL_DIRECTORY, SENT_AT
from sqs_lease.spark.errors import TableError
from sqs_lease.spark.message_ids import mapped, together
from sqs_lease.spark.paths import write_path
from sqs_lease.spark.places import Place
from sqs_lease.spark.sinks.sink import Rest
from sqs_lease.spark.spark_errors import SPARK_ERRORS, cannot_run_this

# The bytes of rows that a task holds before it writes them as one row group.
_ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
# The number of first rows by which a file decides which columns have values that repeat.
_SAMPLED_ROWS: Final = 10_000
# The bytes of rows that a task holds to sort them by partition.
_SORTED_BYTES: Final = 128 * 1024 * 1024
# Columns whose values hardly repeat; trying a dictionary for them all the same costs 5 % of the job.
_UNIQUE: Final = (MESSAGE_ID, SENT_AT)
_SHOWN_CHARACTERS: Final = 40
_REST: Final = "rest"
"""The directory, inside that of a try, for rows that the tasks left to Spark to write."""

# The number of files whose message ids are read at once: on S3, each takes some round trips.
_READ_AT_ONCE: Final = 16
# The number of ids that are read at once from a file: about a row group, which is faster than several together.
_IDS_AT_ONCE: Final = 30_000

_IDS: Final = pa.schema([(MESSAGE_ID, pa.string())])
_ANSWER: Final = "file STRING, left_messages ARRAY<STRING>, left_reasons ARRAY<STRING>"
_ANSWER_SCHEMA: Final = pa.schema(
    [("file", pa.string()), ("left_messages", pa.list_(pa.string())), ("left_reasons", pa.list_(pa.string()))]
)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One Parquet file.

    Attributes:
        path: Relative to the place.
        size: Bytes.
        rows: The number of rows.
        partition_values: Column -> value in Delta's notation, for a partitioned table.
        modified_milliseconds: The time of writing, in milliseconds since 1970.
        statistics: Statistics for the table, by which readers can skip the file. The driver makes them from the footer
            when it reads the message ids: a task would have to import pandas for some of the values.
    """

    path: str
    size: int
    rows: int
    partition_values: Mapping[str, str | None]
    modified_milliseconds: int
    statistics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Written:
    """Result of staging: the files, and the message id of every row."""

    files: Sequence[StagedFile]
    message_ids: pa.ChunkedArray


def nothing_left(rows: pa.Table) -> pa.ChunkedArray:
    """Leave no row to Spark: for tables that take every row."""
    return pa.chunked_array([pa.repeat(bool_scalar(False), rows.num_rows)])


@dataclass(frozen=True, slots=True)
class Staging:
    """Instructions for writing the files of one try of a batch. Spark pickles them to the tasks.

    Attributes:
        place: The location of the table.
        directory: The directory of the try, relative to the place.
        schema: The Arrow schema of all columns.
        partition_by: The columns by which the files are partitioned.
        statistics: Makes the statistics of a file from its footer; empty by default.
        is_left: Tells which rows the tasks leave to Spark, which decides whether the table refuses them, and why.
        is_read_once: Whether only this program reads the files, and once: tasks then write what is fastest to write and
            to read, without statistics for other readers.
    """

    place: Place
    directory: str
    schema: pa.Schema
    partition_by: Sequence[str] = ()
    statistics: Callable[[pq.FileMetaData], Mapping[str, Any]] = lambda _: {}
    is_left: Callable[[pa.Table], pa.ChunkedArray] = nothing_left
    is_read_once: bool = False

    def write(self, rows: DataFrame) -> Written:
        """Write rows that Spark makes."""
        if self.place.is_local and not self.partition_by:
            return self._write_by_spark(rows)
        try:
            # Tasks do not name directories after values, because some values cannot be names.
            return self._write_by_tasks(rows)
        except SPARK_ERRORS as error:
            if not (self.place.is_local and cannot_run_this(error)):
                raise
            return self._write_by_spark(rows)

    def write_parts(self, spark: SparkSession, parts: BatchParts, rest: Rest) -> Written:
        """Write the rows that tasks make of their parts of a batch, and the rows that Spark makes of the rest."""
        task = _PartTask(self, parts)
        answers = spark.range(0, parts.count, 1, parts.tasks(spark)).mapInArrow(task, _ANSWER).toArrow()
        written = self.read_back(_files_of(answers))
        columns = [pc.list_flatten(answers[name]) for name in ("left_messages", "left_reasons")]
        left = pa.Table.from_arrays(columns, names=LEFT.names).cast(LEFT)
        rows = rest(left) if left.num_rows else None
        if rows is None:
            return written
        more = replace(self, directory=f"{self.directory}/{_REST}").write(rows)
        return Written([*written.files, *more.files], together(written.message_ids, more.message_ids))

    def _write_by_spark(self, rows: DataFrame) -> Written:
        """Let Spark write."""
        target = Path(self.place.uri) / self.directory
        writer = rows.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        for column in _UNIQUE:
            writer = writer.option(f"parquet.enable.dictionary#{column}", "false")
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        writer.parquet(write_path(target))
        staged: list[StagedFile] = []
        for file in sorted(target.rglob("part-*.parquet")):
            metadata = pq.read_metadata(file)
            if not metadata.num_rows:
                file.unlink()
                continue
            status = file.stat()
            staged.append(
                StagedFile(
                    path=file.relative_to(self.place.uri).as_posix(),
                    size=status.st_size,
                    rows=metadata.num_rows,
                    partition_values=_partition_values(file.relative_to(target).parts[:-1]),
                    modified_milliseconds=int(status.st_mtime * 1000),
                )
            )
        return self.read_back(staged)

    def _write_by_tasks(self, rows: DataFrame) -> Written:
        """Let each of Spark's tasks write its rows."""
        # Spark does not take every name for a column, for example a name with a dot.
        numbered = {name: f"c{number}" for number, name in enumerate(self.schema.names)}
        rows = rows.toDF(*numbered.values())
        if self.partition_by:
            # Sorted, so that a task has one file open at a time.
            rows = rows.sortWithinPartitions(*(numbered[name] for name in self.partition_by))
        return self.read_back(_files_of(rows.mapInArrow(self._write_rows, _ANSWER).toArrow()))

    def _write_rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows that Spark passes to a task."""
        writer = TaskWriter(self)
        for batch in batches:
            yield from map(_answer, writer.write(pa.Table.from_batches([batch])))
        yield from map(_answer, writer.finish())

    def read_back(self, files: Sequence[StagedFile]) -> Written:
        """Read the statistics of files, and the ids of the messages with rows in them."""
        described: list[StagedFile] = []

        def message_ids() -> Iterator[pa.Table]:
            for file, ids in readers.map(self._read, files):
                described.append(file)
                yield ids

        with ThreadPoolExecutor(_READ_AT_ONCE) as readers:
            return Written(described, mapped(message_ids(), _IDS)[MESSAGE_ID])

    def _read(self, file: StagedFile) -> tuple[StagedFile, pa.Table]:
        try:
            with (
                self.place.file_system().open_input_file(file.path) as source,
                # Reading ahead holds the column of a whole file in memory. It pays only if each read is a request.
                pq.ParquetFile(source, pre_buffer=not self.place.is_local) as parquet,
            ):
                batches = parquet.iter_batches(_IDS_AT_ONCE, columns=[MESSAGE_ID], use_threads=False)
                ids = mapped((pa.Table.from_batches([one]).cast(_IDS) for one in batches), _IDS)
                return replace(file, statistics=self.statistics(parquet.metadata)), ids
        except FileNotFoundError as error:
            raise TableError(
                f"{file.path}, which a task of Spark's wrote, is not in {self.place.uri}: the driver and all executors "
                "must reach the same directory by this path"
            ) from error
        except OSError as error:
            raise self.place.unusable("cannot be read", error) from error


def _files_of(answers: pa.Table) -> list[StagedFile]:
    return [msgspec.json.decode(file, type=StagedFile) for file in answers["file"].drop_null().to_pylist()]


def _answer(file: StagedFile | None, left: pa.Table | None = None) -> pa.RecordBatch:
    """Make one row of a task's answer."""
    encoded = repeated_text(None if file is None else msgspec.json.encode(file).decode(), 1)
    left = no_rows(LEFT) if left is None else left
    columns = [one_list(column.combine_chunks()) for column in left.columns]
    return pa.RecordBatch.from_arrays([encoded, *columns], schema=_ANSWER_SCHEMA)


@dataclass(frozen=True, slots=True)
class _PartTask:
    """Task that makes the rows of the parts with the given numbers, and writes them."""

    staging: Staging
    parts: BatchParts

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = TaskWriter(self.staging)
        partition_by = self.staging.partition_by
        left: list[pa.Table] = []
        waiting: list[pa.Table] = []
        numbers = (number for batch in batches for number in batch.column(0).to_pylist())
        for made in self.parts.read(numbers):
            rows, is_left = made.rows, self.staging.is_left(made.rows)
            if made.rejected.num_rows:
                left.append(made.rejected)
            if pc.any(is_left).as_py():
                refused = rows[MESSAGE_ID].filter(is_left)
                left.append(pa.Table.from_arrays([refused, pa.nulls(len(refused), pa.string())], schema=LEFT))
                rows = rows.filter(pc.invert(is_left))
            waiting.append(rows)
            if not partition_by or sum(rows.nbytes for rows in waiting) >= _SORTED_BYTES:
                yield from map(_answer, writer.write(_sorted(waiting, partition_by)))
                waiting.clear()
        if waiting:
            yield from map(_answer, writer.write(_sorted(waiting, partition_by)))
        yield from map(_answer, writer.finish())
        if left:
            yield _answer(None, pa.concat_tables(left))


def _sorted(tables: Sequence[pa.Table], partition_by: Sequence[str]) -> pa.Table:
    """Concatenate tables, sorted by partition, so that a task has one file open at a time."""
    together = pa.concat_tables(tables)
    return together.sort_by([(name, "ascending") for name in partition_by]) if partition_by else together


class TaskWriter:
    """Writer for the rows of one task, with one file for each partition of the table.

    Two files never have the same name, whichever task, or try of a task, writes them.
    """

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._files = staging.place.file_system()
        self._stored = pa.schema([field for field in staging.schema if field.name not in staging.partition_by])
        self._open: _OpenFile | None = None

    def write(self, rows: pa.Table) -> Iterator[StagedFile]:
        """Write rows that are sorted by the partition columns, and yield each file that is complete by now.

        The columns of the rows must be in the order of the schema; their names do not matter.
        """
        rows = rows.rename_columns(self._staging.schema.names).cast(self._staging.schema)
        for partition, part in self._parts(rows):
            if self._open is not None and partition != self._open.partition:
                yield from self.finish()
            if self._open is None:
                if self._staging.place.is_local:
                    self._files.create_dir(self._staging.directory, recursive=True)
                self._open = _OpenFile(self._files, self._stored, self._staging, partition)
            self._open.add(part.select(self._stored.names))

    def finish(self) -> Iterator[StagedFile]:
        """Complete the file that is still open, if there is one."""
        if self._open is not None:
            yield self._open.close()
            self._open = None

    def _parts(self, rows: pa.Table) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
        """Cut sorted rows where the partition changes."""
        if not len(rows):
            return
        texts = [_partition_texts(rows[name]) for name in self._staging.partition_by]
        starts = {0}
        for column in texts:
            codes = column.combine_chunks().dictionary_encode(null_encoding="encode").indices
            changes = pc.not_equal(codes.slice(1), codes.slice(0, len(codes) - 1))
            starts.update(position + 1 for position in pc.indices_nonzero(changes).to_pylist())
        cuts = [*sorted(starts), len(rows)]
        for start, end in pairwise(cuts):
            yield tuple(column[start].as_py() for column in texts), rows.slice(start, end - start)


class _OpenFile:
    """One Parquet file while it is written. It is complete when it is closed."""

    def __init__(self, files: Any, schema: pa.Schema, staging: Staging, partition: tuple[str | None, ...]) -> None:
        self.partition = partition
        self._path = f"{staging.directory}/part-{uuid4().hex}.parquet"
        self._schema = schema
        self._staging = staging
        self._stream = files.open_output_stream(self._path)
        self._footers: list[pq.FileMetaData] = []
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> StagedFile:
        self._flush()
        if self._writer is not None:
            self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        (metadata,) = self._footers
        return StagedFile(
            path=self._path,
            size=size,
            rows=metadata.num_rows,
            partition_values=dict(zip(self._staging.partition_by, self.partition, strict=True)),
            modified_milliseconds=int(datetime.now(UTC).timestamp() * 1000),
        )

    def _flush(self) -> None:
        if self._waiting:
            rows = pa.concat_tables(self._waiting)
            self._writer = self._writer or self._writer_for(rows)
            self._writer.write_table(rows)
        self._waiting = []
        self._waiting_bytes = 0

    def _writer_for(self, rows: pa.Table) -> pq.ParquetWriter:
        return pq.ParquetWriter(
            self._stream,
            self._schema,
            compression="lz4" if self._staging.is_read_once else "snappy",
            write_statistics=not self._staging.is_read_once,
            store_decimal_as_integer=True,
            # Trying a dictionary for values that do not repeat takes as long as writing them.
            use_dictionary=_repeating(rows.slice(0, _SAMPLED_ROWS)),
            metadata_collector=self._footers,
        )


def _repeating(rows: pa.Table) -> list[str]:
    """Return the Parquet columns in which most values occur at least twice."""
    columns = (leaf for name in rows.column_names for leaf in _leaves(name, rows[name].combine_chunks()))
    return [path for path, values in columns if 2 * len(pc.unique(values)) <= len(values)]


def _leaves(path: str, values: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Yield the columns that Parquet makes of one column, with their values."""
    kind = values.type
    if pa.types.is_struct(kind):
        for number, field in enumerate(kind):
            yield from _leaves(f"{path}.{field.name}", values.field(number))
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", values.flatten())
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", values.keys)
        yield from _leaves(f"{path}.key_value.value", values.items)
    else:
        yield path, values


def _partition_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Write values in the notation of Delta's log, in which an empty string is a null."""
    texts = pc.cast(column, pa.string())
    return pc.if_else(pc.equal(texts, text_scalar("")), pa.nulls(1, pa.string())[0], texts)


def _partition_values(directories: Sequence[str]) -> dict[str, str | None]:
    """Read the partition from the names that Spark gave the directories of a file."""
    values: dict[str, str | None] = {}
    for directory in directories:
        name, _, value = directory.partition("=")
        values[unquote(name)] = None if value == NULL_DIRECTORY else unquote(value)
    return values


def new_try(batch_id: str) -> str:
    """Name the directory of a new try of a batch, relative to the directory of all batches."""
    return f"{directory_name(batch_id)}/{uuid4().hex}"


def directory_name(batch_id: str) -> str:
    """Make a directory name from a batch id: readable, unique, and with characters that Spark and file systems accept.

    A batch id may be any string, for example an Airflow run id with colons and plus signs.
    """
    readable = re.sub(r"[^A-Za-z0-9]+", "-", batch_id).strip("-")[:_SHOWN_CHARACTERS]
    return f"{readable or 'batch'}-{hashlib.sha256(batch_id.encode()).hexdigest()[:16]}"


def stage_directory(
    root: Path,
    batch_id: str,
    schema: pa.Schema,
    write: Callable[[Staging], Written],
    is_left: Callable[[pa.Table], pa.ChunkedArray] = nothing_left,
) -> tuple[Path, pa.ChunkedArray]:
    """Write the rows of one try of a batch into a directory with nothing else in it, which can be taken as a whole.

    A try that fails removes its files.

    Args:
        root: The parent directory of all tries, which the driver and all executors reach by this path.
        batch_id: The batch.
        schema: All columns.
        write: Writes the rows.
        is_left: See :class:`Staging`.

    Returns:
        The directory, and the message id of every row.
    """
    place, own = Place(str(root)), new_try(batch_id)
    # A task that Spark has given up may still write. It writes into this directory, and not into the one that is taken.
    staging = Staging(place, f"{own}-tasks", schema, is_left=is_left)
    target = root / own
    try:
        written = write(staging)
        target.mkdir(parents=True)
        for file in written.files:
            path = root / file.path
            path.rename(target / path.name)
    except BaseException:
        place.remove(own)
        raise
    finally:
        place.remove(staging.directory)
    return target, written.message_ids
