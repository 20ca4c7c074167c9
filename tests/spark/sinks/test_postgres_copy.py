"""What PostgreSQL is sent, and what is said of its errors, without a server."""

from __future__ import annotations

import sys
import traceback
from datetime import UTC, date, datetime
from importlib import import_module
from typing import Any

import psycopg
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from sqs_lease.spark.columns import table_columns
from sqs_lease.spark.errors import SchemaError, TableError
from sqs_lease.spark.sinks.postgres.catalog import TableName, require_columns
from sqs_lease.spark.sinks.postgres.connection import explained, parameters_of, place_of, reason_of
from sqs_lease.spark.sinks.postgres.copy import to_csv
from sqs_lease.spark.sinks.postgres.sink import PostgresSink
from sqs_lease.spark.sinks.postgres.types import takes

SECRET = "correct-horse"


def line(*values: pa.Array) -> str:
    return to_csv(pa.RecordBatch.from_arrays(list(values), names=[f"c{n}" for n in range(len(values))])).decode()


def test_without_psycopg_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, PostgresSink.__module__)
    with pytest.raises(ImportError, match=r"pip install 'sqs-lease\[spark,postgres\]'"):
        import_module(PostgresSink.__module__)


def test_null_is_told_from_the_empty_text() -> None:
    assert line(pa.array(["", None, 'a"b']), pa.array([1, None, 2])) == '"",1\n,\n"a""b",2\n'


def test_nul_and_what_is_no_utf8_are_replaced() -> None:
    damaged = pa.array([b"a\0b", b"\xe2\x28", "ü\0".encode()]).view(pa.string())

    assert line(damaged) == '"a\ufffdb"\n"\ufffd("\n"ü\ufffd"\n'


def test_times_are_written_in_utc_whatever_the_session_says() -> None:
    noon = datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC)

    assert line(pa.array([noon], pa.timestamp("us", "Asia/Tokyo"))) == "2026-03-01 12:00:00.000001Z\n"
    assert line(pa.array([noon.replace(tzinfo=None)], pa.timestamp("us"))) == "2026-03-01 12:00:00.000001\n"


def test_times_beyond_the_years_of_four_digits_are_infinite() -> None:
    year = 366 * 24 * 3600 * 1_000_000
    times = pa.array([9000 * year, 0, None, -9000 * year], pa.int64())
    dates = pa.array([3_000_000, 0, None, -800_000], pa.int32()).cast(pa.date32())

    assert line(times.cast(pa.timestamp("us", "UTC"))) == ('"infinity"\n"1970-01-01 00:00:00.000000Z"\n\n"-infinity"\n')
    assert line(dates) == '"infinity"\n"1970-01-01"\n\n"-infinity"\n'
    assert line(pa.array([date(1, 1, 1), date(9999, 12, 31)])) == "0001-01-01\n9999-12-31\n"


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


@pytest.mark.parametrize("name", ["", ".orders", "a.b.c", "o" * 64, "sales."])
def test_what_is_no_name_of_a_table_is_refused(name: str) -> None:
    with pytest.raises(TableError, match="is not the name of a PostgreSQL table"):
        TableName.of(name)


def test_names_that_postgresql_would_cut_are_refused() -> None:
    columns = table_columns(StructType([StructField("ü" * 32, StringType())]))
    with pytest.raises(SchemaError, match="63 bytes"):
        require_columns(columns, ())


def test_keys_are_a_sequence_of_different_columns() -> None:
    for keys in ("id", ("id", "id")):
        with pytest.raises(SchemaError, match="upsert_by is a sequence"):
            PostgresSink("postgresql://localhost/x", "orders", keys)


@pytest.mark.parametrize("url", [f"postgresql+psycopg://me:{SECRET}@h/d", f"{SECRET} x", f"host=h passwrd={SECRET}"])
def test_an_address_that_cannot_be_read_is_not_repeated(url: str) -> None:
    with pytest.raises(TableError) as raised:
        PostgresSink(url, "orders")
    assert SECRET not in str(raised.value)


def test_a_password_is_in_no_text_of_the_sink() -> None:
    sink = PostgresSink(f"postgresql://me:{SECRET}@127.0.0.1:1/shop", "orders")
    columns = table_columns(StructType([StructField("id", LongType())]))
    session: Any = None
    with pytest.raises(
        TableError, match=r"table public.orders in shop on 127.0.0.1, port 1 cannot be opened"
    ) as raised:
        sink.open(session, columns, widen=False)
    shown = "".join(traceback.format_exception(raised.value))
    assert SECRET not in f"{shown} {sink!r} {place_of(parameters_of(sink.url))}"


def test_an_error_does_not_quote_the_values_of_rows() -> None:
    error = psycopg.errors.InvalidTextRepresentation(f'invalid input syntax for type integer: "{SECRET}"')
    assert SECRET not in reason_of(error)
    with pytest.raises(TableError, match=r"it failed: InvalidTextRepresentation \(22P02\)") as raised:  # noqa: SIM117
        with explained("it failed"):
            raise error
    assert SECRET not in "".join(traceback.format_exception(raised.value))
