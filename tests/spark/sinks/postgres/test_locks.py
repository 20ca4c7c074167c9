"""A lock that others hold in PostgreSQL is waited for as long as the caller says, and told of."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from threading import Event, Thread
from typing import Any

import psycopg
import pytest

from sqs_lease.spark import PostgresSink, TableError
from sqs_lease.spark.sinks.postgres import connection
from sqs_lease.spark.sinks.postgres.sink import PostgresTable
from sqs_lease.spark.sinks.sink import Admission
from sqs_lease.spark.waits import Waits, waiting_at_most
from sqs_lease.testing.sink_contract import COLUMNS
from sqs_lease.testing.sink_subject import asked, entries
from tests.spark.sinks.conftest import Database

pytestmark = pytest.mark.processes


@pytest.fixture
def table(database: Database) -> PostgresTable:
    # A table is looked at without Spark.
    session: Any = None
    return PostgresSink(database.url, "orders").open(session, COLUMNS, widen=False)


@pytest.fixture
def holder(database: Database, table: PostgresTable) -> Iterator[psycopg.Connection[Any]]:
    """Somebody who holds the table's entries, as a maintenance statement would."""
    with psycopg.connect(database.url, application_name="nightly vacuum") as connection:
        connection.execute(f"LOCK TABLE {table.name.entries.as_string()} IN ACCESS EXCLUSIVE MODE".encode())
        yield connection


def test_a_lock_that_is_held_too_long_ends_the_wait_with_who_holds_it(
    table: PostgresTable, holder: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LOOK_SECONDS", 0.05)
    says = r"table public.orders in .* was waited for longer than 3 s, .*process \d+ of nightly vacuum \(user .*\): let"
    with waiting_at_most(Waits(3)) as waits, pytest.raises(TableError, match=says):
        table.look_up(asked("m1"))
    assert waits.seconds > 0


def test_whoever_waits_says_for_whom_and_goes_on_when_the_lock_is_free(
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
    # Which also forgets what the logger knows by heart of levels: another test may have asked it.
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
