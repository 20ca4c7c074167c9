"""Objects are deleted or tagged once their records are in the table, never before, and no others are."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import boto3
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sqs_lease.ingestion.result import CleanUp
from sqs_lease.spark import ArrayElements, AttributeColumns, DeltaSink, JsonSource, S3EventsSource, SnsEnvelope
from sqs_lease.spark.sinks.write_ahead import WriteAheadLookUp, WriteAheadTable
from sqs_lease.spark.sources.s3_events.clean_up import ObjectCleaner
from sqs_lease.spark.sources.s3_events.object_store import ObjectStore
from sqs_lease.spark.sources.source import CleanerOf, CleaningSource, Source
from tests.spark.samples import InterruptedSink, Place, message, rows
from tests.spark.sources.s3_messages import direct, in_sns, record

pytestmark = pytest.mark.processes


class Bucket:
    """A bucket of its own on the server."""

    def __init__(self, *, versions: bool, locked: bool = False) -> None:
        self.client = boto3.client("s3")
        self.name = f"bucket-{uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=self.name, ObjectLockEnabledForBucket=locked)
        if versions:
            self.client.put_bucket_versioning(Bucket=self.name, VersioningConfiguration={"Status": "Enabled"})

    def put(self, key: str, content: bytes) -> dict[str, Any]:
        """Write an object, and return the record that S3 would send of it."""
        written = self.client.put_object(Bucket=self.name, Key=key, Body=content)
        told = record(self.name, key, version_id=written.get("VersionId"))
        told["s3"]["object"] |= {"eTag": written["ETag"].strip('"'), "sequencer": uuid4().hex[:16].upper()}
        return told

    def contents(self) -> list[bytes]:
        """All versions of all objects, by key, the oldest first."""
        listed = self.client.list_object_versions(Bucket=self.name).get("Versions", [])
        listed.sort(key=lambda its: (its["Key"], its["LastModified"], its["IsLatest"]))
        return [
            self.client.get_object(Bucket=self.name, Key=its["Key"], VersionId=its["VersionId"])["Body"].read()
            for its in listed
        ]

    def tags(self, key: str) -> dict[str, str]:
        tags = self.client.get_object_tagging(Bucket=self.name, Key=key)["TagSet"]
        return {tag["Key"]: tag["Value"] for tag in tags}


@pytest.fixture(params=[False, True], ids=["without versions", "with versions"])
def bucket(on_s3: None, request: pytest.FixtureRequest) -> Bucket:
    return Bucket(versions=request.param)


def objects(**options: Any) -> S3EventsSource:
    return S3EventsSource("jsonl", "id BIGINT NOT NULL", read={"tasks": 2, "threads": 2}, **options)


def line(number: object) -> bytes:
    return json.dumps({"id": number}).encode()


def test_stored_objects_are_deleted_and_rejected_ones_are_left(place: Place, bucket: Bucket) -> None:
    a, b, empty = (bucket.put(key, content) for key, content in (("a", line(1)), ("b", line(2)), ("empty", b"\n")))
    bad, shared = bucket.put("c", b"no JSON"), bucket.put("d", line(4))
    batch = [
        message("m1", direct(a, b)),
        message("sns", in_sns(direct(empty))),
        message("bad", direct(shared, bad)),
        message("shared", direct(shared)),
        message("test", json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent"})),
        message("other", "{}"),
    ]

    result = place.ingest(batch, source=objects(clean_source="delete"), rejects=DeltaSink(place.root / "rejects"))

    assert (result.ingested, result.empty, set(result.rejected)) == (2, 2, {"bad", "other"})
    assert result.objects == CleanUp(cleaned=3, left=0, failed=0, error=None)
    assert bucket.contents() == [b"no JSON", line(4)]
    assert result.stored().objects == result.objects


def test_an_entity_tag_that_no_request_can_hold_leaves_its_own_object_alone(place: Place, bucket: Bucket) -> None:
    odd, good = bucket.put("odd", line(1)), bucket.put("good", line(2))
    odd["s3"]["object"] = {"key": "odd", "eTag": "a\r\nb\u20ac"}

    result = place.ingest(
        [message("odd", direct(odd)), message("good", direct(good))], source=objects(clean_source="delete")
    )

    assert result.objects == CleanUp(cleaned=1, left=1, failed=0, error=None)
    assert bucket.contents() == [line(1)]


def test_objects_are_left_where_nothing_else_is_said(place: Place, bucket: Bucket) -> None:
    result = place.ingest([message("m1", direct(bucket.put("a", line(1))))], source=objects())

    assert (result.ingested, result.objects, bucket.contents()) == (1, None, [line(1)])


def test_an_object_that_was_written_since_is_left_for_its_own_message(place: Place, bucket: Bucket) -> None:
    first, second = bucket.put("a", line(1)), bucket.put("a", line(2))
    source = objects(clean_source="delete")

    place.ingest([message("m1", direct(first))], source=source)

    assert bucket.contents() == [line(2)]
    later = place.ingest([message("m2", direct(second))], source=source)
    assert later.objects == CleanUp(1, 0, 0, None)
    assert bucket.contents() == []


def test_a_server_that_deletes_without_a_look_at_the_condition_is_asked_before(on_s3: None) -> None:
    bucket = Bucket(versions=False)
    first, _ = bucket.put("a", line(1)), bucket.put("a", line(2))
    store = ObjectStore(1)
    # As MinIO has it.
    store.client.meta.events.register("before-call.s3.DeleteObject", lambda params, **_: params["headers"].clear())
    told = {"bucket": bucket.name, "key": "a", "version_id": None, "tag": first["s3"]["object"]["eTag"]}

    (done,) = ObjectCleaner(store, None)(iter([pa.RecordBatch.from_pylist([told])]))

    assert CleanUp(**done.to_pylist()[0]) == CleanUp(0, 1, 0, None)
    assert bucket.contents() == [line(2)]


@pytest.mark.parametrize(
    ("endpoint_url", "looks"),
    [
        ("https://s3.eu-west-1.amazonaws.com", []),
        ("https://s3.cn-north-1.amazonaws.com.cn", []),
        ("https://amazonaws.com.example", ["data/a"]),
        ("http://127.0.0.1:9000", ["data/a"]),
    ],
)
def test_s3_itself_is_not_asked_before_a_deletion(endpoint_url: str, looks: list[str]) -> None:
    """A role that may not list cannot tell there that an object is gone, and S3 looks at the condition."""
    asked: list[str] = []
    deleted: list[str] = []
    store = ObjectStore(1)
    store.__dict__["client"] = SimpleNamespace(
        meta=SimpleNamespace(endpoint_url=endpoint_url),
        head_object=lambda **its: asked.append(f"{its['Bucket']}/{its['Key']}"),
        delete_object=lambda **its: deleted.append(its["IfMatch"]),
    )
    told = {"bucket": "data", "key": "a", "version_id": None, "tag": "t"}

    list(ObjectCleaner(store, None)(iter([pa.RecordBatch.from_pylist([told])])))

    assert (asked, deleted) == (looks, ['"t"'])


def test_tags_are_added_to_those_that_an_object_has(place: Place, bucket: Bucket) -> None:
    told, gone = bucket.put("a", line(1)), bucket.put("gone", line(2))
    bucket.client.put_object_tagging(
        Bucket=bucket.name,
        Key="a",
        Tagging={"TagSet": [{"Key": "team", "Value": "x"}, {"Key": "stored", "Value": "no"}]},
    )
    place.ingest([message("gone", direct(gone))], source=objects(clean_source="delete"))
    source = objects(clean_source={"stored": "yes"})

    results = [place.ingest([message("m1", direct(told)), message("gone", direct(gone))], source=source) for _ in "12"]

    assert [result.objects for result in results] == [CleanUp(1, 1, 0, None)] * 2
    assert bucket.tags("a") == {"team": "x", "stored": "yes"}


def test_an_object_that_was_written_since_is_not_tagged(place: Place, on_s3: None) -> None:
    bucket = Bucket(versions=False)
    first = bucket.put("a", line(1))
    bucket.put("a", line(2))

    result = place.ingest([message("m1", direct(first))], source=objects(clean_source={"stored": "yes"}))

    assert (result.ingested, result.objects, bucket.tags("a")) == (1, CleanUp(0, 1, 0, None), {})


def test_of_an_object_without_version_and_tag_nothing_is_known(place: Place, on_s3: None) -> None:
    bucket = Bucket(versions=False)
    told = bucket.put("a", line(1))
    del told["s3"]["object"]["eTag"]

    result = place.ingest([message("m1", direct(told))], source=objects(clean_source="delete"))

    assert (result.ingested, result.objects, bucket.contents()) == (1, CleanUp(0, 1, 0, None), [line(1)])


def test_before_the_commit_nothing_is_deleted(place: Place, bucket: Bucket) -> None:
    batch = [message("m1", direct(bucket.put("a", line(1))))]

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.ingest(batch, source=objects(clean_source="delete"), sink=InterruptedSink(place.table, interrupt))

    assert bucket.contents() == [line(1)]
    assert place.ingest(batch, source=objects(clean_source="delete")).rows == 1
    assert bucket.contents() == []


def test_a_batch_that_was_cut_off_after_its_commit_is_cleaned_up_when_it_comes_again(
    place: Place, bucket: Bucket
) -> None:
    told = bucket.put("a", line(1))
    # As if the driver died between the two: nothing was cleaned up.
    place.ingest([message("m1", direct(told))], source=objects())

    again = place.ingest([message("m1", direct(told), receive_count=2)], source=objects(clean_source="delete"))

    assert (again.ingested, again.duplicates, again.rows, again.objects) == (0, 1, 0, CleanUp(1, 0, 0, None))
    assert bucket.contents() == []
    assert len(rows(place.table)) == 1


@dataclass(frozen=True)
class ConflictingTable(WriteAheadTable):
    """A Delta table into which another writer brings something when it was first asked."""

    others: list[Callable[[], object]]

    def look_up(self, messages: pa.Table) -> WriteAheadLookUp:
        looked_up = super().look_up(messages)
        if self.others:
            self.others.pop()()
        return looked_up


@dataclass(frozen=True)
class ConflictingSink:
    path: Path
    others: list[Callable[[], object]]

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> ConflictingTable:
        table = DeltaSink(self.path).open(spark, columns, widen=widen)
        return ConflictingTable(table.target, table.ledger, self.others)


def test_a_message_is_a_repeat_when_another_batch_stored_and_deleted_its_object_meanwhile(
    place: Place, bucket: Bucket
) -> None:
    told = bucket.put("a", line(1))
    source, rejects = objects(clean_source="delete"), DeltaSink(place.root / "rejects")

    def overtake() -> None:
        assert place.ingest([message("m1", direct(told))], source=source).objects == CleanUp(1, 0, 0, None)

    result = place.ingest(
        [message("m2", direct(told))], source=source, sink=ConflictingSink(place.table, [overtake]), rejects=rejects
    )

    assert (result.duplicates, result.rejected, result.objects) == (1, {}, CleanUp(1, 0, 0, None))
    assert [row["_message_id"] for row in rows(place.table)] == ["m1"]


def test_a_message_that_was_rejected_before_keeps_its_object(place: Place, bucket: Bucket) -> None:
    batch = [message("m1", direct(bucket.put("a", b"no JSON")))]
    source, rejects = objects(clean_source="delete"), DeltaSink(place.root / "rejects")

    first = place.ingest(batch, source=source, rejects=rejects)
    again = place.ingest([*batch, message("m2", direct(bucket.put("b", line(2))))], source=source, rejects=rejects)

    assert first.objects == CleanUp(0, 0, 0, None)
    assert again.objects == CleanUp(1, 0, 0, None)
    assert bucket.contents() == [b"no JSON"]


def test_objects_that_cannot_be_deleted_are_counted_and_fail_nothing(
    place: Place, on_s3: None, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = Bucket(versions=True, locked=True)
    a, b = bucket.put("a", line(1)), bucket.put("b", line(2))
    bucket.client.put_object_legal_hold(Bucket=bucket.name, Key="a", LegalHold={"Status": "ON"})

    with caplog.at_level(logging.WARNING, "sqs_lease"):
        result = place.ingest([message("m1", direct(a, b))], source=objects(clean_source="delete"))

    error = f"s3://{bucket.name}/a (version {a['s3']['object']['versionId']}): AccessDenied"
    assert (result.ingested, result.rows, result.objects) == (1, 2, CleanUp(1, 0, 1, error))
    assert f"is stored, and 1 objects could not be cleaned up: {error}" in caplog.text
    assert result.partial_batch_response() == {"batchItemFailures": []}
    bucket.client.put_object_legal_hold(Bucket=bucket.name, Key="a", LegalHold={"Status": "OFF"})


@dataclass(frozen=True)
class Broken(S3EventsSource):
    """A source whose cleaning up breaks."""

    @property
    def cleaner(self) -> CleanerOf:
        def break_down(messages: DataFrame) -> CleanUp:
            raise RuntimeError("a secret")

        return break_down


def test_when_the_clean_up_breaks_the_batch_is_stored_all_the_same(place: Place, on_s3: None) -> None:
    bucket = Bucket(versions=False)
    source = Broken("jsonl", "id BIGINT NOT NULL", read={"tasks": 2, "threads": 2})

    result = place.ingest([message("m1", direct(bucket.put("a", line(1))))], source=source)

    assert (result.ingested, result.objects) == (1, CleanUp(0, 0, 0, "RuntimeError"))


def test_a_batch_that_is_held_no_longer_cleans_nothing_up(place: Place, on_s3: None) -> None:
    bucket = Bucket(versions=False)
    batch = [message("m1", direct(bucket.put("a", line(1))))]
    held = iter([True])

    result = place.ingest(batch, source=objects(clean_source="delete"), still_held=lambda: next(held, False))

    assert (result.ingested, bucket.contents()) == (1, [line(1)])
    assert result.objects is not None
    assert result.objects.error == "its messages are no longer held: their next receiver cleans up"


@pytest.mark.parametrize(
    ("wrap", "body"),
    [
        (SnsEnvelope, lambda told: in_sns(direct(told))),
        (ArrayElements, lambda told: f"[{direct(told)}]"),
        (lambda source: AttributeColumns(source, "SentTimestamp TIMESTAMP"), direct),
    ],
    ids=["sns", "elements", "attributes"],
)
def test_a_source_around_it_hands_on_what_is_to_be_cleaned_up(
    place: Place, on_s3: None, wrap: Callable[[Any], Source[Any]], body: Callable[[Any], str]
) -> None:
    bucket = Bucket(versions=False)
    batch = [message("m1", body(bucket.put("a", line(1)))), message("m2", body(bucket.put("b", b"no JSON")))]

    result = place.ingest(batch, source=wrap(objects(clean_source="delete")))

    assert (result.ingested, result.objects, bucket.contents()) == (1, CleanUp(1, 0, 0, None), [b"no JSON"])
    around_others = wrap(JsonSource("id INT"))
    assert isinstance(around_others, CleaningSource)
    assert around_others.cleaner is None


def test_a_clean_up_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="clean_source must be 'off', 'delete' or a mapping of tags to their values"):
        objects(clean_source="move")
    with pytest.raises(ValueError, match="clean_source must be"):
        objects(clean_source={})


class Answers:
    """In place of a client: what S3 answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.deleted: list[str] = []

    def delete_object(self, **wanted: str) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.deleted.append(wanted["Key"])


def refused(code: str, status: int) -> ClientError:
    said: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(said, "DeleteObject")


def tried(answers: Answers) -> CleanUp:
    """Clean three objects up, one after the other."""
    store = ObjectStore(1)
    # Where the property keeps the client that it makes.
    store.__dict__["client"] = answers
    given = [{"bucket": "data", "key": key, "version_id": "v1", "tag": None} for key in "abc"]
    (batch,) = ObjectCleaner(store, None)(iter([pa.RecordBatch.from_pylist(given)]))
    return CleanUp(**batch.to_pylist()[0])


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        # Deleted by another process, or by a try that was cut off.
        (refused("NoSuchKey", 404), CleanUp(3, 0, 0, None)),
        (refused("PreconditionFailed", 412), CleanUp(2, 1, 0, None)),
        (refused("AccessDenied", 403), CleanUp(2, 0, 1, "s3://data/a (version v1): AccessDenied")),
        # The clean-up does not wait for the others then.
        (refused("SlowDown", 503), CleanUp(0, 0, 3, "s3://data/a (version v1): SlowDown")),
        (
            EndpointConnectionError(endpoint_url="http://127.0.0.1:1"),
            CleanUp(0, 0, 3, "s3://data/a (version v1): EndpointConnectionError"),
        ),
    ],
    ids=["gone", "replaced", "refused", "throttled", "no answer"],
)
def test_answers_of_s3(error: Exception, outcome: CleanUp) -> None:
    assert tried(Answers(error)) == outcome
