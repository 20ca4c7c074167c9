"""Messages whose bodies are in S3, as the Amazon SQS Extended Client Library sends them."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession

from sqs_lease.spark.sources.s3_events import ExtendedClientSource
from sqs_lease.spark.sources.s3_events.allowance import Allowance, SpooledFile
from sqs_lease.spark.sources.s3_events.notification import S3Object
from sqs_lease.spark.sources.s3_events.object_store import ObjectStore, ObjectUnavailableError
from tests.spark.sources.parsing import parsed

pytestmark = pytest.mark.processes


def pointer(key: str, kind: str = "software.amazon.payloadoffloading.PayloadS3Pointer") -> str:
    return json.dumps([kind, {"s3BucketName": "large", "s3Key": key}])


class Store(ObjectStore):
    """Objects in memory; pickled to the tasks."""

    def fetch(self, wanted: S3Object, file: SpooledFile, allowance: Allowance) -> int:
        content = {
            "one": b'{"id": 1}',
            "many": b'[{"id": 2}, {"id": 3}]',
            "bad": b'{"id": "secret"}',
            "no JSON": b"secret",
            "empty": b"",
            "blank": b" \n",
            "none": b"[]",
        }.get(wanted.key)
        if content is None:
            raise ObjectUnavailableError("NoSuchKey")
        return file.write(content)


def test_objects_and_bodies_give_the_records(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqs_lease.spark.sources.s3_events.extended_client.ObjectStore", Store)
    bodies = {
        "one": pointer("one"),
        "many": pointer("many", "com.amazon.sqs.javamessaging.MessageS3Pointer"),
        "inline": '{"id": 4}',
        "inline array": '[{"id": 5}, {"id": 6}]',
        "nothing": "[]",
        "bad": pointer("bad"),
        "no JSON": pointer("no JSON"),
        "gone": pointer("gone"),
        "empty": pointer("empty"),
        "blank": pointer("blank"),
        "none": pointer("none"),
        "no key": json.dumps(["software.amazon.payloadoffloading.PayloadS3Pointer", {"s3BucketName": "large"}]),
        "text": "secret",
        "other array": '["secret", {}]',
    }

    outcome = parsed(spark, ExtendedClientSource("id BIGINT NOT NULL", read={"tasks": 2}), bodies)

    assert {name: [row["id"] for row in rows] for name, rows in outcome.records.items()} == {
        "one": [1],
        "many": [2, 3],
        "inline": [4],
        "inline array": [5, 6],
    }
    assert outcome.empty == {"nothing", "none"}
    assert outcome.rejected["bad"] == "not of the type in the schema: id"
    assert outcome.rejected["no JSON"].startswith("s3://large/no JSON: record 1: not valid JSON")
    assert outcome.rejected["gone"] == "s3://large/gone: NoSuchKey"
    assert outcome.rejected["empty"] == "s3://large/empty: the body is empty"
    assert outcome.rejected["blank"] == "s3://large/blank: the body is empty"
    assert outcome.rejected["no key"] == "a pointer to S3 without a bucket or a key"
    assert outcome.rejected["text"].startswith("not valid JSON")
    assert outcome.rejected["other array"] == "record 1: not a JSON object, but a string"
    assert "secret" not in str(outcome.rejected)
