"""Ingestions into Delta tables whose tasks read the messages themselves: no message costs a plan of Spark's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from sqs_lease.batch_files import manifest
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.spark import DeltaSink, JsonSource
from sqs_lease.spark.batch_parts import BatchParts
from sqs_lease.spark.errors import IngestionError
from sqs_lease.spark.sources.arrow_json import ArrowJson
from tests.spark.samples import (
    SCHEMA,
    InterruptedSink,
    Place,
    good,
    message,
    named_files,
    rows,
    staged_files,
    stored_ids,
    why_not_json,
)

pytestmark = pytest.mark.processes

Answer = tuple[pa.Table, pa.Array]


@dataclass(frozen=True)
class Changed:
    """Reads as Arrow does, and then does something to the answer."""

    reader: ArrowJson
    change: Callable[[pa.Table, pa.Array], Answer]

    def __call__(self, bodies: pa.Array) -> Answer:
        return self.change(*self.reader(bodies))


@dataclass(frozen=True)
class ChangedSource(JsonSource):
    """A JSON source whose reader in the tasks is a :class:`Changed` one."""

    change: Callable[[pa.Table, pa.Array], Answer] = lambda rows, reasons: (rows, reasons)

    def arrow_parser(self, columns: StructType) -> Any:
        reader = super().arrow_parser(columns)
        assert reader is not None
        return Changed(reader, self.change)


def changed(change: Callable[[pa.Table, pa.Array], Answer]) -> ChangedSource:
    return ChangedSource(SCHEMA, change=change)


def planned(monkeypatch: pytest.MonkeyPatch) -> list[DataFrame]:
    """Collect the messages that Spark itself is to parse from now on."""
    found: list[DataFrame] = []
    parse = JsonSource.parse

    def noted(source: JsonSource, messages: DataFrame, columns: StructType) -> DataFrame:
        found.append(messages)
        return parse(source, messages, columns)

    monkeypatch.setattr(JsonSource, "parse", noted)
    return found


def bodies(found: Mapping[str, str]) -> list[Message]:
    return [message(message_id, body) for message_id, body in found.items()]


def written(path: Path, messages: Sequence[Message], monkeypatch: pytest.MonkeyPatch, *, a_part: int) -> Path:
    """A manifest with a few messages in each part."""
    monkeypatch.setattr(manifest, "ROW_GROUP_MESSAGES", a_part)
    manifest.write_manifest(path, batch_id="b", queue_url="http://127.0.0.1/q", messages=messages)
    return path


def test_spark_parses_nothing_where_its_tasks_read_everything(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    by_spark = planned(monkeypatch)

    result = place.ingest(good(range(1, 50)))

    assert (result.ingested, result.rows, by_spark) == (49, 49, [])
    assert staged_files(place.table) == named_files(place.table)


NOT_JSON = {"cut": '{"id": 1', "two": '{"id": 1}{"id": 2}', "none": "null", "twice": '{"id": 1, "id": 2}', "empty": ""}


def not_json() -> list[Message]:
    return [Message(Receipt(name, ""), body) for name, body in NOT_JSON.items()]


def test_bodies_that_are_not_json_are_rejected_by_the_tasks_and_cost_no_plan_of_sparks(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_spark = planned(monkeypatch)

    result = place.ingest([*good([1, 2]), *not_json()])

    assert (result.ingested, by_spark) == (2, [])
    assert result.rejected == {name: why_not_json(body) for name, body in NOT_JSON.items()}


def test_the_parts_of_a_batch_are_shared_among_the_tasks(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(place.root / "manifest", good(range(1, 13)), monkeypatch, a_part=3)

    result = place.ingest(path)

    assert result.ingested == 12
    assert stored_ids(place.table) == sorted(f"m{number}" for number in range(1, 13))
    assert len(named_files(place.table)) == place.spark.sparkContext.defaultParallelism
    assert staged_files(place.table) == named_files(place.table)


def test_values_of_another_form_are_converted_or_rejected_by_the_tasks_in_the_same_commit(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_spark = planned(monkeypatch)
    found = {
        "read": '{"id": 1, "name": "a"}',
        "converted": '{"id": 2, "name": 7}',
        "an object": '{"id": 3, "name": {"x": [1]}}',
        "wrong": '{"id": "4"}',
        "missing": "{}",
        "no JSON": "{'id': 6}",
        "read too": '{"id": 7, "name": null}',
    }

    result = place.ingest(bodies(found))

    assert {row["_message_id"]: (row["id"], row["name"]) for row in rows(place.table)} == {
        "read": (1, "a"),
        "converted": (2, "7"),
        "an object": (3, '{"x":[1]}'),
        "read too": (7, None),
    }
    assert result.rejected["wrong"] == "not of the type in the schema: id"
    assert result.rejected["missing"] == "required, but missing or null: id"
    assert result.rejected["no JSON"].startswith("not valid JSON")
    assert (result.ingested, result.rows, len(result.rejected), result.table_version) == (4, 4, 3, 1)
    assert by_spark == []
    assert staged_files(place.table) == named_files(place.table)


def test_messages_that_the_table_knows_are_not_read_again(place: Place) -> None:
    first = {"a": '{"id": 1}', "b": '{"id": 2, "name": 7}'}
    place.ingest(bodies(first))

    result = place.ingest(bodies({**first, "c": '{"id": 3}', "d": '{"id": 4, "name": 8}', "bad": "{"}))

    assert (result.ingested, result.duplicates, len(result.rejected)) == (2, 2, 1)
    assert stored_ids(place.table) == ["a", "b", "c", "d"]


def test_staged_files_of_a_batch_that_is_not_committed_are_removed_whatever_program_wrote_them(place: Place) -> None:
    def fail() -> None:
        assert len(staged_files(place.table)) == 1
        raise OSError("the driver is stopped")

    batch = [*good(range(1, 99)), *bodies({"left": '{"id": 99, "name": 7}'})]
    with pytest.raises(OSError, match="is stopped"):
        place.ingest(batch, sink=InterruptedSink(place.table, fail))

    assert staged_files(place.table) == set()
    assert place.ingest(batch).ingested == 99


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda rows, reasons: (rows.slice(1), reasons), id="a message is lost"),
        pytest.param(
            lambda rows, reasons: (pa.concat_tables([rows, rows.slice(0, 1)]), reasons),
            id="there are more records than messages",
        ),
    ],
)
def test_a_reader_that_does_not_account_for_each_message_commits_nothing(
    place: Place, change: Callable[[pa.Table, pa.Array], Answer]
) -> None:
    with pytest.raises(Exception, match=r"does not add up|length must match"):
        place.ingest(good([1, 2]), source=changed(change))

    assert staged_files(place.table) == set()


def broken(_rows: pa.Table, _reasons: pa.Array) -> Answer:
    raise OSError("the disk is on fire")


def test_a_task_that_fails_leaves_no_files(place: Place) -> None:
    with pytest.raises(Exception, match="the disk is on fire"):
        place.ingest(good([1, 2]), source=changed(broken))

    assert staged_files(place.table) == set()
    assert place.ingest(good([1, 2])).ingested == 2


def without_package(_rows: pa.Table, _reasons: pa.Array) -> Answer:
    raise ModuleNotFoundError("No module named 'sqs_lease'")


def test_executors_that_lack_this_package_are_named_and_nothing_is_stored(place: Place) -> None:
    lacking = r"no Python module 'sqs_lease'\): install sqs-lease\[spark-cluster\] on them"
    with pytest.raises(IngestionError, match=lacking):
        place.ingest([*good([1, 2]), *not_json()], source=changed(without_package))

    assert staged_files(place.table) == set()
    assert place.ingest(good([1, 2])).ingested == 2


def test_a_source_that_parses_otherwise_is_not_read_by_the_tasks(place: Place) -> None:
    class Doubled(JsonSource):
        def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
            return super().parse(messages, columns).withColumn("id", 2 * super().parse(messages, columns)["id"])

    assert Doubled("id BIGINT").arrow_parser(StructType()) is None


@pytest.mark.parametrize("upsert_by", [(), ("id",)])
@pytest.mark.parametrize("partition_by", [(), ("town",)])
def test_partitions_and_keys_hold_for_what_tasks_read(
    place: Place, monkeypatch: pytest.MonkeyPatch, partition_by: tuple[str, ...], upsert_by: tuple[str, ...]
) -> None:
    towns = ["Basel", "Bern", None, ""]
    found = [json.dumps({"id": number % 10, "town": towns[number % 4]}) for number in range(40)]
    messages = [
        Message(Receipt(f"m{number:02}", ""), body, {"SentTimestamp": str(1_700_000_000_000 + number)})
        for number, body in enumerate([*found, '{"id": 11, "town": 4051}'])
    ]
    path = written(place.root / "manifest", messages, monkeypatch, a_part=7)

    sink = DeltaSink(place.table, partition_by, upsert_by)
    result = place.ingest(path, sink=sink, source=JsonSource("id BIGINT NOT NULL, town STRING"))

    assert result.ingested == 41
    stored = {row["_message_id"]: (row["id"], row["town"] or None) for row in rows(place.table)}
    newest = messages if not upsert_by else messages[30:]
    assert stored == {
        one.message_id: (json.loads(one.body)["id"], str(json.loads(one.body)["town"] or "") or None) for one in newest
    }


def test_a_task_holds_few_bytes_of_a_part_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "_ROW_GROUP_CHARACTERS", 10**9)
    large = [message(f"m{number}", json.dumps({"id": number, "name": "x" * 500_000})) for number in range(100)]
    path = tmp_path / "manifest"
    manifest.write_manifest(path, batch_id="b", queue_url="http://127.0.0.1/q", messages=large)
    reader = ArrowJson.of(StructType([StructField("id", LongType())]))
    parts = BatchParts.of(path, chosen=None, parser=reader, batch_id="b")

    made = list(parts.read([0]))

    assert parts.count == 1
    assert max(one.rows.num_rows + len(one.rejected) for one in made) < 40
    assert sum(one.rows.num_rows + len(one.rejected) for one in made) == 100


@pytest.mark.parametrize(
    ("megabytes", "parts", "tasks"),
    [
        pytest.param(1, 5, 2, id="a task for each core"),
        pytest.param(1, 1, 1, id="never more than parts"),
        pytest.param(2048, 100, 2, id="as large as they may be"),
        pytest.param(2049, 100, 4, id="as many again"),
        pytest.param(0, 0, 0, id="nothing"),
    ],
)
def test_tasks_are_as_many_as_run_at_once_however_large_the_batch(
    spark: SparkSession, megabytes: int, parts: int, tasks: int
) -> None:
    assert spark.sparkContext.defaultParallelism == 2
    reader = ArrowJson.of(StructType([StructField("id", LongType())]))

    shared = BatchParts("file", None, reader, "b", parts, megabytes * 1024 * 1024)

    assert shared.tasks(spark) == tasks
