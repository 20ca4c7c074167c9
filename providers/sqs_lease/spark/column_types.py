"""The types that tables of Parquet files have, whatever format keeps their list, and those that keys have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

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

PLAIN_TYPES: Final = (
    *(BinaryType, BooleanType, ByteType, DateType, DecimalType, DoubleType, FloatType, IntegerType),
    *(LongType, ShortType, StringType, TimestampNTZType, TimestampType),
)
"""All that is neither a structure nor something that only Spark knows (VARIANT, intervals, CHAR)."""


def relaxed(kind: DataType, single: Callable[[DataType], DataType] = lambda kind: kind) -> DataType:
    """A type in which everything may be null that is inside of it.

    Args:
        kind: The type.
        single: Gives the type of single values instead of another one.
    """
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, relaxed(field.dataType, single)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(relaxed(kind.elementType, single))
    if isinstance(kind, MapType):
        return MapType(relaxed(kind.keyType, single), relaxed(kind.valueType, single))
    return single(kind)


def require_plain(columns: StructType, table: str) -> None:
    """Refuse columns that are, or have inside of them, something else than :data:`PLAIN_TYPES`.

    Args:
        columns: The columns.
        table: What kind of table cannot have them.

    Raises:
        SchemaError: There is one.
    """
    for path, kind in leaves(columns):
        if not isinstance(kind, PLAIN_TYPES):
            raise SchemaError(f"column {path}: {table} cannot store the type {kind.simpleString()}")


def leaves(kind: DataType, path: str = "") -> Iterator[tuple[str, DataType]]:
    """The single values inside of a type: the names on the way to each, with dots between them, and its own type."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from leaves(field.dataType, f"{path}.{field.name}" if path else field.name)
    elif isinstance(kind, ArrayType):
        yield from leaves(kind.elementType, path)
    elif isinstance(kind, MapType):
        yield from leaves(kind.keyType, path)
        yield from leaves(kind.valueType, path)
    else:
        yield path, kind


def check_keys(columns: StructType, keys: Sequence[str]) -> None:
    """Refuse key columns that a message could lack, or by which rows cannot be told apart.

    Raises:
        SchemaError: One does not exist, may be null, or has a type without a plain equality.
    """
    found = {field.name: field for field in columns.fields}
    for key in keys:
        if key not in found:
            raise SchemaError(f"upsert_by: the schema has no column {key}; it has {', '.join(found)}")
        if found[key].nullable:
            raise SchemaError(
                f"upsert_by: column {key} may be null, and a row without a key has nothing to replace: make it "
                f"NOT NULL in the schema, so that messages without it are rejected"
            )
        if isinstance(found[key].dataType, ArrayType | MapType | StructType | VariantType | FloatType | DoubleType):
            raise SchemaError(
                f"upsert_by: column {key} is {found[key].dataType.simpleString()}, by which rows cannot be told "
                "apart: take columns of numbers without fractions, texts, dates or times"
            )
