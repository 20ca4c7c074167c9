"""S3 notifications as a source: each message gives the records of the objects that it tells of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final, Literal, get_args

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sqs_lease.batch_files.json_syntax import NotJsonError
from sqs_lease.spark import batch_file
from sqs_lease.spark.columns import MESSAGE_ID, REASON, SENT_AT
from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.sources.arrow_types import arrow_schema, nullable
from sqs_lease.spark.sources.json import json_rows, missing
from sqs_lease.spark.sources.s3_events.columnar import Avro, Orc, Parquet
from sqs_lease.spark.sources.s3_events.contents import LINE, Csv, Format, JsonDocument, JsonLines, XmlRows
from sqs_lease.spark.sources.s3_events.notification import created_objects, key_of
from sqs_lease.spark.sources.s3_events.object_rows import BUCKET, KEY, VERSION_ID, ObjectRows
from sqs_lease.spark.sources.s3_events.object_store import ObjectStore
from sqs_lease.spark.sources.s3_events.path_columns import PathColumns
from sqs_lease.spark.sources.s3_events.reading import S3Read
from sqs_lease.spark.sources.schemas import json_schema, notation, quoted, struct_type
from sqs_lease.spark.sources.sns_envelope import NotANotificationError
from sqs_lease.spark.sources.source import KeysOf
from sqs_lease.spark.sources.xml import xml_rows

ObjectFormat = Literal["jsonl", "json", "xml", "csv", "parquet", "orc", "avro"]
"""What the objects are."""

_FORMATS: Final = get_args(ObjectFormat)
_OBJECT_COLUMNS: Final = (
    StructField(BUCKET, StringType(), nullable=False),
    StructField(KEY, StringType(), nullable=False),
    StructField(VERSION_ID, StringType()),
)
_AS_TEXT: Final = ("jsonl", "json", "xml")
"""The formats whose records are texts, which Spark parses."""

_TYPED: Final[Mapping[str, Callable[[pa.Schema, Sequence[str]], Format]]] = {
    "parquet": Parquet,
    "orc": Orc,
    "avro": Avro,
}
_PACKAGES: Final = {"avro": "fastavro", "xml": "defusedxml"}
_NOT_IN_TEXT: Final = (ArrayType, BinaryType, MapType, StructType)


class NotificationChecker:
    """Takes what S3 sends."""

    def reasons(self, bodies: Sequence[str]) -> list[str | None]:
        """See :class:`.source.Checker`."""
        return [_reason(body) for body in bodies]


@dataclass(frozen=True)
class S3EventsSource:
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
    object that was written twice brings the records of both. Messages of :func:`.listing.listed_objects` are taken,
    too, and an object that is both listed and told of brings its records once. The columns ``_s3_bucket``,
    ``_s3_key`` and ``_s3_version_id`` (null without versions) tell where a row is from.

    Attributes:
        format: ``"jsonl"`` (one JSON object a line, as strict as ``JsonSource``), ``"json"`` (an array of objects, or
            one object, over any lines), ``"xml"`` (the elements that ``row_tag`` of ``read`` names; needs
            ``sqs-lease[xml]``), ``"csv"`` (in UTF-8, with a header), ``"parquet"``, ``"orc"`` or ``"avro"`` (needs
            ``sqs-lease[avro]``). An object of the first four whose key ends in ``.gz`` is decompressed.
        schema: The columns of a record, as a Spark DDL string or a ``StructType``. Fields that it does not name are
            ignored. CSV has no nested columns and no ``BINARY``.
        path_columns: Further columns, in the same notation, whose values are in the keys of the objects, as Hive's
            partitions: ``"day DATE NOT NULL"`` for ``.../day=2026-01-31/...``. Empty, the default: none.
        read: How objects are read, as :class:`S3Read` or a mapping of some of its attributes.
        region: The region of S3; None, the default, for what the executors' environment says.
        endpoint_url: Another server that speaks S3; None, the default, for what the executors' environment says.
    """

    format: ObjectFormat
    schema: str | StructType
    path_columns: str | StructType = ""
    read: S3Read | Mapping[str, Any] = field(default_factory=S3Read)
    region: str | None = None
    endpoint_url: str | None = None

    def __post_init__(self) -> None:
        if self.format not in _FORMATS:
            raise ValueError(f"format must be one of {', '.join(_FORMATS)}, not {self.format!r}")
        if not isinstance(self.read, S3Read):
            object.__setattr__(self, "read", S3Read(**self.read))

    @property
    def identity(self) -> str:
        """The format and the schema."""
        path = f"; {notation(self.path_columns)}" if self.path_columns else ""
        row_tag = f"; {self._reading.row_tag}" if self.format == "xml" else ""
        return f"s3-events; {self.format}; {self._reading.delimiter}; {notation(self.schema)}{path}{row_tag}"

    @property
    def widens(self) -> bool:
        """Never."""
        return False

    @property
    def keys(self) -> KeysOf:
        """See :class:`.source.KeyedSource`: objects."""
        return lambda bodies: [key_of(body) for body in bodies]

    def checker(self) -> NotificationChecker:
        """See :class:`.source.Source`. The schema is checked here, before anything is written."""
        if (package := _PACKAGES.get(self.format)) and find_spec(package) is None:
            raise SchemaError(
                f"the format {self.format} needs the package {package}: install sqs-lease[{self.format}] where the "
                "driver and the executors run"
            )
        columns = self._record()
        path = self._path()
        for its in path.fields:
            if isinstance(its.dataType, _NOT_IN_TEXT):
                raise SchemaError(f"path_columns: a key cannot hold the type {_name(its.dataType)} of {its.name}")
        if twice := {name.lower() for name in path.names} & {name.lower() for name in columns.names}:
            raise SchemaError(f"path_columns names {', '.join(sorted(twice))}, which the schema has: leave one out")
        for name in [*columns.names, *path.names]:
            if name.lower() in {BUCKET, KEY, VERSION_ID}:
                raise SchemaError(f"the schema has a column {name!r}, which S3EventsSource adds itself: rename it")
        self._format(columns)
        return NotificationChecker()

    def columns(self, messages: DataFrame, checker: NotificationChecker) -> StructType:
        """The schema, then the columns of the path, then the object's bucket, key and version."""
        return StructType([*self._record().fields, *self._path().fields, *_OBJECT_COLUMNS])

    def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
        """See :class:`.source.Source`."""
        path = self._path()
        record = StructType(columns.fields[: -len(_OBJECT_COLUMNS) - len(path.fields)])
        read = self._reading
        reader = ObjectRows(
            ObjectStore(read.threads, self.endpoint_url, self.region),
            self._format(record),
            read.threads,
            PathColumns.of(path),
        )
        content = StructType([StructField(LINE, StringType())]) if self.format in _AS_TEXT else record
        own = [
            *nullable(path).fields,
            *(StructField(name, StringType()) for name in (BUCKET, KEY, VERSION_ID, MESSAGE_ID)),
            StructField(SENT_AT, TimestampType()),
            StructField(REASON, StringType()),
        ]
        rows = (
            messages.select(batch_file.MESSAGE_ID, batch_file.SENT_AT, batch_file.BODY)
            .repartition(read.tasks, batch_file.MESSAGE_ID)
            .mapInArrow(reader, nullable(StructType([*content.fields, *own])))
        )
        carried = [quoted(one.name) if one.name in path.names else one.name for one in own]
        if self.format == "xml":
            return xml_rows(rows, LINE, record, carried)
        if self.format in _AS_TEXT:
            return json_rows(rows, LINE, record, carried)
        return rows.select(
            *(quoted(name) for name in columns.names),
            MESSAGE_ID,
            SENT_AT,
            F.coalesce(F.col(REASON), missing(record)).alias(REASON),
        )

    @property
    def _reading(self) -> S3Read:
        assert isinstance(self.read, S3Read)  # noqa: S101 - for the types: __post_init__ saw to it
        return self.read

    def _record(self) -> StructType:
        return json_schema(self.schema) if self.format in ("jsonl", "json") else struct_type(self.schema)

    def _path(self) -> StructType:
        return struct_type(self.path_columns) if self.path_columns else StructType([])

    def _format(self, record: StructType) -> Format:
        match self.format:
            case "jsonl":
                return JsonLines()
            case "json":
                return JsonDocument()
            case "xml":
                single = (its.name for its in record.fields if not isinstance(its.dataType, ArrayType))
                return XmlRows(self._reading.row_tag, frozenset(single))
        required = [its.name for its in record.fields if not its.nullable]
        if typed := _TYPED.get(self.format):
            return typed(arrow_schema(record), required)
        for its in record.fields:
            if isinstance(its.dataType, _NOT_IN_TEXT):
                raise SchemaError(f"column {its.name}: CSV cannot hold the type {_name(its.dataType)}")
        return Csv(arrow_schema(record), required, self._reading.delimiter)


def _name(kind: DataType) -> str:
    return kind.simpleString()


def _reason(body: str) -> str | None:
    try:
        created_objects(body)
    except (NotJsonError, NotANotificationError) as error:
        return str(error)
    return None
