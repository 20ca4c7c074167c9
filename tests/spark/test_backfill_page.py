"""The examples of the page about backfills do what the text around them says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from demo.sqs_server import SqsServer
from sqs_lease.core.messages import Message
from sqs_lease.spark import DeltaSink, ingest
from tests.docs.test_examples import ROOT, blocks
from tests.spark.samples import message
from tests.spark.sources.s3_messages import direct, record

pytestmark = pytest.mark.processes

PAGE = ROOT / "docs" / "spark-backfill.md"


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    defined: dict[str, Any] = {}
    for block in blocks(PAGE):
        exec(compile(block, str(PAGE), "exec"), defined)
    return defined


def order_ids(table: Path) -> list[int]:
    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["order_id"])["order_id"].to_pylist()
    return sorted(rows)


@pytest.fixture
def bucket(spark: SparkSession, server: SqsServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
        # What Spark's Python workers have in their environment, besides that of the session's process at its start.
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    name = f"uploads-{uuid4().hex[:12]}"
    boto3.client("s3").create_bucket(Bucket=name)
    return boto3.resource("s3").Bucket(name)


def test_objects_from_before_and_those_told_of_are_stored_once(
    spark: SparkSession, names: dict[str, Any], bucket: Any, tmp_path: Path
) -> None:
    # Four objects need no more of Spark's tasks.
    names["ORDERS"] = replace(names["ORDERS"], read={"tasks": 1, "threads": 2})
    sink, workspace, position = DeltaSink(tmp_path / "orders"), tmp_path / "workspace", tmp_path / "position"
    tags = {}
    for number in (1, 2, 3):
        written = bucket.put_object(Key=f"orders/{number} a.jsonl", Body=f'{{"order_id": {number}}}'.encode())
        tags[number] = written.e_tag.strip('"')

    def notified(number: int) -> Message:
        told = record(bucket.name, f"orders/{number}+a.jsonl")
        told["s3"]["object"] |= {"eTag": tags[number], "sequencer": f"00{number}"}
        return message(f"m{number}", direct(told))

    def fill() -> None:
        names["backfill"](
            spark,
            sink,
            workspace,
            bucket=bucket.name,
            prefix="orders/",
            notifications_began=datetime.now(UTC) + timedelta(days=1),
            position=position,
        )

    # Its notification came before the backfill, that of the second object after it.
    ingest(spark, [notified(1)], source=names["ORDERS"], sink=sink, workspace=workspace)
    fill()
    late = ingest(spark, [notified(2)], source=names["ORDERS"], sink=sink, workspace=workspace)

    assert late.duplicates == 1
    assert order_ids(tmp_path / "orders") == [1, 2, 3]
    assert position.read_text() == "orders/3 a.jsonl"
    bucket.put_object(Key="orders/4.jsonl", Body=b'{"order_id": 4}')
    position.unlink()
    fill()
    assert order_ids(tmp_path / "orders") == [1, 2, 3, 4]
