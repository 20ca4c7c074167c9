"""Whole ingestions into Delta tables that partition, upsert, widen or lie on S3."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import StringType, StructField, StructType

from sqs_lease.core.messages import Message, Receipt
from sqs_lease.spark import CommitConflict, DeltaSink, JsonSource, ingest
from sqs_lease.spark.columns import table_columns
from sqs_lease.spark.ingestion import IngestResult
from sqs_lease.spark.sinks.delta.sink import OpenDelta
from sqs_lease.spark.sinks.sink import Admission
from sqs_lease.spark.sinks.write_ahead import WriteAheadLookUp, WriteAheadTable
from sqs_lease.testing.sink_contract import InterruptionError, interrupted
from sqs_lease.testing.sink_subject import asked, entries
from tests.spark.sinks.delta.conftest import Bucket
from tests.spark.sinks.delta.subjects import leftovers, load, read_rows
from tests.spark.sinks.delta.tables import NOON

pytestmark = pytest.mark.processes

SCHEMA = "id BIGINT NOT NULL, town STRING, day DATE"
AWKWARD = ["a b", "x/y", "é=ü%2F", "it's", 'double "', "back\\slash", "a:b*?[c]{d}", "{", None]


def message(number: int, key: int | None = None, **more: Any) -> Message:
    body = {"id": number if key is None else key, "town": f"t{number}", "day": "2026-03-01"} | more
    receipt = Receipt(f"m{number}", f"handle-{number}")
    return Message(receipt, json.dumps(body), {"SentTimestamp": str(1_700_000_000_000 + number)})


@dataclass(frozen=True)
class Place:
    """A table, and ``ingest`` into it."""

    spark: SparkSession
    workspace: Path
    sink: DeltaSink

    def ingest(self, messages: Iterable[Message], schema: str = SCHEMA, **options: Any) -> IngestResult:
        source = options.pop("source", None) or JsonSource(schema)
        sink = options.pop("sink", self.sink)
        return ingest(self.spark, messages, source=source, sink=sink, workspace=self.workspace, **options)

    def ids(self) -> list[str]:
        return sorted(row["_message_id"] for row in read_rows(self.sink))


@dataclass(frozen=True)
class ConflictingSink:
    """A sink for which something happens between staging and the first commit."""

    sink: DeltaSink
    before_commit: Callable[[], object]
    refused: list[bool]

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> WriteAheadTable:
        table = self.sink.open(spark, columns, widen=widen)
        return ConflictingTable(table.target, table.ledger, self)


@dataclass(frozen=True)
class ConflictingTable(WriteAheadTable):
    sink: ConflictingSink

    def commit(self, looked_up: WriteAheadLookUp, admission: Admission) -> int | None:
        if not self.sink.refused:
            self.sink.before_commit()
        try:
            version = super().commit(looked_up, admission)
        except CommitConflict:
            self.sink.refused.append(True)
            raise
        self.sink.refused.append(False)
        return version


@pytest.fixture
def on_disk(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path / "workspace", DeltaSink(tmp_path / "table", partition_by=["town", "day"]))


@pytest.fixture
def on_s3(spark: SparkSession, tmp_path: Path, bucket: Bucket) -> Place:
    return Place(spark, tmp_path / "workspace", bucket.sink(partition_by=("town", "day")))


@pytest.fixture(params=["on_disk", "on_s3"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


def test_partitions_of_any_name_come_back_as_they_were(place: Place) -> None:
    messages = [message(n, town=town, day=None if n % 2 else "2026-03-01") for n, town in enumerate([*AWKWARD, ""])]

    result = place.ingest(messages)

    assert (result.ingested, result.rows) == (len(messages), len(messages))
    stored = {row["id"]: (row["town"], row["day"]) for row in read_rows(place.sink)}
    days = {n: None if n % 2 else date(2026, 3, 1) for n in stored}
    assert stored == {n: (town, days[n]) for n, town in enumerate([*AWKWARD, None])}, "an empty text is a null there"


def test_of_messages_that_a_fifo_queue_took_in_one_millisecond_the_later_one_wins(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(spark, tmp_path / "workspace", DeltaSink(tmp_path / "table", upsert_by=["id"]))
    said = {"SentTimestamp": "1700000000123", "MessageGroupId": "g"}
    batch = [
        Message(Receipt(message_id, "h"), '{"id": 1}', {**said, "SequenceNumber": str(number)})
        for message_id, number in (("z", 1), ("a", 3), ("m", 2))
    ]
    place.ingest(batch)
    assert place.ids() == ["a"]


class BySpark(JsonSource):
    """A source of which the tasks read nothing themselves."""

    def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
        return super().parse(messages, columns)


@pytest.mark.parametrize("source", [JsonSource, BySpark], ids=["read by tasks", "read by Spark"])
def test_a_partition_value_need_not_be_the_name_of_a_directory(on_disk: Place, source: type[JsonSource]) -> None:
    values = ["x" * 300, "a\0b", "__HIVE_DEFAULT_PARTITION__", "", None]

    result = on_disk.ingest([message(n, town=town) for n, town in enumerate(values)], source=source(SCHEMA))

    assert (result.ingested, result.rejected) == (len(values), {})
    stored = {row["id"]: row["town"] for row in read_rows(on_disk.sink)}
    assert stored == dict(enumerate([*values[:3], None, None]))


@pytest.mark.parametrize("source", [JsonSource, BySpark], ids=["read by tasks", "read by Spark"])
def test_a_partition_value_after_which_a_merge_cannot_name_a_directory_rejects_its_message(
    spark: SparkSession, tmp_path: Path, source: type[JsonSource]
) -> None:
    sink = DeltaSink(tmp_path / "table", partition_by=["town"], upsert_by=["id"])
    place = Place(spark, tmp_path / "workspace", sink)
    fits, too_long = [*AWKWARD, "a\0b", "x" * 250, "/" * 83], ["x" * 251, "/" * 84, "*" * 84, "é" * 42]

    result = place.ingest([message(n, town=town) for n, town in enumerate([*fits, *too_long])], source=source(SCHEMA))
    later = place.ingest([message(100, key=0, town="Basel")], source=source(SCHEMA))

    assert set(result.rejected.values()) == {
        "refused by the table: the partition value of town is too long for a directory"
    }
    assert result.rejected.keys() == {f"m{n}" for n in range(len(fits), len(fits) + len(too_long))}
    assert later.ingested == 1
    assert {row["id"]: row["town"] for row in read_rows(sink)} == {**dict(enumerate(fits)), 0: "Basel"}


@pytest.mark.parametrize("source", [JsonSource, BySpark], ids=["read by tasks", "read by Spark"])
def test_an_empty_partition_value_that_must_not_be_null_rejects_its_message(
    spark: SparkSession, tmp_path: Path, source: type[JsonSource]
) -> None:
    place = Place(spark, tmp_path / "workspace", DeltaSink(tmp_path / "table", partition_by=["town"]))
    required = source("id BIGINT NOT NULL, town STRING NOT NULL")

    result = place.ingest([message(1, town="a"), message(2, town=""), message(3, town="b")], source=required)

    assert result.rejected == {
        "m2": "refused by the table: the partition value of town is empty, which is a null there"
    }
    assert place.ids() == ["m1", "m3"]


def test_a_batch_that_comes_again_is_not_stored_again(place: Place) -> None:
    first = place.ingest([message(1), message(2)])
    again = place.ingest([message(1), message(2)])
    redelivered = place.ingest([message(2), message(3)])

    assert (first.ingested, again.ingested, redelivered.ingested, redelivered.duplicates) == (2, 2, 1, 1)
    assert place.ids() == ["m1", "m2", "m3"]


def test_of_two_drivers_the_slower_one_looks_again(place: Place) -> None:
    sink = ConflictingSink(place.sink, lambda: place.ingest([message(1), message(2)]), [])

    result = place.ingest([message(2), message(3)], sink=sink)

    assert sink.refused == [True, False]
    assert (result.ingested, result.duplicates) == (1, 1)
    assert place.ids() == ["m1", "m2", "m3"]
    assert leftovers(place.sink) == []


def test_a_batch_that_was_admitted_is_completed_by_the_next_one(place: Place) -> None:
    with interrupted(OpenDelta, "_commit", "before"), pytest.raises(InterruptionError):
        place.ingest([message(1), message(2)])
    assert place.ids() == []

    result = place.ingest([message(2), message(3)])

    assert (result.ingested, result.duplicates) == (1, 1)
    assert place.ids() == ["m1", "m2", "m3"]
    assert leftovers(place.sink) == []


def test_readers_find_the_files_that_may_have_what_they_look_for(place: Place) -> None:
    for number in (1, 2, 3):
        place.ingest([message(number)])

    actions = load(place.sink).get_add_actions(flatten=True)
    found = {name: actions[name].to_pylist() for name in ("min.id", "max._message_id", "max._sent_at", "num_records")}
    assert sorted(found["min.id"]) == [1, 2, 3]
    assert sorted(found["max._message_id"]) == ["m1", "m2", "m3"]
    assert max(found["max._sent_at"]) == datetime.fromtimestamp(1_700_000_000.003, UTC)
    assert found["num_records"] == [1, 1, 1]


def test_a_key_has_the_record_of_the_message_that_was_sent_last(place: Place) -> None:
    sink = DeltaSink(place.sink.path, ("town",), ("id",), place.sink.storage_options)
    place.ingest([message(2, key=7, town="two"), message(1, key=7, town="one"), message(3)], sink=sink)
    place.ingest([message(0, key=3, town="late"), message(5, key=7, town="five")], sink=sink)

    assert sorted((row["id"], row["town"]) for row in read_rows(sink)) == [(3, "t3"), (7, "five")]


def test_several_tasks_write_at_once_and_leave_nothing_else(on_s3: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real = OpenDelta.stage

    def in_tasks(self: OpenDelta, rows: Any, batch_id: str) -> Any:
        return real(self, rows.repartition(3, F.col("id")), batch_id)

    monkeypatch.setattr(OpenDelta, "stage", in_tasks)
    monkeypatch.setattr(OpenDelta, "stage_parts", lambda *_: None)
    on_s3.ingest([message(n, town="same") for n in range(12)])

    assert len(on_s3.ids()) == 12
    assert leftovers(on_s3.sink) == []
    assert len(load(on_s3.sink).file_uris()) == 3


def test_columns_may_have_any_name_that_delta_takes(place: Place) -> None:
    names = ["a.b", "select", "it`s", "Upper", "ümlaut", "x/y"]
    columns = table_columns(StructType([StructField(name, StringType()) for name in names]))
    rows = place.spark.createDataFrame([(*names, "m1", NOON, "batch")], columns)
    sink = DeltaSink(place.sink.path, ("a.b", "x/y"), (), place.sink.storage_options)
    table = sink.open(place.spark, columns, widen=False)

    staged = table.stage(rows, "batch")
    table.commit(table.look_up(asked("m1")), Admission("batch", entries(["m1"]), staged))

    (row,) = read_rows(sink)
    assert {name: row[name] for name in names} == {name: name for name in names}
