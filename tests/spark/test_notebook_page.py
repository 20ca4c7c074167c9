"""The examples of the page about notebooks do what the text around them says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sqs_lease.batch_files.manifest import write_manifest
from sqs_lease.core.messages import Message, Receipt
from tests.docs.test_examples import ROOT, blocks
from tests.spark.samples import good

pytestmark = pytest.mark.processes

PAGE = ROOT / "docs" / "spark-notebook.md"


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    defined: dict[str, Any] = {}
    for block in blocks(PAGE):
        exec(compile(block, str(PAGE), "exec"), defined)
    return defined


def test_a_batch_is_queried(spark: SparkSession, names: dict[str, Any], tmp_path: Path) -> None:
    ada = {"tenant": {"DataType": "String", "StringValue": "Ada"}}
    batch = [*good([1, 2]), Message(Receipt("m3", ""), '{"id": 3}', {}, ada), Message(Receipt("m4", ""), "[]", {}, ada)]
    path = tmp_path / "messages.parquet"
    write_manifest(path, batch_id="b", queue_url="q", messages=batch)

    counted = names["json_by_tenant"](names["messages_of"](spark, str(path))).collect()

    assert {row["tenant"]: row["count"] for row in counted} == {"Ada": 1, None: 2}
