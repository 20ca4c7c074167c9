"""Batch files as DataFrames: what a notebook sees of a batch."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import boto3
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from demo.sqs_server import SqsServer
from sqs_lease.batch_files import manifest
from sqs_lease.batch_files.manifest import ManifestError, write_manifest
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.spark import BatchDataSource
from tests.spark.samples import good, message

pytestmark = pytest.mark.processes

BATCH_COLUMNS = BatchDataSource({}).schema()
QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"


@pytest.fixture(scope="module", autouse=True)
def registered(spark: SparkSession) -> None:
    spark.dataSource.register(BatchDataSource)


def written(path: Path, messages: list[Message], *, batch_id: str = "b1") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_manifest(path, batch_id=batch_id, queue_url=QUEUE, messages=messages)
    return path


def loaded(spark: SparkSession, path: object) -> DataFrame:
    return spark.read.format("sqs_lease").load(str(path))


def test_a_batch_file_is_a_row_for_each_message(spark: SparkSession, tmp_path: Path) -> None:
    sent = Message(
        Receipt("m1", "a secret handle"),
        '{"id": 1}',
        {"SentTimestamp": "1700000000123", "ApproximateReceiveCount": "2", "MessageGroupId": "g"},
        {
            "tenant": {"DataType": "String", "StringValue": "Ada"},
            "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        },
    )
    batch = loaded(spark, written(tmp_path / "messages", [sent, message("m2", "no JSON")]))

    first, second = batch.orderBy("message_id").collect()

    assert (first["batch_id"], first["queue_url"], first["body"]) == ("b1", QUEUE, '{"id": 1}')
    # PySpark gives times in the machine's own zone, without saying so.
    assert first["sent_at"].astimezone(UTC) == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    assert (first["receive_count"], first["attributes"]["MessageGroupId"], first["not_json"]) == (2, "g", None)
    assert first["message_attributes"]["tenant"]["StringValue"] == "Ada"
    assert first["message_attributes"]["raw"]["BinaryValue"] == b"\x00\xff"
    assert (second["message_id"], second["message_attributes"]) == ("m2", {})
    assert second["not_json"] is not None
    tenants = batch.where("message_attributes['tenant'].StringValue = 'Ada'")
    assert [row["message_id"] for row in tenants.collect()] == ["m1"]


def test_each_row_group_is_a_partition_and_a_directory_is_all_its_batches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "ROW_GROUP_MESSAGES", 2)
    written(tmp_path / "runs" / "1" / "messages.parquet", good(range(5)), batch_id="b1")
    written(tmp_path / "runs" / "2" / "messages.parquet", good([7]), batch_id="b2")
    (tmp_path / "runs" / "1" / "work.json").write_text("{}")

    batches = loaded(spark, tmp_path / "runs")

    assert batches.rdd.getNumPartitions() == 4
    by_batch = {row["batch_id"]: row["count"] for row in batches.groupBy("batch_id").count().collect()}
    assert by_batch == {"b1": 5, "b2": 1}
    assert loaded(spark, f"file://{tmp_path}/runs/2/messages.parquet").count() == 1


def test_a_batch_without_messages_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    assert loaded(spark, written(tmp_path / "messages", [])).collect() == []


def test_some_columns_may_be_chosen(spark: SparkSession, tmp_path: Path) -> None:
    path = str(written(tmp_path / "messages", good([1])))
    for columns, row in {
        "body STRING, message_id STRING": ('{"id": 1, "name": "n1"}', "m1"),
        "batch_id STRING": ("b1",),
    }.items():
        chosen = spark.read.format("sqs_lease").schema(columns).load(path)
        assert [tuple(one) for one in chosen.collect()] == [row]


def test_a_batch_on_s3_is_read_where_it_is(tmp_path: Path, server: SqsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="batches-to-read")
    client.upload_file(str(written(tmp_path / "m", good([1]))), "batches-to-read", "runs/1/messages.parquet")

    for path in ("runs/1/messages.parquet", "runs"):
        reader = BatchDataSource({"path": f"s3://aws_default@batches-to-read/{path}"}).reader(BATCH_COLUMNS)
        batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
        assert [row["message_id"] for batch in batches for row in batch.to_pylist()] == ["m1"]


@pytest.mark.parametrize(
    ("options", "columns", "says"),
    [
        ({}, None, "needs the path of a batch file"),
        ({"path": "gs://bucket/batch"}, None, "neither a path nor an address on S3"),
        ({"path": "/nowhere/at/all"}, None, "there is no batch file at /nowhere/at/all"),
        ({"path": "/data", "recursive": "true"}, None, "has no option recursive: its only one is the path"),
        ({"path": "/data"}, "bodi STRING", "no column bodi: they have batch_id, queue_url, message_id, body"),
        ({"path": "/data"}, "sent_at STRING", "column sent_at of batch files is timestamp, not string"),
    ],
    ids=["no path", "not S3", "not there", "unknown option", "unknown column", "other type"],
)
def test_what_cannot_be_read_is_refused_with_what_to_do(
    options: dict[str, str], columns: str | None, says: str
) -> None:
    schema = BATCH_COLUMNS if columns is None else StructType.fromDDL(columns)
    assert isinstance(schema, StructType)
    with pytest.raises((ValueError, FileNotFoundError), match=says):
        BatchDataSource(options).reader(schema).partitions()


@pytest.mark.parametrize("attributes", ["{", "[]", '{"a": 1}', "[" * 100_000])
def test_a_row_that_is_not_a_message_is_not_quoted(tmp_path: Path, attributes: str) -> None:
    path = written(tmp_path / "batch", good([1]))
    table = pq.read_table(path)
    at = table.schema.get_field_index("attributes")
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array([attributes])), path)
    reader = BatchDataSource({"path": str(path)}).reader(BATCH_COLUMNS)
    (partition,) = reader.partitions()

    with pytest.raises(ManifestError, match=f"{path} has a row that is not a message"):
        list(reader.read(partition))


def test_spark_repeats_what_is_wrong(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "messages.parquet").write_text("half")
    with pytest.raises(PySparkException, match=r"messages.parquet is not a manifest of sqs-lease"):
        loaded(spark, tmp_path).collect()
