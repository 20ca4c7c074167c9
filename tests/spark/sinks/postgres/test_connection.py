"""What PostgreSQL is sent, and what is said of its errors, without a server."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from types import SimpleNamespace
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
from sqs_lease.spark.errors import RowsRefusedError, SchemaError, TableError
from sqs_lease.spark.sinks.postgres.catalog import TableName, require_columns
from sqs_lease.spark.sinks.postgres.connection import explained, parameters_of, place_of, reason_of
from sqs_lease.spark.sinks.postgres.copy import copy_in
from sqs_lease.spark.sinks.postgres.sink import PostgresSink
from sqs_lease.spark.sinks.postgres.types import takes

SECRET = "correct-horse"


def test_without_psycopg_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, PostgresSink.__module__)
    with pytest.raises(ImportError, match=r"pip install 'sqs-lease\[spark,postgres\]'"):
        import_module(PostgresSink.__module__)


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


@pytest.mark.parametrize(
    "raised_by_server",
    [
        psycopg.errors.InvalidTextRepresentation(f'invalid input syntax for type integer: "{SECRET}"'),
        # Of a trigger in PL/Python, PL/Perl or PL/Tcl.
        psycopg.errors.ExternalRoutineException(f"bad name {SECRET}"),
    ],
    ids=["of the server", "of a trigger"],
)
def test_an_error_does_not_quote_the_values_of_rows(raised_by_server: psycopg.Error) -> None:
    name = rf"{type(raised_by_server).__name__} \({raised_by_server.sqlstate}\)"
    assert SECRET not in reason_of(raised_by_server)
    with pytest.raises(RowsRefusedError, match=f"it failed: {name}") as raised:  # noqa: SIM117
        with explained("it failed"):
            raise raised_by_server
    assert SECRET not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("kind", [psycopg.errors.SequenceGeneratorLimitExceeded, psycopg.errors.TooManyColumns])
def test_what_is_true_of_every_row_refuses_none(kind: type[psycopg.Error]) -> None:
    with pytest.raises(TableError) as raised, explained("it failed"):
        raise kind
    assert not isinstance(raised.value, RowsRefusedError)


def test_the_next_rows_are_made_while_the_server_takes_these() -> None:
    made = [threading.Event() for _ in range(20)]

    def batches() -> Iterator[pa.RecordBatch]:
        for number, event in enumerate(made):
            event.set()
            yield pa.RecordBatch.from_pydict({"0": pa.array([number])})

    class SlowServer:
        """Takes rows only when those after them were made."""

        written = 0

        def write(self, data: bytes | memoryview) -> None:
            if isinstance(data, memoryview):
                assert made[min(self.written + 8, len(made) - 1)].wait(60), "the rows after these were not made"
                self.written += 1

    server = SlowServer()
    cursor: Any = SimpleNamespace(copy=lambda _: nullcontext(server))

    assert copy_in(cursor, "COPY copied FROM STDIN (FORMAT binary)", batches(), ["bigint"]) == len(made)
    assert server.written == len(made)


@pytest.mark.parametrize(("closed", "error"), [(True, psycopg.OperationalError), (False, ValueError)])
def test_a_pooler_that_lost_its_server_while_rows_are_copied_is_an_error_of_the_connection(
    closed: bool, error: type[Exception]
) -> None:
    @contextmanager
    def copy(_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(write=len)
        # As psycopg has it where PgBouncer answers twice.
        raise ValueError("too many values to unpack (expected 1)")

    cursor: Any = SimpleNamespace(copy=copy, connection=SimpleNamespace(closed=closed))

    with pytest.raises(error):
        copy_in(cursor, "COPY copied FROM STDIN (FORMAT binary)", [], ["bigint"])
