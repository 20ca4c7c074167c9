"""Objects that were in a bucket before there were notifications, on a real S3 server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import boto3
import pytest

from demo.sqs_server import SqsServer
from sqs_lease.spark import listed_objects
from sqs_lease.spark.sources.s3_events.notification import S3Object, created_objects, key_of
from sqs_lease.spark.sources.s3_events.object_store import ObjectStoreError
from tests.spark.sources.s3_messages import direct, record

pytestmark = pytest.mark.processes

LATER = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture
def client(server: SqsServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return boto3.client("s3")


@pytest.fixture
def bucket(client: Any) -> str:
    name = f"listed-{uuid4().hex[:12]}"
    client.create_bucket(Bucket=name)
    return name


def test_objects_are_listed_in_batches_that_go_on_where_one_ended(client: Any, bucket: str) -> None:
    keys = ["in/a b.json", "in/c+d.json", "in/e.json", "in/ü.json"]
    for key in [*keys, "other/f.json"]:
        client.put_object(Bucket=bucket, Key=key, Body=b'{"id": 1}')

    batches = list(listed_objects(bucket, "in/", before=LATER, objects_per_batch=3))

    assert [len(batch.messages) for batch in batches] == [3, 1]
    found = [created_objects(message.body) for batch in batches for message in batch.messages]
    assert found == [(S3Object(bucket, key),) for key in keys]
    (rest,) = listed_objects(bucket, "in/", before=LATER, after_key=batches[0].last_key)
    assert rest == batches[1]
    (first, *_) = batches[0].messages
    assert first.sent_at is not None
    assert first.sent_at.replace(microsecond=0) == client.head_object(Bucket=bucket, Key=keys[0])["LastModified"]


def test_the_newest_version_of_what_was_not_deleted_is_listed_under_the_name_of_its_notification(
    client: Any, bucket: str
) -> None:
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    _, newest, _ = (client.put_object(Bucket=bucket, Key=key, Body=b"x")["VersionId"] for key in ("a", "a", "gone"))
    client.delete_object(Bucket=bucket, Key="gone")

    (batch,) = listed_objects(bucket, before=LATER)

    (message,) = batch.messages
    assert created_objects(message.body) == (S3Object(bucket, "a", newest),)
    assert key_of(message.body) == key_of(direct(record(bucket, "a", version_id=newest)))


def test_what_was_written_after_notifications_began_is_left_to_them(client: Any, bucket: str) -> None:
    client.put_object(Bucket=bucket, Key="a", Body=b"x")
    began = client.head_object(Bucket=bucket, Key="a")["LastModified"]

    assert list(listed_objects(bucket, before=began)) == []
    assert len(list(listed_objects(bucket, before=began + timedelta(seconds=1)))) == 1


def test_the_same_object_has_the_same_message_and_another_writing_another_one(client: Any, bucket: str) -> None:
    def listed() -> str:
        ((message,),) = (batch.messages for batch in listed_objects(bucket, before=LATER))
        return message.message_id

    client.put_object(Bucket=bucket, Key="a", Body=b"x")
    first = listed()
    assert listed() == first
    client.put_object(Bucket=bucket, Key="a", Body=b"y")
    assert listed() != first


def test_what_cannot_be_listed_is_an_error_that_says_why(client: Any, bucket: str) -> None:
    with pytest.raises(ObjectStoreError, match=f"S3 does not list s3://{bucket}-no/in/ .*s3:ListBucketVersions"):
        list(listed_objects(f"{bucket}-no", "in/", before=LATER))
    with pytest.raises(ValueError, match="before has no time zone"):
        listed_objects(bucket, before=datetime(2026, 3, 1))  # noqa: DTZ001 - what is refused
    with pytest.raises(ValueError, match="objects_per_batch must be at least 1, not 0"):
        listed_objects(bucket, before=LATER, objects_per_batch=0)
