"""Drivers load batches into one table in PostgreSQL at the same time, beside its upkeep: each message is there once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import psycopg
import pytest

from sqs_lease.spark.sinks.postgres.sink import PostgresSink, PostgresTable
from sqs_lease.testing.sink_subject import COLUMNS
from tests.spark.sinks.conftest import Database
from tests.spark.sinks.postgres_staging import Stage, in_a_table
from tests.spark.together import (
    BatchOf,
    expected,
    load_during_another_try,
    load_together,
    of_queues,
    of_tries,
    overlapping,
)

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("batch_of", [of_tries, overlapping, of_queues])
@pytest.mark.parametrize("upsert_by", [(), ("id",)], ids=["append", "upsert"])
def test_each_message_is_there_once(
    database: Database, stage: Stage, batch_of: BatchOf, upsert_by: tuple[str, ...]
) -> None:
    session: Any = None
    numbers = count()

    def opened() -> PostgresTable:
        return PostgresSink(database.url, "orders", upsert_by).open(session, COLUMNS, widen=False)

    def alone(statement: str) -> None:
        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute(statement.encode())

    upkeep: list[Callable[[], object]] = [
        partial(alone, "VACUUM (FULL, ANALYZE) orders"),
        lambda: alone(f"ALTER TABLE orders ADD COLUMN c{next(numbers)} text"),
        partial(alone, "REINDEX TABLE orders"),
    ]
    everything = load_together(opened, stage, batch_of, upkeep, (psycopg.Error,))

    found = database.read("SELECT id, _message_id FROM orders")
    assert sorted((row["_message_id"], row["id"]) for row in found) == expected(everything, upsert_by)
    assert database.staging_tables() == []


def test_a_try_that_another_overtakes_while_it_stages_is_not_a_failure(database: Database) -> None:
    session: Any = None

    def opened() -> PostgresTable:
        return PostgresSink(database.url, "orders").open(session, COLUMNS, widen=False)

    load_during_another_try(opened, in_a_table)

    assert database.staging_tables() == []
