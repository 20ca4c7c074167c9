"""Makes records of JSON text on Spark, in one ``from_json`` a text: what does not fit the schema gets a reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from sqs_lease.spark.columns import REASON
from sqs_lease.spark.sources.json_checker import SHOWN_CHARACTERS, SHOWN_FIELDS, UNKNOWN_FIELD
from sqs_lease.spark.sources.schemas import quoted

_CORRUPT: Final = "_sqs_lease_corrupt"
_RECORD: Final = "_sqs_lease_record"
_TEXT: Final = "_sqs_lease_text"

JSON_OPTIONS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    # Otherwise "NaN" and "Infinity" in quotes are numbers.
    "allowNonNumericNumbers": "false",
    # Otherwise the date "2013-01-02 or so" is one.
    "dateFormat": "yyyy-MM-dd",
    # Otherwise the date "20130102" is the 20 130 102nd day since 1970.
    "enableDateTimeParsingFallback": "false",
    # A timestamp without a zone means the same whichever session parses it.
    "timeZone": "UTC",
}


def json_rows(
    frame: DataFrame, text: str, columns: StructType, carried: Sequence[str], *, closed: bool = False
) -> DataFrame:
    """Parse a column of JSON objects that were checked for syntax before.

    Args:
        frame: Rows with the text and all that is carried. A row whose ``REASON``, if it is carried, is not null keeps
            it, and its text may be null.
        text: The name of the column of texts.
        columns: The columns of a record.
        carried: Columns that are taken over as they are.
        closed: Whether an object with a field that is no column is rejected. It costs a second look at the text.

    Returns:
        ``columns``, ``carried``, and ``REASON``.
    """
    schema = StructType([*columns.fields, StructField(_CORRUPT, StringType())])
    record = F.col(_RECORD)
    reason = _reason(record, columns, closed=closed)
    if REASON in carried:
        reason = F.when(F.col(REASON).isNotNull(), F.col(REASON)).otherwise(reason)
    return frame.select(
        *carried,
        F.col(text).alias(_TEXT),
        F.from_json(text, schema, JSON_OPTIONS).alias(_RECORD),
    ).select(
        *(record.getField(name).alias(name) for name in columns.names),
        *(name for name in carried if name != REASON),
        reason.alias(REASON),
    )


def missing(columns: StructType) -> Column:
    """Say which required places of a row's columns are null; null where none is.

    Spark itself treats every field as nullable when it parses.
    """
    gaps = [gap for field in columns.fields for gap in _gaps(F.col(quoted(field.name)), field, field.name)]
    return _missing(gaps)


def _reason(record: Column, columns: StructType, *, closed: bool) -> Column:
    gaps = [gap for field in columns.fields for gap in _gaps(record.getField(field.name), field, field.name)]
    reason = (
        # Spark gives no record for a null text, and then no corrupt one either.
        F.when(record.isNull(), F.lit("no record could be parsed"))
        .when(record.getField(_CORRUPT).isNotNull(), _type_reason(record, columns))
        .otherwise(_missing(gaps))
    )
    if not closed:
        return reason
    unknown = F.array_except(F.json_object_keys(_TEXT), F.array(*map(F.lit, columns.names)))
    named = F.transform(F.slice(unknown, 1, SHOWN_FIELDS), lambda name: F.substring(name, 1, SHOWN_CHARACTERS))
    return F.coalesce(reason, F.when(F.size(unknown) > 0, F.concat(F.lit(UNKNOWN_FIELD), F.array_join(named, ", "))))


def _missing(gaps: Sequence[tuple[str, Column]]) -> Column:
    if not gaps:
        return F.lit(None).cast("string")
    named = F.concat_ws(", ", *(F.when(test, F.lit(path)) for path, test in gaps))
    # Nearly every row has none: seeing that must cost next to nothing.
    return F.when(reduce(or_, (test for _, test in gaps)), F.concat(F.lit("required, but missing or null: "), named))


def _type_reason(record: Column, columns: StructType) -> Column:
    """Name the fields that the text has and the record has not: their values did not fit the type."""
    absent = F.array_compact(F.array(*(F.when(record.getField(name).isNull(), F.lit(name)) for name in columns.names)))
    given = F.map_filter(F.from_json(_TEXT, "MAP<STRING, STRING>"), lambda _, value: value.isNotNull())
    unfit = F.array_intersect(absent, F.map_keys(given))
    return (
        # The limits of Spark's JSON parser, jackson-core's StreamReadConstraints.
        F.when(unfit.isNull(), F.lit("has a name of more than 50 000 characters, or a number of more than 1000"))
        .when(F.size(unfit) > 0, F.concat(F.lit("not of the type in the schema: "), F.array_join(unfit, ", ")))
        .otherwise(F.lit("a nested value is not of the type in the schema"))
    )


def _gaps(value: Column, field: StructField, path: str) -> Iterator[tuple[str, Column]]:
    """Where required values may be missing: each place by its path, and the test for it."""
    if not field.nullable:
        yield path, value.isNull()
    if isinstance(field.dataType, StructType):
        for inner in field.dataType.fields:
            for below, test in _gaps(value.getField(inner.name), inner, f"{path}.{inner.name}"):
                yield below, value.isNotNull() & test
    elif isinstance(field.dataType, ArrayType):
        yield from _element_gaps(value, field.dataType.elementType, field.dataType.containsNull, path)
    elif isinstance(field.dataType, MapType):
        yield from _element_gaps(F.map_values(value), field.dataType.valueType, field.dataType.valueContainsNull, path)


def _element_gaps(elements: Column, kind: DataType, nullable: bool, path: str) -> Iterator[tuple[str, Column]]:
    field = StructField("element", kind, nullable)
    if any(_gaps(elements, field, path)):

        def lacks(element: Column) -> Column:
            return reduce(or_, (test for _, test in _gaps(element, field, path)))

        yield f"{path}[]", F.exists(elements, lacks)
