"""Spark's schema and a Delta table's: the one from the other, and how two differ."""

from __future__ import annotations

import json
from typing import Final

from deltalake import Metadata, Schema
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

_PLAIN_TYPES: Final = (
    *(BinaryType, BooleanType, ByteType, DateType, DecimalType, DoubleType, FloatType, IntegerType),
    *(LongType, ShortType, StringType, TimestampNTZType, TimestampType),
)
# What the Delta protocol's readers refuse in a name unless the table maps its columns.
_FORBIDDEN_IN_NAMES: Final = frozenset(" ,;{}()\n\t=")


def delta_schema(columns: StructType) -> Schema:
    """Translate Spark's schema; the two have the same JSON notation.

    Only columns are ``NOT NULL`` in the table, not what is inside of them: readers fail on a required field
    inside an object that is null itself. Rows are checked before they are written all the same.

    Raises:
        SchemaError: A column has a type or a name that Delta tables cannot have.
    """
    for field in columns.fields:
        _check(field.name, field.dataType)
    relaxed = [StructField(field.name, _relaxed(field.dataType), field.nullable) for field in columns.fields]
    return Schema.from_json(StructType(relaxed).json())


def differences(table: Schema, columns: StructType) -> list[str]:
    """Say how a table's schema differs from the one that is to be written; nothing where it does not.

    The order of the columns does not matter. A column that may hold nulls in the table takes one that
    has none, but not the other way round.
    """
    stored = StructType.fromJson(json.loads(table.to_json()))
    found = {field.name: field for field in stored.fields}
    given = {field.name: field for field in columns.fields}
    said = [
        f"the table has no column {name} {field.dataType.simpleString()}"
        for name, field in given.items()
        if name not in found
    ]
    said += [
        f"the schema has no column {name} {field.dataType.simpleString()}"
        for name, field in found.items()
        if name not in given
    ]
    for name in given.keys() & found.keys():
        ours, theirs = given[name], found[name]
        if ours.dataType.simpleString() != theirs.dataType.simpleString():
            said.append(
                f"column {name} is {theirs.dataType.simpleString()} in the table and "
                f"{ours.dataType.simpleString()} in the schema"
            )
        elif not _takes(theirs.dataType, ours.dataType) or (ours.nullable and not theirs.nullable):
            said.append(f"column {name} is NOT NULL in the table, and may be null in the schema")
    return sorted(said)


def unsupported(metadata: Metadata) -> list[str]:
    """Name what a table asks of its writers that plain Parquet files do not give."""
    asked = []
    if metadata.partition_columns:
        asked.append(f"it is partitioned by {', '.join(metadata.partition_columns)}")
    for name, value in metadata.configuration.items():
        if name == "delta.columnMapping.mode" and value != "none":
            asked.append(f"it maps its columns ({name} = {value})")
        elif name.startswith("delta.constraints."):
            asked.append(f"it has the constraint {name.removeprefix('delta.constraints.')}")
    return asked


def _check(path: str, kind: DataType) -> None:
    if _FORBIDDEN_IN_NAMES & set(path):
        raise SchemaError(
            f"column {path!r}: names in a Delta table have no spaces and none of , ; {{ }} ( ) = - rename it"
        )
    if isinstance(kind, StructType):
        for field in kind.fields:
            _check(f"{path}.{field.name}", field.dataType)
    elif isinstance(kind, ArrayType):
        _check(path, kind.elementType)
    elif isinstance(kind, MapType):
        _check(path, kind.keyType)
        _check(path, kind.valueType)
    elif not isinstance(kind, _PLAIN_TYPES):
        raise SchemaError(f"column {path}: a Delta table cannot store the type {kind.simpleString()}")


def _relaxed(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _relaxed(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_relaxed(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_relaxed(kind.keyType), _relaxed(kind.valueType))
    return kind


def _takes(table: DataType, given: DataType) -> bool:
    """Whether a column of the table takes the nulls inside of values of the same shape."""
    if isinstance(table, StructType) and isinstance(given, StructType):
        return all(
            (theirs.nullable or not ours.nullable) and _takes(theirs.dataType, ours.dataType)
            for theirs, ours in zip(table.fields, given.fields, strict=True)
        )
    if isinstance(table, ArrayType) and isinstance(given, ArrayType):
        return (table.containsNull or not given.containsNull) and _takes(table.elementType, given.elementType)
    if isinstance(table, MapType) and isinstance(given, MapType):
        return (table.valueContainsNull or not given.valueContainsNull) and _takes(table.valueType, given.valueType)
    return True
