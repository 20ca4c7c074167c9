"""S3 notifications as a source: each message gives the records of the objects that it tells of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, get_args

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructField, StructType

from sqs_lease.spark.columns import MESSAGE_ID, REASON, SENT_AT
from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.schemas import arrow_schema, json_schema, notation, quoted, struct_type, without_case
from sqs_lease.spark.sources.arrow_json import ArrowJson
from sqs_lease.spark.sources.json import json_rows
from sqs_lease.spark.sources.row_flaws import flaw
from sqs_lease.spark.sources.s3_events.clean_up import ObjectCleaner, clean_up
from sqs_lease.spark.sources.s3_events.contents import LINE, Csv, Format, JsonDocument, JsonLines
from sqs_lease.spark.sources.s3_events.notification import created_objects, key_of
from sqs_lease.spark.sources.s3_events.object_rows import (
    BUCKET,
    KEY,
    OF_ROWS,
    VERSION_ID,
    ObjectRows,
    PathColumns,
    S3Read,
)
from sqs_lease.spark.sources.s3_events.object_store import ObjectStore
from sqs_lease.spark.sources.s3_events.parquet import Parquet
from sqs_lease.spark.sources.source import BodyChecker, CleanerOf, FixedSource, KeysOf

ObjectFormat = Literal["jsonl", "json", "csv", "parquet"]
"""The format of the objects."""

_FORMATS: Final = get_args(ObjectFormat)
_OBJECT_COLUMNS: Final = (
    StructField(BUCKET, StringType(), nullable=False),
    StructField(KEY, StringType(), nullable=False),
    StructField(VERSION_ID, StringType()),
)
_JSON: Final = ("jsonl", "json")

_NOT_IN_TEXT: Final = (ArrayType, BinaryType, MapType, StructType)


@dataclass(frozen=True)
class S3EventsSource(FixedSource):
    """Notifications that objects were created, whose records are those in the objects.

    Taken are notifications that S3 sent to the queue, those that came through SNS, and events of EventBridge. Test
    events, and events of other kinds than ``ObjectCreated``, have nothing to store and are done. So is a message
    whose objects hold no record: an object without a byte, or a file of a header alone. Objects are read on the
    executors, with boto3 and the credentials of their environment; where the notification tells of a version, that
    version is read, else the object as it is now. A message has all records of all its objects, or it is rejected:
    when S3 refuses an object (it is missing, archived, not allowed to be read, in another region), it is not of its
    format, or has a record that is not of the schema. When S3 does not answer, nothing of the batch is stored.

    Exactly once holds for objects: two messages that tell of the same writing of the same objects bring their records
    once (S3 may send a notification twice), by the version of an object or else by the notification's ``sequencer``. An
    object that was written twice brings the records of both. The columns ``_s3_bucket``, ``_s3_key`` and
    ``_s3_version_id`` (null without versions) tell where a row is from.

    Attributes:
        format: ``"jsonl"`` (one JSON object a line, as strict as ``JsonSource``), ``"json"`` (an array of objects, or
            one object, over any lines), ``"csv"`` (in UTF-8, with a header) or ``"parquet"``. An object of the first
            three whose key ends in ``.gz`` is decompressed.
        schema: The columns of a record, as a Spark DDL string or a ``StructType``. Fields that it does not name are
            ignored. CSV has no nested columns and no ``BINARY``.
        path_columns: Further columns, in the same notation, whose values are in the keys of the objects, as Hive's
            partitions: ``"day DATE NOT NULL"`` for ``.../day=2026-01-31/...``; a time without a zone is in UTC. Empty,
            the default: none.
        read: How objects are read, as :class:`S3Read` or a mapping of some of its attributes.
        region: The region of S3; None, the default, for what the executors' environment says.
        endpoint_url: Another server that speaks S3; None, the default, for what the executors' environment says.
        clean_source: The action on an object when its records are committed. ``"off"``, the default, leaves it;
            ``"delete"`` deletes it, or the version that the notification names; a mapping of strings is tags that it
            gets, besides those that it has. An object that a rejected message of the batch names is left, and so is one
            that was written again since. Errors of the clean-up are in the result, and fail nothing.
    """

    format: ObjectFormat
    schema: str | StructType
    path_columns: str | StructType = ""
    read: S3Read | Mapping[str, Any] = field(default_factory=S3Read)
    region: str | None = None
    endpoint_url: str | None = None
    clean_source: Literal["off", "delete"] | Mapping[str, str] = "off"

    def __post_init__(self) -> None:
        if self.format not in _FORMATS:
            raise ValueError(f"format must be one of {', '.join(_FORMATS)}, not {self.format!r}")
        object.__setattr__(self, "read", S3Read.of(self.read))
        if self.clean_source not in ("off", "delete") and not (
            isinstance(self.clean_source, Mapping) and self.clean_source
        ):
            raise ValueError(
                f"clean_source must be 'off', 'delete' or a mapping of tags to their values, not {self.clean_source!r}"
            )

    @property
    def identity(self) -> str:
        """The format and the schema."""
        path = f"; {notation(self.path_columns)}" if self.path_columns else ""
        return f"s3-events; {self.format}; {self._reading.delimiter}; {notation(self.schema)}{path}"

    @property
    def keys(self) -> KeysOf:
        """See :class:`.source.KeyedSource`: objects."""
        return lambda bodies: [key_of(body) for body in bodies]

    @property
    def cleaner(self) -> CleanerOf | None:
        """See :class:`.source.CleaningSource`."""
        if self.clean_source == "off":
            return None
        tags = self.clean_source if isinstance(self.clean_source, Mapping) else None
        return partial(clean_up, cleaner=ObjectCleaner(self._store(), tags), tasks=self._reading.tasks)

    def checker(self) -> BodyChecker:
        """See :class:`.source.Source`. The schema is checked here, before anything is written."""
        columns = self._record()
        path = self._path()
        for its in path.fields:
            if isinstance(its.dataType, _NOT_IN_TEXT):
                raise SchemaError(
                    f"path_columns: a key cannot hold the type {its.dataType.simpleString()} of {its.name}"
                )
        if twice := set(map(without_case, path.names)) & set(map(without_case, columns.names)):
            raise SchemaError(f"path_columns names {', '.join(sorted(twice))}, which the schema has: leave one out")
        for name in [*columns.names, *path.names]:
            if without_case(name) in {BUCKET, KEY, VERSION_ID}:
                raise SchemaError(f"the schema has a column {name!r}, which S3EventsSource adds itself: rename it")
        self._format(columns)
        return BodyChecker(created_objects)

    def columns(self, messages: DataFrame, checker: BodyChecker) -> StructType:
        """The schema, then the columns of the path, then the object's bucket, key and version."""
        return StructType([*self._record().fields, *self._path().fields, *_OBJECT_COLUMNS])

    def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
        """See :class:`.source.Source`."""
        path = self._path()
        record = StructType(columns.fields[: -len(_OBJECT_COLUMNS) - len(path.fields)])
        reader = ObjectRows(self._store(), self._format(record), PathColumns.of(path), reading=self._reading)
        content = [StructField(LINE, StringType())] if self.format in _JSON else record.fields
        rows = reader.plan(messages, StructType([*content, *path.fields]), self._reading.tasks)
        if self.format in _JSON:
            return json_rows(rows, LINE, ArrowJson.of(record), record, [*path.names, *OF_ROWS])
        return rows.select(
            *(quoted(name) for name in columns.names),
            MESSAGE_ID,
            SENT_AT,
            F.coalesce(F.col(REASON), flaw(record)).alias(REASON),
        )

    @property
    def _reading(self) -> S3Read:
        return S3Read.of(self.read)

    def _store(self) -> ObjectStore:
        return ObjectStore(self._reading.threads, self.endpoint_url, self.region)

    def _record(self) -> StructType:
        return json_schema(self.schema) if self.format in _JSON else struct_type(self.schema)

    def _path(self) -> StructType:
        return struct_type(self.path_columns) if self.path_columns else StructType([])

    def _format(self, record: StructType) -> Format:
        match self.format:
            case "jsonl":
                return JsonLines()
            case "json":
                return JsonDocument()
        required = [its.name for its in record.fields if not its.nullable]
        if self.format == "parquet":
            return Parquet(arrow_schema(record), required)
        for its in record.fields:
            if isinstance(its.dataType, _NOT_IN_TEXT):
                raise SchemaError(f"column {its.name}: CSV cannot hold the type {its.dataType.simpleString()}")
        return Csv(arrow_schema(record), required, self._reading.delimiter)
