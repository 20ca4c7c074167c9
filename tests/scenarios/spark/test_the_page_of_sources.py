"""The examples of the page about sources do what the text around them says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import boto3
import pytest
from pyspark.sql import SparkSession

from sqs_lease.batch_files.manifest import write_manifest
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.spark import S3EventsSource, S3Read
from sqs_lease.spark.sources.json import JsonSource
from sqs_lease.spark.sources.source import CleaningSource, Source
from tests.docs.test_examples import ROOT, blocks
from tests.spark.inferring import infers
from tests.spark.samples import Place, good, rows
from tests.spark.sources.parsing import Parsed, parsed
from tests.spark.sources.s3_messages import in_sns

pytestmark = pytest.mark.processes

PAGE = ROOT / "docs" / "spark-sources.md"
ORDER = '{"order_id": 1, "customer": "Ada", "total": 9.5}'


def examples(directory: Path) -> list[dict[str, Any]]:
    """Run all examples, and return what each defines; what they call /data is a directory of the test's own."""
    found = []
    for block in blocks(PAGE):
        names: dict[str, Any] = {"__name__": "page"}
        exec(compile(block.replace("/data", str(directory)), str(PAGE), "exec"), names)
        found.append(names)
    return found


def sources(directory: Path) -> list[Source[Any]]:
    return [names["source"] for names in examples(directory) if "source" in names]


def test_each_example_reads_the_messages_that_its_text_speaks_of(spark: SparkSession, tmp_path: Path) -> None:
    found_sources = sources(tmp_path)
    json_, rescued, repeats, _, _, elements, attributes, text, variant, sns = found_sources[:10]
    s3, s3_with_options, s3_by_path, s3_with_limits, s3_that_cleans, large, parser, words = found_sources[10:]

    def outcome(source: Source[Any], **bodies: str) -> Parsed:
        return parsed(spark, source, bodies)

    strict = outcome(json_, m1=ORDER, m2="{'order_id': 1}", m3="{}")
    assert (set(strict.records), set(strict.rejected)) == ({"m1"}, {"m2", "m3"})

    assert isinstance(repeats, JsonSource)
    assert repeats.keys is not None
    one, same, other = repeats.keys([f'{{"order_id": 1, "version": {n}, "total": {n}.5}}' for n in (1, 1, 2)])
    assert one == same != other

    odd = '{"order_id": 1, "total": "much"}'
    assert outcome(rescued, m1=odd).records == {"m1": [{"order_id": 1, "total": None, "_rescued_data": odd}]}
    assert len(outcome(elements, m1=f"[{ORDER}, {ORDER}]").records["m1"]) == 2
    assert outcome(attributes, m1=ORDER).rejected == {"m1": "it has no attribute tenant, which is required"}

    assert outcome(text, m1="any").records == {"m1": [{"line": "any"}]}
    assert outcome(variant, m1="[1]").records["m1"][0]["event"].toPython() == [1]
    assert outcome(sns, m1=in_sns(ORDER), m2=ORDER).records == {"m1": [{"order_id": 1, "total": 9.5}]}

    for source in (s3, s3_with_options, s3_by_path, s3_with_limits, s3_that_cleans):
        taken, refused = source.checker().reasons(['{"Event": "s3:TestEvent"}', ORDER])
        assert (taken, "not an S3 notification" in str(refused)) == (None, True)

    assert isinstance(s3_that_cleans, CleaningSource)
    assert s3_that_cleans.cleaner is not None

    assert large.checker().reasons([ORDER, "x"])[0] is None

    assert len(outcome(words, m1="two words").records["m1"]) == 2

    found = outcome(parser, m1="1;2.5", m2="", m3="x")
    assert [row["reading"] for row in found.records["m1"]] == [1.0, 2.5]
    assert (found.empty, found.rejected) == ({"m2"}, {"m3": "not numbers"})


def test_the_limits_of_a_message_are_those_of_the_table() -> None:
    mib = 1024 * 1024
    said = {
        "max_bytes": ("512 MiB", 512 * mib),
        "max_content_bytes": ("2 GiB", 2048 * mib),
        "max_rows": ("10 million", 10_000_000),
        "max_seconds": ("600", 600),
        "spool_bytes": ("4 GiB", 4096 * mib),
    }
    assert {name: getattr(S3Read(), name) for name in said} == {name: value for name, (_, value) in said.items()}
    page = PAGE.read_text()
    assert [name for name, (shown, _) in said.items() if f"| `{name}` | {shown} |" not in page] == []


@infers
def test_the_examples_of_inferring_know_each_others_columns(spark: SparkSession, tmp_path: Path) -> None:
    inferred, given_in_part = sources(tmp_path)[3:5]

    # The second example wrote the file that the first one names.
    assert parsed(spark, inferred, {"m1": ORDER}).records["m1"][0]["customer"] == "Ada"
    again = parsed(spark, given_in_part, {"m1": '{"order_id": 1, "city": "Paris"}', "m2": '{"city": "Rome"}'})
    assert again.records["m1"][0]["city"] == "Paris"
    assert again.rejected == {"m2": "required, but missing or null: order_id"}


def test_a_batch_is_looked_at_with_plain_spark(spark: SparkSession, tmp_path: Path) -> None:
    (names,) = (names for names in examples(tmp_path) if "by_tenant" in names)
    ada = {"tenant": {"DataType": "String", "StringValue": "Ada"}}
    batch = [*good([1, 2]), Message(Receipt("m3", ""), '{"id": 3}', {}, ada), Message(Receipt("m4", ""), "[]", {}, ada)]
    path = tmp_path / "messages.parquet"
    write_manifest(path, batch_id="b", queue_url="q", messages=batch)

    counted = names["by_tenant"](spark, str(path)).collect()
    shown = names["bodies"](spark, batch).collect()

    assert {row["tenant"]: row["count"] for row in counted} == {"Ada": 2, None: 2}
    assert [(row["message_id"], row["body"]) for row in shown] == [(its.message_id, its.body) for its in batch]


def test_objects_from_before_the_notifications_are_stored_once(place: Place, on_s3: None) -> None:
    (names,) = (names for names in examples(place.root) if "tell_of_objects" in names)
    s3, sqs = boto3.client("s3"), boto3.client("sqs")
    bucket = f"uploads-{uuid4().hex[:12]}"
    s3.create_bucket(Bucket=bucket)
    queue = sqs.create_queue(QueueName=bucket)["QueueUrl"]
    for number in (1, 2):
        s3.put_object(Bucket=bucket, Key=f"orders/{number} a+b.jsonl", Body=f'{{"id": {number}}}'.encode())
    s3.put_object(Bucket=bucket, Key="others/3", Body=b"")
    source = S3EventsSource("jsonl", "id BIGINT NOT NULL", read={"tasks": 1, "threads": 2})

    now = datetime.now(UTC)
    for began in (now - timedelta(days=1), now + timedelta(days=1), now + timedelta(days=1)):
        names["tell_of_objects"](bucket, "orders/", queue, began)
    received = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, MessageSystemAttributeNames=["All"])
    result = place.ingest(cast("list[dict[str, Any]]", received["Messages"]), source=source)

    assert (result.received, result.ingested, result.duplicates) == (4, 2, 2)
    assert sorted(row["id"] for row in rows(place.table)) == [1, 2]
