"""Schemas of records as users give them, and the types and names that a column can have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pyspark.errors import ParseException
from pyspark.sql.types import ArrayType, ByteType, DataType, MapType, StructType

from sqs_lease.spark.errors import SchemaError

# What some table refuses in a name: Delta the first group, Iceberg's and Spark's paths the second, and nobody can read
# control characters. 63 bytes is the longest name that PostgreSQL keeps whole.
_NO_COLUMN_NAME: Final = re.compile(r"[ ,;{}()\n\t=]|[.`\"]|[\x00-\x1f\x7f]")
_NAME_BYTES: Final = 63


def struct_type(schema: str | StructType) -> StructType:
    """Read a schema, where it is DDL with the help of the Spark session that is there.

    Raises:
        SchemaError: It is neither DDL of columns nor a ``StructType``.
    """
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


def json_schema(schema: str | StructType) -> StructType:
    """Read the schema of JSON records.

    Raises:
        SchemaError: As for :func:`struct_type`, or Spark would misread one of the types.
    """
    columns = struct_type(schema)
    if any(isinstance(kind, ByteType) for kind in types_in(columns)):
        raise SchemaError(
            "the schema has a TINYINT, in which Spark makes the JSON numbers 128 to 255 negative: use SMALLINT"
        )
    return columns


def notation(schema: str | StructType) -> str:
    """A schema as text, for a source's identity; no session is needed."""
    return schema.json() if isinstance(schema, StructType) else str(schema)


def types_in(kind: DataType) -> Iterator[DataType]:
    """A type and all types inside of it."""
    yield kind
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from types_in(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from types_in(kind.elementType)
    elif isinstance(kind, MapType):
        yield from types_in(kind.keyType)
        yield from types_in(kind.valueType)


def quoted(name: str) -> str:
    """A column's name as Spark takes it for that column, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def can_be_column(name: str) -> bool:
    """Whether every table can have a column of this name, that nobody gave on purpose."""
    return bool(name) and not _NO_COLUMN_NAME.search(name) and len(name.encode("utf-8", "replace")) <= _NAME_BYTES
