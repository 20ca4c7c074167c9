"""JSON messages: one object a body, checked for syntax in the driver and against the schema on Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sqs_lease.spark import batch_file
from sqs_lease.spark.columns import MESSAGE_ID, SENT_AT
from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.sources.arrow_json import ArrowJson
from sqs_lease.spark.sources.json_checker import ClosedChecker, ObjectChecker, OpenChecker, PlainChecker
from sqs_lease.spark.sources.json_inference import can_be_inferred, inferred_fields
from sqs_lease.spark.sources.json_rows import json_rows
from sqs_lease.spark.sources.pinned_schema import InferredSchema
from sqs_lease.spark.sources.schemas import json_schema, notation

NewFields = Literal["ignore", "reject", "add"]
"""What becomes of a field that is no column: it is ignored, its message is rejected, or it becomes a column."""

_CHOICES: Final = get_args(NewFields)


@dataclass(frozen=True)
class JsonSource:
    """One JSON object a message.

    Rejected are bodies that are empty, not JSON by the letter of RFC 8259 (text after the object, a second object,
    single quotes, ``NaN``), that name a field twice in one object, hold a number that no double can, nest deeper than
    200 levels, or are no object; and objects in which a field that the schema declares ``NOT NULL`` is missing or null,
    or any field has the wrong type.

    A ``DATE`` is written ``2013-01-31``; a timestamp without a zone is in UTC. A ``STRING`` column takes any value, as
    its JSON text; a ``DECIMAL`` one rounds to its scale, and in a ``FLOAT`` one a number beyond its range is infinite.

    Attributes:
        schema: The fields of the object, as a Spark DDL string (``"id BIGINT NOT NULL, name STRING"``), a
            ``StructType``, or :class:`InferredSchema`. Names are matched in upper and lower case.
        new_fields: What becomes of a field of the object itself (not of what is nested in it) that is no column.
            ``"ignore"``, the default: nothing. ``"reject"``: its message is rejected; with an inferred schema this
            costs a second look at each body on Spark, where the pinned schema is known for certain. ``"add"``: it
            becomes a column, in the pinned schema and then in the table, with the type that Spark infers from this
            batch; for a field that is null or empty in all messages that waits until one has a value. A message whose
            new field can be no column (a name that not every table takes, or that differs from another one in case
            only, or the 1001st column) is rejected. It needs an :class:`InferredSchema`: what was added must be found
            again by the next batch and by other drivers, and the text of a schema cannot grow.
    """

    schema: str | StructType | InferredSchema
    new_fields: NewFields = "ignore"

    def __post_init__(self) -> None:
        if self.new_fields not in _CHOICES:
            raise ValueError(f"new_fields must be one of {', '.join(_CHOICES)}, not {self.new_fields!r}")
        if self.new_fields == "add" and not isinstance(self.schema, InferredSchema):
            raise SchemaError(
                'new_fields="add" needs schema=InferredSchema(path), so that later batches find the columns that were '
                "added; to give some columns, write the schema's JSON (StructType.json()) to that path first"
            )

    @property
    def identity(self) -> str:
        """The schema, or where it is pinned, and what becomes of new fields."""
        what = self.schema.file if isinstance(self.schema, InferredSchema) else notation(self.schema)
        return f"json; {self.new_fields}; {what}"

    @property
    def widens(self) -> bool:
        """Whether new fields become columns."""
        return self.new_fields == "add"

    def checker(self) -> ObjectChecker:
        """See :class:`.source.Source`. The schema is checked here, before anything is written."""
        if isinstance(self.schema, InferredSchema):
            pinned = self.schema.load()
            if pinned is not None:
                json_schema(pinned)
            if self.new_fields == "add":
                return OpenChecker(pinned.names if pinned else (), can_be_inferred)
            return PlainChecker()
        columns = json_schema(self.schema)
        return ClosedChecker(columns.names) if self.new_fields == "reject" else PlainChecker()

    def columns(self, messages: DataFrame, checker: ObjectChecker) -> StructType:
        """The schema as it is given or pinned; inferred and pinned where it is not yet, and widened by new fields."""
        if not isinstance(self.schema, InferredSchema):
            return json_schema(self.schema)
        pinned = self.schema.load()
        if pinned is None:
            fields = inferred_fields(messages)
            if not fields:
                raise SchemaError(
                    f"no schema is pinned in {self.schema.file} yet, and no message of this batch has a field from "
                    "which one could be inferred: ingest a batch with records, or write a schema there"
                )
            pinned = self.schema.pin(StructType(fields))
        if isinstance(checker, OpenChecker) and (new := checker.new_fields - set(pinned.names)):
            pinned = self.schema.widen(inferred_fields(messages, new))
        return json_schema(pinned)

    def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
        """See :class:`.source.Source`."""
        named = messages.withColumnsRenamed({batch_file.MESSAGE_ID: MESSAGE_ID, batch_file.SENT_AT: SENT_AT})
        return json_rows(named, batch_file.BODY, columns, [MESSAGE_ID, SENT_AT], closed=self._is_closed_on_spark)

    def arrow_parser(self, columns: StructType) -> ArrowJson | None:
        """See :class:`.source.ArrowSource`."""
        if self._is_closed_on_spark or type(self).parse is not JsonSource.parse:
            # Whoever inherits from this may parse otherwise.
            return None
        return ArrowJson.of(columns)

    @property
    def _is_closed_on_spark(self) -> bool:
        """Whether new fields are to be found there. Of a given schema, the driver knows the fields."""
        return self.new_fields == "reject" and isinstance(self.schema, InferredSchema)
