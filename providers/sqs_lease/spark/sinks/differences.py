"""Differences between the columns of a table and those that are written into it, and the errors for them."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from sqs_lease.spark.errors import SchemaError, TableError
from sqs_lease.spark.schemas import without_case


def differences(stored: StructType, columns: StructType, *, widen: bool = False) -> list[str]:
    """List the differences between a table's columns and those that are to be written.

    The order of the columns does not matter. A nullable column of the table takes a column that is NOT NULL, but not
    the other way round.

    Args:
        stored: The table's columns.
        columns: The columns to write.
        widen: Whether one side may have nullable columns that the other lacks.
    """
    found = {field.name: field for field in stored.fields}
    given = {field.name: field for field in columns.fields}
    caseless = {without_case(name): name for name in found}
    differing = []
    for name, field in given.items():
        if name in found:
            continue
        if (other := caseless.get(without_case(name))) is not None:
            differing.append(f"column {name} is called {other} in the table")
        elif not widen:
            differing.append(f"the table has no column {name} {field.dataType.simpleString()}")
        elif not field.nullable:
            differing.append(
                f"the table has no column {name} {field.dataType.simpleString()}, and it cannot be added because it "
                "is NOT NULL and the table's rows have no value for it"
            )
    differing += [
        f"the schema has no column {name} {field.dataType.simpleString()}"
        for name, field in found.items()
        if name not in given and not (widen and field.nullable)
    ]
    for name in given.keys() & found.keys():
        ours, theirs = given[name], found[name]
        if ours.dataType.simpleString() != theirs.dataType.simpleString():
            differing.append(
                f"column {name} is {theirs.dataType.simpleString()} in the table and "
                f"{ours.dataType.simpleString()} in the schema"
            )
        elif not _takes(theirs.dataType, ours.dataType) or (ours.nullable and not theirs.nullable):
            differing.append(f"column {name} is NOT NULL in the table, and may be null in the schema")
    return sorted(differing)


def misfits(stored: StructType, columns: StructType) -> list[str]:
    """List why a table cannot take rows of these columns as they are; further nullable columns are allowed."""
    kept = [field for field in stored.fields if field.name in columns.names or not field.nullable]
    return differences(StructType(kept), columns)


def require_fit(table: str, differs: Sequence[str]) -> None:
    """Refuse to open a table with a schema that differs from it.

    Raises:
        SchemaError: There are differences.
    """
    if differs:
        raise SchemaError(
            f"the schema does not fit table {table}: {'; '.join(differs)}. Change the schema or the table, or ingest "
            "into another one"
        )


def require_unchanged(table: str, differs: Sequence[str]) -> None:
    """Refuse to admit a batch into a table that was changed meanwhile.

    Raises:
        SchemaError: There are differences.
    """
    if differs:
        raise SchemaError(
            f"table {table} was changed while a batch was on its way into it: {'; '.join(differs)}. Nothing of the "
            "batch was committed: change the schema or the table, and run it again"
        )


def require_taken(table: str, differs: Sequence[str]) -> None:
    """Refuse to convert rows that were admitted but that a table cannot take as they are.

    Raises:
        TableError: There are differences.
    """
    if differs:
        raise TableError(f"table {table} was changed before it took a batch: {'; '.join(differs)}. Change it back")


def _takes(table: DataType, given: DataType) -> bool:
    """Whether a column of the table takes the nulls inside values of the same shape."""
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
