"""The notations of a value that each type takes, and the reason for an object that does not fit."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
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

from sqs_lease.spark.sources.arrow_json import ArrowJson

STRANGE: Final = "a time beyond the years 1 to 9999; numbers are seconds since 1970, or timestamp_units: "
NOON: Final = datetime(2013, 1, 2, 3, 4, 5, tzinfo=UTC)


def read(columns: StructType, text: str, **options: Any) -> Any:
    """The record of a text, or its reason."""
    rows, reasons = ArrowJson.of(columns, **options)(pa.array([text], pa.string()))
    return rows.to_pylist()[0] if rows.num_rows else reasons[0].as_py()


def value_of(kind: DataType, text: str) -> Any:
    """Read a value as a column of a type."""
    found = read(StructType([StructField("x", kind)]), f'{{"x": {text}}}')
    return found["x"] if isinstance(found, dict) else found


TAKEN: Final[dict[DataType, dict[str, Any]]] = {
    BooleanType(): {"true": True, "false": False},
    ShortType(): {"32767": 32767, "-32768": -32768},
    IntegerType(): {"-0": 0, "2147483647": 2**31 - 1},
    LongType(): {"9223372036854775807": 2**63 - 1},
    FloatType(): {"1": 1.0, "0.1": 0.10000000149011612, "1e39": float("inf")},
    DoubleType(): {"1": 1.0, "1e-400": 0.0, "0.30000000000000004": 0.30000000000000004, "0." + "3" * 1200: 1 / 3},
    DecimalType(6, 2): {
        "1": Decimal("1.00"),
        "1.005": Decimal("1.01"),
        "-1.005": Decimal("-1.01"),
        "1e-400": Decimal("0.00"),
        "9999.994": Decimal("9999.99"),
        '"1.5"': Decimal("1.50"),
        '"+1"': Decimal("1.00"),
        '".5"': Decimal("0.50"),
        '"1e2"': Decimal("100.00"),
    },
    StringType(): {
        '"\\u00fc\\u0000\\/"': "ü\0/",
        '""': "",
        "1.10": "1.10",
        "1E-2": "1E-2",
        "true": "true",
        '{"x": [1 , 2.50, "a b"]}': '{"x":[1,2.50,"a b"]}',
        "123456789012345678901234567890": "123456789012345678901234567890",
    },
    BinaryType(): {'""': b"", '"AAE="': b"\x00\x01", json.dumps(base64.b64encode(b"x" * 99).decode()): b"x" * 99},
    DateType(): {'"2013-01-02"': date(2013, 1, 2), '"0001-01-01"': date.min, '"9999-12-31"': date.max},
    TimestampType(): {
        **{
            json.dumps(text): NOON
            for text in (
                "2013-01-02T03:04:05Z",
                "2013-01-02 03:04:05",
                "2013-1-2 3:4:5",
                " 2013-01-02T03:04:05 UTC\n",
                "2013-01-02T03:04:05.000000999GMT",
                "2013-01-02T05:04:05+02:00",
                "2013-01-02T05:04:05+0200",
                "2013-01-02T05:04:05 +02",
                "2013-01-01T09:04:05-18:00",
            )
        },
        '"2013-01-02"': NOON.replace(hour=0, minute=0, second=0),
        '"2013-01-02T03"': NOON.replace(minute=0, second=0),
        '"2013-01-02T03:04+00:00"': NOON.replace(second=0),
        '"2013-01-02T03:04:05.1234567"': NOON.replace(microsecond=123_456),
        str(int(NOON.timestamp())): NOON,
        "-62135596800": datetime.min.replace(tzinfo=UTC),
        '"9999-12-31T23:59:59.999999Z"': datetime.max.replace(tzinfo=UTC),
    },
    TimestampNTZType(): {
        '"2013-01-02T03:04:05"': NOON.replace(tzinfo=None),
        '"2013-1-2 3:4:5"': NOON.replace(tzinfo=None),
        '"2013-01-02"': datetime(2013, 1, 2),  # noqa: DTZ001 - the type has no zone
    },
    ArrayType(IntegerType()): {"[]": [], "[1, null]": [1, None]},
    MapType(StringType(), IntegerType()): {"{}": [], '{"a": 1, "": null}': [("a", 1), ("", None)]},
}

UNFIT: Final[dict[DataType, list[str]]] = {
    BooleanType(): ["1", '"true"', "[]"],
    ShortType(): ["32768", "1.0", "1e2", '"1"', '""', "true"],
    IntegerType(): ["2147483648", "-2147483649"],
    LongType(): ["9223372036854775808", "1" * 300],
    FloatType(): ['"1.5"', '"NaN"', '""', "{}"],
    DoubleType(): ['"1.5"', '"Infinity"', "true"],
    DecimalType(6, 2): ["9999.995", "10000", "1e300", '"1,5"', '"1,000.5"', '" 1"', '""', '"NaN"', '"1_0"', "true"],
    BinaryType(): ["1", '"AAE"', '"AA E="', '"_-8="', '"é"'],
    DateType(): [
        *('"2013-1-2"', '"2013-02-30"', '"20130102"', '"2013-01-02 or so"', '"+2013-01-02"', '"02013-01-02"', '""'),
        *('"2013-01-02T00:00:00"', "3", '"٢٠١٣-01-02"'),
    ],
    TimestampType(): [
        *('"2013"', '"2013-01"', '"2013-02-30"', '"2013-01-02T"', '"2013-01-02T24:00:00Z"', '"2013-01-02T23:59:60Z"'),
        *('"2013-01-02T03:60:00Z"', '"2013-01-02Z"', '"2013-01-02T03:04:05+18:01"', '"2013-01-02T03:04:05+02:60"'),
        *('"2013-01-02T03:04:05 Europe/Berlin"', '"2013-01-02T03:04:05.Z"', '"soon"', '"now"', '""', "1.5", "true"),
        *('"12:30"', '"T12:30"', "9" * 30),
    ],
    TimestampNTZType(): ['"2013-01-02T03:04:05Z"', '"2013-01-02T03:04:05+02:00"', "1700000000", '"12:30"'],
    ArrayType(IntegerType()): ["{}", "1", '"[]"'],
    MapType(StringType(), IntegerType()): ["[]", '"{}"'],
}

STRANGE_TIMES: Final[dict[DataType, list[str]]] = {
    DateType(): ['"0000-01-01"', '"-0044-03-15"', '"+10000-01-01"', '"10000-01-01"'],
    TimestampType(): [
        *('"+12345-01-01T00:00:00Z"', '"0000-01-01"', '"9999-12-31T23:59:59-12:00"', '"0001-01-01T00:00:00+14:00"'),
        *("1700000000000", "-62135596801"),
    ],
    TimestampNTZType(): ['"+12345-01-01T00:00:00"'],
}


def cases(found: dict[DataType, Any]) -> list[Any]:
    return [pytest.param(kind, text, id=f"{kind.simpleString()} {text[:40]}") for kind in found for text in found[kind]]


@pytest.mark.parametrize(("kind", "text"), cases(TAKEN))
def test_a_notation_is_taken(kind: DataType, text: str) -> None:
    assert value_of(kind, text) == TAKEN[kind][text]


@pytest.mark.parametrize(("kind", "text"), cases(UNFIT))
def test_a_notation_is_not_of_the_type(kind: DataType, text: str) -> None:
    assert value_of(kind, text) == f"not of the type in the schema: x{'[]' if text == '[1, true]' else ''}"


@pytest.mark.parametrize(("kind", "text"), cases(STRANGE_TIMES))
def test_a_time_is_beyond_the_years_that_others_read(kind: DataType, text: str) -> None:
    assert value_of(kind, text) == f"{STRANGE}x"


COLUMNS: Final = StructType(
    [
        StructField("id", LongType(), nullable=False),
        StructField("at", TimestampType(), nullable=False),
        StructField(
            "trip",
            StructType(
                [
                    StructField("miles", IntegerType(), nullable=False),
                    StructField("stops", ArrayType(StructType([StructField("day", DateType(), nullable=False)]))),
                ]
            ),
        ),
        StructField("tags", ArrayType(StringType(), containsNull=False)),
        StructField("by", MapType(StringType(), ArrayType(IntegerType()), valueContainsNull=False)),
    ]
)
GOOD: Final = {"id": 1, "at": "2013-01-02"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "required, but missing or null: id, at"),
        ({"id": "x", "trip": {}}, "not of the type in the schema: id"),
        ({**GOOD, "trip": {}}, "required, but missing or null: trip.miles"),
        ({**GOOD, "trip": {"miles": 1, "stops": [{"day": None}, {}]}}, "required, but missing or null: trip.stops[]"),
        ({**GOOD, "trip": {"miles": 1, "stops": [{"day": 1}, 2]}}, "not of the type in the schema: trip.stops[]"),
        ({**GOOD, "tags": ["a", None]}, "required, but missing or null: tags[]"),
        ({**GOOD, "by": {"a": None}}, "required, but missing or null: by[]"),
        ({**GOOD, "by": {"a": [1, "x"]}, "trip": 1}, "not of the type in the schema: trip, by[]"),
        ({"id": 1, "at": 10**12}, f"{STRANGE}at"),
        ({"at": 10**12}, "required, but missing or null: id"),
    ],
)
def test_all_places_of_the_first_kind_of_flaw_are_named(given: dict[str, Any], reason: str) -> None:
    assert read(COLUMNS, json.dumps(given)) == reason


@pytest.mark.parametrize(
    ("given", "record"),
    [
        ({"id": 1, "at": "2013-01-02", "tags": "x"}, {"tags": None}),
        ({"id": 1, "at": "2013-01-02", "trip": {"miles": 2, "stops": {}}}, {"trip": {"miles": 2, "stops": None}}),
        ({"id": 1, "at": "2013-01-02", "by": {"a": [1, "x"]}}, {"by": [("a", [1, None])]}),
    ],
)
def test_a_value_that_does_not_fit_is_null_and_no_more_where_the_whole_is_saved(
    given: dict[str, Any], record: dict[str, Any]
) -> None:
    text = json.dumps(given)

    assert read(COLUMNS, text, rescued="rest").items() >= {**record, "id": 1, "rest": text}.items()


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"id": "x", "at": 10**12}, "id, at"),
        ({**GOOD, "trip": {"miles": "far"}}, "trip.miles"),
        ({**GOOD, "tags": ["a", None]}, "tags[]"),
    ],
)
def test_a_value_that_must_not_be_null_rejects_also_where_the_whole_is_saved(given: dict[str, Any], where: str) -> None:
    assert read(COLUMNS, json.dumps(given), rescued="rest") == f"required, but missing or null: {where}"
