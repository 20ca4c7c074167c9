"""Rejected messages come back after a fix, each once."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sqs_lease.core.messages import Message, Receipt
from sqs_lease.spark import DeltaSink, JsonSource, PostgresSink, TableError, rejected_messages
from tests.spark.samples import Place, rows
from tests.spark.sinks.conftest import Database

pytestmark = pytest.mark.processes

NOW = datetime.now(UTC).replace(microsecond=0)
STRICT = JsonSource("id STRING NOT NULL, name STRING", new_fields="reject")
FIXED = JsonSource("id STRING NOT NULL, name STRING")


def sent(message_id: str, body: str, *, ago: timedelta = timedelta(hours=1)) -> Message:
    return Message(Receipt(message_id, "h"), body, {"SentTimestamp": str(int((NOW - ago).timestamp() * 1000 + 123))})


BATCH = [sent("m1", '{"id": "one"}'), sent("m2", '{"id": "two", "new": 1}'), sent("m3", "[]")]


def test_what_was_rejected_comes_in_once_after_the_fix_whatever_is_read_again(place: Place) -> None:
    rejects = DeltaSink(place.root / "rejects")
    orders = DeltaSink(place.table, upsert_by=["id"])
    assert place.ingest(BATCH, source=STRICT, sink=orders, rejects=rejects).ingested == 1

    first = place.ingest(rejected_messages(rejects), source=FIXED, sink=orders, rejects=rejects)
    again = place.ingest(rejected_messages(rejects), source=FIXED, sink=orders, rejects=rejects)

    assert (first.received, first.ingested, set(first.rejected)) == (2, 1, {"m3#2"})
    # The two rows of before, which are known, and the one that was rejected a second time.
    assert (again.received, again.ingested, again.duplicates, set(again.rejected)) == (3, 0, 2, {"m3#3"})
    (_, two) = rows(place.table)
    assert (two["_message_id"], two["id"]) == ("m2#2", "two")
    assert two["_sent_at"] == NOW - timedelta(hours=1) + timedelta(milliseconds=123)


def test_an_id_that_ends_like_one_of_ours_but_for_its_length_is_an_id(place: Place) -> None:
    rejects = DeltaSink(place.root / "rejects")
    place.ingest([sent(f"m1#{'9' * 5000}", "[]")], source=STRICT, rejects=rejects)

    assert [its.message_id[-3:] for its in rejected_messages(rejects)] == ["9#2"]


def test_rejects_in_postgresql_and_in_any_table_that_spark_reads_come_in_the_same_way(
    place: Place, spark: SparkSession, database: Database
) -> None:
    rejects, orders = (PostgresSink(database.url, name) for name in ("rejects", "orders"))
    place.ingest(BATCH, source=STRICT, sink=orders, rejects=rejects)

    for added in (1, 0):
        result = place.ingest(rejected_messages(rejects), source=FIXED, sink=orders)
        assert (result.rows, set(result.rejected)) == (added, {"m3#2"})

    assert [row["id"] for row in database.read("SELECT id FROM orders ORDER BY 1")] == ["one", "two"]
    stored = [tuple(row.values()) for row in database.read("SELECT body, _message_id, _sent_at FROM rejects")]
    frame = spark.createDataFrame(stored, "body STRING, _message_id STRING, _sent_at TIMESTAMP")
    by_frame, by_sink = (sorted(rejected_messages(of), key=lambda one: one.message_id) for of in (frame, rejects))
    assert by_frame == by_sink
    assert [one.message_id for one in rejected_messages(frame.where("body = '[]'"))] == ["m3#2"]


def test_rows_of_which_a_table_would_not_know_that_it_has_them_are_left_out(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    rejects = spark.createDataFrame(
        [("x", "new", NOW - timedelta(days=28)), ("x", "old#2", NOW - timedelta(days=30)), ("x", "untimed", None)],
        "body STRING, _message_id STRING, _sent_at TIMESTAMP",
    )

    with caplog.at_level(logging.WARNING):
        assert [one.message_id for one in rejected_messages(rejects, clock=lambda: NOW)] == ["new#2"]

    assert "2 rejected messages are left out: they were sent more than 29 days ago" in caplog.text
    older = {one.message_id for one in rejected_messages(rejects, include_older=True, clock=lambda: NOW)}
    assert older == {"new#2", "old#3", "untimed#2"}


def test_a_table_of_rejects_that_is_not_there_is_an_error(tmp_path: Path, database: Database) -> None:
    with pytest.raises(TableError, match=f"there is no table at {tmp_path}/nowhere"):
        list(rejected_messages(DeltaSink(tmp_path / "nowhere")))
    with pytest.raises(TableError, match=r'"public\.nowhere" does not exist'):
        list(rejected_messages(PostgresSink(database.url, "nowhere")))
    path: Any = str(tmp_path)
    with pytest.raises(TypeError, match="must be a DeltaSink, a PostgresSink or a DataFrame, not str"):
        list(rejected_messages(path))
