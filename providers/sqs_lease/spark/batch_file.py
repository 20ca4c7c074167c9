"""A batch on disk, for the length of one try: its manifest, which Spark reads.

A batch that comes as a manifest is taken as it is. Of messages that come otherwise, a manifest is written.

The order of the messages of a FIFO queue is in the times at which they were sent. The service says these in
milliseconds, and tells the messages of one message group apart by sequence numbers; tables keep the newest message of a
key by its time alone. So of the messages of a group that were sent in the same millisecond, the second gets one
microsecond more, the third two, and so on.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final, TypeAlias
from uuid import uuid4

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import StructType

from sqs_lease.batch_files.manifest import SCHEMA, ManifestPath, message_tables, opened_manifest, rows_of, write_tables
from sqs_lease.core.messages import Message
from sqs_lease.spark.batch_parts import CHOSEN, BatchParts
from sqs_lease.spark.columns import REJECT, table_columns
from sqs_lease.spark.errors import WorkspaceError
from sqs_lease.spark.message_ids import (
    constant,
    filtered,
    is_among,
    mapped,
    positions,
    repeated_ids,
    slices,
    together,
)
from sqs_lease.spark.paths import read_parquet
from sqs_lease.spark.repeats import with_keys
from sqs_lease.spark.schemas import arrow_schema, nullable, struct_type
from sqs_lease.spark.sinks.sink import LOOKED_UP
from sqs_lease.spark.sources.source import ArrowParser, Checker, KeysOf, RepeatedChecker
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
_ALTERED: Final = "altered"
# By which the service tells a message that came to its queue as a dead letter.
_DEAD_LETTER_SOURCE: Final = "DeadLetterQueueSourceArn"
_SEQUENCE_NUMBER: Final = "SequenceNumber"
_GROUP: Final = "MessageGroupId"
# All microseconds that fit before the next millisecond.
_MOST: Final = 999
# The service's have 20.
_LONGEST_NUMBER: Final = 128
_COPIED_BYTES: Final = 16 * 1024 * 1024
_SPARK_SCHEMA: Final = (
    f"{MESSAGE_ID} STRING, {BODY} STRING, {SENT_AT} TIMESTAMP, {RECEIVE_COUNT} INT, {ATTRIBUTES} STRING, "
    f"{MESSAGE_ATTRIBUTES} STRING"
)

Messages: TypeAlias = Iterable[Message | Mapping[str, Any]] | str | os.PathLike[str] | ManifestPath
"""A batch: :class:`Message` values, dicts in the shape of the SQS API, or the manifest that they are in."""

Place: TypeAlias = tuple[str, int]
"""A message group, and the place in it."""

NOT_TEXT: Final = "not text: half a surrogate pair"
"""Why a body that no file in UTF-8 can hold is rejected."""

_KEPT: Final = [MESSAGE_ID, SENT_AT, RECEIVE_COUNT]
_KNOWN_OF_EACH: Final = pa.schema([*(SCHEMA.field(name) for name in _KEPT), pa.field(_REJECTED, pa.string())])

REASONS: Final = pa.schema(
    [pa.field("message_id", pa.string(), nullable=False), pa.field("reason", pa.string(), nullable=False)]
)
"""Messages that are rejected, and why."""

# All columns of a table of rejects but that of the batch.
_REJECT: Final = StructType(table_columns(REJECT).fields[:-1])


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A batch on disk.

    Attributes:
        path: The file, in a scratch directory of its own.
        messages: Each message once, without its body, and why the driver rejected it: of several receptions of one
            message, the one received last. Without the time where that does not tell one message from another.
        received: How many were handed over, repetitions included.
        is_shared: Whether the executors reach the file. If not, the driver sends them what is in it.
    """

    path: Path
    messages: pa.Table
    received: int
    is_shared: bool

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
        messages, rejected = self._read(spark, self.path, _SPARK_SCHEMA), self.rejected["message_id"]
        return self.without(messages, rejected) if len(rejected) else messages

    def without(self, messages: DataFrame, message_ids: pa.ChunkedArray) -> DataFrame:
        """Leave some messages out."""
        return self._compared(messages, message_ids, "left_anti")

    def only(self, messages: DataFrame, message_ids: pa.ChunkedArray) -> DataFrame:
        """Leave all messages but some out."""
        return self._compared(messages, message_ids, "left_semi")

    def parts(self, parser: ArrowParser, others: pa.ChunkedArray, batch_id: str) -> BatchParts:
        """The messages for tasks that read them themselves, without others and without what the driver rejected."""
        out = together(self.rejected["message_id"], others)
        chosen = self._written_choice(is_among(self.messages[MESSAGE_ID], out)) if len(out) else None
        return BatchParts.of(self.path, chosen=chosen, parser=parser, batch_id=batch_id)

    def _written_choice(self, is_left_out: pa.ChunkedArray) -> Path:
        """Write for each row group of the file which of its messages are wanted."""
        path = self.path.with_name(f"chosen-{uuid4().hex}.arrow")
        with _writing(path.parent), pa.ipc.new_file(path, CHOSEN) as writer:
            groups = pq.read_metadata(self.path)
            start = 0
            for number in range(groups.num_row_groups):
                rows = groups.row_group(number).num_rows
                wanted = pc.invert(is_left_out.slice(start, rows)).combine_chunks()
                writer.write_batch(pa.RecordBatch.from_arrays([wanted], schema=CHOSEN))
                start += rows
        return path

    def _compared(self, messages: DataFrame, message_ids: pa.ChunkedArray, how: str) -> DataFrame:
        others = self._read(messages.sparkSession, self._written_ids(message_ids), f"{MESSAGE_ID} STRING")
        return messages.join(F.broadcast(others), MESSAGE_ID, how)

    def _written_ids(self, message_ids: pa.ChunkedArray) -> Path:
        path = self.path.with_name(f"ids-{uuid4().hex}.parquet")
        with _writing(path.parent):
            pq.write_table(pa.table({MESSAGE_ID: message_ids}), path)
        return path

    def rejects(self, spark: SparkSession, reasons: pa.Table) -> DataFrame:
        """Some of the messages as rows of a table of rejects: which, and why, is said as :data:`REASONS`."""
        path = self.path.with_name(f"rejects-{uuid4().hex}.parquet")
        position = positions(self.messages[MESSAGE_ID], reasons["message_id"])
        given = reasons.select(["reason"])
        in_order = (given.take(part.drop_null().combine_chunks()) for part in slices(position))
        reason = mapped(in_order, given.schema)["reason"]
        schema = arrow_schema(_REJECT)
        start = written = 0
        with (
            _writing(path.parent),
            pq.ParquetWriter(path, schema) as writer,
            pq.ParquetFile(self.path) as file,
        ):
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                is_rejected = pc.is_valid(position.slice(start, rows))
                start += rows
                if pc.any(is_rejected).as_py():
                    read = file.read_row_group(group, columns=[MESSAGE_ID, BODY, SENT_AT]).filter(is_rejected)
                    why = reason.slice(written, read.num_rows)
                    written += read.num_rows
                    columns = [read[BODY], why, read[MESSAGE_ID], read[SENT_AT]]
                    writer.write_table(pa.Table.from_arrays(columns, schema=schema))
        return self._read(spark, path, _REJECT)

    def _read(self, spark: SparkSession, path: Path, schema: str | StructType) -> DataFrame:
        if not self.is_shared:
            columns = nullable(struct_type(schema))
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
        TypeError, ValueError: Something is no message: see :func:`.manifest.message_tables`.
        WorkspaceError: The file cannot be written.
    """
    if isinstance(messages, str | os.PathLike):
        messages = Path(messages)
    with ExitStack() as stack:
        if isinstance(messages, Iterable):
            tables = message_tables(messages)
            # Nothing is written for a batch that is empty, or of which one of the first is no message.
            first = next(tables, None)
            if first is None:
                yield None
                return
            bring = partial(write_tables, batch_id="", queue_url="", tables=chain([first], tables))
            name: object = "the batch"
        else:
            bring = partial(_bring, messages, stack.enter_context(messages.open("rb")))
            name = messages
        directory = stack.enter_context(scratch_directory(workspace))
        path = directory / "messages.parquet"
        with _writing(directory):
            bring(path)
            batch = _read_batch(path, name, checker, keys_of, is_shared=workspace is not None)
        yield batch


def _read_batch(
    path: Path, name: object, checker: Checker, keys_of: KeysOf | None, *, is_shared: bool
) -> BatchFile | None:
    """Read of a manifest, which errors call by the name, what the driver is to know."""
    reading = _ManifestReading(name, checker, keys_of)
    with opened_manifest(path, name=name) as file:
        known = with_keys(_KNOWN_OF_EACH.empty_table(), []) if keys_of else _KNOWN_OF_EACH.empty_table()
        messages = mapped(reading.messages(file), known.schema)
    if not messages.num_rows:
        return None
    if reading.places:
        path, messages = _in_order(path, messages, list(chain.from_iterable(reading.places)))
    if reading.has_dead_letters:
        messages = _at_any_time(messages)
    received = messages.num_rows
    if len(again := repeated_ids(messages[MESSAGE_ID])):
        latest = _latest(messages, again)
        path = _rewritten(path, "messages-once.parquet", latest, pa.Table.filter)
        messages = filtered(messages, latest)
    return BatchFile(path, messages, received, is_shared)


@dataclass
class _ManifestReading:
    """Reads a manifest, and notes on the way what only some batches have.

    Attributes:
        name: Names the manifest in errors.
        checker: Looks at all bodies.
        keys_of: Names what they say; None where message ids do.
        places: Where each message stands in its group; empty if none is in any.
        has_dead_letters: Whether some came from a dead-letter queue.
    """

    name: object
    checker: Checker
    keys_of: KeysOf | None
    places: list[Iterable[Place | None]] = field(default_factory=list)
    has_dead_letters: bool = False

    def messages(self, file: pq.ParquetFile) -> Iterator[pa.Table]:
        """What the driver keeps of each message, a row group at a time: the bodies of all of them take much memory."""
        wanted = [*_KEPT, _ALTERED, ATTRIBUTES]
        if self.keys_of is not None or not isinstance(self.checker, RepeatedChecker):
            wanted.append(BODY)
        before = 0
        for number in range(file.num_row_groups):
            rows = rows_of(self.name, file, wanted, group=number)
            if isinstance(self.checker, RepeatedChecker):
                reasons = pa.chunked_array([pa.nulls(len(rows), pa.string())])
            else:
                reasons = pa.chunked_array([self.checker.reasons(rows[BODY].to_pylist())], pa.string())
            said = rows[ATTRIBUTES]
            if _any_has(said, _SEQUENCE_NUMBER):
                self.places = self.places or [repeat(None, before)]
                self.places.append(map(place_of, said.to_pylist()))
            elif self.places:
                self.places.append(repeat(None, len(said)))
            self.has_dead_letters |= _any_has(said, _DEAD_LETTER_SOURCE)
            before += len(said)
            reasons = pc.coalesce(reasons, pc.if_else(rows[_ALTERED], NOT_TEXT, None).cast(pa.string()))
            kept = rows.select(_KEPT).append_column(_REJECTED, reasons)
            yield kept if self.keys_of is None else with_keys(kept, self.keys_of(rows[BODY].to_pylist()))


def _any_has(attributes: pa.ChunkedArray, name: str) -> bool:
    """Whether the text stands in any of them: nearly no batch has it, so all their bytes are searched at once."""
    bytes_of_all = (chunk.buffers()[-1] for chunk in attributes.chunks)
    return any(data is not None and f'"{name}"'.encode() in data.to_pybytes() for data in bytes_of_all)


def _in_order(path: Path, messages: pa.Table, places: Sequence[Place | None]) -> tuple[Path, pa.Table]:
    """Have the times tell the order of messages of a FIFO queue; where they do not, the file is written anew."""
    times = in_order(messages[SENT_AT], places)
    if times is None:
        return path, messages
    return _rewritten(path, "messages-in-order.parquet", times, _with_times), _with_times(messages, times)


def place_of(attributes: str) -> Place | None:
    """Where a message stands in its group, by its attributes in a manifest; None for one that does not say."""
    try:
        said = msgspec.json.decode(attributes)
    # msgspec's own are ValueErrors only from 0.21 on.
    except (ValueError, msgspec.DecodeError, RecursionError):
        return None
    group, number = (said.get(_GROUP), said.get(_SEQUENCE_NUMBER)) if isinstance(said, dict) else (None, None)
    if group is None or not isinstance(number, str | int):
        return None
    digits = number if isinstance(number, str) else format(number)
    return (str(group), int(digits)) if len(digits) <= _LONGEST_NUMBER and digits.isdecimal() else None


def in_order(sent_at: pa.ChunkedArray, places: Sequence[Place | None]) -> pa.ChunkedArray | None:
    """Times in microseconds by which messages have the order of their groups; None where they have it by their own."""
    numbers: dict[tuple[str, int], set[int]] = defaultdict(set)
    milliseconds = sent_at.cast(pa.int64()).to_pylist()
    for at, place in zip(milliseconds, places, strict=True):
        if at is not None and place is not None:
            numbers[place[0], at].add(place[1])
    ranks = {
        (group, at, number): min(rank, _MOST)
        for (group, at), found in numbers.items()
        if len(found) > 1
        for rank, number in enumerate(sorted(found))
    }
    if not ranks:
        return None
    more = [
        0 if place is None else ranks.get((place[0], at, place[1]), 0)
        for at, place in zip(milliseconds, places, strict=True)
    ]
    return pc.add(sent_at.cast(pa.int64()), pa.chunked_array([more], pa.int64())).cast(sent_at.type)


def _with_times(messages: pa.Table, times: Any) -> pa.Table:
    position = messages.schema.get_field_index(SENT_AT)
    return messages.set_column(position, messages.schema.field(SENT_AT), times)


def _at_any_time(messages: pa.Table) -> pa.Table:
    """Have messages looked up whenever they were sent: the dead-letter queue of a FIFO queue says another time."""
    return _with_times(messages, constant(None, messages.schema.field(SENT_AT).type, len(messages)))


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


def _latest(messages: pa.Table, again: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which rows to keep: of each message that is there again the one with the highest receive count, or the last."""
    is_again = is_among(messages[MESSAGE_ID], again)
    position = pc.indices_nonzero(is_again)
    ordered = messages.take(position).append_column("position", position)
    ordered = ordered.sort_by([(MESSAGE_ID, "ascending"), (RECEIVE_COUNT, "ascending"), ("position", "ascending")])
    message_ids = ordered[MESSAGE_ID].combine_chunks()
    is_last = pa.concat_arrays([pc.not_equal(message_ids[1:], message_ids[:-1]), pa.array([True])])
    latest = pc.is_in(position, ordered["position"].filter(is_last).combine_chunks())
    return pa.chunked_array([pc.replace_with_mask(pa.repeat(True, len(messages)), is_again.combine_chunks(), latest)])


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
