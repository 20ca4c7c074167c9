"""The pages docs/sink-postgres.md and docs/sink-parquet.md: their code does what the text around it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession

from tests.docs.test_examples import ROOT, blocks
from tests.spark.samples import message
from tests.spark.sinks.conftest import Database

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """The names that the blocks of the pages define."""
    defined: dict[str, Any] = {}
    for page in ("sink-postgres.md", "sink-parquet.md"):
        for block in blocks(ROOT / "docs" / page):
            exec(compile(block, page, "exec"), defined)
    return defined


def test_an_order_has_one_row_in_postgresql_and_rejects_a_table(
    spark: SparkSession, names: dict[str, Any], database: Database, tmp_path: Path
) -> None:
    database.run("CREATE SCHEMA shop")
    bodies = ['{"order_id": 7, "customer": "Ada", "total": 9.5, "tags": ["new"]}', '{"order_id": 7, "tags": []}', "[]"]
    for number, body in enumerate(bodies):
        names["load_to_postgres"](spark, [message(f"m{number}", body)], database.url, tmp_path)

    (order,) = database.read("SELECT order_id, customer, tags FROM shop.orders")
    assert order == {"order_id": 7, "customer": None, "tags": []}
    assert database.read("SELECT _message_id FROM shop.rejected_orders") == [{"_message_id": "m2"}]


def test_a_batch_is_a_directory_of_files(spark: SparkSession, names: dict[str, Any], tmp_path: Path) -> None:
    for number in range(2):
        body = f'{{"order_id": {number}, "country": "at", "day": "2026-03-01", "total": 9.5}}'
        names["load_to_files"](spark, [message(f"m{number}", body)], tmp_path)

    stored = pq.read_table(tmp_path / "files").select(["order_id", "ingested_batch"]).to_pylist()
    assert sorted(row["order_id"] for row in stored) == [0, 1]
    assert len({row["ingested_batch"] for row in stored}) == 2
