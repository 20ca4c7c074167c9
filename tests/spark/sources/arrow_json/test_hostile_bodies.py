"""Bodies that a stranger might send: they stop no batch, and take no more than their length's share of time."""

from __future__ import annotations

import json

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from sqs_lease.spark.sources.arrow_json import ArrowJson

UNFIT = "not of the type in the schema: x"


def read(kind: DataType, *values: str) -> tuple[list[object], list[str | None]]:
    """Read values as a column of a type, and return the rows and the reasons."""
    texts = pa.array([f'{{"x": {value}}}' for value in values], pa.string())
    rows, reasons = ArrowJson.of(StructType([StructField("x", kind)]))(texts)
    return rows["x"].to_pylist(), reasons.to_pylist()


@pytest.mark.parametrize("zero", ["0e400", "-0e400", "0.0e999", "0E+99999999999999999999"])
@pytest.mark.parametrize("kind", [DoubleType(), FloatType()])
def test_a_zero_with_a_large_exponent_is_zero_and_does_not_stop_its_batch(kind: DataType, zero: str) -> None:
    """Arrow's reader looks at the exponent only, and refuses it as too large a number."""
    assert read(kind, "1", zero, "2") == ([1.0, 0.0, 2.0], [None] * 3)
    assert read(ArrayType(kind), f"[1, {zero}]") == ([[1.0, 0.0]], [None])
    assert read(MapType(StringType(), kind), f'{{"a": {zero}}}') == ([[("a", 0.0)]], [None])


@pytest.mark.parametrize(
    ("given", "found"),
    [("4.9e-324", 5e-324), ("1.7976931348623157e308", 1.7976931348623157e308), ("-0", -0.0), ("0." + "1" * 999, 1 / 9)],
)
def test_a_number_that_is_read_alone_is_the_nearest_double(given: str, found: float) -> None:
    values, _ = read(MapType(StringType(), DoubleType()), f'{{"a": {given}}}')

    assert repr(values) == repr([[("a", found)]])


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("7.038531e-26", 7.038530691851209e-26),
        ("1.00000005960464477539062500000000001", 1.0000001192092896),
        ("16777217", 16777216.0),
        ("3.4028236e38", float("inf")),
        ("-1e39", float("-inf")),
    ],
)
def test_a_float_is_the_nearest_one_to_the_number_and_not_to_its_double(given: str, found: float) -> None:
    """The first is how a FLOAT is written in the fewest digits, which is read as another one by way of a double."""
    assert read(FloatType(), given) == ([found], [None])
    assert read(MapType(StringType(), FloatType()), f'{{"a": {given}}}') == ([[("a", found)]], [None])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("begin", ["", "-", "0.", "1e"])
def test_a_text_of_many_digits_that_is_not_a_number_is_rejected_in_no_time(begin: str) -> None:
    """A pattern that can split the digits in two parts tries all splits: a million digits would take days."""
    text = json.dumps(f"{begin}{'1' * 1_000_000}x")

    assert read(DecimalType(6, 2), text, "1") == read(DecimalType(6, 2), '"x"', "1")
