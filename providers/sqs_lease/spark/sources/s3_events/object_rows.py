"""Reading of the objects of messages on the executors: several at a time, and none of them whole in memory.

The objects of a message are fetched to a temporary file, checked to their end, and kept as rows in a second temporary
file until the message's turn comes. So a message gives either all of its rows or one reason. Files larger than a few
megabytes are on disk, and each message has limits: see :mod:`.allowance`.
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
"""The columns of each row besides the content of the object."""

_MIB: Final = 1024 * 1024
# Small objects are put together up to these limits.
_BATCH_ROWS = 5_000
_BATCH_BYTES = 16 * 1024 * 1024

Rows: TypeAlias = SpooledFile
"""The rows of a message, in Arrow's stream format."""


@dataclass(frozen=True)
class S3Read:
    """Settings for reading objects, with the limits of one message. A message over a limit is rejected with its name.

    Attributes:
        delimiter: The character between the values of a CSV file.
        threads: The number of messages that one task works on at the same time, mostly waiting for S3; 16 by default.
        tasks: The number of tasks for a batch; 8 by default. The notifications are small, so Spark by itself would put
            all of them into one task.
        max_bytes: The most bytes that S3 may send for all objects of one message; 512 MiB by default.
        max_content_bytes: The most bytes of these objects after decompression; 2 GiB by default.
        max_rows: The most records of these objects; 10 million by default.
        max_seconds: The longest time for one message, from the first request to S3 to its last record; 10 minutes by
            default.
        spool_bytes: The most bytes of the temporary files of one task together, objects and records; one message may
            fill them alone. 4 GiB by default. A machine needs this for each task that runs on it.
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
        """Take settings that may be given as a mapping of some attributes."""
        return given if isinstance(given, S3Read) else cls(**given)

    def allowance(self, spool: Spool) -> Allowance:
        """Make the limits of one message; its time counts from now."""
        return Allowance(
            fetched=self.max_bytes,
            content=self.max_content_bytes,
            rows=self.max_rows,
            seconds=self.max_seconds,
            spool=spool,
        )


@dataclass(frozen=True)
class PathColumns:
    """Columns from the key of an object, like the directories of Hive: ``orders/day=2026-01-31/file``."""

    schema: pa.Schema
    required: tuple[str, ...]

    @classmethod
    def of(cls, columns: StructType) -> PathColumns:
        """Translate columns from Spark's."""
        return cls(arrow_schema(columns), tuple(its.name for its in columns.fields if not its.nullable))

    def values(self, key: str) -> dict[str, Any]:
        """Return the value of each column. If the key has a name twice, the last one counts.

        Raises:
            BadContentError: A column is missing, or has not its type.
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
        # Hive writes characters that a directory cannot have as %XX.
        plain = unquote(text)
        try:
            if is_zoned(field.type):
                return in_utc(pa.array([plain]), field.name)[0].as_py()
            value = pa.scalar(plain, pa.string()).cast(field.type).as_py()
        except (pa.ArrowException, ValueError, OverflowError):
            # For example a day in the year 0, which Python does not have.
            raise BadContentError(f"the key's {field.name} is not of the type in the schema") from None
        if isinstance(value, float) and not math.isfinite(value):
            raise BadContentError(f"the key's {field.name} is infinite or not a number")
        return value


NO_PATH_COLUMNS: Final = PathColumns(pa.schema([]), ())
"""No columns from keys."""


@dataclass(frozen=True)
class ObjectRows:
    """Function for ``mapInArrow`` that reads the objects of the messages of a partition.

    Attributes:
        store: The store of the objects. Its number of connections is the number of messages at the same time.
        format: The format of the objects.
        path_columns: The columns from their keys; none by default.
        locate: Finds the objects of a body, like :func:`.notification.created_objects`, or content in the body itself.
        has_marks: Whether an object without any byte is only a mark, such as the one that stands for a folder.
        reading: The limits of one message.
    """

    store: ObjectStore
    format: Format
    path_columns: PathColumns = NO_PATH_COLUMNS
    locate: Callable[[str], Iterable[S3Object | Content]] = created_objects
    has_marks: bool = True
    reading: S3Read = S3Read()

    @property
    def schema(self) -> pa.Schema:
        """The columns of the format, of the key, of the object and of the message."""
        kinds = {SENT_AT: pa.timestamp("us", tz="UTC")}
        own = [pa.field(name, kinds.get(name, pa.string())) for name in OF_ROWS]
        return pa.schema([*self.format.schema, *self.path_columns.schema, *own])

    def plan(self, messages: DataFrame, content: StructType, tasks: int) -> DataFrame:
        """Plan to read the objects of messages in so many tasks, for :meth:`..source.Source.parse`.

        Returns:
            The content, which is the columns of the format and of the key, then :data:`OF_ROWS`. All are nullable.
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
        # The client is made once, before threads share it.
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
        """Read all objects of one message: return their rows, the reason of a reject, or None for nothing to store.

        Raises:
            SpoolFullError: There is no room for the message besides the others.
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
            # The file must stay open until its rows are passed on.
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
    """Content that is in the message itself instead of in an object."""

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
