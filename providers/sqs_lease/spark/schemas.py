"""Schemas: reading what users give, checking names and types of columns, and translating to Arrow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.errors import ParseException
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
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from sqs_lease.spark.errors import SchemaError

# Characters that some table refuses in a name: Delta the first group, Iceberg's and Spark's paths the second. Control
# characters are unreadable. PostgreSQL cuts names after 63 bytes.
_NO_COLUMN_NAME: Final = re.compile(r"[ ,;{}()\n\t=]|[.`\"]|[\x00-\x1f\x7f]")
_NAME_BYTES: Final = 63

# Characters that Arrow, Parquet or Java's strings cannot have, or end at.
_NO_NAME: Final = re.compile("[\\0\ud800-\udfff]")

# Without VARIANT, intervals and CHAR, which only Spark knows.
_IN_PARQUET: Final = (
    *(ArrayType, BinaryType, BooleanType, ByteType, DateType, DecimalType, DoubleType, FloatType, IntegerType),
    *(LongType, MapType, ShortType, StringType, StructType, TimestampNTZType, TimestampType),
)
_IN_JSON: Final = (*_IN_PARQUET, VariantType)
DEEPEST: Final = 30
"""The deepest nesting of types. Arrow and Delta's log fail at 32 maps, or 42 objects."""

_WITHOUT_EQUALITY: Final = (ArrayType, MapType, StructType, VariantType, FloatType, DoubleType)


def struct_type(schema: str | StructType) -> StructType:
    """Read a schema. DDL is parsed by the current Spark session.

    Raises:
        SchemaError: It is neither DDL of columns nor a ``StructType``; or see :func:`require_names`.
    """
    if not isinstance(schema, str | StructType):
        raise SchemaError(f"schema must be a DDL string or a StructType, not {type(schema).__name__}")
    try:
        parsed = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    except ParseException as error:
        raise SchemaError(f"the schema {schema!r} is not Spark DDL: {error.getMessage()}") from error
    if not isinstance(parsed, StructType):
        raise SchemaError(f"the schema {schema!r} names no columns: write 'name TYPE, ...'")
    require_names(parsed)
    return parsed


def require_names(columns: StructType) -> None:
    """Refuse names that a table cannot have, and two names in one place that are the same name for Spark.

    Raises:
        SchemaError: A column, or a field inside it, has such a name; or a column is nested more deeply than any table
            takes.
    """
    for column in columns.fields:
        if levels(column.dataType) >= DEEPEST:
            raise SchemaError(
                f"column {column.name} is nested more than {DEEPEST} levels deep, which tables do not take: make what "
                "is inside of it a STRING, which holds any JSON as its text"
            )
    for path, kind in types_in(columns):
        seen: set[str] = set()
        for name in kind.names if isinstance(kind, StructType) else ():
            if not name or _NO_NAME.search(name):
                raise SchemaError(
                    f"{f'column {path} has a field' if path else 'the schema has a column'} {name!r}: a name must have "
                    "characters, and none of them NUL or half a surrogate pair"
                )
            if without_case(name) in seen:
                raise SchemaError(
                    f"column {path} has the field {name!r} twice (upper and lower case count as the same): leave one "
                    "out; of JSON, the whole object can be a STRING or a MAP"
                    if path
                    else f"the schema has the column {name!r} twice (upper and lower case count as the same)"
                )
            seen.add(without_case(name))


def json_schema(schema: str | StructType) -> StructType:
    """Read the schema of JSON records.

    Raises:
        SchemaError: As for :func:`struct_type`, or values of one of the types cannot be read from JSON.
    """
    columns = struct_type(schema)
    for path, kind in types_in(columns):
        if isinstance(kind, ByteType):
            raise SchemaError(
                "the schema has a TINYINT, in which Spark makes the JSON numbers 128 to 255 negative: use SMALLINT"
            )
        # Not isinstance: CHAR and VARCHAR are strings to Spark's classes, but have lengths.
        if type(kind) not in _IN_JSON:
            raise SchemaError(f"column {path}: JSON is not read as the type {kind.simpleString()}: make it a STRING")
        if path and isinstance(kind, StructType) and not kind.fields:
            raise SchemaError(f"column {path} is an object without fields: name some, or make it a STRING")
        if isinstance(kind, MapType) and not isinstance(kind.keyType, StringType):
            raise SchemaError(
                f"column {path} is {kind.simpleString()}, and in JSON names are texts: make it a MAP<STRING, ...>"
            )
    return columns


def notation(schema: str | StructType) -> str:
    """Return a schema as text, for a source's identity; it needs no session."""
    return schema.json() if isinstance(schema, StructType) else str(schema)


def without_case(name: str) -> str:
    """Return a text that is equal for two names if they are the same name for Spark.

    Spark compares like Java's ``equalsIgnoreCase``: by the upper case of each character, and the lower case of that. So
    the long s equals s, and the capital I with a dot equals i; ``str.lower`` would tell these apart. This Python may
    know more letters than Spark's Java; then more names are equal here.
    """
    upper = ((char, char.upper()) for char in name)
    # Java maps one character to one: the sharp s stays as it is, and the lower case of the I with a dot has no dot.
    single = "".join(capital if len(capital) == 1 else char for char, capital in upper)
    return single.lower().replace("\u0307", "")


def quoted(name: str) -> str:
    """Quote a name for SQL, and for Spark's ``col``, whatever characters it has."""
    return f"`{name.replace('`', '``')}`"


def can_be_column(name: str) -> bool:
    """Whether every table can have a column of this name: for names that come from messages, not from a user."""
    return bool(name) and not _NO_COLUMN_NAME.search(name) and len(name.encode("utf-8", "replace")) <= _NAME_BYTES


def types_in(kind: DataType, path: str = "") -> Iterator[tuple[str, DataType]]:
    """Yield a type and all types inside it, each with its path: the names on the way, with dots between them."""
    yield path, kind
    for name, inner in _directly_in(kind):
        yield from types_in(inner, f"{path}.{name}" if path and name else path or name)


def levels(kind: DataType) -> int:
    """Count the levels of a nested type; 0 for a single value. A loop, because Python's stack may be too small."""
    count, inside = 0, [kind]
    while inside := [inner for one in inside for _, inner in _directly_in(one)]:
        count += 1
    return count


def _directly_in(kind: DataType) -> list[tuple[str, DataType]]:
    """Return the types of fields, elements, keys and values, with the names of fields."""
    if isinstance(kind, StructType):
        return [(field.name, field.dataType) for field in kind.fields]
    if isinstance(kind, ArrayType):
        return [("", kind.elementType)]
    return [("", kind.keyType), ("", kind.valueType)] if isinstance(kind, MapType) else []


def nullable(columns: StructType) -> StructType:
    """Make everything in the columns nullable: Spark trusts a schema, and would not look for nulls."""
    return StructType([StructField(field.name, relaxed(field.dataType)) for field in columns.fields])


def relaxed(kind: DataType, single: Callable[[DataType], DataType] = lambda kind: kind) -> DataType:
    """Make everything inside a type nullable; ``single`` translates the types of single values."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, relaxed(field.dataType, single)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(relaxed(kind.elementType, single))
    if isinstance(kind, MapType):
        return MapType(relaxed(kind.keyType, single), relaxed(kind.valueType, single))
    return single(kind)


def require_plain(columns: StructType, cannot: str) -> None:
    """Refuse types that Parquet does not have, or that only Spark reads from it; ``cannot`` begins the error text."""
    for path, kind in types_in(columns):
        if not isinstance(kind, _IN_PARQUET):
            raise SchemaError(f"column {path}: {cannot} the type {kind.simpleString()}")
        if path and isinstance(kind, StructType) and not kind.fields:
            raise SchemaError(f"column {path}: {cannot} an object without fields: name some, or make it a STRING")


def check_keys(columns: StructType, keys: Sequence[str]) -> None:
    """Refuse key columns that a message may lack, or that cannot tell rows apart.

    Raises:
        SchemaError: A column does not exist, is given twice, may be null, or has a type without a plain equality.
    """
    if len(set(keys)) < len(keys):
        raise SchemaError(f"upsert_by names a column twice: {', '.join(keys)}")
    found = {field.name: field for field in columns.fields}
    for key in keys:
        if key not in found:
            raise SchemaError(f"upsert_by: the schema has no column {key}; it has {', '.join(found)}")
        if found[key].nullable:
            raise SchemaError(
                f"upsert_by: column {key} may be null, and a row without a key has nothing to replace: make it "
                f"NOT NULL in the schema, so that messages without it are rejected"
            )
        if isinstance(found[key].dataType, _WITHOUT_EQUALITY):
            raise SchemaError(
                f"upsert_by: column {key} is {found[key].dataType.simpleString()}, by which rows cannot be told "
                "apart: take columns of numbers without fractions, texts, dates or times"
            )


def arrow_schema(columns: StructType) -> pa.Schema:
    """Translate a schema to Arrow, with everything nullable: nulls are checked later.

    Raises:
        SchemaError: A column has a type that rows made in Python cannot have.
    """
    # Imported only here: Spark's Python workers need this module, but not deltalake.
    from deltalake import Schema

    require_plain(columns, "rows that are made in Python cannot have")
    try:
        # Delta's schema reads Spark's notation and writes Arrow's types.
        return pa.schema(Schema.from_json(nullable(columns).json()).to_arrow())
    except ValueError as error:
        raise SchemaError(f"rows that are made in Python cannot have these columns: {error}") from error


def record_batch(schema: pa.Schema, rows: int, given: Mapping[str, Any]) -> pa.RecordBatch:
    """Make rows from some of their columns.

    Args:
        schema: The columns.
        rows: How many rows there are.
        given: By name, the values of a column as an Arrow array, or one value for all rows. Columns that are not given
            are null.
    """
    columns = []
    for field in schema:
        value = given.get(field.name)
        if not isinstance(value, pa.Array):
            value = pa.repeat(pa.scalar(value, field.type), rows)
        columns.append(value.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
