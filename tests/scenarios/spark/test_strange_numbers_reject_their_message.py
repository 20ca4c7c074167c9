"""A text that is not a number rejects its message, also where Spark takes it for one, as it does "NaN" and "1d"."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote_plus
from uuid import uuid4

import boto3
import pytest

from sqs_lease.core.messages import Message, Receipt
from sqs_lease.spark import AttributeColumns, JsonSource, S3EventsSource
from tests.spark.samples import Place, message, rows
from tests.spark.sources.s3_messages import direct, record

pytestmark = pytest.mark.processes

NO_NUMBERS = ("1,5", "1,000", "12 or so", "1 000", "5%", "1d", "0x1p3", "NaN", "Infinity", "1e400")


@pytest.fixture
def bucket(on_s3: None) -> str:
    name = f"bucket-{uuid4().hex[:12]}"
    boto3.client("s3").create_bucket(Bucket=name)
    return name


def put(bucket: str, key: str, content: bytes, message_id: str) -> Message:
    boto3.client("s3").put_object(Bucket=bucket, Key=key, Body=content)
    return message(message_id, direct(record(bucket, quote_plus(key, safe="/"))))


def test_in_attributes(place: Place) -> None:
    def sent(number: int, text: str) -> Message:
        attributes: dict[str, Any] = {"a": {"DataType": "Number", "StringValue": text}}
        return Message(Receipt(f"m{number:02}", ""), '{"id": 1}', {"SentTimestamp": "1700000000123"}, attributes)

    good = [sent(90, "-1.5e3"), sent(91, " 2 ")]
    bad = [sent(number, text) for number, text in enumerate(NO_NUMBERS)]

    result = place.ingest([*good, *bad], source=AttributeColumns(JsonSource("id INT"), "a DOUBLE"))

    assert result.rejected == {one.message_id: "the attribute a is not of the type in the schema" for one in bad}
    assert [row["a"] for row in rows(place.table)] == [-1500.0, 2.0]


def test_in_keys_and_times_without_a_zone_there_are_in_utc(place: Place, bucket: str) -> None:
    bad = [f"a={text}/1" for text in ("nan", "inf", "1e400", "1,5")]
    times = ("2026-01-31 12%3A00%3A00", "2026-01-31T12:00:00Z", "2026-01-31 13:00:00+01:00")
    keys = [*bad, *(f"at={time}/a=1.5/1" for time in times)]
    batch = [put(bucket, key, b'{"id": 1}', f"m{number}") for number, key in enumerate(keys)]
    source = S3EventsSource("jsonl", "id INT", path_columns="a DOUBLE, at TIMESTAMP", read={"tasks": 1, "threads": 2})

    result = place.ingest(batch, source=source)

    odd, none = "the key's a is infinite or not a number", "the key's a is not of the type in the schema"
    reasons = {message_id: why.rpartition(": ")[2] for message_id, why in result.rejected.items()}
    assert reasons == {"m0": odd, "m1": odd, "m2": odd, "m3": none}
    found = [(row["a"], row["at"]) for row in rows(place.table)]
    assert found == [(1.5, datetime(2026, 1, 31, 12, tzinfo=UTC))] * 3
