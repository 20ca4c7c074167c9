"""A wait for other writers of the same table is logged, and bounded."""

from __future__ import annotations

import fcntl
import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any
from unittest.mock import patch

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StructField, StructType

from sqs_lease.spark import InferredSchema, SchemaError, TableError
from sqs_lease.spark.ledger import Ledger
from sqs_lease.spark.sinks.delta.sink import OpenDelta
from sqs_lease.spark.sinks.sink import Admission, CommitConflict
from sqs_lease.spark.waits import Waits, waiting_at_most, while_contended
from sqs_lease.testing.sink_subject import asked, entries
from tests.spark.sinks.delta.tables import application, open_table, row, stage, stored
from tests.spark.sinks.memory_sink import MemoryLookUp, MemoryStore, MemoryTable
from tests.spark.test_repeats import load


class Hands:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += 1


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def waits(hands: Hands) -> Iterator[Waits]:
    """Ten seconds at most, of which each pause takes one."""
    with waiting_at_most(Waits(10, hands, hands.sleep)) as mine:
        yield mine


@dataclass
class BusyTable(MemoryTable):
    """A table into which others commit right before the first commits."""

    refusals: int = 0

    def commit(self, looked_up: MemoryLookUp, admission: Admission) -> int | None:
        if self.refusals:
            self.refusals -= 1
            raise CommitConflict("batch z was admitted to the ledger /data/orders/ledger")
        return super().commit(looked_up, admission)


def load_into(table: BusyTable) -> Any:
    with patch("tests.spark.test_repeats.MemoryTable", lambda _: table):
        return load(table.store, "b", {"m1": "x"})


def test_a_wait_is_counted_and_names_the_batch_that_it_waits_for(
    waits: Waits, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="sqs_lease.spark.waits"):
        assert load_into(BusyTable(MemoryStore(), refusals=7)).ingested == 1

    told = "the table of batch b: waiting for other writers, since %d s: batch z was admitted to the ledger"
    assert [told % seconds in line for seconds, line in zip((0, 5), caplog.messages[:2], strict=True)] == [True, True]
    assert caplog.messages[2:] == ["the table of batch b: waited 7 s for other writers"]
    assert waits.seconds == 7


def test_a_wait_that_takes_too_long_ends_with_what_to_do(waits: Waits) -> None:
    table = BusyTable(MemoryStore(), refusals=1000)
    says = (
        r"the table of batch b was waited for longer than 10 s, because others write it \(batch z was admitted to the "
        r"ledger /data/orders/ledger\): let fewer .*longest_wait_seconds"
    )
    with pytest.raises(TableError, match=says):
        load_into(table)
    assert (table.store.rows, table.store.staged) == ([], {})
    assert waits.seconds == 10


def test_pauses_grow_and_are_not_those_of_others(waits: Waits, hands: Hands) -> None:
    with patch.object(random, "uniform", lambda _, longest: longest), while_contended("table t") as writers:
        for _ in range(10):
            writers.pause("x")
    assert hands.slept[:3] == [0.01, 0.02, 0.04]
    assert hands.slept[-1] == 1.0


def test_a_wait_within_a_wait_counts_once(waits: Waits) -> None:
    with while_contended("the ledger") as outer:
        outer.pause("x")
        with while_contended("the table") as inner:
            inner.pause("x")
        outer.pause("x")
    with while_contended("the table") as alone:
        alone.pause("x")
    with while_contended("nobody's"):
        pass
    assert waits.seconds == 4


@pytest.mark.parametrize("upsert_by", [(), ("id",)], ids=["append", "upsert"])
def test_a_delta_table_into_which_others_commit_all_the_time_is_named_with_their_commit(
    waits: Waits, tmp_path: Path, upsert_by: tuple[str, ...]
) -> None:
    table = open_table(tmp_path, upsert_by=upsert_by)
    location = stage(table, [row(1, "m1")])
    real = OpenDelta._commit

    def overtaken(self: OpenDelta, *arguments: Any) -> int:
        other = DeltaTable(self.storage.uri)
        other.create_write_transaction([], "append", other.schema())
        return real(self, *arguments)

    with (
        patch.object(OpenDelta, "_commit", overtaken),
        pytest.raises(TableError, match=rf"table {tmp_path} was waited for longer than 10 s.*WRITE by .*delta-rs"),
    ):
        table.apply(location, application(1))
    assert waits.seconds == 10
    assert stored(table) == []
    table.apply(location, application(1))
    assert stored(table) == [(1, "m1")]


def test_a_ledger_says_which_batch_was_faster(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger").open()
    before = ledger.snapshot()
    ledger.admit(ledger.snapshot(), "the other", entries(["m1"]), None)

    with pytest.raises(CommitConflict, match=f"batch the other was admitted to the ledger {tmp_path}/ledger"):
        ledger.admit(before, "b", entries(["m2"]), None)
    assert before.find(asked("m1")).num_rows == 0


SCHEMA = StructType([StructField("id", LongType())])


def test_a_schema_of_which_another_driver_holds_the_lock_is_named_with_its_process(
    waits: Waits, tmp_path: Path
) -> None:
    schema = InferredSchema(tmp_path / "orders.json")
    schema.pin(SCHEMA)
    with (tmp_path / "orders.json.lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        says = r"the schema .*/orders.json was waited for longer than 10 s.*the lock is held by process \d+ on "
        with pytest.raises(SchemaError, match=says):
            schema.pin(SCHEMA)
    assert schema.pin(SCHEMA) == SCHEMA


def test_a_schema_is_pinned_once_the_other_driver_is_done(tmp_path: Path) -> None:
    schema = InferredSchema(tmp_path / "orders.json")
    with (tmp_path / "orders.json.lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        done = Timer(0.1, lambda: fcntl.flock(other, fcntl.LOCK_UN))
        done.start()
        with waiting_at_most(Waits(300)) as waits:
            assert schema.pin(SCHEMA) == SCHEMA
        done.join()
    assert waits.seconds > 0
