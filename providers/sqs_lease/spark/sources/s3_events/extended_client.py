"""Messages of the Amazon SQS Extended Client Library, whose bodies are in S3 where SQS would not take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from sqs_lease.spark.columns import MESSAGE_ID, REASON, SENT_AT
from sqs_lease.spark.json_syntax import decode
from sqs_lease.spark.schemas import json_schema, notation
from sqs_lease.spark.sources.arrow_json import ArrowJson
from sqs_lease.spark.sources.json import json_rows
from sqs_lease.spark.sources.s3_events.contents import LINE, JsonDocument
from sqs_lease.spark.sources.s3_events.notification import S3Object
from sqs_lease.spark.sources.s3_events.object_rows import Content, ObjectRows, S3Read
from sqs_lease.spark.sources.s3_events.object_store import ObjectStore
from sqs_lease.spark.sources.source import BodyChecker, FixedSource, NotANotificationError

_POINTERS: Final = frozenset(
    {"software.amazon.payloadoffloading.PayloadS3Pointer", "com.amazon.sqs.javamessaging.MessageS3Pointer"}
)
"""The names by which version 2 and version 1 of the library mark a pointer. Those for Python write the same."""


@dataclass(frozen=True)
class ExtendedClientSource(FixedSource):
    """JSON messages; the library put the large ones into S3, and sent pointers.

    The content of the object, or of the body itself, is a JSON object, as strict as for ``JsonSource``, or an array of
    objects, which are records. Objects are read on the executors, with boto3 and the credentials of their environment;
    they are not removed: let a lifecycle rule of the bucket do that. A message is rejected when S3 refuses its object.
    When S3 does not answer, nothing of the batch is stored.

    Attributes:
        schema: The columns of a record, as a Spark DDL string or a ``StructType``. Fields that it does not name are
            ignored.
        read: How objects are read, as :class:`S3Read` or a mapping of some of its attributes.
        region: The region of S3; None, the default, for what the executors' environment says.
        endpoint_url: Another server that speaks S3; None, the default, for what the executors' environment says.
    """

    schema: str | StructType
    read: S3Read | Mapping[str, Any] = field(default_factory=S3Read)
    region: str | None = None
    endpoint_url: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "read", S3Read.of(self.read))

    @property
    def identity(self) -> str:
        """The schema."""
        return f"extended-client; {notation(self.schema)}"

    def checker(self) -> BodyChecker:
        """See :class:`.source.Source`. The schema is checked here, before anything is written."""
        json_schema(self.schema)
        return BodyChecker(pointed_at)

    def columns(self, messages: DataFrame, checker: BodyChecker) -> StructType:
        """The schema."""
        return json_schema(self.schema)

    def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
        """See :class:`.source.Source`."""
        read = S3Read.of(self.read)
        store = ObjectStore(read.threads, self.endpoint_url, self.region)
        document = JsonDocument(may_be_empty=False)
        reader = ObjectRows(store, document, locate=pointed_at, has_marks=False, reading=read)
        rows = reader.plan(messages, StructType([StructField(LINE, StringType())]), read.tasks)
        return json_rows(rows, LINE, ArrowJson.of(columns), columns, [MESSAGE_ID, SENT_AT, REASON])


def pointed_at(body: str) -> tuple[S3Object | Content]:
    """Find out where a message's content is.

    Returns:
        The object that a pointer names; or else the body itself.

    Raises:
        NotANotificationError: It is a pointer that names no object.
        sqs_lease.spark.json_syntax.NotJsonError: It is not JSON.
    """
    match decode(body):
        case [str(kind), {"s3BucketName": str(bucket), "s3Key": str(key)}] if kind in _POINTERS and bucket and key:
            return (S3Object(bucket, key),)
        case [str(kind), *_] if kind in _POINTERS:
            raise NotANotificationError("a pointer to S3 without a bucket or a key")
    return (Content(body),)
