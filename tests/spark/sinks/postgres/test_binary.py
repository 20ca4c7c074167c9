"""Values that COPY is sent in its binary format, read back from a server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqs_lease.spark.sinks.postgres.copy import copy_in

pytestmark = pytest.mark.processes

NOON = datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def connection(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        yield connection


def stored(
    connection: psycopg.Connection[Any], columns: dict[str, pa.Array], read: str | None = None
) -> list[tuple[Any, ...]]:
    """Copy columns, by the types that they have in a new table, in batches of two rows; what is read of that."""
    kinds = list(columns)
    names = ", ".join(f"c{number}" for number in range(len(kinds)))
    typed = ", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds))
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=[str(number) for number in range(len(kinds))])
    # A part of an array, as rows that were filtered are.
    batches = [batch.slice(start, 2) for start in range(0, batch.num_rows, 2)]
    with connection.transaction(force_rollback=True), connection.cursor() as cursor:
        cursor.execute(f"CREATE TEMPORARY TABLE copied (place serial, {typed})".encode())
        rows = copy_in(cursor, f"COPY copied ({names}) FROM STDIN (FORMAT binary)".encode(), iter(batches), kinds)
        assert (rows, cursor.rowcount) == (batch.num_rows, batch.num_rows)
        return cursor.execute(f"SELECT {read or names} FROM copied ORDER BY place".encode()).fetchall()


def test_null_is_told_from_the_empty_text(connection: psycopg.Connection[Any]) -> None:
    columns = {
        "text": pa.array(["", None, 'a"b']),
        "character varying": pa.array([None, "x", ""]),
        "bigint": pa.array([1, 2, 3]),
    }
    assert stored(connection, columns) == [("", None, 1), (None, "x", 2), ('a"b', "", 3)]


def test_no_rows_and_no_bytes_are_written_as_well(connection: psycopg.Connection[Any]) -> None:
    assert stored(connection, {"text": pa.array([], pa.string())}) == []
    assert stored(connection, {"text": pa.nulls(1, pa.string()), "integer": pa.nulls(1, pa.int32())}) == [(None, None)]
    assert stored(connection, {"text": pa.array([""]), "bytea": pa.array([b""])}) == [("", b"")]


@pytest.mark.parametrize("kind", ["text", "json", "jsonb"])
def test_nul_and_invalid_utf8_are_replaced(connection: psycopg.Connection[Any], kind: str) -> None:
    quote = b'"' if kind != "text" else b""
    damaged = pa.array([quote + text + quote for text in (b"a\0b", b"\xe2\x28", "ü\0".encode(), b"fine")])

    found = [row[0] for row in stored(connection, {kind: damaged.view(pa.string())})]

    assert found == ["a\ufffdb", "\ufffd(", "ü\ufffd", "fine"]


def test_times_are_those_of_utc_whatever_the_session_says(connection: psycopg.Connection[Any]) -> None:
    with connection.transaction(force_rollback=True):
        connection.execute("SET LOCAL TIME ZONE 'Asia/Tokyo'")
        tokyo = pa.array([NOON, None], pa.timestamp("us", "Asia/Tokyo"))
        plain = pa.array([NOON.replace(tzinfo=None), None], pa.timestamp("ns"))
        found = stored(connection, {"timestamp with time zone": tokyo, "timestamp without time zone": plain})

    assert found == [(NOON, NOON.replace(tzinfo=None)), (None, None)]


def test_times_beyond_the_years_of_four_digits_are_infinite(connection: psycopg.Connection[Any]) -> None:
    year = 366 * 24 * 3600 * 1_000_000
    times = pa.array([9000 * year, 0, None, -9000 * year], pa.int64()).cast(pa.timestamp("us", "UTC"))
    dates = pa.array([3_000_000, 0, None, -800_000], pa.int32()).cast(pa.date32())

    found = stored(
        connection, {"timestamp with time zone": times, "date": dates}, "(c0 AT TIME ZONE 'UTC')::text, c1::text"
    )

    assert found == [
        ("infinity", "infinity"),
        ("1970-01-01 00:00:00", "1970-01-01"),
        (None, None),
        ("-infinity", "-infinity"),
    ]


def test_the_first_and_the_last_time_are_kept(connection: psycopg.Connection[Any]) -> None:
    first, last = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    times = pa.array([first, last], pa.timestamp("us", "UTC"))

    found = stored(
        connection,
        {"timestamp with time zone": times, "date": times.cast(pa.date32())},
        "(c0 AT TIME ZONE 'UTC')::text, c1",
    )

    assert found == [("0001-01-01 00:00:00", date(1, 1, 1)), ("9999-12-31 23:59:59.999999", date(9999, 12, 31))]


def test_a_number_of_single_precision_keeps_its_digits(connection: psycopg.Connection[Any]) -> None:
    values = pa.array([0.1, float("nan"), float("-inf"), None], pa.float32())
    found = stored(connection, {"double precision": values, "real": values}, "c0::text, c1::text")
    assert found == [("0.1", "0.1"), ("NaN", "NaN"), ("-Infinity", "-Infinity"), (None, None)]


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


VALUES = {
    "boolean": (pa.bool_(), st.booleans()),
    "smallint": (pa.int8(), integers(8)),
    "integer": (pa.int16(), integers(16)),
    "bigint": (pa.int64(), integers(64)),
    "double precision": (pa.float64(), st.floats(allow_nan=False)),
    "text": (pa.string(), st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))),
    "bytea": (pa.binary(), st.binary()),
    "date": (pa.date32(), st.dates()),
    "timestamp without time zone": (pa.timestamp("us"), st.datetimes()),
    "timestamp with time zone": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
}


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(*(st.none() | values for _, values in VALUES.values())), max_size=5))
def test_values_of_any_kind_are_read_back(connection: psycopg.Connection[Any], rows: list[tuple[object, ...]]) -> None:
    columns = {
        kind: pa.array([row[number] for row in rows], arrow) for number, (kind, (arrow, _)) in enumerate(VALUES.items())
    }
    assert stored(connection, columns) == rows


@st.composite
def decimals(draw: st.DrawFn) -> tuple[int, int, list[Decimal | None]]:
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    limit = 10**precision - 1
    unscaled = st.integers(-limit, limit) | st.sampled_from([limit, -limit, 0, 1, -1])
    values = st.none() | unscaled.map(lambda value: Decimal((value < 0, tuple(map(int, str(abs(value)))), -scale)))
    return precision, scale, draw(st.lists(values, max_size=5))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=decimals())
def test_decimals_keep_all_their_digits(
    connection: psycopg.Connection[Any], drawn: tuple[int, int, list[Decimal | None]]
) -> None:
    precision, scale, values = drawn
    column = pa.array(values, pa.decimal128(precision, scale))
    found = stored(connection, {"numeric": column, f"numeric({precision},{scale})": column})
    assert found == [(value, value) for value in values]
