"""A batch on disk, for the length of one try: one Parquet file of its messages, which Spark reads.

A manifest is such a file already, and is taken as it is. Of messages that come otherwise, one is written.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it

from sqs_lease.batch_files.manifest import ManifestPath, opened_manifest
from sqs_lease.core.messages import Message
from sqs_lease.spark import columns
from sqs_lease.spark.batch_parts import BatchParts
from sqs_lease.spark.errors import WorkspaceError
from sqs_lease.spark.message_groups import (
    DEAD_LETTER_SOURCE,
    MESSAGES,
    SEQUENCE_NUMBER,
    Group,
    Place,
    groups_of,
    in_order,
    places_in_json,
)
from sqs_lease.spark.message_ids import together
from sqs_lease.spark.paths import read_parquet
from sqs_lease.spark.repeats import with_keys
from sqs_lease.spark.schemas import struct_type
from sqs_lease.spark.sinks.sink import LOOKED_UP
from sqs_lease.spark.sources.source import ArrowParser, Checker, KeysOf, SyntaxChecker
from sqs_lease.spark.workspace import scratch_directory

MESSAGE_ID: Final = "message_id"
BODY: Final = "body"
SENT_AT: Final = "sent_at"
RECEIVE_COUNT: Final = "receive_count"
ATTRIBUTES: Final = "attributes"
"""The attributes of SQS itself, as JSON text: an object of strings."""

MESSAGE_ATTRIBUTES: Final = "message_attributes"
"""The sender's attributes in the shape of the SQS API, as JSON text (bytes: ``{"base64": "..."}``), or null."""

_REJECTED: Final = "rejected"
_NOT_JSON: Final = "not_json"
_COPIED_BYTES: Final = 16 * 1024 * 1024
_WRITTEN: Final = MESSAGES.append(pa.field(_REJECTED, pa.string()))
_SPARK_SCHEMA: Final = (
    f"{MESSAGE_ID} STRING, {BODY} STRING, {SENT_AT} TIMESTAMP, {RECEIVE_COUNT} INT, {ATTRIBUTES} STRING, "
    f"{MESSAGE_ATTRIBUTES} STRING"
)

Messages: TypeAlias = Iterable[Message | Mapping[str, Any]] | str | os.PathLike[str] | ManifestPath
"""A batch: :class:`Message` values, dicts in the shape of the SQS API, or the manifest that they are in."""

_KEPT: Final = [MESSAGE_ID, SENT_AT, RECEIVE_COUNT]

REASONS: Final = pa.schema(
    [pa.field("message_id", pa.string(), nullable=False), pa.field("reason", pa.string(), nullable=False)]
)
"""Messages that are rejected, and why."""

_REJECT: Final = pa.schema(
    [
        pa.field("body", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field(columns.MESSAGE_ID, pa.string(), nullable=False),
        pa.field(columns.SENT_AT, pa.timestamp("us", tz="UTC")),
    ]
)


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A batch on disk.

    Attributes:
        path: The file, in a scratch directory of its own.
        messages: Each message once, without its body, and why the driver rejected it: of several receptions of one
            message, the one received last. Without the time where that does not tell one message from another.
        received: How many were handed over, repetitions included.
        marked: The column of the file that is not null for the messages that were rejected; None where it has none.
        is_shared: Whether the executors reach the file. If not, the driver sends them what is in it.
    """

    path: Path
    messages: pa.Table
    received: int
    marked: str | None
    is_shared: bool = True

    @property
    def repeated(self) -> int:
        """How many were handed over although the message was there already."""
        once: int = self.messages.num_rows
        return self.received - once

    @property
    def looked_up(self) -> pa.Table:
        """What a table is asked for, as :data:`.sink.LOOKED_UP`."""
        return self.messages.select(LOOKED_UP.names)

    @property
    def rejected(self) -> pa.Table:
        """The messages that the driver rejected, as :data:`REASONS`."""
        rejected = self.messages.filter(pc.is_valid(self.messages[_REJECTED]))
        return rejected.select([MESSAGE_ID, _REJECTED]).rename_columns(REASONS.names).cast(REASONS)

    def accepted(self, spark: SparkSession) -> DataFrame:
        """The messages that Spark is to parse, as rows of the columns of this module."""
        rejected = self.rejected["message_id"]
        if not len(rejected):
            return self._read(spark, self.path, _SPARK_SCHEMA)
        if self.marked is None:
            return self.without(self._read(spark, self.path, _SPARK_SCHEMA), rejected)
        marked = self._read(spark, self.path, f"{_SPARK_SCHEMA}, {self.marked} STRING")
        return marked.where(F.col(self.marked).isNull()).drop(self.marked)

    def without(self, messages: DataFrame, message_ids: pa.ChunkedArray) -> DataFrame:
        """Leave some messages out."""
        return self._compared(messages, message_ids, "left_anti")

    def only(self, messages: DataFrame, message_ids: pa.ChunkedArray) -> DataFrame:
        """Leave all messages but some out."""
        return self._compared(messages, message_ids, "left_semi")

    def parts(self, parser: ArrowParser, without: pa.ChunkedArray, batch_id: str) -> BatchParts:
        """The messages for tasks that read them themselves.

        Args:
            parser: Makes the rows.
            without: The ids of messages that are left out, beside those that the driver rejected.
            batch_id: The batch.
        """
        out = together(self.rejected["message_id"], without)
        return BatchParts.of(
            self.path, without=self._written_ids(out) if len(out) else None, parser=parser, batch_id=batch_id
        )

    def _compared(self, messages: DataFrame, message_ids: pa.ChunkedArray, how: str) -> DataFrame:
        others = self._read(messages.sparkSession, self._written_ids(message_ids), f"{MESSAGE_ID} STRING")
        return messages.join(F.broadcast(others), MESSAGE_ID, how)

    def _written_ids(self, message_ids: pa.ChunkedArray) -> Path:
        path = self.path.with_name(f"ids-{uuid4().hex}.parquet")
        pq.write_table(pa.table({MESSAGE_ID: message_ids}), path)
        return path

    def rejects(self, spark: SparkSession, reasons: pa.Table) -> DataFrame:
        """Some of the messages as rows of a table of rejects.

        Args:
            spark: The session.
            reasons: Which, and why, as :data:`REASONS`.
        """
        path = self.path.with_name(f"rejects-{uuid4().hex}.parquet")
        message_ids = reasons["message_id"].combine_chunks()
        with pq.ParquetWriter(path, _REJECT) as writer, pq.ParquetFile(self.path) as file:
            for group in range(file.num_row_groups):
                read = file.read_row_group(group, columns=[MESSAGE_ID, BODY, SENT_AT])
                position = pc.index_in(read[MESSAGE_ID], message_ids)
                chosen = pc.is_valid(position)
                reason = reasons["reason"].combine_chunks().take(position.filter(chosen).combine_chunks())
                read = read.filter(chosen)
                table = pa.Table.from_arrays(
                    [read[BODY], pa.chunked_array([reason]), read[MESSAGE_ID], read[SENT_AT]], schema=_REJECT
                )
                if table.num_rows:
                    writer.write_table(table)
        return self._read(
            spark, path, f"body STRING, reason STRING, {columns.MESSAGE_ID} STRING, {columns.SENT_AT} TIMESTAMP"
        )

    def _read(self, spark: SparkSession, path: Path, schema: str) -> DataFrame:
        if not self.is_shared:
            columns = struct_type(schema)
            return spark.createDataFrame(pq.read_table(path, columns=columns.names), columns)
        return read_parquet(spark, path, schema)


@contextmanager
def written_batch(
    messages: Messages, *, workspace: str | Path | None, checker: Checker, keys_of: KeysOf | None = None
) -> Iterator[BatchFile | None]:
    """Write a batch to a file, which is removed at the end of the block.

    Args:
        messages: The batch.
        workspace: Directory of such files, which the driver and all executors reach by this path; None where there is
            none, so that the file is the driver's own.
        checker: Looks at all bodies on the way.
        keys_of: Names what bodies say; None, the default, where message ids tell them apart.

    Yields:
        The file; None for a batch without messages.

    Raises:
        ManifestError: The manifest cannot be used.
        TypeError, ValueError: Something is no message: see :func:`.message_groups.groups_of`.
        WorkspaceError: The file cannot be written.
    """
    if isinstance(messages, str | os.PathLike):
        messages = Path(messages)
    if not isinstance(messages, Iterable):
        with messages.open("rb") as manifest, scratch_directory(workspace) as directory:
            path = directory / "messages.parquet"
            with _writing(directory):
                _bring(messages, manifest, path)
            batch = _from_manifest(path, checker, keys_of, name=messages)
            yield None if batch is None else replace(batch, is_shared=workspace is not None)
        return
    groups = groups_of(messages)
    # Nothing is written for a batch that is empty, or whose first message is none.
    first = next(groups, None)
    if first is None:
        yield None
        return
    with scratch_directory(workspace) as directory:
        with _writing(directory):
            batch = _from_groups(directory / "messages.parquet", chain([first], groups), checker, keys_of)
        yield replace(batch, is_shared=workspace is not None)


def _from_groups(path: Path, groups: Iterable[Group], checker: Checker, keys_of: KeysOf | None) -> BatchFile:
    kept = []
    from_dead_letter_queue = False
    places: list[Place | None] = []
    # The file lives for minutes: what counts is how fast it is written, and read once. Spark reads row groups in
    # parallel, never parts of one: each is a group of messages.
    with pq.ParquetWriter(
        path, _WRITTEN, compression="none", use_dictionary=[_REJECTED], write_statistics=False
    ) as writer:
        for group in groups:
            reasons = pa.array(checker.reasons(group.bodies), pa.string())
            table = group.messages.append_column(_WRITTEN.field(_REJECTED), reasons)
            writer.write_table(table)
            known_by = table.select([*_KEPT, _REJECTED])
            kept.append(known_by if keys_of is None else with_keys(known_by, keys_of(group.bodies)))
            from_dead_letter_queue |= group.from_dead_letter_queue
            places += group.places
    path, messages = _in_order(path, pa.concat_tables(kept), places)
    return _each_once(path, _at_any_time(messages) if from_dead_letter_queue else messages, _REJECTED)


def _from_manifest(path: Path, checker: Checker, keys_of: KeysOf | None, *, name: object) -> BatchFile | None:
    with opened_manifest(path, name=name) as file:
        messages = file.read([*_KEPT, _NOT_JSON])
        if not messages.num_rows:
            return None
        if isinstance(checker, SyntaxChecker):
            reasons = checker.reasons_by_syntax(messages[_NOT_JSON])
        else:
            reasons = pa.chunked_array([checker.reasons(bodies) for bodies in _bodies(file)], pa.string())
        keys = None if keys_of is None else [key for bodies in _bodies(file) for key in keys_of(bodies)]
        # A batch is of one queue, so one message tells.
        (attributes, *_) = file.read_row_group(0, columns=[ATTRIBUTES])[ATTRIBUTES].to_pylist()
        is_fifo = f'"{SEQUENCE_NUMBER}"' in attributes
        places = places_in_json(file.read([ATTRIBUTES])[ATTRIBUTES].to_pylist()) if is_fifo else []
    is_marked = pc.all(pc.equal(pc.is_null(reasons), pc.is_null(messages[_NOT_JSON]))).as_py()
    path, messages = _in_order(path, messages.select(_KEPT).append_column(_REJECTED, reasons), places)
    if keys is not None:
        messages = with_keys(messages, keys)
    if f'"{DEAD_LETTER_SOURCE}"' in attributes:
        messages = _at_any_time(messages)
    return _each_once(path, messages, _NOT_JSON if is_marked else None)


def _bodies(file: pq.ParquetFile) -> Iterator[list[str]]:
    for number in range(file.num_row_groups):
        yield file.read_row_group(number, columns=[BODY])[BODY].to_pylist()


def _in_order(path: Path, messages: pa.Table, places: Sequence[Place | None]) -> tuple[Path, pa.Table]:
    """Have the times tell the order of messages of a FIFO queue; where they do not, the file is written anew."""
    times = in_order(messages[SENT_AT], places) if any(places) else None
    if times is None:
        return path, messages
    return _rewritten(path, "messages-in-order.parquet", times, _with_times), _with_times(messages, times)


def _with_times(messages: pa.Table, times: Any) -> pa.Table:
    position = messages.schema.get_field_index(SENT_AT)
    return messages.set_column(position, messages.schema.field(SENT_AT), times)


def _at_any_time(messages: pa.Table) -> pa.Table:
    """Have messages looked up whenever they were sent: the dead-letter queue of a FIFO queue says another time."""
    return _with_times(messages, pa.nulls(len(messages), messages.schema.field(SENT_AT).type))


def _bring(manifest: ManifestPath, opened: Any, path: Path) -> None:
    """Put a manifest where all executors find it, and where nobody removes it meanwhile."""
    if isinstance(manifest, Path):
        # Not if it lies on another file system, or is somebody else's.
        with suppress(OSError):
            path.hardlink_to(manifest)
            return
    with path.open("wb") as copy:
        shutil.copyfileobj(opened, copy, _COPIED_BYTES)


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WorkspaceError(
            f"the batch cannot be written to {directory} ({error.strerror or error}): is the disk full?"
        ) from error


def _each_once(path: Path, messages: pa.Table, marked: str | None) -> BatchFile:
    received = messages.num_rows
    # Not count_distinct(), which takes three times as long.
    if len(pc.unique(messages[MESSAGE_ID])) < received:
        latest = _latest(messages)
        path, messages = _rewritten(path, "messages-once.parquet", latest, pa.Table.filter), messages.filter(latest)
    return BatchFile(path, messages, received, marked)


def _latest(messages: pa.Table) -> pa.ChunkedArray:
    """Which rows to keep: of each message the one with the highest receive count, and of those the last."""
    position = pa.array(range(messages.num_rows), pa.int64())
    ordered = messages.append_column("position", position).sort_by(
        [(MESSAGE_ID, "ascending"), (RECEIVE_COUNT, "ascending"), ("position", "ascending")]
    )
    message_ids = ordered[MESSAGE_ID].combine_chunks()
    is_last = pa.concat_arrays([pc.not_equal(message_ids[1:], message_ids[:-1]), pa.array([True])])
    return pc.is_in(position, ordered["position"].filter(is_last).combine_chunks())


def _rewritten(path: Path, name: str, values: Any, change: Callable[[pa.Table, Any], pa.Table]) -> Path:
    """Write the file anew under another name, each row group changed by those of the values that are its own."""
    changed = path.with_name(name)
    with pq.ParquetFile(path) as file, pq.ParquetWriter(changed, file.schema_arrow, write_statistics=False) as writer:
        start = 0
        for number in range(file.num_row_groups):
            table = file.read_row_group(number)
            writer.write_table(change(table, values.slice(start, table.num_rows)))
            start += table.num_rows
    path.unlink()
    return changed
