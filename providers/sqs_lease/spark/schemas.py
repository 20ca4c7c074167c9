"""Schemas: as users give them, the types and names that columns can have, and the same as Arrow has them."""

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

# What some table refuses in a name: Delta the first group, Iceberg's and Spark's paths the second, and nobody can read
# control characters. 63 bytes is the longest name that PostgreSQL keeps whole.
_NO_COLUMN_NAME: Final = re.compile(r"[ ,;{}()\n\t=]|[.`\"]|[\x00-\x1f\x7f]")
_NAME_BYTES: Final = 63

# What Arrow, Parquet and Java's texts cannot have, or end at.
_NO_NAME: Final = re.compile("[\\0\ud800-\udfff]")

# Neither VARIANT, intervals nor CHAR, which only Spark knows.
_IN_PARQUET: Final = (
    *(ArrayType, BinaryType, BooleanType, ByteType, DateType, DecimalType, DoubleType, FloatType, IntegerType),
    *(LongType, MapType, ShortType, StringType, StructType, TimestampNTZType, TimestampType),
)
_IN_JSON: Final = (*_IN_PARQUET, VariantType)
DEEPEST: Final = 30
"""So many types may be inside of each other: Arrow and Delta's log stop at 32 maps, or 42 objects."""

_WITHOUT_EQUALITY: Final = (ArrayType, MapType, StructType, VariantType, FloatType, DoubleType)


def struct_type(schema: str | StructType) -> StructType:
    """Read a schema, where it is DDL with the help of the Spark session that is there.

    Raises:
        SchemaError: It is neither DDL of columns nor a ``StructType``, or as for :func:`require_names`.
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
    """Refuse names that no table can have, and two in one place that Spark takes for the same one.

    Raises:
        SchemaError: There are some, of columns or of fields inside of them; or a column is deeper than any table takes.
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
        SchemaError: As for :func:`struct_type`, or JSON is not read as one of the types.
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
    """A schema as text, for a source's identity; no session is needed."""
    return schema.json() if isinstance(schema, StructType) else str(schema)


def without_case(name: str) -> str:
    """What two names have in common that Spark takes for the same one.

    Spark compares as Java's ``equalsIgnoreCase`` does: by the upper case of each character, and the lower case of that.
    So the long s is an s, and the capital I with a dot is an i, which ``str.lower`` tells apart. The same as that, or
    coarser where this Python knows more letters than that Java.
    """
    upper = ((char, char.upper()) for char in name)
    # Java maps one character to one: the sharp s stays as it is, and the dot is dropped from the lower case of its I.
    single = "".join(capital if len(capital) == 1 else char for char, capital in upper)
    return single.lower().replace("\u0307", "")


def quoted(name: str) -> str:
    """One name, in SQL and as Spark takes it for a column, whatever characters it has."""
    return f"`{name.replace('`', '``')}`"


def can_be_column(name: str) -> bool:
    """Whether every table can have a column of this name, that nobody gave on purpose."""
    return bool(name) and not _NO_COLUMN_NAME.search(name) and len(name.encode("utf-8", "replace")) <= _NAME_BYTES


def types_in(kind: DataType, path: str = "") -> Iterator[tuple[str, DataType]]:
    """A type and all types inside of it, each with the names on the way to it, with dots between them."""
    yield path, kind
    for name, inner in _directly_in(kind):
        yield from types_in(inner, f"{path}.{name}" if path and name else path or name)


def levels(kind: DataType) -> int:
    """How many types are inside of each other; none in a single value. It may be more than Python's stack takes."""
    count, inside = 0, [kind]
    while inside := [inner for one in inside for _, inner in _directly_in(one)]:
        count += 1
    return count


def _directly_in(kind: DataType) -> list[tuple[str, DataType]]:
    """The types of the fields, elements, keys and values of a type, with the names of fields."""
    if isinstance(kind, StructType):
        return [(field.name, field.dataType) for field in kind.fields]
    if isinstance(kind, ArrayType):
        return [("", kind.elementType)]
    return [("", kind.keyType), ("", kind.valueType)] if isinstance(kind, MapType) else []


def nullable(columns: StructType) -> StructType:
    """The same columns, in which everything may be null: Spark believes a schema, and would not look for nulls."""
    return StructType([StructField(field.name, relaxed(field.dataType)) for field in columns.fields])


def relaxed(kind: DataType, single: Callable[[DataType], DataType] = lambda kind: kind) -> DataType:
    """A type in which everything may be null that is inside of it; ``single`` translates the types of single values."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, relaxed(field.dataType, single)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(relaxed(kind.elementType, single))
    if isinstance(kind, MapType):
        return MapType(relaxed(kind.keyType, single), relaxed(kind.valueType, single))
    return single(kind)


def require_plain(columns: StructType, cannot: str) -> None:
    """Refuse columns of types that Parquet does not have, or only Spark reads from it; ``cannot`` says for whom."""
    for path, kind in types_in(columns):
        if not isinstance(kind, _IN_PARQUET):
            raise SchemaError(f"column {path}: {cannot} the type {kind.simpleString()}")
        if path and isinstance(kind, StructType) and not kind.fields:
            raise SchemaError(f"column {path}: {cannot} an object without fields: name some, or make it a STRING")


def check_keys(columns: StructType, keys: Sequence[str]) -> None:
    """Refuse key columns that a message could lack, or by which rows cannot be told apart.

    Raises:
        SchemaError: One does not exist, is given twice, may be null, or has a type without a plain equality.
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
    """Translate a schema. Everything in it may be null: whether it is is checked later.

    Raises:
        SchemaError: A column has a type that rows made in Python cannot have.
    """
    # Only here: Spark's Python workers need this module, and not deltalake.
    from deltalake import Schema

    require_plain(columns, "rows that are made in Python cannot have")
    try:
        # Delta has the notation of Spark, and the types of Arrow.
        return pa.schema(Schema.from_json(nullable(columns).json()).to_arrow())
    except ValueError as error:
        raise SchemaError(f"rows that are made in Python cannot have these columns: {error}") from error


def record_batch(schema: pa.Schema, rows: int, given: Mapping[str, Any]) -> pa.RecordBatch:
    """Make rows of which only some columns are given.

    Args:
        schema: The columns.
        rows: How many rows there are.
        given: By name, either the values of a column, as an Arrow array, or the one value of all rows. What is not
            given is null.
    """
    columns = []
    for field in schema:
        value = given.get(field.name)
        if not isinstance(value, pa.Array):
            value = pa.repeat(pa.scalar(value, field.type), rows)
        columns.append(value.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
