"""Spark's types as Arrow's, for rows that are made in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
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
)

from sqs_lease.spark.errors import SchemaError

_PLAIN: Final = {
    BinaryType: pa.binary(),
    BooleanType: pa.bool_(),
    ByteType: pa.int8(),
    DateType: pa.date32(),
    DoubleType: pa.float64(),
    FloatType: pa.float32(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    ShortType: pa.int16(),
    StringType: pa.string(),
    TimestampNTZType: pa.timestamp("us"),
    TimestampType: pa.timestamp("us", tz="UTC"),
}


def arrow_schema(columns: StructType) -> pa.Schema:
    """Translate a schema. Everything in it may be null: whether it is is checked later.

    Raises:
        SchemaError: A column has a type that rows made in Python cannot have.
    """
    return pa.schema([pa.field(field.name, _arrow_type(field.dataType, field.name)) for field in columns.fields])


def nullable(columns: StructType) -> StructType:
    """The same columns, in which everything may be null: Spark believes a schema, and would not look for nulls."""
    return StructType([StructField(field.name, _nullable(field.dataType)) for field in columns.fields])


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


def _arrow_type(kind: DataType, path: str) -> pa.DataType:
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, StructType):
        return pa.struct([pa.field(field.name, _arrow_type(field.dataType, f"{path}.{field.name}")) for field in kind])
    if isinstance(kind, ArrayType):
        return pa.list_(_arrow_type(kind.elementType, f"{path}[]"))
    if isinstance(kind, MapType):
        return pa.map_(_arrow_type(kind.keyType, f"{path} (key)"), _arrow_type(kind.valueType, f"{path} (value)"))
    plain = next((arrow for spark, arrow in _PLAIN.items() if isinstance(kind, spark)), None)
    if plain is None:
        raise SchemaError(f"column {path}: rows that are made in Python cannot have the type {kind.simpleString()}")
    return plain


def _nullable(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return nullable(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind
