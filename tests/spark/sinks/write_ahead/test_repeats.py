"""Messages that say the same are repeats in real tables, too, also if they are committed at the same moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sqs_lease.spark import CommitConflict, PostgresSink
from sqs_lease.spark.ledger import Ledger
from sqs_lease.spark.repeats import KeyedTable, Keys, with_keys
from sqs_lease.spark.sinks.sink import Admission, Table
from sqs_lease.spark.sinks.write_ahead import WriteAheadTable
from sqs_lease.testing.sink_contract import COLUMNS
from sqs_lease.testing.sink_subject import asked, entries
from tests.spark.sinks.conftest import Database
from tests.spark.sinks.delta.tables import open_table


@pytest.fixture(params=["ledger", pytest.param("postgres", marks=pytest.mark.processes)])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table[Any]:
    if request.param == "ledger":
        return WriteAheadTable(open_table(tmp_path / "table"), Ledger(tmp_path / "ledger").open())
    database: Database = request.getfixturevalue("database")
    # A table is looked at without Spark.
    session: Any = None
    return PostgresSink(database.url, "orders").open(session, COLUMNS, widen=False)


def keyed(table: Table[Any], **keys: str) -> KeyedTable:
    known_by = Keys.of_batch(with_keys(asked(*keys), list(keys.values())))
    assert known_by is not None
    return KeyedTable(table, known_by)


def test_of_two_that_are_committed_at_once_one_gets_a_conflict_and_is_a_repeat_then(table: Table[Any]) -> None:
    first_sent, sent_again = keyed(table, m1="a"), keyed(table, m2="a")
    looked_up = first_sent.look_up(asked("m1"))
    at_the_same_moment = sent_again.look_up(asked("m2"))

    sent_again.commit(at_the_same_moment, Admission("b", entries(["m2"]), None))
    with pytest.raises(CommitConflict):
        first_sent.commit(looked_up, Admission("c", entries(["m1"]), None))

    for either, message_id in ((first_sent, "m1"), (sent_again, "m2")):
        assert either.look_up(asked(message_id)).known["batch_id"].to_pylist() == ["b"]


def test_a_batch_is_itself_again_in_whichever_parts_it_was_committed(table: Table[Any]) -> None:
    batch = keyed(table, n1="a 1", n2="a 2", n3="b 1")
    messages = asked("n1", "n2", "n3")
    for part in (["n1"], ["n2", "n3"]):
        batch.commit(batch.look_up(messages), Admission("b", entries(part), None))

    assert batch.look_up(messages).known["batch_id"].to_pylist() == ["b", "b", "b"]
    # Another batch is not taken for it.
    other = keyed(table, n4="a 3")
    assert other.look_up(asked("n4")).known.num_rows == 0
    other.commit(other.look_up(asked("n4")), Admission("c", entries(["n4"]), None))
