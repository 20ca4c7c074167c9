"""Errors of PostgreSQL show no password and no value of a row, and a lock is waited for as long as the caller says."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from threading import Event, Thread
from typing import Any

import psycopg
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from sqs_lease.spark.columns import table_columns
from sqs_lease.spark.errors import RowsRefusedError, TableError
from sqs_lease.spark.sinks.postgres import connection
from sqs_lease.spark.sinks.postgres.connection import explained, parameters_of, place_of, reason_of
from sqs_lease.spark.sinks.postgres.sink import PostgresSink, PostgresTable
from sqs_lease.spark.sinks.sink import Admission
from sqs_lease.spark.waits import Waits, waiting_at_most
from sqs_lease.testing.sink_contract import COLUMNS
from sqs_lease.testing.sink_subject import asked, entries
from tests.spark.sinks.conftest import Database

SECRET = "correct-horse"


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
def test_a_rule_that_every_row_fulfils_refuses_no_row(kind: type[psycopg.Error]) -> None:
    with pytest.raises(TableError) as raised, explained("it failed"):
        raise kind
    assert not isinstance(raised.value, RowsRefusedError)


@pytest.fixture
def table(database: Database) -> PostgresTable:
    # A table is looked at without Spark.
    session: Any = None
    return PostgresSink(database.url, "orders").open(session, COLUMNS, widen=False)


@pytest.fixture
def holder(database: Database, table: PostgresTable) -> Iterator[psycopg.Connection[Any]]:
    """A client that holds the table's entries, as a maintenance statement would."""
    with psycopg.connect(database.url, application_name="nightly vacuum") as connection:
        connection.execute(f"LOCK TABLE {table.name.entries.as_string()} IN ACCESS EXCLUSIVE MODE".encode())
        yield connection


@pytest.mark.processes
def test_a_lock_that_is_held_too_long_ends_the_wait_and_names_its_holder(
    table: PostgresTable, holder: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LOOK_SECONDS", 0.05)
    says = r"table public.orders in .* was waited for longer than 3 s, .*process \d+ of nightly vacuum \(user .*\): let"
    with waiting_at_most(Waits(3)) as waits, pytest.raises(TableError, match=says):
        table.look_up(asked("m1"))
    assert waits.seconds > 0


@pytest.mark.processes
def test_a_waiting_driver_names_the_holder_of_the_lock_and_goes_on_when_it_is_free(
    table: PostgresTable,
    holder: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(connection, "LOOK_SECONDS", 0.05)
    told = Event()

    class Telling(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "nightly vacuum" in record.getMessage():
                told.set()

    logger, handler = logging.getLogger("sqs_lease.spark.waits"), Telling()
    logger.addHandler(handler)
    # It also clears the logger's cache of levels: another test may have asked it.
    caplog.set_level(logging.INFO, logger.name)

    def release() -> None:
        told.wait(300)
        holder.rollback()

    thread = Thread(target=release)
    thread.start()
    try:
        with waiting_at_most(Waits(300)) as waits:
            table.commit(table.look_up(asked("m1")), Admission("b", entries(["m1"]), None))
    finally:
        told.set()
        thread.join()
        logger.removeHandler(handler)

    assert waits.seconds > 0
    assert table.look_up(asked("m1")).known["batch_id"].to_pylist() == ["b"]
