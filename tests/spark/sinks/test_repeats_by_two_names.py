"""Messages that go by two names are repeats in real tables, too, also if they are committed at the same moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sqs_lease.spark import Overtaken, PostgresSink
from sqs_lease.spark.ledger import Ledger
from sqs_lease.spark.repeats import KeyedTable, Keys, with_keys
from sqs_lease.spark.sinks.sink import Admission, Table
from sqs_lease.spark.sinks.write_ahead import WriteAheadTable
from sqs_lease.spark.sources.source import Names
from sqs_lease.testing.sink_contract import COLUMNS
from sqs_lease.testing.sink_subject import asked, entries
from tests.spark.delta.tables import open_table
from tests.spark.sinks.conftest import Database
from tests.spark.test_repeats import listed, told


@pytest.fixture(params=["ledger", pytest.param("postgres", marks=pytest.mark.processes)])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table[Any]:
    if request.param == "ledger":
        return WriteAheadTable(open_table(tmp_path / "table"), Ledger(tmp_path / "ledger").open())
    database: Database = request.getfixturevalue("database")
    # A table is looked at without Spark.
    session: Any = None
    return PostgresSink(database.url, "orders").open(session, COLUMNS, widen=False)


def keyed(table: Table[Any], **names: Names) -> KeyedTable:
    keys = Keys.of_batch(with_keys(asked(*names), list(names.values())))
    assert keys is not None
    return KeyedTable(table, keys)


def test_of_two_that_are_committed_at_once_one_is_overtaken_and_is_a_repeat_then(table: Table[Any]) -> None:
    by_notification, by_listing = keyed(table, n1=told("a", 1)), keyed(table, l1=listed("a"))
    looked_up = by_notification.look_up(asked("n1"))
    at_the_same_moment = by_listing.look_up(asked("l1"))

    by_listing.commit(at_the_same_moment, Admission("b", entries(["l1"]), None))
    with pytest.raises(Overtaken):
        by_notification.commit(looked_up, Admission("c", entries(["n1"]), None))

    assert by_notification.look_up(asked("n1")).known["batch_id"].to_pylist() == [""]
    assert by_listing.look_up(asked("l1")).known["batch_id"].to_pylist() == ["b"]


def test_a_batch_is_itself_again_in_whichever_parts_it_was_committed(table: Table[Any]) -> None:
    batch = keyed(table, n1=told("a", 1), n2=told("a", 2), n3=told("b", 1))
    messages = asked("n1", "n2", "n3")
    for part in (["n1"], ["n2", "n3"]):
        batch.commit(batch.look_up(messages), Admission("b", entries(part), None))

    assert batch.look_up(messages).known["batch_id"].to_pylist() == ["b", "b", "b"]
    # Another batch is not taken for it, although it shares a name.
    other = keyed(table, n4=told("a", 3))
    assert other.look_up(asked("n4")).known.num_rows == 0
    other.commit(other.look_up(asked("n4")), Admission("c", entries(["n4"]), None))
