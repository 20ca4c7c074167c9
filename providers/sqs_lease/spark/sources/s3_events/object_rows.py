"""Reads the objects that messages tell of, on the executors: several at a time, none of them whole in memory.

Each message's objects are fetched to a temporary file, checked to their end, and kept as rows in another one, until its
turn comes. So a message has either all of its rows or one reason. What is larger than a few megabytes is on disk, and
what one message may cost is limited: see :mod:`.allowance`.
"""

from __future__ import annotations

import io
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from sqs_lease.spark import batch_file
from sqs_lease.spark.columns import MESSAGE_ID, NOTHING_TO_STORE, NULL_DIRECTORY, REASON, SENT_AT
from sqs_lease.spark.schemas import arrow_schema, nullable, record_batch
from sqs_lease.spark.sources.s3_events.allowance import (
    Allowance,
    OverAllowanceError,
    Spool,
    SpooledFile,
    SpoolFullError,
)
from sqs_lease.spark.sources.s3_events.contents import BadContentError, Format, in_utc, is_zoned
from sqs_lease.spark.sources.s3_events.notification import S3Object, created_objects
from sqs_lease.spark.sources.s3_events.object_store import ObjectStore, ObjectUnavailableError
from sqs_lease.spark.sources.source import UNREADABLE

BUCKET: Final = "_s3_bucket"
KEY: Final = "_s3_key"
VERSION_ID: Final = "_s3_version_id"

OF_ROWS: Final = (BUCKET, KEY, VERSION_ID, MESSAGE_ID, SENT_AT, REASON)
"""What each row says besides its contents."""

_MIB: Final = 1024 * 1024
# Small objects are handed on together.
_BATCH_ROWS = 5_000
_BATCH_BYTES = 16 * 1024 * 1024

Rows: TypeAlias = SpooledFile
"""The rows of a message, in Arrow's stream format."""


@dataclass(frozen=True)
class S3Read:
    """How objects are read, and what one message may cost. A message that is over a limit is rejected by its name.

    Attributes:
        delimiter: What stands between the values of a CSV file.
        threads: How many messages one task works on at the same time, mostly waiting for S3.
        tasks: How many tasks Spark makes of a batch: its messages are small, and would otherwise all be one task's.
        max_bytes: How many bytes S3 may send for all objects of one message; 512 MiB by default.
        max_content_bytes: How many bytes these may be once they are decompressed; 2 GiB by default.
        max_rows: How many records they may have; 10 million by default.
        max_seconds: How long one message may take, from the first request to S3 to its last record; 10 minutes by
            default.
        spool_bytes: How much the temporary files of one task may take together, objects and records; one message may
            fill them alone. 4 GiB by default; a machine needs that for each task that runs on it.
    """

    delimiter: str = ","
    threads: int = 16
    tasks: int = 8
    max_bytes: int = 512 * _MIB
    max_content_bytes: int = 2048 * _MIB
    max_rows: int = 10_000_000
    max_seconds: float = 600
    spool_bytes: int = 4096 * _MIB

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1:
            raise ValueError(f"delimiter must be one character, not {self.delimiter!r}")
        if min(self.threads, self.tasks) < 1:
            raise ValueError("threads and tasks must be at least 1")
        for name in ("max_bytes", "max_content_bytes", "max_rows", "max_seconds", "spool_bytes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0, not {getattr(self, name)}")

    @classmethod
    def of(cls, given: S3Read | Mapping[str, Any]) -> S3Read:
        """The same, which may be given as a mapping of some attributes."""
        return given if isinstance(given, S3Read) else cls(**given)

    def allowance(self, spool: Spool) -> Allowance:
        """What one message may cost, from now on."""
        return Allowance(
            fetched=self.max_bytes,
            content=self.max_content_bytes,
            rows=self.max_rows,
            seconds=self.max_seconds,
            spool=spool,
        )


@dataclass(frozen=True)
class PathColumns:
    """What the key of an object says of its records, as the directories of Hive do: ``orders/day=2026-01-31/file``."""

    schema: pa.Schema
    required: tuple[str, ...]

    @classmethod
    def of(cls, columns: StructType) -> PathColumns:
        """Translate them from Spark's."""
        return cls(arrow_schema(columns), tuple(its.name for its in columns.fields if not its.nullable))

    def values(self, key: str) -> dict[str, Any]:
        """The value of each column. A name that the key has twice counts where it stands last.

        Raises:
            BadContentError: A column is missing, or not of its type.
        """
        directories = key.split("/")[:-1]
        found = {name: value for name, equals, value in (one.partition("=") for one in directories) if equals}
        values = {field.name: self._value(field, found.get(field.name)) for field in self.schema}
        if absent := [name for name in self.required if values[name] is None]:
            raise BadContentError(f"the key has no {', '.join(absent)}, which is required")
        return values

    def _value(self, field: pa.Field, text: str | None) -> Any:
        if text is None or text == NULL_DIRECTORY:
            return None
        # Hive writes what no directory can be called as %XX.
        plain = unquote(text)
        try:
            if is_zoned(field.type):
                return in_utc(pa.array([plain]), field.name)[0].as_py()
            value = pa.scalar(plain, pa.string()).cast(field.type).as_py()
        except (pa.ArrowException, ValueError, OverflowError):
            # Python has no day in the year 0.
            raise BadContentError(f"the key's {field.name} is not of the type in the schema") from None
        if isinstance(value, float) and not math.isfinite(value):
            raise BadContentError(f"the key's {field.name} is infinite or no number")
        return value


NO_PATH_COLUMNS: Final = PathColumns(pa.schema([]), ())
"""Keys say nothing."""


@dataclass(frozen=True)
class ObjectRows:
    """What ``mapInArrow`` calls with the messages of a partition.

    Attributes:
        store: Where the objects are. As many messages are worked on at the same time as it has connections.
        format: What they are.
        path_columns: What their keys say; nothing, by default.
        locate: Says what a body tells of, as :func:`.notification.created_objects`: objects, or their contents.
        has_marks: Whether an object without any byte is a mark, such as the one that stands for a folder.
        reading: What one message may cost.
    """

    store: ObjectStore
    format: Format
    path_columns: PathColumns = NO_PATH_COLUMNS
    locate: Callable[[str], Iterable[S3Object | Content]] = created_objects
    has_marks: bool = True
    reading: S3Read = S3Read()

    @property
    def schema(self) -> pa.Schema:
        """The format's columns, those of the key, the object's, and those of the message."""
        kinds = {SENT_AT: pa.timestamp("us", tz="UTC")}
        own = [pa.field(name, kinds.get(name, pa.string())) for name in OF_ROWS]
        return pa.schema([*self.format.schema, *self.path_columns.schema, *own])

    def plan(self, messages: DataFrame, content: StructType, tasks: int) -> DataFrame:
        """Have so many of Spark's tasks read the objects of messages, as for :meth:`..source.Source.parse`.

        Returns:
            The content, which is the format's columns and those of the key, then :data:`OF_ROWS`. All may be null.
        """
        kinds = {SENT_AT: TimestampType()}
        own = [StructField(name, kinds.get(name, StringType())) for name in OF_ROWS]
        return (
            messages.select(batch_file.MESSAGE_ID, batch_file.SENT_AT, batch_file.BODY)
            .repartition(tasks, batch_file.MESSAGE_ID)
            .mapInArrow(self, nullable(StructType([*content.fields, *own])))
        )

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See ``DataFrame.mapInArrow``: takes message ids, times and bodies."""
        waiting: list[pa.RecordBatch] = []
        for batch in self._answers(batches):
            waiting.append(batch)
            if (
                sum(one.num_rows for one in waiting) >= _BATCH_ROWS
                or sum(one.nbytes for one in waiting) >= _BATCH_BYTES
            ):
                yield from _joined(waiting)
                waiting = []
        if waiting:
            yield from _joined(waiting)

    def _answers(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Made once, before threads share it.
        _ = self.store.client
        under_way: deque[tuple[dict[str, Any], str, Future[Rows | str | None]]] = deque()
        put_aside: list[tuple[dict[str, Any], str]] = []
        spool = Spool(self.reading.spool_bytes)
        pool = ThreadPoolExecutor(self.store.connections)

        def next_answer() -> Iterator[pa.RecordBatch]:
            of_message, body, reading = under_way.popleft()
            try:
                found = reading.result()
            except SpoolFullError:
                put_aside.append((of_message, body))
            else:
                yield from self._answer(of_message, found)

        try:
            for of_message, body in _messages(batches):
                under_way.append((of_message, body, pool.submit(self.read, body, spool)))
                if len(under_way) >= self.store.connections:
                    yield from next_answer()
            while under_way:
                yield from next_answer()
            for of_message, body in put_aside:
                yield from self._answer(of_message, self.read(body, spool))
        finally:
            pool.shutdown(cancel_futures=True)

    def read(self, body: str, spool: Spool) -> Rows | str | None:
        """The rows of all objects of one message; or why it is rejected; or None where there is nothing to store.

        Raises:
            SpoolFullError: There is no room for it beside the others.
        """
        allowance = self.reading.allowance(spool)
        with ExitStack() as stack:
            rows = stack.enter_context(SpooledFile(allowance))
            count = 0
            try:
                with pa.ipc.new_stream(rows, self.schema) as stream:
                    for batch in chain.from_iterable(self._rows(its, allowance) for its in self.locate(body)):
                        allowance.take_rows(batch.num_rows)
                        stream.write_batch(batch)
                        count += batch.num_rows
            except (*UNREADABLE, BadContentError, OverAllowanceError) as error:
                return str(error)
            if not count:
                return None
            # The file lives on, until its rows are handed on.
            stack.pop_all()
            return rows

    def _rows(self, its: S3Object | Content, allowance: Allowance) -> Iterator[pa.RecordBatch]:
        if isinstance(its, Content):
            for batch in self.format.rows(io.BytesIO(its.text.encode()), "", allowance):
                yield self._completed(batch, {})
            return
        with SpooledFile(allowance) as file:
            try:
                if not self.store.fetch(its, file, allowance) and self.has_marks:
                    return
                of_object = self.path_columns.values(its.key)
                of_object |= {BUCKET: its.bucket, KEY: its.key, VERSION_ID: its.version_id}
                for batch in self.format.rows(file, its.key, allowance):
                    yield self._completed(batch, of_object)
            except (BadContentError, ObjectUnavailableError, OverAllowanceError) as error:
                raise BadContentError(f"{its}: {error}") from None

    def _answer(self, of_message: dict[str, Any], found: Rows | str | None) -> Iterator[pa.RecordBatch]:
        if found is None or isinstance(found, str):
            reason = NOTHING_TO_STORE if found is None else found
            yield record_batch(self.schema, 1, {**of_message, REASON: reason})
            return
        with found:
            found.seek(0)
            for batch in pa.ipc.open_stream(found):
                yield self._completed(batch, of_message)

    def _completed(self, batch: pa.RecordBatch, given: Mapping[str, Any]) -> pa.RecordBatch:
        content = {name: batch.column(name) for name in batch.schema.names}
        return record_batch(self.schema, batch.num_rows, {**content, **given})


@dataclass(frozen=True, slots=True)
class Content:
    """What would be in an object, in the message itself."""

    text: str


def _messages(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[dict[str, Any], str]]:
    for batch in batches:
        sent_at = batch.column(batch_file.SENT_AT).cast(pa.timestamp("us", tz="UTC"))
        columns = (batch.column(batch_file.MESSAGE_ID), sent_at, batch.column(batch_file.BODY))
        for message_id, at, body in zip(*(column.to_pylist() for column in columns), strict=True):
            yield {MESSAGE_ID: message_id, SENT_AT: at}, body


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
