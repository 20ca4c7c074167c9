"""The code of docs/sink-delta.md, and of giving a batch up, does what the text around it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.docs.test_examples import ROOT, blocks
from tests.spark.samples import message
from tests.spark.sinks.delta.conftest import Bucket
from tests.spark.sinks.delta.subjects import read_rows

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """The names that the blocks of the page define, and the block about the ledger of the page of all sinks."""
    defined: dict[str, Any] = {}
    (given_up,) = (block for block in blocks(ROOT / "docs" / "spark-sinks.md") if "Ledger(" in block)
    for block in (*blocks(ROOT / "docs" / "sink-delta.md"), given_up):
        exec(compile(block, "sink-delta.md", "exec"), defined)
    return defined


def order(number: int, country: str | None) -> str:
    return f'{{"order_id": {number}, "country": "{country}", "day": "2026-03-01", "total": 9.5}}'


def test_orders_are_loaded_partitioned_and_tidied_up(
    spark: SparkSession, names: dict[str, Any], tmp_path: Path
) -> None:
    for number, country in enumerate(["at", "de", "de"]):
        names["load"](spark, [message(f"m{number}", order(number, country))], tmp_path)

    optimized = names["tidy_up"](tmp_path)

    assert (optimized.files_removed, optimized.files_added) == (3, 2)
    stored = names["DeltaSink"](tmp_path / "orders", partition_by=["country"])
    assert sorted((row["order_id"], row["country"]) for row in read_rows(stored)) == [(0, "at"), (1, "de"), (2, "de")]


def test_a_batch_is_given_up_by_its_name(spark: SparkSession, names: dict[str, Any], tmp_path: Path) -> None:
    result = names["load"](spark, [message("m1", order(1, "at"))], tmp_path)

    assert names["give_up"](tmp_path, result.batch_id) == ("m1",)


def test_a_customer_has_one_row(spark: SparkSession, names: dict[str, Any], tmp_path: Path) -> None:
    for number, city in enumerate(["Ulm", "Bonn"]):
        body = f'{{"customer_id": 7, "name": "Ada", "city": "{city}"}}'
        names["keep_newest"](spark, [message(f"m{number}", body)], tmp_path)

    stored = names["DeltaSink"](tmp_path / "customers", upsert_by=["customer_id"])
    assert [row["city"] for row in read_rows(stored)] == ["Bonn"]


def test_orders_are_loaded_to_s3(spark: SparkSession, names: dict[str, Any], tmp_path: Path, bucket: Bucket) -> None:
    result = names["load_to_s3"](spark, [message("m1", order(1, "at"))], bucket.name, tmp_path, bucket.storage_options)

    assert result.ingested == 1
    stored = names["DeltaSink"](f"s3://{bucket.name}/orders", storage_options=bucket.storage_options)
    assert [row["order_id"] for row in read_rows(stored)] == [1]
