"""Flaws in rows that Spark has already: required places that are null, and times that other readers cannot hold.

For rows of a user's function, and of files whose columns have types. JSON is looked at where it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Final, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sqs_lease.spark.columns import STRANGE_TIME
from sqs_lease.spark.schemas import quoted
from sqs_lease.spark.sources.json_values import MISSING

_LIMITS: Final[Mapping[type[DataType], tuple[str, str]]] = {
    DateType: ("0001-01-01", "9999-12-31"),
    TimestampNTZType: ("0001-01-01T00:00:00", "9999-12-31T23:59:59.999999"),
    TimestampType: ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"),
}

Flaw: TypeAlias = Callable[[Column, StructField], Column | None]
"""Tests a value of a field; None where values of its type cannot have the flaw."""


def flaw(columns: StructType) -> Column:
    """Say which required places of a row's columns are null, or which times are :data:`STRANGE_TIME`; null for none.

    Spark itself treats every field as nullable when it parses.
    """
    fields = [(F.col(quoted(field.name)), field) for field in columns.fields]
    gaps = [gap for value, field in fields for gap in places(value, field, _is_gap)]
    times = [time for value, field in fields for time in places(value, field, beyond)]
    return F.coalesce(_named(MISSING, gaps), _named(f"{STRANGE_TIME}: ", times))


def beyond(value: Column, of: StructField) -> Column | None:
    """Whether a time or a date lies beyond the years that others read; None for values of other types."""
    limits = _LIMITS.get(type(of.dataType))
    return None if limits is None else ~value.between(*(F.lit(limit).cast(of.dataType) for limit in limits))


def _is_gap(value: Column, of: StructField) -> Column | None:
    return None if of.nullable else value.isNull()


def joined(operator: Callable[[Column, Column], Column], tests: Sequence[Column]) -> Column:
    """Join conditions, at least one, by ``and_`` or ``or_``.

    Spark goes down an expression by calls of functions, and a chain of a thousand is too deep for its stack. So they
    are joined in pairs, these in pairs again, and so on.
    """
    while len(tests) > 1:
        tests = [reduce(operator, tests[start : start + 2]) for start in range(0, len(tests), 2)]
    return tests[0]


def _named(reason: str, found: Sequence[tuple[str, Column]]) -> Column:
    if not found:
        return F.lit(None).cast("string")
    named = F.concat_ws(", ", *(F.when(test, F.lit(path)) for path, test in found))
    # Nearly every row has none: seeing that must cost next to nothing.
    return F.when(joined(or_, [test for _, test in found]), F.concat(F.lit(reason), named))


def places(value: Column, field: StructField, flaw: Flaw, path: str | None = None) -> Iterator[tuple[str, Column]]:
    """Where in a column, or inside of its value, there may be a flaw: each place by its path, and the test."""
    path, kind = path or field.name, field.dataType
    if (test := flaw(value, field)) is not None:
        yield path, test
    if isinstance(kind, StructType):
        for inner in kind.fields:
            for below, test in places(value.getField(inner.name), inner, flaw, f"{path}.{inner.name}"):
                yield below, value.isNotNull() & test
        return
    if isinstance(kind, ArrayType):
        element = StructField("element", kind.elementType, kind.containsNull)
    elif isinstance(kind, MapType):
        value, element = F.map_values(value), StructField("element", kind.valueType, kind.valueContainsNull)
    else:
        return
    if any(places(value, element, flaw)):
        yield f"{path}[]", F.exists(value, lambda one: joined(or_, [test for _, test in places(one, element, flaw)]))
