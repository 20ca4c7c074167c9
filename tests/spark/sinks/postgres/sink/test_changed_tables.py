"""A user changes a table in PostgreSQL while a batch is on its way into it: nothing of it is stored, and no row bent.

No Spark: rows are written as its tasks write them.
"""

from __future__ import annotations

from typing import Any

import pytest

from sqs_lease.spark.errors import SchemaError, TableError
from sqs_lease.spark.sinks.postgres.sink import PostgresSink, PostgresTable
from sqs_lease.spark.sinks.sink import Admission
from sqs_lease.testing.sink_subject import COLUMNS, asked, entries, known, record
from tests.spark.sinks.conftest import Database
from tests.spark.sinks.postgres_staging import Stage

pytestmark = pytest.mark.processes


def opened(database: Database, upsert_by: tuple[str, ...]) -> PostgresTable:
    session: Any = None
    return PostgresSink(database.url, "orders", upsert_by).open(session, COLUMNS, widen=False)


@pytest.mark.parametrize("upsert_by", [(), ("id",)], ids=["append", "upsert"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("DROP COLUMN name", "the table has no column name string"),
        ("RENAME COLUMN name TO title", "the table has no column name string"),
        ("ALTER COLUMN id TYPE text", "column id is text in the table and bigint in the schema"),
        ("ALTER COLUMN id TYPE integer", "column id is integer in the table and bigint in the schema"),
        ("ALTER COLUMN _sent_at TYPE date", "column _sent_at is date in the table and timestamp in the schema"),
        ("ALTER COLUMN name SET NOT NULL", "column name is NOT NULL in the table, and may be null in the schema"),
        ("ADD COLUMN more text NOT NULL", "the schema has no column more text, which is NOT NULL in the table"),
    ],
)
def test_a_batch_that_the_table_does_not_fit_any_more_is_not_stored(
    database: Database, stage: Stage, upsert_by: tuple[str, ...], change: str, said: str
) -> None:
    table = opened(database, upsert_by)
    looked_up, admission = (
        table.look_up(asked("m1")),
        Admission("b", entries(["m1"]), stage(table, [record("m1", 1)], "b")),
    )
    database.run(f"ALTER TABLE orders {change}")

    with pytest.raises(SchemaError, match=rf"changed while a batch was on its way into it: {said}.*run it again"):
        table.commit(looked_up, admission)

    assert known(table, "m1") == {}
    assert database.read("SELECT * FROM orders") == []


def test_columns_that_were_added_meanwhile_are_null_or_have_their_defaults(database: Database, stage: Stage) -> None:
    table = opened(database, ())
    looked_up, admission = (
        table.look_up(asked("m1")),
        Admission("b", entries(["m1"]), stage(table, [record("m1", 1)], "b")),
    )
    database.run("ALTER TABLE orders ADD COLUMN more text, ADD COLUMN state text NOT NULL DEFAULT 'new'")

    table.commit(looked_up, admission)

    assert database.read("SELECT id, more, state FROM orders") == [{"id": 1, "more": None, "state": "new"}]


def test_a_table_that_is_gone_takes_nothing(database: Database, stage: Stage) -> None:
    table = opened(database, ())
    looked_up, admission = (
        table.look_up(asked("m1")),
        Admission("b", entries(["m1"]), stage(table, [record("m1", 1)], "b")),
    )
    database.run("DROP TABLE orders")

    with pytest.raises(TableError, match=r'relation "public\.orders" does not exist'):
        table.commit(looked_up, admission)

    assert known(table, "m1") == {}
