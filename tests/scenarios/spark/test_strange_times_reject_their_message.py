"""Times beyond the years 1 to 9999 reject their message from every source: Python and some tables cannot hold them."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any
from uuid import uuid4

import boto3
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it

from sqs_lease.spark import AttributeColumns, JsonSource, ParserSource, S3EventsSource, SparkSource
from tests.spark.samples import Place, message, rows
from tests.spark.sources.s3_messages import direct, record

pytestmark = pytest.mark.processes

LAST = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
MICROSECONDS = 253_402_300_799_999_999  # of the last moment of the year 9999
DAYS = 2_932_896
SCHEMA = "at TIMESTAMP, day DATE, more ARRAY<STRUCT<at: TIMESTAMP>>"
REASON = "a time beyond the years 1 to 9999: "


@pytest.fixture
def bucket(on_s3: None) -> str:
    name = f"bucket-{uuid4().hex[:12]}"
    boto3.client("s3").create_bucket(Bucket=name)
    return name


def table(microseconds: int, days: int, nested: int = 0) -> pa.Table:
    moment = pa.timestamp("us", tz="UTC")
    more = pa.array([[{"at": None}, {"at": nested}]], pa.list_(pa.struct([("at", pa.int64())])))
    return pa.table(
        {
            "at": pa.array([microseconds], pa.int64()).cast(moment),
            "day": pa.array([days], pa.int32()).cast(pa.date32()),
            "more": more.cast(pa.list_(pa.struct([("at", moment)]))),
        }
    )


def parquet_file(content: pa.Table) -> bytes:
    file = io.BytesIO()
    pq.write_table(content, file)
    return file.getvalue()


def told(place: Place, bucket: str, format_: Any, contents: dict[str, bytes]) -> dict[str, str]:
    """Ingest objects, and return the reasons of those that were rejected, without the names of the objects."""
    for key, content in contents.items():
        boto3.client("s3").put_object(Bucket=bucket, Key=key, Body=content)
    source = S3EventsSource(format_, SCHEMA, read={"tasks": 1, "threads": 2})
    result = place.ingest([message(key, direct(record(bucket, key))) for key in contents], source=source)
    return {key: why.removeprefix(f"s3://{bucket}/{key}: ") for key, why in result.rejected.items()}


def test_of_parquet(place: Place, bucket: str) -> None:
    contents = {
        "last": table(MICROSECONDS, DAYS),
        "at": table(MICROSECONDS + 1, DAYS),
        "day": table(0, DAYS + 1),
        "early": table(-62_135_596_800_000_001, -719_163),
        "nested": table(0, 0, MICROSECONDS + 1),
    }

    reasons = told(place, bucket, "parquet", {key: parquet_file(content) for key, content in contents.items()})

    expected = {"at": "at", "day": "day", "early": "at, day", "nested": "more[]"}
    assert reasons == {key: f"{REASON}{where}" for key, where in expected.items()}
    (stored,) = rows(place.table)
    assert (stored["at"].astimezone(UTC), stored["day"]) == (LAST, date(9999, 12, 31))


def test_of_json(place: Place) -> None:
    bodies = {"last": {"day": "9999-12-31"}, "day": {"day": "+10000-01-01"}, "at": {"at": "+10000-01-01T00:00:00Z"}}

    result = place.ingest(
        [message(key, json.dumps(body)) for key, body in bodies.items()],
        source=JsonSource("at TIMESTAMP, day DATE, local TIMESTAMP_NTZ"),
    )

    hint = REASON.replace(":", "; numbers are seconds since 1970, or timestamp_units:")
    assert result.rejected == {"day": f"{hint}day", "at": f"{hint}at"}
    assert [row["day"] for row in rows(place.table)] == [date(9999, 12, 31)]


def test_of_a_parser_and_of_a_function(place: Place) -> None:
    def parser(messages: pa.RecordBatch) -> pa.Table:
        numbers = pa.array([int(body) for body in messages.column("body").to_pylist()], pa.int64())
        return pa.table({"message_id": messages.column("message_id"), "at": numbers.cast(pa.timestamp("us", tz="UTC"))})

    def function(messages: DataFrame) -> DataFrame:
        return messages.select("message_id", F.timestamp_micros(F.col("body").cast("bigint")).alias("at"))

    for name, source in (("p", ParserSource(parser, "at TIMESTAMP")), ("f", SparkSource(function, "at TIMESTAMP"))):
        batch = [message(f"{name}1", str(MICROSECONDS)), message(f"{name}2", str(MICROSECONDS + 1))]
        assert place.ingest(batch, source=source).rejected == {f"{name}2": f"{REASON}at"}
    assert [row["at"].astimezone(UTC) for row in rows(place.table)] == [LAST, LAST]


def test_of_attributes(place: Place) -> None:
    source = AttributeColumns(JsonSource("id INT"), "SentTimestamp TIMESTAMP, until DATE")
    late = {"until": {"DataType": "String", "StringValue": "+10000-01-01"}}

    result = place.ingest(
        [message("m1", '{"id": 1}'), replace(message("m2", '{"id": 2}'), message_attributes=late)], source=source
    )

    assert result.rejected == {"m2": f"{REASON}the attribute until"}
    assert [row["id"] for row in rows(place.table)] == [1]


def test_of_attributes_in_milliseconds_that_no_number_of_microseconds_holds(place: Place) -> None:
    source = AttributeColumns(JsonSource("id INT"), "ApproximateFirstReceiveTimestamp TIMESTAMP")
    odd = replace(message("m1", '{"id": 1}'), attributes={"ApproximateFirstReceiveTimestamp": str(2**63 - 1)})

    result = place.ingest([odd], source=source)

    where = "the attribute ApproximateFirstReceiveTimestamp"
    assert result.rejected == {"m1": f"{where} is not of the type in the schema"}
