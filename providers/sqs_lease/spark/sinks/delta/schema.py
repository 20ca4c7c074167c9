"""Spark's schema and a Delta table's: the one from the other, and how two differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from deltalake import Field, Metadata, Schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from sqs_lease.spark.column_types import PLAIN_TYPES
from sqs_lease.spark.columns import MESSAGE_ID
from sqs_lease.spark.errors import SchemaError

_PARTITION_TYPES: Final = (BooleanType, ByteType, DateType, IntegerType, LongType, ShortType, StringType)
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


def differences(table: Schema, columns: StructType, *, widen: bool = False) -> list[str]:
    """Say how a table's schema differs from the one that is to be written; nothing where it does not.

    The order of the columns does not matter. A column that may hold nulls in the table takes one that
    has none, but not the other way round.

    Args:
        table: The table's.
        columns: What is to be written.
        widen: Whether one may have nullable columns that the other lacks.
    """
    stored = StructType.fromJson(json.loads(table.to_json()))
    found = {field.name: field for field in stored.fields}
    given = {field.name: field for field in columns.fields}
    lower = {name.lower(): name for name in found}
    said = []
    for name, field in given.items():
        if name in found:
            continue
        if (other := lower.get(name.lower())) is not None:
            said.append(f"column {name} is called {other} in the table")
        elif not widen:
            said.append(f"the table has no column {name} {field.dataType.simpleString()}")
        elif not field.nullable:
            said.append(
                f"the table has no column {name} {field.dataType.simpleString()}, and it cannot be added because it "
                "is NOT NULL and the table's rows have no value for it"
            )
    said += [
        f"the schema has no column {name} {field.dataType.simpleString()}"
        for name, field in found.items()
        if name not in given and not (widen and field.nullable)
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


def added_columns(table: Schema, columns: StructType) -> list[Field]:
    """The columns that are to be added to a table, as Delta has them."""
    found = {field.name for field in table.fields}
    return [field for field in delta_schema(columns).fields if field.name not in found]


def check_partitions(columns: StructType, partition_by: Sequence[str]) -> None:
    """Refuse columns by which a table cannot be partitioned.

    Raises:
        SchemaError: One does not exist or is given twice, is of a type that
            Delta's log has no single text for, or differs in every message.
    """
    found = {field.name: field.dataType for field in columns.fields}
    for name in partition_by:
        if name not in found:
            raise SchemaError(f"partition_by: the schema has no column {name}; it has {', '.join(found)}")
        if not isinstance(found[name], _PARTITION_TYPES):
            raise SchemaError(
                f"partition_by: column {name} is {found[name].simpleString()}; take columns of texts, whole numbers, "
                "dates or booleans"
            )
    if len(set(partition_by)) < len(partition_by):
        raise SchemaError(f"partition_by names a column twice: {', '.join(partition_by)}")
    if MESSAGE_ID in partition_by:
        raise SchemaError(f"partition_by: {MESSAGE_ID} differs in every message, so each would be a file")


def unsupported(metadata: Metadata) -> list[str]:
    """Name what a table asks of its writers that plain Parquet files do not give."""
    asked = []
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
    elif not isinstance(kind, PLAIN_TYPES):
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
