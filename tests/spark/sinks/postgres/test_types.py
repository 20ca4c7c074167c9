"""The types that each column takes; nested values become the JSON that Spark would make of them, or are left to it."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql.types import (
    ArrayType,
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
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sqs_lease.spark.schemas import arrow_schema
from sqs_lease.spark.sinks.postgres.types import can_write, is_unwritable, json_texts, takes

SEAT = StructType(
    [StructField('ro"w', LongType()), StructField("price", DoubleType()), StructField("free", BooleanType())]
)
NESTED = StructType(
    [
        StructField("text", StringType()),
        StructField("day", DateType()),
        StructField("exact", DecimalType(10, 2)),
        StructField("seats", ArrayType(SEAT)),
    ]
)


def texts(values: list[Any], kind: DataType) -> pa.Array:
    arrow = arrow_schema(StructType([StructField("c", kind)])).field("c").type
    # A part of an array, as rows that were filtered are.
    return json_texts(pa.array([None, *values, None], arrow).slice(1, len(values)), kind)


def test_objects_and_arrays_are_written_as_json() -> None:
    values: list[Any] = [
        None,
        {
            "text": 'a "b" \\ c\n\r\té 🎉',
            "day": date(2026, 3, 1),
            "exact": Decimal("1.50"),
            "seats": [{'ro"w': 2**63 - 1, "price": 0.1, "free": True}, None],
        },
        {"text": "", "day": None, "exact": None, "seats": []},
        {"text": None, "day": None, "exact": None, "seats": None},
        {"text": "x", "day": None, "exact": None, "seats": [{'ro"w': None, "price": -1e300, "free": False}]},
    ]

    written = texts(values, NESTED)

    assert is_unwritable(written).to_pylist() == [False] * 5
    assert written[0].as_py() is None
    first, second, third, fourth = (json.loads(text, parse_float=Decimal) for text in written.to_pylist()[1:])
    assert first == {
        **values[1],
        "day": "2026-03-01",
        "seats": [{**values[1]["seats"][0], "price": Decimal("0.1")}, None],
    }
    assert [second, third] == values[2:4]
    assert float(fourth["seats"][0]["price"]) == -1e300


def test_an_array_of_texts_keeps_its_nulls() -> None:
    written = texts([["a", None, ""], [], None, ["b"]], ArrayType(StringType())).to_pylist()
    assert written == ['["a",null,""]', "[]", None, '["b"]']


@pytest.mark.parametrize("value", ["\0", "a\x1fb", "\b"])
def test_control_characters_are_left_to_spark(value: str) -> None:
    assert is_unwritable(texts([["a"], [value]], ArrayType(StringType()))).to_pylist() == [False, True]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_has_not_are_left_to_spark(value: float) -> None:
    assert is_unwritable(texts([[1.5], [value], [None]], ArrayType(DoubleType()))).to_pylist() == [False, True, False]


def test_without_rows_no_text_is_written() -> None:
    assert texts([], NESTED).to_pylist() == []


def test_types_that_spark_writes_otherwise_are_left_to_it() -> None:
    assert can_write(NESTED)
    for kind in (TimestampType(), MapType(StringType(), StringType()), ArrayType(TimestampType())):
        assert not can_write(StructType([StructField("c", kind)]))


@pytest.mark.parametrize(
    ("stored", "kind", "fits"),
    [
        ("integer", ByteType(), True),
        ("bigint", IntegerType(), True),
        ("integer", LongType(), False),
        ("double precision", FloatType(), True),
        ("character varying", StringType(), True),
        ("character varying(20)", StringType(), False),
        ("numeric", DecimalType(38, 10), True),
        ("numeric(38,10)", DecimalType(38, 10), True),
        ("numeric(38,11)", DecimalType(38, 10), False),
        ("numeric(38,9)", DecimalType(38, 10), False),
        ("json", ArrayType(StringType()), True),
        ("text[]", ArrayType(StringType()), False),
    ],
)
def test_a_column_takes_what_it_can_hold_all_values_of(stored: str, kind: DataType, fits: bool) -> None:
    assert takes(stored, kind) == fits
