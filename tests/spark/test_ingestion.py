"""Batches end up in the table with each message once, or leave no trace in it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import StructType

from sqs_lease.batch_files.manifest import METADATA_KEY, ManifestError, message_tables, write_manifest
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.spark import (
    BatchIdReusedError,
    DeltaSink,
    IngestResult,
    JsonSource,
    ReconciliationError,
    SnsEnvelope,
    TableError,
    WorkspaceError,
    ingest,
)
from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.ingestion import default_id
from sqs_lease.spark.session import session_settings
from sqs_lease.spark.sinks.sink import Admission
from sqs_lease.spark.sinks.write_ahead import WriteAheadLookUp, WriteAheadTable
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
)

pytestmark = pytest.mark.processes


def test_records_are_stored_with_their_message_id_the_time_they_were_sent_and_the_batch(place: Place) -> None:
    result = place.ingest(good([1, 2]))

    assert result == IngestResult(
        result.batch_id,
        received=2,
        ingested=2,
        empty=0,
        duplicates=0,
        rejected={},
        rows=2,
        table_version=1,
        rejects_stored=False,
    )
    first, second = rows(place.table)
    assert {name: first[name] for name in ("id", "name", "_message_id", "_batch_id")} == {
        "id": 1,
        "name": "n1",
        "_message_id": "m1",
        "_batch_id": result.batch_id,
    }
    assert first["_sent_at"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert second["id"] == 2


def test_messages_come_as_dicts_of_the_sqs_api_too(place: Place) -> None:
    result = place.ingest([*(m.as_dict() for m in good([1])), {"MessageId": "m2", "Body": '{"id": 2}'}])

    assert result.ingested == 2
    assert [(row["_message_id"], row["_sent_at"] is None) for row in rows(place.table)] == [
        ("m1", False),
        ("m2", True),
    ]


ODD = {
    "no time": {"SentTimestamp": "yesterday"},
    "a fraction": {"SentTimestamp": "1700000000123.5"},
    "too late": {"SentTimestamp": "9" * 30},
    "too early": {"SentTimestamp": "-1"},
    "no count": {"ApproximateReceiveCount": "often"},
    "too often": {"ApproximateReceiveCount": "9" * 15},
    "no place": {"MessageGroupId": "g", "SequenceNumber": "first"},
    "far away": {"MessageGroupId": "g", "SequenceNumber": "9" * 5000},
}


@pytest.mark.parametrize("as_manifest", [False, True], ids=["objects", "manifest"])
def test_a_message_with_an_odd_attribute_stops_no_batch(place: Place, *, as_manifest: bool) -> None:
    odd = [Message(Receipt(name, ""), '{"id": 9}', its) for name, its in ODD.items()]
    in_order = replace(good([3])[0], attributes={"SentTimestamp": "1", "MessageGroupId": "g", "SequenceNumber": "1"})
    given: Any = [*good([1]), *odd, in_order]
    if as_manifest:
        given = place.root / "manifest"
        write_manifest(given, batch_id="b", queue_url="q", messages=[*good([1]), *odd, in_order])

    result = place.ingest(given)

    assert (result.ingested, result.rejected) == (2 + len(ODD), {})
    assert {row["_message_id"] for row in rows(place.table) if row["_sent_at"] is not None} == {"m1", "m3"}


@pytest.mark.parametrize("attributes", ["", "[]", "{", '"SequenceNumber"', "[" * 100_000, '{"SequenceNumber": NaN}'])
def test_attributes_of_a_manifest_that_are_not_an_object_stop_no_batch(place: Place, attributes: str) -> None:
    first, second = (replace(its, attributes={"MessageGroupId": "g", "SequenceNumber": "1"}) for its in good([1, 2]))
    (table,) = message_tables([first, second])
    odd = pa.array([table["attributes"][0].as_py(), attributes])
    at = table.schema.get_field_index("attributes")
    header = {METADATA_KEY: json.dumps({"version": 1, "batch_id": "b", "queue_url": "q"})}
    pq.write_table(
        table.set_column(at, table.schema.field(at), odd).replace_schema_metadata(header), place.root / "manifest"
    )

    assert place.ingest(place.root / "manifest").ingested == 2


def test_a_manifest_without_its_columns_is_refused_by_its_name(place: Place) -> None:
    header = {METADATA_KEY: json.dumps({"version": 1, "batch_id": "b", "queue_url": "q"})}
    (table,) = message_tables(good([1]))
    for name in table.column_names:
        pq.write_table(table.drop_columns([name]).replace_schema_metadata(header), place.root / "manifest")
        with pytest.raises(ManifestError, match=f"{place.root}/manifest has a row that is not a message"):
            place.ingest(place.root / "manifest")
    no_body = table.set_column(1, "body", pa.array([None], pa.string())).replace_schema_metadata(header)
    pq.write_table(no_body, place.root / "manifest")
    with pytest.raises(ManifestError, match=f"{place.root}/manifest has a row that is not a message"):
        place.ingest(place.root / "manifest", source=SnsEnvelope(JsonSource(SCHEMA)))


def test_an_empty_batch_is_nothing_to_do(place: Place) -> None:
    result = place.ingest([])

    assert (result.received, result.ingested, result.duplicates, result.rejected) == (0, 0, 0, {})
    assert result.table_version is None
    assert result.partial_batch_response() == {"batchItemFailures": []}
    assert list(place.root.iterdir()) == []


def test_a_batch_handed_over_again_commits_nothing_and_reports_the_same(place: Place) -> None:
    batch = [*good([1, 2]), message("bad", "not JSON"), message("worse", '{"id": "x"}')]
    first = place.ingest(batch)
    place.ingest(good([3]))

    again = place.ingest(batch)

    assert again == replace(first, rows=0, table_version=2)
    assert (again.ingested, set(again.rejected)) == (2, {"bad", "worse"})
    assert DeltaTable(str(place.table)).version() == 2
    assert stored_ids(place.table) == ["m1", "m2", "m3"]
    assert staged_files(place.table) == named_files(place.table)


def test_a_redelivery_in_a_later_batch_is_a_duplicate(place: Place) -> None:
    place.ingest(good([1, 2]))

    later = place.ingest(good([2, 3], receive_count=2))

    assert (later.received, later.ingested, later.duplicates, later.table_version) == (2, 1, 1, 2)
    assert stored_ids(place.table) == ["m1", "m2", "m3"]


def test_a_batch_of_nothing_but_redeliveries_leaves_the_table_alone(place: Place) -> None:
    place.ingest(good([1, 2]))
    files = staged_files(place.table)

    later = place.ingest(good([1, 2], receive_count=2))

    assert (later.ingested, later.duplicates, later.table_version) == (0, 2, 1)
    assert staged_files(place.table) == files


def test_a_message_twice_in_one_batch_is_stored_once(place: Place) -> None:
    result = place.ingest([*good([1, 2]), *good([1], receive_count=2)])

    assert (result.received, result.ingested, result.duplicates) == (3, 2, 1)
    assert stored_ids(place.table) == ["m1", "m2"]


def test_a_rejected_message_twice_in_one_batch_still_adds_up(place: Place) -> None:
    result = place.ingest([message("bad", "{"), message("bad", "{", receive_count=2), *good([1])])

    assert (result.received, result.ingested, result.duplicates, len(result.rejected)) == (3, 1, 1, 1)


def test_rejects_are_named_for_the_keeper_in_lambdas_shape(place: Place) -> None:
    result = place.ingest([*good([1]), message("driver", "[]"), message("spark", "{}")])

    failures = result.partial_batch_response()["batchItemFailures"]
    assert {failure["itemIdentifier"]: failure["reason"] for failure in failures} == result.rejected
    assert list(result.rejected) == ["driver", "spark"]
    assert stored_ids(place.table) == ["m1"]


@pytest.mark.parametrize(
    "batch",
    [[message("bad", "{"), message("worse", "")], [message("bad", "{}"), message("worse", '{"id": null}')]],
    ids=["by the driver", "by Spark"],
)
def test_a_batch_of_nothing_but_rejects_leaves_no_files(place: Place, batch: list[Message]) -> None:
    result = place.ingest(batch)

    assert (result.ingested, set(result.rejected)) == (0, {"bad", "worse"})
    assert staged_files(place.table) == set()
    assert DeltaTable(str(place.table)).version() == 0


def test_a_corrected_schema_gives_rejected_messages_another_chance(place: Place) -> None:
    batch = [message("m1", '{"id": 1}'), message("m2", '{"name": "n2"}')]
    place.ingest(batch, source=JsonSource("id BIGINT, name STRING NOT NULL"))
    table = place.root / "corrected"

    assert place.ingest(batch, sink=DeltaSink(table), source=JsonSource("id BIGINT, name STRING")).ingested == 2


def test_a_message_that_is_in_the_table_is_a_duplicate_even_if_it_would_be_rejected_now(place: Place) -> None:
    place.ingest(good([1]))

    result = place.ingest([message("m1", "not what it was", receive_count=2)])

    assert (result.duplicates, result.rejected) == (1, {})


def test_a_batch_that_overlaps_with_one_committed_meanwhile_stores_the_rest(place: Place) -> None:
    sink = InterruptedSink(place.table, before_commit=lambda: place.ingest(good([2, 3])))

    result = place.ingest(good([1, 2]), sink=sink)

    assert sink.calls == ["commit", "conflict", "commit"]
    assert (result.ingested, result.duplicates, result.table_version) == (1, 1, 2)
    assert stored_ids(place.table) == ["m1", "m2", "m3"]
    assert staged_files(place.table) == named_files(place.table)


def test_a_batch_that_was_overtaken_by_other_messages_keeps_what_it_wrote(place: Place) -> None:
    staged: list[set[str]] = []

    def others() -> None:
        staged.append(staged_files(place.table))
        place.ingest(good([3]))

    sink = InterruptedSink(place.table, before_commit=others)

    result = place.ingest(good([1, 2]), sink=sink)

    assert (result.ingested, result.duplicates) == (2, 0)
    assert staged[0] <= named_files(place.table)
    assert stored_ids(place.table) == ["m1", "m2", "m3"]


def test_the_same_batch_twice_at_once_is_stored_once_and_reported_alike(place: Place) -> None:
    twins: list[IngestResult] = []
    sink = InterruptedSink(place.table, before_commit=lambda: twins.append(place.ingest(good([1, 2]))))

    result = place.ingest(good([1, 2]), sink=sink)

    assert sink.calls == ["commit", "conflict"]
    assert result == replace(twins[0], rows=0)
    assert stored_ids(place.table) == ["m1", "m2"]
    assert staged_files(place.table) == named_files(place.table)


def test_a_batch_id_of_ones_own_is_recorded(place: Place) -> None:
    batch_id = "scheduled__2026-01-01T00:00:00+00:00"

    result = place.ingest(good([1]), batch_id=batch_id)

    assert result.batch_id == batch_id
    assert [row["_batch_id"] for row in rows(place.table)] == [batch_id]


def test_a_batch_id_cannot_stand_for_other_messages(place: Place) -> None:
    place.ingest(good([1]), batch_id="mine")

    with pytest.raises(BatchIdReusedError, match="batch id mine stands for other messages"):
        place.ingest(good([2]), batch_id="mine")
    assert staged_files(place.table) == named_files(place.table)
    assert stored_ids(place.table) == ["m1"]


def test_rows_deleted_after_the_commit_are_not_brought_back_by_a_redelivery(place: Place) -> None:
    place.ingest(good([1, 2]))
    DeltaTable(str(place.table)).delete("id = 1")

    assert place.ingest(good([1, 2], receive_count=2)).duplicates == 2
    assert stored_ids(place.table) == ["m2"]


def test_a_compacted_table_still_knows_its_messages(place: Place) -> None:
    place.ingest(good([1]))
    place.ingest(good([2]))
    DeltaTable(str(place.table)).optimize.compact()

    result = place.ingest(good([1, 2, 3], receive_count=2))

    assert (result.ingested, result.duplicates) == (1, 2)
    assert stored_ids(place.table) == ["m1", "m2", "m3"]


@dataclass(frozen=True)
class BrokenSource(JsonSource):
    """Parses as a JSON source does, then does something to the rows that no source may do."""

    fault: Callable[[DataFrame], DataFrame] = lambda parsed: parsed

    def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
        return self.fault(super().parse(messages, columns))


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(lambda rows: rows.where("_message_id != 'm2'"), id="a message is lost"),
        pytest.param(
            lambda rows: rows.withColumn("_message_id", F.concat("_message_id", F.lit("x"))),
            id="the right number of wrong messages",
        ),
        pytest.param(
            lambda rows: rows.where("_message_id = 'm1'").union(rows.where("_message_id = 'm1'")),
            id="the right number, one lost and one twice",
        ),
    ],
)
def test_a_batch_that_does_not_add_up_is_not_committed(place: Place, fault: Callable[[DataFrame], DataFrame]) -> None:
    place.ingest(good([7]))

    with pytest.raises(ReconciliationError, match="does not add up, so nothing of it was committed"):
        place.ingest(good([1, 2]), source=BrokenSource(SCHEMA, fault=fault))

    assert stored_ids(place.table) == ["m7"]
    assert staged_files(place.table) == named_files(place.table)
    assert place.ingest(good([1, 2])).ingested == 2


def test_a_commit_that_went_through_although_it_seemed_to_fail_is_not_undone(place: Place) -> None:
    class DeafTable(WriteAheadTable):
        def commit(self, looked_up: WriteAheadLookUp, admission: Admission) -> int | None:
            super().commit(looked_up, admission)
            raise TableError("no answer")

    class DeafSink(DeltaSink):
        def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> DeafTable:
            table = super().open(spark, columns, widen=widen)
            return DeafTable(table.target, table.ledger)

    with pytest.raises(TableError, match="no answer"):
        place.ingest(good([1, 2]), sink=DeafSink(place.table))

    assert stored_ids(place.table) == ["m1", "m2"]
    assert place.ingest(good([1, 2])).ingested == 2


def test_a_job_that_fails_in_spark_leaves_no_files(place: Place) -> None:
    # With a type: Spark 4.0 refuses a column without one before it asks for its values.
    fire = F.raise_error(F.lit("disk on fire")).cast("string")
    source = BrokenSource(SCHEMA, fault=lambda rows: rows.withColumn("name", fire))

    with pytest.raises(Exception, match="disk on fire"):
        place.ingest(good([1, 2]), source=source)

    assert staged_files(place.table) == set()
    assert place.ingest(good([1, 2])).ingested == 2


def test_the_session_keeps_its_own_settings(place: Place) -> None:
    before = place.spark.conf.get("spark.sql.parquet.outputTimestampType")

    place.ingest(good([1]))

    assert place.spark.conf.get("spark.sql.parquet.outputTimestampType") == before == "INT96"


@pytest.mark.parametrize(
    "setting",
    [
        {"spark.sql.parquet.outputTimestampType": "INT96"},
        {"spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY"},
        {"spark.sql.parquet.datetimeRebaseModeInWrite": "EXCEPTION"},
    ],
    ids=["INT96", "by the Julian calendar", "not at all"],
)
def test_the_session_does_not_say_how_times_are_stored(place: Place, setting: dict[str, str]) -> None:
    # With `rescued`, Spark itself writes the rows.
    source = JsonSource("at TIMESTAMP, day DATE", rescued="rest")
    body = '{"at": "1066-10-14T09:00:00.000001Z", "day": "1066-10-14"}'

    with session_settings(place.spark, setting):
        place.ingest([message("m1", body)], source=source)

    (stored,) = rows(place.table)
    assert (stored["at"], stored["day"]) == (datetime(1066, 10, 14, 9, 0, 0, 1, tzinfo=UTC), date(1066, 10, 14))
    (file,) = staged_files(place.table)
    columns = pq.read_metadata(file).schema
    assert [columns[number].physical_type for number in range(2)] == ["INT64", "INT32"]


def test_paths_may_hold_what_hadoop_takes_for_patterns(place: Place, tmp_path: Path) -> None:
    odd = Place(place.spark, tmp_path / "a b[1]{x}*?")
    odd.ingest(good([1]))

    assert odd.ingest(good([1, 2], receive_count=2)).duplicates == 1
    assert stored_ids(odd.table) == ["m1", "m2"]


def test_no_body_and_no_receipt_handle_is_logged_or_returned(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="sqs_lease")
    secret = [
        message("syntax", '{"id": 1, "name": "s3cret"} s3cret'),
        message("type", '{"id": "s3cret"}'),
        message("missing", '{"s3cret": "s3cret"}'),
        message("good", '{"id": 1, "name": "s3cret"}'),
    ]

    result = place.ingest(secret)

    assert len(result.rejected) == 3
    assert "3 rejected" in caplog.text
    for text in (caplog.text, repr(result)):
        assert "s3cret" not in text
        assert "handle-of" not in text


@pytest.mark.parametrize(
    ("messages", "error", "says"),
    [
        pytest.param([{"Body": "{}"}], ValueError, r"messages\[0\] has no 'MessageId'", id="no id"),
        pytest.param([{"MessageId": "m"}], ValueError, r"messages\[0\] has no 'Body'", id="no body"),
        pytest.param(
            [*good([1]), {"MessageId": "", "Body": "{}"}], ValueError, r"messages\[1\] .* empty", id="empty id"
        ),
        pytest.param([{"MessageId": "m", "Body": None}], TypeError, r"body of messages\[0\] \(m\)", id="null body"),
        pytest.param(
            [{"MessageId": 7, "Body": "{}"}],
            TypeError,
            r"message id of messages\[0\] must be a str, not int",
            id="number",
        ),
        pytest.param(None, TypeError, "a list of messages or the path of a manifest, not NoneType", id="nothing"),
        pytest.param(len, TypeError, "a list of messages or the path of a manifest, not builtin", id="a function"),
        pytest.param(["m1"], TypeError, r"messages\[0\] must be a Message or a dict, not str", id="a string"),
    ],
)
def test_a_value_that_is_not_a_message_is_refused_at_once(
    place: Place, messages: list[Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        place.ingest(messages)
    assert list(place.root.iterdir()) == []


@pytest.mark.parametrize(
    ("schema", "options", "says"),
    [
        ("id INT, at DATE", {"timestamp_units": {"at": "ms"}}, "the schema has no column at of the type TIMESTAMP"),
        ("id INT, names MAP<INT, STRING>", {}, r"column names is map<int,string>, .* make it a MAP<STRING, \.\.\.>"),
        ("id INT, its STRUCT<>", {}, "column its is an object without fields"),
        ("id INT, its ARRAY<STRUCT<>>", {}, "column its is an object without fields"),
    ],
)
def test_a_schema_that_cannot_be_is_refused_before_there_is_a_table(
    place: Place, schema: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(SchemaError, match=says):
        place.ingest(good([1]), source=JsonSource(schema, **options))

    assert not place.table.exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"source": "id BIGINT"}, "source is not a source, .* but str"),
        ({"source": JsonSource}, "source is not a source, .* but the class JsonSource"),
        ({"sink": "orders"}, "sink is not a sink, .* but str"),
        ({"sink": DeltaSink}, "sink is not a sink, .* but the class DeltaSink"),
        ({"rejects": JsonSource(SCHEMA)}, "rejects is not a sink, .* but JsonSource"),
        ({"batch_id": 7}, "batch_id must be a text, not int"),
    ],
)
def test_an_argument_that_is_something_else_is_refused_by_its_name(
    place: Place, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(TypeError, match=says):
        place.ingest(good([1]), **options)

    assert list(place.root.iterdir()) == []


@pytest.mark.parametrize("batch_id", ["a\ud800", "a\0b"])
def test_a_batch_id_that_a_table_cannot_store_is_refused(place: Place, batch_id: str) -> None:
    with pytest.raises(ValueError, match="batch_id has NUL or half a surrogate pair"):
        place.ingest(good([1]), batch_id=batch_id)


@pytest.mark.parametrize("workspace", ["", " "])
def test_an_empty_workspace_is_not_the_directory_of_the_process(place: Place, workspace: str) -> None:
    with pytest.raises(ValueError, match="workspace is empty"):
        ingest(place.spark, good([1]), source=place.source, sink=DeltaSink(place.table), workspace=workspace)


def test_an_empty_batch_id_is_refused(place: Place) -> None:
    with pytest.raises(ValueError, match="batch_id is empty"):
        place.ingest(good([1]), batch_id=" ")


def test_a_workspace_that_cannot_be_written_is_named(place: Place) -> None:
    place.workspace.write_text("a file in the way")

    with pytest.raises(WorkspaceError, match=rf"{place.workspace}.*make workspace= a directory"):
        place.ingest(good([1]))


@pytest.mark.parametrize("new_fields", ["ignore", "reject"])
def test_a_batch_comes_as_the_path_of_its_manifest_too(place: Place, new_fields: Any) -> None:
    source = JsonSource(SCHEMA, new_fields=new_fields)
    manifest = place.root / "manifest"
    batch = [*good([1, 2]), message("bad", "{"), message("more", '{"id": 3, "more": 1}')]
    batch += good([1])
    write_manifest(manifest, batch_id="b", queue_url="q", messages=batch)

    result = place.ingest(manifest, source=source)

    refused = {"bad", "more"} if new_fields == "reject" else {"bad"}
    assert (result.received, result.ingested + len(result.rejected), result.duplicates) == (5, 4, 1)
    assert set(result.rejected) == refused
    assert result.batch_id == place.ingest(batch, source=source).batch_id
    assert set(stored_ids(place.table)) == {"m1", "m2", "bad", "more"} - refused
    assert [file.name for file in place.workspace.iterdir()] == []
    assert manifest.exists()


def test_nothing_of_the_batch_is_left_in_the_workspace(place: Place) -> None:
    place.ingest([*good([1]), message("bad", "{}")])

    assert list(place.workspace.iterdir()) == []


def named(message_ids: list[str], receive_counts: list[int], source: str = "s") -> str:
    # In several chunks, as they are read.
    ids = pa.chunked_array([message_ids[:1], message_ids[1:]], pa.string())
    return default_id(source, ids, pa.chunked_array([receive_counts], pa.int32()))


def test_the_same_messages_are_the_same_batch() -> None:
    assert named(["a", "b", "c"], [1, 2, 3]) == named(["a", "b", "c"], [1, 2, 3])


@pytest.mark.parametrize("cuts", [(0, 0, 3), (0, 1, 1, 3), (0, 2, 3, 3)], ids=str)
def test_in_which_chunks_the_messages_are_is_nothing_to_a_batch(cuts: tuple[int, ...]) -> None:
    chunks = [["a", "b", "c"][start:end] for start, end in pairwise(cuts)]
    counts = pa.chunked_array([[1, 2, 3]], pa.int32())

    assert default_id("s", pa.chunked_array(chunks, pa.string()), counts) == named(["a", "b", "c"], [1, 2, 3])


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(named(["a"], [1]), id="fewer messages"),
        pytest.param(named(["b", "a"], [1, 1]), id="another order"),
        pytest.param(named(["a", "c"], [1, 1]), id="other messages"),
        pytest.param(named(["a", "b"], [2, 2]), id="a redelivery"),
        pytest.param(named(["a", "b"], [1, 2]), id="a redelivery of one of them"),
        pytest.param(named(["a", "b"], [1, 1], "t"), id="another source"),
        pytest.param(named([], []), id="no messages"),
    ],
)
def test_anything_else_is_another_batch(other: str) -> None:
    assert named(["a", "b"], [1, 1]) != other
