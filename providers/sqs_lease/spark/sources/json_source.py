"""JSON messages: one object a body, checked for syntax in the driver and against the schema on Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Final

import msgspec
from pyspark.errors import ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import ArrayType, ByteType, DataType, MapType, StringType, StructField, StructType

from sqs_lease.spark import batch_file as manifests
from sqs_lease.spark.columns import MESSAGE_ID, REASON, SENT_AT
from sqs_lease.spark.errors import SchemaError

_CORRUPT: Final = "_sqs_lease_corrupt"
_RECORD: Final = "_sqs_lease_record"
_BODY: Final = "_sqs_lease_body"

_OPTIONS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    # Otherwise "NaN" and "Infinity" in quotes are numbers.
    "allowNonNumericNumbers": "false",
    # Otherwise the date "2013-01-02 or so" is one.
    "dateFormat": "yyyy-MM-dd",
    # Otherwise the date "20130102" is the 20 130 102nd day since 1970.
    "enableDateTimeParsingFallback": "false",
    # A timestamp without a zone means the same whichever session parses it.
    "timeZone": "UTC",
}

_strict_object = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True)
class JsonSource:
    """One JSON object a message.

    Rejected are bodies that are empty, not JSON by the letter of RFC 8259 (text after the object, a second
    object, single quotes, ``NaN``, numbers that no double can hold), or no object; and objects in which a
    field that the schema declares ``NOT NULL`` is missing or null, or any field has the wrong type.

    A field that the schema does not name is ignored. A ``DATE`` is written ``2013-01-31``; a timestamp
    without a zone is in UTC. A ``STRING`` column takes any value, as its JSON text; a ``DECIMAL`` one rounds
    to its scale, and in a ``FLOAT`` one a number beyond its range is infinite.

    Attributes:
        schema: The fields of the object, as a Spark DDL string (``"id BIGINT NOT NULL, name STRING"``) or
            a ``StructType``. Names are matched in upper and lower case.
    """

    schema: str | StructType

    def columns(self, spark: SparkSession) -> StructType:
        """The schema, parsed where it is DDL."""
        columns = _struct_type(self.schema)
        if any(isinstance(kind, ByteType) for kind in _types(columns)):
            raise SchemaError(
                "the schema has a TINYINT, in which Spark makes the JSON numbers 128 to 255 negative: use SMALLINT"
            )
        return columns

    def rejection(self, body: str) -> str | None:
        """Check the syntax, strictly: ``from_json`` takes much that is not JSON and drops the rest in silence."""
        if not body or body.isspace():
            return "the body is empty"
        try:
            _strict_object.decode(body)
        except msgspec.ValidationError as error:
            return f"not a JSON object that can be stored: {error}"
        except msgspec.DecodeError as error:
            return f"not valid JSON: {error}"
        except RecursionError:
            return "not a JSON object that can be stored: it is nested too deeply"
        except UnicodeEncodeError:
            return "not valid JSON: half a surrogate pair"
        return None

    def parse(self, manifest: DataFrame, columns: StructType) -> DataFrame:
        """Parse with ``from_json``; what is corrupt, or lacks a required field, gets a reason."""
        schema = StructType([*columns.fields, StructField(_CORRUPT, StringType())])
        record = F.col(_RECORD)
        return manifest.select(
            F.col(manifests.MESSAGE_ID).alias(MESSAGE_ID),
            F.col(manifests.SENT_AT).alias(SENT_AT),
            F.col(manifests.BODY).alias(_BODY),
            F.from_json(manifests.BODY, schema, _OPTIONS).alias(_RECORD),
        ).select(
            *(record.getField(name).alias(name) for name in columns.names),
            MESSAGE_ID,
            SENT_AT,
            _reason(record, columns).alias(REASON),
        )


def _struct_type(schema: str | StructType) -> StructType:
    if isinstance(schema, StructType):
        return schema
    if not isinstance(schema, str):
        raise SchemaError(f"schema must be a DDL string or a StructType, not {type(schema).__name__}")
    try:
        parsed = StructType.fromDDL(schema)
    except ParseException as error:
        raise SchemaError(f"the schema {schema!r} is not Spark DDL: {error.getMessage()}") from error
    if not isinstance(parsed, StructType):
        raise SchemaError(f"the schema {schema!r} names no columns: write 'name TYPE, ...'")
    return parsed


def _types(kind: DataType) -> Iterator[DataType]:
    """A type and all types inside of it."""
    yield kind
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from _types(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _types(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _types(kind.keyType)
        yield from _types(kind.valueType)


def _reason(record: Column, columns: StructType) -> Column:
    gaps = [gap for field in columns.fields for gap in _gaps(record.getField(field.name), field, field.name)]
    missing = F.concat_ws(", ", *(F.when(test, F.lit(path)) for path, test in gaps)) if gaps else F.lit("")
    return (
        # Spark gives no record for a null body, and then no corrupt one either.
        F.when(record.isNull(), F.lit("no record could be parsed"))
        .when(record.getField(_CORRUPT).isNotNull(), _type_reason(record, columns))
        .when(missing != "", F.concat(F.lit("required, but missing or null: "), missing))
    )


def _type_reason(record: Column, columns: StructType) -> Column:
    """Name the fields that the body has and the record has not: their values did not fit the type."""
    absent = F.array_compact(F.array(*(F.when(record.getField(name).isNull(), F.lit(name)) for name in columns.names)))
    given = F.map_filter(F.from_json(_BODY, "MAP<STRING, STRING>"), lambda _, value: value.isNotNull())
    unfit = F.array_intersect(absent, F.map_keys(given))
    return F.when(
        F.size(unfit) > 0, F.concat(F.lit("not of the type in the schema: "), F.array_join(unfit, ", "))
    ).otherwise(F.lit("a nested value is not of the type in the schema"))


def _gaps(value: Column, field: StructField, path: str) -> Iterator[tuple[str, Column]]:
    """Where required values may be missing: each place by its path, and the test for it.

    Spark itself treats every field as nullable when it parses JSON.
    """
    if not field.nullable:
        yield path, value.isNull()
    if isinstance(field.dataType, StructType):
        for inner in field.dataType.fields:
            for below, test in _gaps(value.getField(inner.name), inner, f"{path}.{inner.name}"):
                yield below, value.isNotNull() & test
    elif isinstance(field.dataType, ArrayType):
        yield from _element_gaps(value, field.dataType.elementType, field.dataType.containsNull, path)
    elif isinstance(field.dataType, MapType):
        yield from _element_gaps(F.map_values(value), field.dataType.valueType, field.dataType.valueContainsNull, path)


def _element_gaps(elements: Column, kind: DataType, nullable: bool, path: str) -> Iterator[tuple[str, Column]]:
    field = StructField("element", kind, nullable)
    if any(_gaps(elements, field, path)):

        def lacks(element: Column) -> Column:
            return reduce(or_, (test for _, test in _gaps(element, field, path)))

        yield f"{path}[]", F.exists(elements, lacks)
