"""Attributes of a message from SQS and the sender stand beside its records."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sqs_lease import Message, Receipt
from sqs_lease.batch_files.manifest import write_manifest
from sqs_lease.spark import DeltaSink, ingest
from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.sources.attribute_columns import AttributeColumns
from sqs_lease.spark.sources.functions import ParserSource
from sqs_lease.spark.sources.json import JsonSource
from sqs_lease.spark.sources.sns import SnsEnvelope
from tests.spark.sources.parsing import parsed
from tests.spark.sources.s3_messages import in_sns

pytestmark = pytest.mark.processes

GIVEN = {
    "tenant": {"DataType": "String", "StringValue": "blue"},
    "retry-of": {"DataType": "Number", "StringValue": "7"},
    "key": {"DataType": "Binary", "BinaryValue": {"base64": "AP8="}},
}
SYSTEM = {"SenderId": "AIDA", "SentTimestamp": "1767323045678", "ApproximateReceiveCount": "3", "MessageGroupId": "g"}


def test_columns_are_named_like_attributes_of_the_sender_or_of_sqs(spark: SparkSession) -> None:
    source = AttributeColumns(
        JsonSource("id INT"),
        "tenant STRING NOT NULL, `retry-of` BIGINT, key BINARY, other DATE, SenderId STRING, SentTimestamp TIMESTAMP, "
        "ApproximateReceiveCount INT, MessageGroupId STRING, SequenceNumber STRING",
    )

    outcome = parsed(spark, source, {"m1": '{"id": 1}'}, json.dumps(GIVEN), json.dumps(SYSTEM))

    (row,) = outcome.records["m1"]
    sent = row.pop("SentTimestamp")
    assert sent.astimezone(UTC) == datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    assert row == {
        "id": 1,
        "tenant": "blue",
        "retry-of": 7,
        "key": b"\x00\xff",
        "other": None,
        "SenderId": "AIDA",
        "ApproximateReceiveCount": 3,
        "MessageGroupId": "g",
        "SequenceNumber": None,
    }


def test_bytes_in_a_text_column_are_base64(spark: SparkSession) -> None:
    outcome = parsed(
        spark, AttributeColumns(JsonSource("id INT"), "key STRING"), {"m1": '{"id": 1}'}, json.dumps(GIVEN)
    )

    assert outcome.records == {"m1": [{"id": 1, "key": "AP8="}]}


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ("absent STRING NOT NULL", "it has no attribute absent, which is required"),
        ("tenant INT", "the attribute tenant is not of the type in the schema"),
        ("tenant BINARY NOT NULL, `retry-of` TIMESTAMP", "the attribute retry-of is not of the type in the schema"),
    ],
)
def test_a_message_with_attributes_that_do_not_fit_is_rejected(
    spark: SparkSession, attributes: str, reason: str
) -> None:
    outcome = parsed(spark, AttributeColumns(JsonSource("id INT"), attributes), {"m1": '{"id": 1}'}, json.dumps(GIVEN))

    assert outcome.rejected == {"m1": reason}


def test_messages_without_any_attributes(spark: SparkSession) -> None:
    outcome = parsed(spark, AttributeColumns(JsonSource("id INT"), "tenant STRING"), {"m1": '{"id": 1}', "m2": "{"})

    assert outcome.records == {"m1": [{"id": 1, "tenant": None}]}
    assert outcome.rejected["m2"].startswith("not valid JSON")


def test_each_record_of_a_message_has_them(spark: SparkSession) -> None:
    def letters(messages: Any) -> Any:
        import pyarrow as pa  # type: ignore[import-untyped]

        rows = [(one["message_id"], letter) for one in messages.to_pylist() for letter in one["body"]]
        return pa.table({"message_id": [row[0] for row in rows], "letter": [row[1] for row in rows]})

    source = AttributeColumns(ParserSource(letters, "letter STRING"), "tenant STRING")

    outcome = parsed(spark, source, {"m1": "ab"}, json.dumps(GIVEN))

    assert outcome.records == {"m1": [{"letter": "a", "tenant": "blue"}, {"letter": "b", "tenant": "blue"}]}


def test_around_an_envelope_they_are_those_of_the_queue_and_within_it_those_of_the_topic(spark: SparkSession) -> None:
    envelope = json.loads(in_sns('{"id": 1}'))
    envelope["MessageAttributes"] = {"tenant": {"Type": "String", "Value": "red"}}
    body = {"m1": json.dumps(envelope)}
    inner = JsonSource("id INT")

    around = parsed(spark, AttributeColumns(SnsEnvelope(inner), "tenant STRING"), body, json.dumps(GIVEN))
    within = parsed(spark, SnsEnvelope(AttributeColumns(inner, "tenant STRING")), body, json.dumps(GIVEN))

    assert around.records == {"m1": [{"id": 1, "tenant": "blue"}]}
    assert within.records == {"m1": [{"id": 1, "tenant": "red"}]}


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ("tags ARRAY<STRING>", "an attribute cannot hold the type array<string> of tags"),
        ("", "attributes names no columns"),
        ("ID STRING", "attributes names id, which is a column of the messages too"),
    ],
)
def test_columns_that_cannot_be_are_refused(spark: SparkSession, attributes: str, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        parsed(spark, AttributeColumns(JsonSource("id INT"), attributes), {"m1": '{"id": 1}'})


@pytest.mark.parametrize("by_manifest", [False, True])
def test_through_ingestion_and_by_a_manifest(spark: SparkSession, tmp_path: Path, by_manifest: bool) -> None:
    messages = [
        Message(
            Receipt(f"m{number}", "handle"),
            body=f'{{"id": {number}}}',
            attributes={**SYSTEM, "SenderId": f"sender {number}"},
            message_attributes={"key": {"DataType": "Binary", "BinaryValue": b"\x00\xff"}},
        )
        for number in range(3)
    ]
    given: Any = messages
    if by_manifest:
        given = tmp_path / "manifest.parquet"
        write_manifest(given, batch_id="b", queue_url="http://127.0.0.1/1/q", messages=messages)
    source = AttributeColumns(JsonSource("id INT NOT NULL"), "SenderId STRING NOT NULL, key BINARY")

    result = ingest(spark, given, source=source, sink=DeltaSink(tmp_path / "table"), workspace=tmp_path / "work")

    assert (result.ingested, result.rejected) == (3, {})
    from deltalake import DeltaTable

    rows = DeltaTable(tmp_path / "table").to_pyarrow_table().select(["id", "SenderId", "key"]).to_pylist()
    assert sorted(rows, key=lambda row: row["id"]) == [
        {"id": number, "SenderId": f"sender {number}", "key": b"\x00\xff"} for number in range(3)
    ]
