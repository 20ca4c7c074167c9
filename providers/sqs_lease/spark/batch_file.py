"""A batch on disk for the time of one try: its manifest, which Spark reads.

A batch that comes as a manifest is used as it is. For messages in memory, a manifest is written.

**The order of a FIFO queue** is kept in the times at which messages were sent. The service gives these in milliseconds,
and orders the messages of one message group by sequence numbers; but tables keep the newest message of a key by its
time alone. So among messages of a group that were sent in the same millisecond, the second gets one microsecond more,
the third two, and so on. A column for the sequence number would have changed every table and every merge; the
microseconds were free. The order holds within one batch. Of two batches the later one wins, which is the same order for
one group.

**The memory of the driver** does not grow with the batch: it reads a row group at a time, and keeps some 60 bytes of
each message in files that are mapped into memory (:mod:`.message_ids`).
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
"""The system attributes of SQS, as JSON text: an object of strings."""

MESSAGE_ATTRIBUTES: Final = "message_attributes"
"""The sender's attributes in the shape of the SQS API, as JSON text (bytes: ``{"base64": "..."}``), or null."""

_REJECTED: Final = "rejected"
_ALTERED: Final = "altered"
# The attribute of a message that came to its queue as a dead letter.
_DEAD_LETTER_SOURCE: Final = "DeadLetterQueueSourceArn"
_SEQUENCE_NUMBER: Final = "SequenceNumber"
_GROUP: Final = "MessageGroupId"
# The most microseconds before the next millisecond.
_MOST: Final = 999
# The service's numbers have 20 digits.
_LONGEST_NUMBER: Final = 128
_COPIED_BYTES: Final = 16 * 1024 * 1024
_SPARK_SCHEMA: Final = (
    f"{MESSAGE_ID} STRING, {BODY} STRING, {SENT_AT} TIMESTAMP, {RECEIVE_COUNT} INT, {ATTRIBUTES} STRING, "
    f"{MESSAGE_ATTRIBUTES} STRING"
)

Messages: TypeAlias = Iterable[Message | Mapping[str, Any]] | str | os.PathLike[str] | ManifestPath
"""A batch: :class:`Message` values, dicts in the shape of the SQS API, or the manifest that they are in."""

Place: TypeAlias = tuple[str, int]
"""A message group, and the position in it."""

NOT_TEXT: Final = "not text: half a surrogate pair"
"""The reason for a body that UTF-8 cannot hold."""

_KEPT: Final = [MESSAGE_ID, SENT_AT, RECEIVE_COUNT]
_KNOWN_OF_EACH: Final = pa.schema([*(SCHEMA.field(name) for name in _KEPT), pa.field(_REJECTED, pa.string())])

REASONS: Final = pa.schema(
    [pa.field("message_id", pa.string(), nullable=False), pa.field("reason", pa.string(), nullable=False)]
)
"""The columns of a table of rejected messages: which, and why."""

# All columns of a table of rejects except the batch id.
_REJECT: Final = StructType(table_columns(REJECT).fields[:-1])


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A batch on disk.

    Attributes:
        path: The file, in a scratch directory of its own.
        messages: Each message once, without its body, and with the reason if the driver rejected it. Of several
            receptions of a message, the last one. Times are null if a look-up must not use them: see ``_at_any_time``.
        received: The number of messages of the batch, repetitions included.
        is_shared: Whether the executors reach the file. If not, the driver sends them its content.
    """

    path: Path
    messages: pa.Table
    received: int
    is_shared: bool

    @property
    def repeated(self) -> int:
        """The number of repetitions in the batch."""
        once: int = self.messages.num_rows
        return self.received - once

    @property
    def looked_up(self) -> pa.Table:
        """The messages for a look-up, as :data:`.sink.LOOKED_UP`."""
        return self.messages.select(LOOKED_UP.names)

    @property
    def rejected(self) -> pa.Table:
        """The messages that the driver rejected, as :data:`REASONS`."""
        rejected = self.messages.filter(pc.is_valid(self.messages[_REJECTED]))
        return rejected.select([MESSAGE_ID, _REJECTED]).rename_columns(REASONS.names).cast(REASONS)

    def accepted(self, spark: SparkSession) -> DataFrame:
        """Return the messages for Spark to parse, with the columns of this module."""
        messages, rejected = self._read(spark, self.path, _SPARK_SCHEMA), self.rejected["message_id"]
        return self.without(messages, rejected) if len(rejected) else messages

    def without(self, messages: DataFrame, message_ids: pa.ChunkedArray) -> DataFrame:
        """Remove some messages."""
        return self._compared(messages, message_ids, "left_anti")

    def only(self, messages: DataFrame, message_ids: pa.ChunkedArray) -> DataFrame:
        """Keep only some messages."""
        return self._compared(messages, message_ids, "left_semi")

    def parts(self, parser: ArrowParser, others: pa.ChunkedArray, batch_id: str) -> BatchParts:
        """Return the messages for tasks to read, without ``others`` and without those that the driver rejected."""
        out = together(self.rejected["message_id"], others)
        chosen = self._written_choice(is_among(self.messages[MESSAGE_ID], out)) if len(out) else None
        return BatchParts.of(self.path, chosen=chosen, parser=parser, batch_id=batch_id)

    def _written_choice(self, is_left_out: pa.ChunkedArray) -> Path:
        """Write a file that says for each row group which of its messages are wanted."""
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
        """Return the messages in ``reasons`` (:data:`REASONS`) as rows of a table of rejects."""
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
    messages: Messages,
    *,
    workspace: str | Path | None,
    checker: Checker,
    keys_of: KeysOf | None = None,
    runs_tasks_here: bool = False,
) -> Iterator[BatchFile | None]:
    """Write a batch to a file, which is removed at the end of the block.

    Args:
        messages: The batch.
        workspace: A directory which the driver and all executors reach by this path; None for a private directory of
            this machine.
        checker: Checks all bodies on the way.
        keys_of: Returns the keys of bodies; None, the default, if message ids are the only keys.
        runs_tasks_here: Whether tasks run on this machine, so that they reach a private directory, too.

    Yields:
        The file; None for a batch without messages.

    Raises:
        ManifestError: The manifest cannot be used.
        TypeError, ValueError: An element is not a message: see :func:`.manifest.message_tables`.
        WorkspaceError: The file cannot be written.
    """
    if isinstance(messages, str | os.PathLike):
        messages = Path(messages)
    elif not isinstance(messages, Iterable) and not hasattr(messages, "open"):
        raise TypeError(f"messages must be a list of messages or the path of a manifest, not {type(messages).__name__}")
    with ExitStack() as stack:
        if isinstance(messages, Iterable):
            tables = message_tables(messages)
            # Nothing is written for an empty batch, or if one of the first elements is not a message.
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
        is_shared = workspace is not None or runs_tasks_here
        path = directory / "messages.parquet"
        with _writing(directory):
            bring(path)
            batch = _read_batch(path, name, checker, keys_of, is_shared=is_shared)
        yield batch


def _read_batch(
    path: Path, name: object, checker: Checker, keys_of: KeysOf | None, *, is_shared: bool
) -> BatchFile | None:
    """Read the driver's part of a manifest; ``name`` stands for the manifest in errors."""
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
    """One reading of a manifest, with notes of what only some batches have.

    Attributes:
        name: The name of the manifest in errors.
        checker: Checks all bodies.
        keys_of: Returns their keys; None if message ids are the only keys.
        places: The position of each message in its group; empty if no message has a group.
        has_dead_letters: Whether some messages came from a dead-letter queue.
    """

    name: object
    checker: Checker
    keys_of: KeysOf | None
    places: list[Iterable[Place | None]] = field(default_factory=list)
    has_dead_letters: bool = False

    def messages(self, file: pq.ParquetFile) -> Iterator[pa.Table]:
        """Yield the driver's columns, one row group at a time, because all bodies together take much memory."""
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
            attributes = rows[ATTRIBUTES]
            if _any_has(attributes, _SEQUENCE_NUMBER):
                self.places = self.places or [repeat(None, before)]
                self.places.append(map(place_of, attributes.to_pylist()))
            elif self.places:
                self.places.append(repeat(None, len(attributes)))
            self.has_dead_letters |= _any_has(attributes, _DEAD_LETTER_SOURCE)
            before += len(attributes)
            reasons = pc.coalesce(reasons, pc.if_else(rows[_ALTERED], NOT_TEXT, None).cast(pa.string()))
            kept = rows.select(_KEPT).append_column(_REJECTED, reasons)
            yield kept if self.keys_of is None else with_keys(kept, self.keys_of(rows[BODY].to_pylist()))


def _any_has(attributes: pa.ChunkedArray, name: str) -> bool:
    """Whether an attribute occurs in any message. Few batches have it, so the bytes of all are searched at once."""
    bytes_of_all = (chunk.buffers()[-1] for chunk in attributes.chunks)
    return any(data is not None and f'"{name}"'.encode() in data.to_pybytes() for data in bytes_of_all)


def _in_order(path: Path, messages: pa.Table, places: Sequence[Place | None]) -> tuple[Path, pa.Table]:
    """Make the times of a FIFO queue's messages follow their order; rewrite the file if times change."""
    times = in_order(messages[SENT_AT], places)
    if times is None:
        return path, messages
    return _rewritten(path, "messages-in-order.parquet", times, _with_times), _with_times(messages, times)


def place_of(attributes: str) -> Place | None:
    """Return the position of a message in its group from its attributes in a manifest; None without one."""
    try:
        decoded = msgspec.json.decode(attributes)
    # msgspec's own errors are ValueErrors only from 0.21 on.
    except (ValueError, msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(decoded, dict):
        return None
    group, number = decoded.get(_GROUP), decoded.get(_SEQUENCE_NUMBER)
    if group is None or not isinstance(number, str | int):
        return None
    digits = number if isinstance(number, str) else format(number)
    return (str(group), int(digits)) if len(digits) <= _LONGEST_NUMBER and digits.isdecimal() else None


def in_order(sent_at: pa.ChunkedArray, places: Sequence[Place | None]) -> pa.ChunkedArray | None:
    """Return times that have the order of the message groups; None if the messages' own times have it."""
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
    """Remove the times, so that a look-up does not use them: a FIFO dead-letter queue gives another time."""
    return _with_times(messages, constant(None, messages.schema.field(SENT_AT).type, len(messages)))


def _bring(manifest: ManifestPath, opened: Any, path: Path) -> None:
    """Put a manifest where all executors find it, and where it is not removed meanwhile."""
    if isinstance(manifest, Path):
        # Fails for a file on another file system, or of another user; then it is copied.
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
    """Return which rows to keep: of repeated messages the row with the highest receive count, or the last one."""
    is_again = is_among(messages[MESSAGE_ID], again)
    position = pc.indices_nonzero(is_again)
    ordered = messages.take(position).append_column("position", position)
    ordered = ordered.sort_by([(MESSAGE_ID, "ascending"), (RECEIVE_COUNT, "ascending"), ("position", "ascending")])
    message_ids = ordered[MESSAGE_ID].combine_chunks()
    is_last = pa.concat_arrays([pc.not_equal(message_ids[1:], message_ids[:-1]), pa.array([True])])
    latest = pc.is_in(position, ordered["position"].filter(is_last).combine_chunks())
    return pa.chunked_array([pc.replace_with_mask(pa.repeat(True, len(messages)), is_again.combine_chunks(), latest)])


def _rewritten(path: Path, name: str, values: Any, change: Callable[[pa.Table, Any], pa.Table]) -> Path:
    """Rewrite the file under another name; ``change`` gets each row group with its own slice of the values."""
    changed = path.with_name(name)
    with pq.ParquetFile(path) as file, pq.ParquetWriter(changed, file.schema_arrow, write_statistics=False) as writer:
        start = 0
        for number in range(file.num_row_groups):
            table = file.read_row_group(number)
            writer.write_table(change(table, values.slice(start, table.num_rows)))
            start += table.num_rows
    path.unlink()
    return changed
