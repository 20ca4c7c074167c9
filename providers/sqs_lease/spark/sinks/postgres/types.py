"""Spark's types in PostgreSQL: which column takes which, and how a value is written for COPY.

| Spark | a new column | an existing one may also be |
| --- | --- | --- |
| BOOLEAN | boolean | |
| TINYINT, SMALLINT | smallint | integer, bigint |
| INT | integer | bigint |
| BIGINT | bigint | |
| FLOAT | real | double precision |
| DOUBLE | double precision | |
| DECIMAL(p, s) | numeric(p, s) | numeric; with more digits on both sides |
| STRING | text | varchar without a length |
| BINARY | bytea | |
| DATE | date | |
| TIMESTAMP, TIMESTAMP_NTZ | timestamptz, timestamp | |
| STRUCT, ARRAY, MAP, VARIANT | jsonb | json |
"""

from __future__ import annotations

import re
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.schemas import quoted, types_in

_TYPES: Final[dict[type[DataType], tuple[str, ...]]] = {
    BooleanType: ("boolean",),
    ByteType: ("smallint", "integer", "bigint"),
    ShortType: ("smallint", "integer", "bigint"),
    IntegerType: ("integer", "bigint"),
    LongType: ("bigint",),
    FloatType: ("real", "double precision"),
    DoubleType: ("double precision",),
    DecimalType: ("numeric",),
    StringType: ("text", "character varying"),
    BinaryType: ("bytea",),
    DateType: ("date",),
    TimestampType: ("timestamp with time zone",),
    TimestampNTZType: ("timestamp without time zone",),
    StructType: ("jsonb", "json"),
    ArrayType: ("jsonb", "json"),
    MapType: ("jsonb", "json"),
    VariantType: ("jsonb", "json"),
}
"""The types of PostgreSQL by Spark's, as ``format_type`` writes them; the first is that of new columns."""

_JSON: Final = (StructType, ArrayType, MapType, VariantType)
_JSON_OPTIONS: Final = {"timeZone": "UTC", "ignoreNullFields": "false"}
# The escape, where its backslash is not itself escaped.
_ESCAPED_NUL: Final = r"(?<!\\)((?:\\\\)*)\\u0000"


def postgres_type(name: str, kind: DataType) -> str:
    """The type of a new column.

    Raises:
        SchemaError: PostgreSQL has none for it, or for what is inside of it.
    """
    for path, inner in types_in(kind, name):
        # Not isinstance: CHAR and VARCHAR are strings to Spark's classes, but have lengths.
        if type(inner) not in _TYPES:
            raise SchemaError(f"column {path}: a PostgreSQL table cannot store the type {inner.simpleString()}")
    return f"numeric({kind.precision},{kind.scale})" if isinstance(kind, DecimalType) else _TYPES[type(kind)][0]


def takes(stored: str, kind: DataType) -> bool:
    """Whether a column of a type that ``format_type`` wrote takes every value of one of Spark's."""
    if isinstance(kind, DecimalType):
        digits = re.fullmatch(r"numeric\((\d+),(-?\d+)\)", stored)
        if digits is None:
            return stored == "numeric"
        precision, scale = int(digits[1]), int(digits[2])
        return scale >= kind.scale and precision - scale >= kind.precision - kind.scale
    return stored in _TYPES.get(type(kind), ())


def is_json(kind: DataType) -> bool:
    """Whether values are stored as JSON."""
    return isinstance(kind, _JSON)


def written(name: str, kind: DataType) -> Column:
    """A column as COPY is to have it: nested values as JSON text, bytes in hexadecimal, all others as they are."""
    column = F.col(quoted(name))
    if isinstance(kind, BinaryType):
        column = F.concat(F.lit("\\x"), F.hex(column))
    elif isinstance(kind, _JSON):
        text = F.to_json(column, _JSON_OPTIONS)
        # jsonb has no NUL, as text has none.
        column = F.when(
            F.contains(text, F.lit("\\u0000")), F.regexp_replace(text, _ESCAPED_NUL, "$1\\\\ufffd")
        ).otherwise(text)
    return column.alias(name)
