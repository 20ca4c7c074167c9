"""Writes a batch's rows as Parquet files that the table does not name yet, in one Spark action.

On a file system that all share, Spark writes its rows itself. On S3 it would need jars for that, so there each task
writes its rows with pyarrow, and so it does with rows that it made itself. It answers with what it wrote: only the
answers of tasks that Spark took count, so what a task wrote that was repeated, or run twice, is named by nobody.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from sqs_lease.spark.batch_parts import BatchParts
from sqs_lease.spark.columns import MESSAGE_ID, SENT_AT
from sqs_lease.spark.paths import write_path
from sqs_lease.spark.sinks.delta.files import StagedFile, statistics_of
from sqs_lease.spark.sinks.delta.storage import TableStorage

# How Hive, and Spark with it, writes a null in the name of a directory.
_NULL_DIRECTORY: Final = "__HIVE_DEFAULT_PARTITION__"
# Rows that a task of Spark's holds before it writes them as one row group.
_ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
# Rows that a task made itself and holds until it has sorted them.
_SORTED_BYTES: Final = 128 * 1024 * 1024
_ANSWER: Final = (
    "path STRING, size BIGINT, row_count BIGINT, partition_values STRING, statistics STRING, "
    "modified_milliseconds BIGINT, message_ids ARRAY<STRING>"
)
_ANSWER_SCHEMA: Final = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("row_count", pa.int64()),
        pa.field("partition_values", pa.string()),
        pa.field("statistics", pa.string()),
        pa.field("modified_milliseconds", pa.int64()),
        pa.field("message_ids", pa.list_(pa.string())),
    ]
)


@dataclass(frozen=True, slots=True)
class Written:
    """What was written.

    Attributes:
        files: The files that have rows.
        message_ids: The message id of every row.
    """

    files: Sequence[StagedFile]
    message_ids: pa.ChunkedArray

    def __add__(self, more: Written) -> Written:
        """This and what was written besides."""
        chunks = [*self.message_ids.chunks, *more.message_ids.chunks]
        return Written([*self.files, *more.files], pa.chunked_array(chunks, pa.string()))


def write_by_spark(rows: DataFrame, storage: TableStorage, directory: str, partition_by: Sequence[str]) -> Written:
    """Let Spark write the files of a table on a shared file system, and read the message ids back from them."""
    target = Path(storage.uri) / directory
    writer = rows.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    # Few rows have the same one, and trying a dictionary all the same costs 5 % of the job.
    for column in (MESSAGE_ID, SENT_AT):
        writer = writer.option(f"parquet.enable.dictionary#{column}", "false")
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    writer.parquet(write_path(target))
    staged: list[StagedFile] = []
    message_ids: list[pa.Array] = []
    for file in sorted(target.rglob("part-*.parquet")):
        with pq.ParquetFile(file) as parquet:
            found = parquet.read([MESSAGE_ID])[MESSAGE_ID]
            statistics = statistics_of(parquet.metadata)
        if not len(found):
            file.unlink()
            continue
        status = file.stat()
        staged.append(
            StagedFile(
                path=file.relative_to(storage.uri).as_posix(),
                size=status.st_size,
                rows=len(found),
                partition_values=_partition_values(file.relative_to(target).parts[:-1]),
                statistics=statistics,
                modified_milliseconds=int(status.st_mtime * 1000),
            )
        )
        message_ids += found.chunks
    return Written(staged, pa.chunked_array(message_ids, pa.string()))


def write_by_tasks(
    rows: DataFrame, storage: TableStorage, directory: str, partition_by: Sequence[str], schema: pa.Schema
) -> Written:
    """Let each of Spark's tasks write its own files where Spark cannot.

    Args:
        rows: The rows.
        storage: The table's place, which the tasks reach with the storage options and the environment they run in.
        directory: For the files.
        partition_by: The columns by which the table is partitioned.
        schema: All columns, as Arrow has them.
    """
    # Some names mean something else to Spark than a column, such as those with a dot.
    numbered = {name: f"c{number}" for number, name in enumerate(schema.names)}
    rows = rows.toDF(*numbered.values())
    if partition_by:
        # So a task has one file open at a time.
        rows = rows.sortWithinPartitions(*(numbered[name] for name in partition_by))
    return _written(rows.mapInArrow(_task(storage, directory, tuple(partition_by), schema), _ANSWER).toArrow())


def write_parts(
    spark: SparkSession,
    parts: BatchParts,
    storage: TableStorage,
    directory: str,
    partition_by: Sequence[str],
    schema: pa.Schema,
) -> tuple[Written, pa.ChunkedArray]:
    """Let each of Spark's tasks make rows of its parts of a batch, and write them.

    Args:
        spark: The session.
        parts: The batch.
        storage: As for :func:`write_by_tasks`, and so are the others.
        directory: For the files.
        partition_by: The columns by which the table is partitioned.
        schema: All columns, as Arrow has them.

    Returns:
        What was written, and the ids of the messages that were left.
    """
    task = _part_task(parts, storage, directory, tuple(partition_by), schema)
    answers = spark.range(0, parts.count, 1, parts.tasks(spark)).mapInArrow(task, _ANSWER).toArrow()
    of_files = pc.is_valid(answers["path"])
    return _written(answers.filter(of_files)), _ids(answers.filter(pc.invert(of_files)))


def _written(answers: pa.Table) -> Written:
    files = [answered(answer) for answer in answers.drop_columns(["message_ids"]).to_pylist()]
    return Written(files, _ids(answers))


def _ids(answers: pa.Table) -> pa.ChunkedArray:
    return pa.chunked_array(
        [pc.list_flatten(chunk).cast(pa.string()) for chunk in answers["message_ids"].chunks], pa.string()
    )


def answered(answer: Mapping[str, Any]) -> StagedFile:
    """The file that a task answered for."""
    return StagedFile(
        path=answer["path"],
        size=answer["size"],
        rows=answer["row_count"],
        partition_values=json.loads(answer["partition_values"]),
        statistics=json.loads(answer["statistics"]),
        modified_milliseconds=answer["modified_milliseconds"],
    )


def _task(
    storage: TableStorage, directory: str, partition_by: Sequence[str], schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = TaskWriter(storage, directory, partition_by, schema)
        for batch in batches:
            yield from writer.write(pa.Table.from_batches([batch]))
        yield from writer.finish()

    return write


def _part_task(
    parts: BatchParts, storage: TableStorage, directory: str, partition_by: Sequence[str], schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    # Spark says of them why they are rejected.
    never_empty = never_empty_texts(schema, partition_by)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = TaskWriter(storage, directory, partition_by, schema)
        left: list[pa.Array] = []
        waiting: list[pa.Table] = []
        numbers = (number for batch in batches for number in batch.column(0).to_pylist())
        for made in parts.read(numbers):
            left += made.left.chunks
            rows = made.rows
            for name in never_empty:
                is_empty = pc.equal(rows[name], "")
                left += rows[MESSAGE_ID].filter(is_empty).chunks
                rows = rows.filter(pc.invert(is_empty))
            waiting.append(rows)
            if not partition_by or sum(rows.nbytes for rows in waiting) >= _SORTED_BYTES:
                yield from writer.write(_sorted(waiting, partition_by))
                waiting.clear()
        if waiting:
            yield from writer.write(_sorted(waiting, partition_by))
        yield from writer.finish()
        yield _answer(message_ids=pa.chunked_array(left, pa.string()))

    return write


def never_empty_texts(schema: pa.Schema, partition_by: Sequence[str]) -> list[str]:
    """The columns by which files are partitioned in which an empty text, Delta's null, cannot be."""
    fields = [schema.field(name) for name in partition_by if name in schema.names]
    return [field.name for field in fields if pa.types.is_string(field.type) and not field.nullable]


def _sorted(tables: Sequence[pa.Table], partition_by: Sequence[str]) -> pa.Table:
    """So a task has one file open at a time."""
    together = pa.concat_tables(tables)
    return together.sort_by([(name, "ascending") for name in partition_by]) if partition_by else together


def _answer(*, message_ids: pa.ChunkedArray, **of_file: Any) -> pa.RecordBatch:
    """One row of the answers; without anything of a file, the messages that have no row."""
    ids = pa.ListArray.from_arrays(pa.array([0, len(message_ids)], pa.int32()), message_ids.combine_chunks())
    given = [pa.array([of_file.get(field.name)], field.type) for field in _ANSWER_SCHEMA][:-1]
    return pa.RecordBatch.from_arrays([*given, ids], schema=_ANSWER_SCHEMA)


class TaskWriter:
    """Writes the rows of one task, one file for each partition of the table, and says of each file what is in it.

    No two files have the same name, whichever task, or try of a task, writes them.
    """

    def __init__(self, storage: TableStorage, directory: str, partition_by: Sequence[str], schema: pa.Schema) -> None:
        self._files = storage.file_system()
        self._is_local = storage.is_local
        self._directory = directory
        self._partition_by = partition_by
        self._schema = schema
        self._stored = pa.schema([field for field in schema if field.name not in partition_by])
        self._partition: tuple[str | None, ...] | None = None
        self._open: _OpenFile | None = None

    def write(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Take rows, sorted by the partition columns, and answer for each file that is complete by now.

        Args:
            rows: The columns in their order, whatever they are called.
        """
        rows = rows.rename_columns(self._schema.names).cast(self._schema)
        for partition, part in self._parts(rows):
            if partition != self._partition:
                yield from self.finish()
            if self._open is None:
                self._partition = partition
                path = f"{self._directory}/part-{uuid4().hex}.parquet"
                if self._is_local:
                    self._files.create_dir(self._directory, recursive=True)
                self._open = _OpenFile(self._files, path, self._stored)
            self._open.add(part.select(self._stored.names))

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Answer for the file that is still open, if one is."""
        if self._open is None or self._partition is None:
            return
        values = dict(zip(self._partition_by, self._partition, strict=True))
        yield self._open.close(values)
        self._open = None

    def _parts(self, rows: pa.Table) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
        """Cut sorted rows where the partition changes."""
        if not len(rows):
            return
        texts = [_partition_texts(rows[name]) for name in self._partition_by]
        starts = {0}
        for column in texts:
            codes = column.combine_chunks().dictionary_encode(null_encoding="encode").indices
            changes = pc.not_equal(codes.slice(1), codes.slice(0, len(codes) - 1))
            starts.update(position + 1 for position in pc.indices_nonzero(changes).to_pylist())
        cuts = [*sorted(starts), len(rows)]
        for start, end in pairwise(cuts):
            yield tuple(column[start].as_py() for column in texts), rows.slice(start, end - start)


class _OpenFile:
    """One Parquet file while it is written; it exists when it is closed."""

    def __init__(self, files: Any, path: str, schema: pa.Schema) -> None:
        self._path = path
        self._stream = files.open_output_stream(path)
        self._footers: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            self._stream, schema, store_decimal_as_integer=True, metadata_collector=self._footers
        )
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._message_ids: list[pa.Array] = []

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        self._message_ids += rows[MESSAGE_ID].chunks
        if self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def close(self, partition_values: Mapping[str, str | None]) -> pa.RecordBatch:
        self._flush()
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        (metadata,) = self._footers
        return _answer(
            path=self._path,
            size=size,
            row_count=metadata.num_rows,
            partition_values=json.dumps(partition_values),
            statistics=json.dumps(statistics_of(metadata)),
            modified_milliseconds=int(datetime.now(UTC).timestamp() * 1000),
            message_ids=pa.chunked_array(self._message_ids, pa.string()),
        )

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting = []
        self._waiting_bytes = 0


def _partition_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values as Delta's log has them, in which an empty text is a null."""
    texts = pc.cast(column, pa.string())
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _partition_values(directories: Sequence[str]) -> dict[str, str | None]:
    """The partition that the directories of a file stand for, as Spark names them."""
    values: dict[str, str | None] = {}
    for directory in directories:
        name, _, value = directory.partition("=")
        values[unquote(name)] = None if value == _NULL_DIRECTORY else unquote(value)
    return values
