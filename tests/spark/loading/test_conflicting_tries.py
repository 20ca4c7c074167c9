"""A try of a batch that fails while it writes asks whether another try was committed, and does not hide its failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from sqs_lease.spark import TableError
from sqs_lease.spark.batch_file import REASONS
from sqs_lease.spark.loading import Loading
from sqs_lease.spark.message_ids import NO_IDS
from sqs_lease.spark.parsing import Parsed
from sqs_lease.spark.sinks.sink import Admission
from sqs_lease.testing.sink_subject import COLUMNS, asked, entries
from tests.spark.sinks.memory_sink import MemoryLookUp, MemoryStore, MemoryTable


class FailingTable(MemoryTable):
    """A table that answers once."""

    answers = 1

    def look_up(self, messages: pa.Table) -> MemoryLookUp:
        if not self.answers:
            raise TableError("gone")
        self.answers -= 1
        return super().look_up(messages)


def load(table: MemoryTable, meanwhile: Callable[[], object]) -> int:
    messages = asked("m1", "m2")
    tries = 0

    def parse(_table: Any, _known: pa.ChunkedArray, _batch_id: str) -> Parsed:
        nonlocal tries
        tries += 1
        meanwhile()
        raise TableError("the rows cannot be written")

    with pytest.raises(TableError, match="the rows cannot be written"):
        Loading(table, "b", messages, messages["message_id"]).load(parse)
    return tries


@pytest.mark.parametrize(("batch_id", "tries"), [("b", 2), ("c", 1)], ids=["of this batch", "of another batch"])
def test_a_commit_of_another_writer_meanwhile_is_a_reason_to_try_again_once(batch_id: str, tries: int) -> None:
    store = MemoryStore(COLUMNS)
    others = iter([batch_id])

    def commit_a_part() -> None:
        table = MemoryTable(store)
        for other in others:
            table.commit(table.look_up(asked("m1")), Admission(other, entries(["m1"]), None))

    assert load(MemoryTable(store), commit_a_part) == tries


def test_a_try_of_which_another_took_rows_away_does_not_fail_because_they_are_missing() -> None:
    """As Spark's committer does: for it, files that are gone were never written."""
    store, messages = MemoryStore(COLUMNS), asked("m1", "m2")

    def parse(_table: Any, known: pa.ChunkedArray, _batch_id: str) -> Parsed:
        if not len(known):
            table = MemoryTable(store)
            table.commit(table.look_up(messages), Admission("b", entries(["m1", "m2"]), None))
        return Parsed(None, NO_IDS, NO_IDS, REASONS.empty_table())

    loaded = Loading(MemoryTable(store), "b", messages, messages["message_id"]).load(parse)

    assert (loaded.ingested, loaded.known.num_rows) == (0, 2)


def test_a_failure_is_raised_where_the_table_does_not_answer_any_more() -> None:
    assert load(FailingTable(MemoryStore(COLUMNS)), lambda: None) == 1
