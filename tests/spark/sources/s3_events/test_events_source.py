"""S3 notifications become the records of their objects, on a real S3 server, whatever is the matter with some."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any
from urllib.parse import quote_plus
from uuid import uuid4

import boto3
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ReadTimeoutError
from pyspark.sql import SparkSession

from demo.sqs_server import SqsServer
from sqs_lease.spark import batch_file
from sqs_lease.spark.columns import MESSAGE_ID, NOTHING_TO_STORE, REASON, SENT_AT
from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.sources.s3_events import S3EventsSource, S3Read, allowance
from sqs_lease.spark.sources.s3_events.allowance import Allowance, SpooledFile
from sqs_lease.spark.sources.s3_events.contents import LINE, Csv, JsonLines
from sqs_lease.spark.sources.s3_events.notification import S3Object
from sqs_lease.spark.sources.s3_events.object_rows import BUCKET, KEY, VERSION_ID, ObjectRows
from sqs_lease.spark.sources.s3_events.object_store import ObjectStore, ObjectStoreError, ObjectUnavailableError
from tests.spark.sources.allowances import allowance as ample
from tests.spark.sources.parsing import SENT, parsed
from tests.spark.sources.s3_messages import direct, event_bridge, in_sns, record

pytestmark = pytest.mark.processes


class Bucket:
    """A bucket of its own on the server."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.name = f"bucket-{uuid4().hex[:12]}"
        client.create_bucket(Bucket=self.name)

    def put(self, key: str, content: bytes) -> str | None:
        """Write an object, and return its version, where the bucket has some."""
        version: str | None = self.client.put_object(Bucket=self.name, Key=key, Body=content).get("VersionId")
        return version

    def told(self, *keys: str) -> str:
        """Write S3's notification of these objects."""
        return direct(*(record(self.name, quote_plus(key, safe="/")) for key in keys))


@pytest.fixture
def client(server: SqsServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return boto3.client("s3")


@pytest.fixture
def bucket(client: Any) -> Bucket:
    return Bucket(client)


def read(
    bodies: Mapping[str, str], store: ObjectStore | None = None, threads: int = 4
) -> dict[str, list[dict[str, Any]]]:
    """Read objects of JSON lines without Spark: rows by message id."""
    messages = pa.record_batch(
        {
            batch_file.MESSAGE_ID: pa.array(bodies.keys(), pa.string()),
            batch_file.SENT_AT: pa.array([SENT] * len(bodies), pa.timestamp("us", tz="Europe/Berlin")),
            batch_file.BODY: pa.array(bodies.values(), pa.string()),
        }
    )
    found: dict[str, list[dict[str, Any]]] = {}
    for batch in ObjectRows(store or ObjectStore(threads), JsonLines())(iter([messages])):
        for row in batch.to_pylist():
            assert row.pop(SENT_AT) == SENT
            found.setdefault(row.pop(MESSAGE_ID), []).append(row)
    assert found.keys() == bodies.keys()
    return found


def lines(rows: list[dict[str, Any]]) -> list[str]:
    return [row[LINE] for row in rows]


def reason(rows: list[dict[str, Any]]) -> str:
    (row,) = rows
    return str(row[REASON])


class TestObjects:
    def test_each_message_has_the_lines_of_all_its_objects_with_where_they_are_from(self, bucket: Bucket) -> None:
        bucket.put("a b+é.jsonl", b'{"id": 1}\n{"id": 2}\n')
        bucket.put("c.jsonl.gz", gzip.compress(b'{"id": 3}\n'))

        found = read({"m1": bucket.told("a b+é.jsonl", "c.jsonl.gz"), "m2": event_bridge(bucket.name, "a b+é.jsonl")})

        assert lines(found["m1"]) == ['{"id": 1}', '{"id": 2}', '{"id": 3}']
        assert [row[KEY] for row in found["m1"]] == ["a b+é.jsonl", "a b+é.jsonl", "c.jsonl.gz"]
        assert {(row[BUCKET], row[VERSION_ID], row[REASON]) for row in found["m1"]} == {(bucket.name, None, None)}
        # The same object in two messages: each has its records.
        assert lines(found["m2"]) == ['{"id": 1}', '{"id": 2}']

    def test_the_version_that_the_message_tells_of_is_read(self, bucket: Bucket) -> None:
        bucket.client.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration={"Status": "Enabled"})
        versions = [bucket.put("a", b'{"version": %d}' % number) for number in (1, 2)]

        found = read({str(version): direct(record(bucket.name, "a", version_id=version)) for version in versions})

        assert [lines(found[str(version)]) for version in versions] == [['{"version": 1}'], ['{"version": 2}']]
        assert found[str(versions[0])][0][VERSION_ID] == versions[0]

    def test_an_object_that_is_missing_or_bad_rejects_its_own_message_alone(self, bucket: Bucket) -> None:
        bucket.put("good", b'{"id": 1}\n')
        bucket.put("bad", b'{"id": 1}\n' * 20_000 + b"secret\n")

        found = read(
            {
                "good": bucket.told("good"),
                "missing": bucket.told("good", "missing"),
                "no bucket": direct(record(f"{bucket.name}-2", "good")),
                "no name of a bucket": direct(record("a/b?", "good")),
                "bad": bucket.told("good", "bad"),
                "no notification": "{}",
            }
        )

        assert lines(found["good"]) == ['{"id": 1}']
        assert reason(found["missing"]) == f"s3://{bucket.name}/missing: NoSuchKey"
        assert reason(found["no bucket"]).endswith("NoSuchBucket")
        assert "the name of the bucket, or the key, is not allowed" in reason(found["no name of a bucket"])
        assert reason(found["bad"]).startswith(f"s3://{bucket.name}/bad: line 20001: not valid JSON")
        assert "not an S3 notification" in reason(found["no notification"])

    def test_objects_without_records_and_other_events_leave_nothing_to_store(self, bucket: Bucket) -> None:
        bucket.put("folder/", b"")
        bucket.put("blank", b"\n\n")

        found = read(
            {
                "empty": bucket.told("folder/", "blank"),
                "removed": direct(record(bucket.name, "gone", event="ObjectRemoved:Delete")),
                "test": json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent"}),
            }
        )

        assert {reason(rows) for rows in found.values()} == {NOTHING_TO_STORE}

    def test_many_messages_keep_their_rows_apart_also_when_these_are_on_disk(
        self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(allowance, "_IN_MEMORY_BYTES", 50)
        for number in range(30):
            bucket.put(f"o{number}", b"".join(b'{"id": %d}\n' % number for _ in range(number + 1)))
        bodies = {f"m{number}": bucket.told(f"o{number}") for number in range(30)}

        found = read(bodies, threads=8)

        for number in range(30):
            assert lines(found[f"m{number}"]) == [f'{{"id": {number}}}'] * (number + 1)

    def test_when_s3_is_not_there_nothing_is_said_of_any_message(self, bucket: Bucket) -> None:
        once = Config(retries={"total_max_attempts": 1})
        # A port without a server.
        store = store_with(boto3.client("s3", endpoint_url="http://127.0.0.1:1", config=once))

        with pytest.raises(ObjectStoreError, match="nothing of this batch is stored"):
            read({"m1": bucket.told("a")}, store)


class Body(io.BytesIO):
    """Content that breaks off as often as it is told."""

    failures = 0

    def read(self, size: int | None = -1) -> bytes:
        if Body.failures:
            Body.failures -= 1
            raise ReadTimeoutError(endpoint_url="http://127.0.0.1")
        return super().read(size)


class Answers:
    """In place of a client: what S3 answers when it is not its day."""

    def __init__(self, code: str | None = None, status: int | None = None) -> None:
        self.code = code
        self.status = {} if status is None else {"ResponseMetadata": {"HTTPStatusCode": status}}

    def get_object(self, **_wanted: str) -> dict[str, Any]:
        if self.code is not None:
            said: Any = {"Error": {"Code": self.code, "Message": "text of the service"}, **self.status}
            raise ClientError(said, "GetObject")
        return {"Body": Body(b"content")}


def store_with(answers: Any) -> ObjectStore:
    store = ObjectStore(1)
    # Where the property keeps the client that it makes.
    store.__dict__["client"] = answers
    return store


def empty_file() -> tuple[SpooledFile, Allowance]:
    its = ample()
    return SpooledFile(its), its


class TestStore:
    @pytest.mark.parametrize(
        "code", ["NoSuchKey", "NoSuchVersion", "AccessDenied", "InvalidObjectState", "KMS.DisabledException"]
    )
    def test_some_errors_are_the_objects(self, code: str) -> None:
        with pytest.raises(ObjectUnavailableError, match=code):
            store_with(Answers(code)).fetch(S3Object("data", "a"), *empty_file())

    @pytest.mark.parametrize(
        ("code", "status"),
        [
            ("InvalidRequest", 400),  # encrypted with a key of the customer's, which was not sent
            ("KeyTooLongError", 400),
            ("AuthorizationHeaderMalformed", 400),  # the bucket is in another region
            ("PermanentRedirect", 301),
            ("Unheard", 400),
        ],
    )
    def test_a_refusal_of_s3_is_for_the_object(self, code: str, status: int) -> None:
        with pytest.raises(ObjectUnavailableError, match=code):
            store_with(Answers(code, status)).fetch(S3Object("data", "a"), *empty_file())

    @pytest.mark.parametrize(
        ("code", "status"),
        [
            ("SlowDown", 503),
            ("InternalError", 500),
            ("ExpiredToken", 400),
            ("InvalidAccessKeyId", 403),
            ("RequestTimeTooSkewed", 403),
            ("KMS.ThrottlingException", 400),
            ("429", 429),
        ],
    )
    def test_an_error_of_every_request_is_the_services(self, code: str, status: int) -> None:
        with pytest.raises(ObjectStoreError, match=rf"s3://data/a \({code}\)"):
            store_with(Answers(code, status)).fetch(S3Object("data", "a"), *empty_file())

    @pytest.mark.parametrize("code", ["SlowDown", "InternalError", "ExpiredToken", "InvalidAccessKeyId", "Unheard"])
    def test_all_others_are_the_services(self, code: str) -> None:
        with pytest.raises(ObjectStoreError, match=rf"s3://data/a \({code}\)"):
            store_with(Answers(code)).fetch(S3Object("data", "a"), *empty_file())

    def test_a_transfer_that_breaks_off_is_tried_again_from_its_start(self) -> None:
        file, its = empty_file()
        file.write(b"what an earlier try left behind")
        Body.failures = 2

        assert store_with(Answers()).fetch(S3Object("data", "a"), file, its) == 7
        file.seek(0)
        assert file.read() == b"content"

    def test_one_that_breaks_off_every_time_is_given_up(self) -> None:
        Body.failures = 3

        with pytest.raises(ObjectStoreError, match="ReadTimeoutError"):
            store_with(Answers()).fetch(S3Object("data", "a"), *empty_file())


@pytest.fixture
def store_options(on_s3: None, server: SqsServer) -> dict[str, Any]:
    return {"endpoint_url": server.endpoint_url, "region": "us-east-1", "read": {"threads": 2, "tasks": 2}}


class TestOnSpark:
    def test_json_lines_are_parsed_as_messages_are(
        self, spark: SparkSession, bucket: Bucket, store_options: dict[str, Any]
    ) -> None:
        source = S3EventsSource("jsonl", "id BIGINT NOT NULL, at TIMESTAMP, tags ARRAY<STRING>", **store_options)
        bucket.put("a.jsonl", b'{"id": 1, "at": "2026-01-02T03:04:05Z"}\n{"id": 2, "tags": ["x"], "more": 1}\n')
        bucket.put("b.jsonl", b'{"id": 3}\n{"id": null}\n')
        bucket.put("c.jsonl", b'{"id": "4"}\n')
        bodies = {"a": in_sns(bucket.told("a.jsonl")), "b": bucket.told("b.jsonl"), "c": bucket.told("c.jsonl")}

        outcome = parsed(
            spark, source, {**bodies, "removed": direct(), "missing": bucket.told("d"), "no event": '{"id": 1}'}
        )

        first, second = outcome.records.pop("a")
        assert outcome.records == {}
        assert (first["id"], first["at"].astimezone(UTC)) == (1, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
        where = {BUCKET: bucket.name, KEY: "a.jsonl", VERSION_ID: None}
        assert second == {"id": 2, "at": None, "tags": ["x"], **where}
        assert outcome.rejected["b"] == "required, but missing or null: id"
        assert outcome.rejected["c"] == "not of the type in the schema: id"
        assert outcome.rejected["missing"].endswith("NoSuchKey")
        assert outcome.rejected["no event"].startswith("not an S3 notification")
        assert outcome.empty == {"removed"}

    def test_csv_and_parquet_have_their_values_and_their_required_columns_checked(
        self, spark: SparkSession, bucket: Bucket, store_options: dict[str, Any]
    ) -> None:
        schema = "id BIGINT NOT NULL, day DATE, at TIMESTAMP, amount DECIMAL(6,2)"
        bucket.put("good.csv.gz", gzip.compress(b"id;day;at\n1;2026-01-02;2026-01-02 03:04:05\n"))
        bucket.put("bad.csv", b"id;day\n1;2026-01-02\n;2026-01-02\n")
        table = pa.table({"id": [1, None], "at": pa.array([SENT, SENT], pa.timestamp("ms", tz="UTC"))})
        for name, content in (("good.parquet", table.slice(0, 1)), ("bad.parquet", table)):
            file = io.BytesIO()
            pq.write_table(content, file)
            bucket.put(name, file.getvalue())
        semicolons = {**store_options, "read": S3Read(delimiter=";", tasks=1)}

        from_csv = parsed(
            spark,
            S3EventsSource("csv", schema, **semicolons),
            {"good": bucket.told("good.csv.gz"), "bad": bucket.told("bad.csv")},
        )
        from_parquet = parsed(
            spark,
            S3EventsSource("parquet", schema, **store_options),
            {"good": bucket.told("good.parquet"), "bad": bucket.told("bad.parquet")},
        )

        for outcome, day in ((from_csv, date(2026, 1, 2)), (from_parquet, None)):
            (row,) = outcome.records["good"]
            assert (row["id"], row["day"], row["at"].astimezone(UTC), row["amount"]) == (1, day, SENT, None)
            assert outcome.rejected == {"bad": "required, but missing or null: id"}

    def test_json_documents(self, spark: SparkSession, bucket: Bucket, store_options: dict[str, Any]) -> None:
        bucket.put("good.json", b'[{"id": 1,\n "at": "2026-01-02T03:04:05Z"}]')
        bucket.put("bad.json", b'[{"id": 1}, {"id": null}]')

        outcome = parsed(
            spark,
            S3EventsSource("json", "id BIGINT NOT NULL, at TIMESTAMP, price DECIMAL(6,2)", **store_options),
            {"good": bucket.told("good.json"), "bad": bucket.told("bad.json")},
        )

        (row,) = outcome.records["good"]
        assert (row["id"], row["at"].astimezone(UTC), row["price"]) == (1, SENT, None)
        assert outcome.rejected == {"bad": "required, but missing or null: id"}

    @pytest.mark.parametrize(("format_", "content"), [("jsonl", b'{"id": 1}'), ("csv", b"id\n1\n")])
    def test_columns_of_the_key(
        self, spark: SparkSession, bucket: Bucket, store_options: dict[str, Any], format_: Any, content: bytes
    ) -> None:
        source = S3EventsSource(
            format_, "id BIGINT", path_columns="day DATE NOT NULL, `the shop` STRING", **store_options
        )
        keys = {
            "good": "orders/day=2026-01-02/the shop=a%2Fb/1",
            "null": "day=2026-01-02/the shop=__HIVE_DEFAULT_PARTITION__/1",
            "none": "orders/1",
            "file": "orders/day=2026-01-02",
            "wrong": "day=secret/1",
        }
        for key in keys.values():
            bucket.put(key, content)

        outcome = parsed(spark, source, {name: bucket.told(key) for name, key in keys.items()})

        assert outcome.columns.names == ["id", "day", "the shop", BUCKET, KEY, VERSION_ID]
        found = {name: (row["day"], row["the shop"]) for name, (row,) in outcome.records.items()}
        assert found == {"good": (date(2026, 1, 2), "a/b"), "null": (date(2026, 1, 2), None)}
        assert {name: why.rpartition(": ")[2] for name, why in outcome.rejected.items()} == {
            "none": "the key has no day, which is required",
            "file": "the key has no day, which is required",
            "wrong": "the key's day is not of the type in the schema",
        }


def test_path_columns_that_cannot_be_are_refused_at_once(spark: SparkSession) -> None:
    with pytest.raises(SchemaError, match="path_columns: a key cannot hold the type array<int> of days"):
        S3EventsSource("csv", "id INT", path_columns="days ARRAY<INT>").checker()
    with pytest.raises(SchemaError, match="path_columns names id, which the schema has"):
        S3EventsSource("csv", "id INT", path_columns="ID INT").checker()


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("id INT, _s3_key STRING", "which S3EventsSource adds itself"),
        ("id INT, tags ARRAY<STRING>", "column tags: CSV cannot hold the type array<string>"),
        ("id INT, v VARIANT", "column v: .* cannot have the type variant"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_at_once(spark: SparkSession, schema: str, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        S3EventsSource("csv", schema).checker()


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="format must be one of jsonl, json, csv, parquet, not 'excel'"):
        S3EventsSource("excel", "id INT")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="delimiter must be one character"):
        S3EventsSource("csv", "id INT", read={"delimiter": ""})
    with pytest.raises(ValueError, match="at least 1"):
        S3EventsSource("csv", "id INT", read=S3Read(threads=0))


def test_a_format_is_pickled_for_the_executors_without_its_client(client: Any) -> None:
    import pickle

    store = ObjectStore(2, endpoint_url="http://127.0.0.1:1")
    rows = ObjectRows(store, Csv(pa.schema([("id", pa.int64())]), ["id"]))

    assert pickle.loads(pickle.dumps(rows)) == rows
