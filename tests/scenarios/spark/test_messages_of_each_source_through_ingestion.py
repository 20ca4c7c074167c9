"""Sources with messages that give no row or many, or new columns, through ingestion into a table."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus
from uuid import uuid4

import boto3
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it

from sqs_lease.spark import ArrayElements, AttributeColumns, DeltaSink, JsonSource, Source, SparkSource
from sqs_lease.spark.columns import NOTHING_TO_STORE
from sqs_lease.spark.ingestion import NOTHING_TO_INFER
from sqs_lease.spark.sources.functions import ParserSource
from sqs_lease.spark.sources.pinned_schema import InferredSchema
from sqs_lease.spark.sources.s3_events import S3EventsSource
from sqs_lease.spark.sources.sns import SnsEnvelope
from tests.spark.inferring import infers
from tests.spark.samples import Place, message, rows, staged_files
from tests.spark.sources.s3_messages import direct, in_sns, record

pytestmark = pytest.mark.processes


@pytest.fixture
def bucket(on_s3: None) -> str:
    name = f"bucket-{uuid4().hex[:12]}"
    boto3.client("s3").create_bucket(Bucket=name)
    return name


def test_an_object_that_was_notified_twice_is_stored_once(place: Place, bucket: str) -> None:
    boto3.client("s3").put_object(Bucket=bucket, Key="a.jsonl", Body=b'{"id": 1}\n{"id": 2}\n')
    source = S3EventsSource("jsonl", "id BIGINT NOT NULL", read={"tasks": 2, "threads": 2})
    notified = direct(record(bucket, "a.jsonl"))

    first = place.ingest([message("m1", notified), message("m2", notified)], source=source)
    later = place.ingest([message("m3", in_sns(notified))], source=source)

    assert (first.ingested, first.duplicates, first.rows) == (1, 1, 2)
    assert (later.ingested, later.duplicates, later.rows) == (0, 1, 0)
    assert [(row["_message_id"], row["id"]) for row in rows(place.table)] == [("m1", 1), ("m1", 2)]


@infers
@pytest.mark.parametrize("name", ["\u0130d", "i\u0307d", "ID"])
def test_a_field_with_a_name_that_spark_takes_for_another_one_stops_no_batch(place: Place, name: str) -> None:
    pinned = InferredSchema(place.table.parent / "schema.json")

    first = place.ingest([message("m1", json.dumps({"id": 1, name: 2}))], source=JsonSource(pinned))
    later = place.ingest(
        [message("m2", json.dumps({"id": 1, "x": 1})), message("m3", json.dumps({name: 1, "x": 1}))],
        source=JsonSource(pinned, new_fields="add"),
    )

    assert (first.ingested, first.rejected) == (1, {})
    (reason,) = later.rejected.values()
    assert "in upper and lower case only" in reason
    assert len(rows(place.table)) == 2


def test_an_object_with_one_bad_line_leaves_no_row_and_the_others_all_of_theirs(place: Place, bucket: str) -> None:
    s3 = boto3.client("s3")
    s3.put_object(Bucket=bucket, Key="a.jsonl.gz", Body=gzip.compress(b'{"id": 1}\n{"id": 2}\n'))
    s3.put_object(Bucket=bucket, Key="b.jsonl", Body=b'{"id": 3}\n{"id": "four"}\n')
    messages = [
        message("a", in_sns(direct(record(bucket, "a.jsonl.gz")))),
        message("b", direct(record(bucket, "b.jsonl"))),
        message("missing", direct(record(bucket, "missing"))),
        message("test", json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent"})),
        message("other", "{}"),
    ]
    source = S3EventsSource("jsonl", "id BIGINT NOT NULL", read={"tasks": 2, "threads": 2})

    result = place.ingest(messages, source=source)
    again = place.ingest(messages, source=source)

    assert [(row["_message_id"], row["id"], row["_s3_key"]) for row in rows(place.table)] == [
        ("a", 1, "a.jsonl.gz"),
        ("a", 2, "a.jsonl.gz"),
    ]
    assert (result.ingested, result.empty, result.rows) == (1, 1, 2)
    assert result.rejected.keys() == {"b", "missing", "other"}
    assert result.rejected["b"] == "not of the type in the schema: id"
    assert (again.ingested + again.duplicates, again.empty) == (1, 1)


DEEP = 100_000


def test_an_object_that_a_parser_fails_on_rejects_its_message(place: Place, bucket: str) -> None:
    deep = b'[{"id": 1, "more": ' + b"[" * DEEP + b"]" * DEEP + b"}]"
    boto3.client("s3").put_object(Bucket=bucket, Key="deep", Body=deep)
    source = S3EventsSource("json", "id BIGINT NOT NULL", read={"tasks": 1, "threads": 2})

    # Alone: nothing else of the batch tells that S3, and Spark, are well.
    result = place.ingest([message("deep", direct(record(bucket, "deep")))], source=source)

    assert result.rejected.keys() == {"deep"}
    assert "not " in result.rejected["deep"]


def test_a_bucket_that_names_another_server_and_a_key_that_names_no_day_reject_their_messages(
    place: Place, bucket: str
) -> None:
    boto3.client("s3").put_object(Bucket=bucket, Key="day=0000-01-01/a", Body=b'{"id": 1}')
    source = S3EventsSource("jsonl", "id BIGINT NOT NULL", path_columns="day DATE", read={"tasks": 1, "threads": 2})
    bodies = {
        "access point": direct(record("arn:aws:s3::123456789012:accesspoint/name.mrap", "a")),
        "year 0": direct(record(bucket, quote_plus("day=0000-01-01/a", safe="/"))),
    }

    for name, body in bodies.items():
        assert place.ingest([message(name, body)], source=source).rejected.keys() == {name}


def test_a_text_in_a_column_that_is_read_from_numbers_rejects_its_message(place: Place) -> None:
    source = JsonSource("id INT, at TIMESTAMP", timestamp_units={"at": "ms"})
    bodies = {"number": '{"id": 1, "at": 1357016400123}', "text": '{"id": 2, "at": "2013-01-01T05:00:00Z"}'}

    result = place.ingest([message(name, body) for name, body in bodies.items()], source=source)

    assert result.rejected == {"text": "not of the type in the schema: at"}
    assert [row["at"] for row in rows(place.table)] == [datetime(2013, 1, 1, 5, 0, 0, 123_000, tzinfo=UTC)]


def test_a_field_without_a_column_is_saved_also_where_tasks_could_read_the_rest(place: Place) -> None:
    bodies = {"m1": '{"id": 1}', "m2": '{"id": 2, "more": 3}'}

    place.ingest([message(*one) for one in bodies.items()], source=JsonSource("id INT", rescued="rest"))

    assert [row["rest"] for row in rows(place.table)] == [None, bodies["m2"]]


def test_a_parsers_records_rejects_and_empty_messages_add_up(place: Place) -> None:
    def parser(messages: pa.RecordBatch) -> pa.Table:
        found = []
        for its in messages.to_pylist():
            words = its["body"].split()
            found += [{"message_id": its["message_id"], "word": word} for word in words]
            if not words:
                found.append({"message_id": its["message_id"], "reason": NOTHING_TO_STORE})
        return pa.Table.from_pylist(
            found, pa.schema({"message_id": pa.string(), "word": pa.string(), "reason": pa.string()})
        )

    result = place.ingest(
        [message("m1", "a b c"), message("m2", " "), message("half", "\ud800")],
        source=ParserSource(parser, "word STRING NOT NULL"),
    )

    assert (result.ingested, result.empty, result.rows, set(result.rejected)) == (1, 1, 3, {"half"})
    assert sorted(row["word"] for row in rows(place.table)) == ["a", "b", "c"]


def test_a_parser_that_fails_stops_the_batch_and_nothing_is_stored(place: Place) -> None:
    def parser(messages: pa.RecordBatch) -> pa.Table:
        return pa.table({"message_id": [*messages.column("message_id").to_pylist(), "m9"], "word": ["a", "b"]})

    with pytest.raises(PythonException, match="gave 1 rows of messages that it did not get"):
        place.ingest([message("m1", "a")], source=ParserSource(parser, "word STRING"))

    assert rows(place.table) == []
    assert staged_files(place.table) == set()


def test_a_message_with_which_a_parser_fails_is_rejected_and_the_others_are_stored(place: Place) -> None:
    def parser(messages: pa.RecordBatch) -> pa.Table:
        numbers = [int(body) for body in messages.column("body").to_pylist()]
        return pa.table({"message_id": messages.column("message_id"), "number": numbers})

    batch = [message(f"m{number}", str(number)) for number in range(5)]
    result = place.ingest([*batch, message("bad", "a secret")], source=ParserSource(parser, "number BIGINT"))

    # PySpark 4.1 has no condition for it.
    assert result.rejected["bad"] in {
        f"its rows cannot be written ({name})" for name in ("PYTHON_EXCEPTION", "PythonException")
    }
    assert result.rejected.keys() == {"bad"}
    assert [row["number"] for row in rows(place.table)] == [0, 1, 2, 3, 4]


@infers
@pytest.mark.parametrize("with_rejects", [False, True], ids=["reported", "stored"])
def test_a_first_batch_from_which_no_schema_can_be_inferred_is_rejected_and_the_next_one_stored(
    place: Place, tmp_path: Path, with_rejects: bool
) -> None:
    source = JsonSource(InferredSchema(tmp_path / "schema.json"))
    rejects = DeltaSink(tmp_path / "rejects") if with_rejects else None
    batch = [message("text", "hello"), message("empty", "{}"), message("null", '{"id": null}')]

    result = place.ingest([*batch, message("text", "hello", receive_count=2)], source=source, rejects=rejects)
    later = place.ingest([*batch, message("m1", '{"id": 1}')], source=source, rejects=rejects)

    assert (result.ingested, result.duplicates, set(result.rejected)) == (0, 1, {"text", "empty", "null"})
    assert result.rejected["null"] == NOTHING_TO_INFER
    assert (later.ingested, set(later.rejected)) == (1, {"text", "empty", "null"})
    assert [row["id"] for row in rows(place.table)] == [1]
    if with_rejects:
        assert len(rows(tmp_path / "rejects")) == 3


@infers
def test_new_fields_widen_the_table_and_a_driver_a_step_behind_goes_on(place: Place, tmp_path: Path) -> None:
    source = SnsEnvelope(JsonSource(InferredSchema(tmp_path / "schema.json"), new_fields="add"))

    place.ingest([message("m1", in_sns('{"id": 1}'))], source=source)
    place.ingest([message("m2", in_sns('{"id": 2, "size": 2.5}'))], source=source)
    # As a driver does that read the pinned schema before the other one widened it.
    behind = JsonSource(InferredSchema(tmp_path / "behind.json"), new_fields="add")
    place.ingest([message("m3", '{"id": 3}')], source=behind)

    found: list[dict[str, Any]] = rows(place.table)
    assert [(row["id"], row["size"]) for row in found] == [(1, None), (2, 2.5), (3, None)]


def as_numbers(messages: pa.RecordBatch) -> pa.Table:
    """A number is a record, 0 is nothing."""
    found = {its["message_id"]: int(its["body"]) for its in messages.to_pylist()}
    reasons = [None if number else NOTHING_TO_STORE for number in found.values()]
    return pa.table({"message_id": found.keys(), "id": found.values(), "reason": pa.array(reasons, pa.string())})


def numbers(messages: DataFrame) -> DataFrame:
    return messages.select("message_id", F.col("body").cast("bigint").alias("id"))


ELEMENTS = [
    pytest.param(ParserSource(as_numbers, "id BIGINT NOT NULL"), "[2, 0, 2, 4]", [2, 2, 4], id="a parser"),
    pytest.param(SparkSource(numbers, "id BIGINT NOT NULL"), "[2, 2, 4]", [2, 2, 4], id="a function of Spark"),
    pytest.param(
        AttributeColumns(JsonSource("id BIGINT NOT NULL"), "SenderId STRING"),
        '[{"id": 2}, {"id": 2}, {"id": 4}]',
        [2, 2, 4],
        id="attributes",
    ),
]


@pytest.mark.parametrize(("source", "body", "stored"), ELEMENTS)
def test_each_element_of_an_array_is_one_record_of_any_source(
    place: Place, source: Source[Any], body: str, stored: list[int]
) -> None:
    messages = [message("m1", body), message("1#m2", body), message("m3", "[]")]

    result = place.ingest(messages, source=ArrayElements(source))

    assert (result.ingested, result.empty, result.rejected) == (2, 1, {})
    found = [(row["_message_id"], row["id"]) for row in rows(place.table)]
    assert sorted(found) == sorted((message_id, one) for message_id in ("m1", "1#m2") for one in stored)
