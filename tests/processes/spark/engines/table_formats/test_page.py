"""The code of docs/sink-native.md does what the text around it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from demo.processes import ROOT
from sqs_lease.spark.sinks.jars import DELTA_SETTINGS, tested_jars
from tests.spark.samples import message


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """Run the blocks of the page, and return the names that they define."""
    defined: dict[str, Any] = {}
    page = (ROOT / "docs" / "sink-native.md").read_text()
    for block in page.split("```python\n")[1:]:
        exec(compile(block.partition("```")[0], "sink-native.md", "exec"), defined)
    return defined


class Builder:
    """Notes what a session would be made with."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def config(self, name: str, value: str) -> Builder:
        self.settings[name] = value
        return self


def test_customers_are_kept_in_a_table_of_a_catalog(spark: SparkSession, names: dict[str, Any], tmp_path: Path) -> None:
    spark.sql("CREATE DATABASE IF NOT EXISTS sales")
    for number, city in enumerate(["Ulm", "Bonn"]):
        body = f'{{"customer_id": 7, "name": "Ada", "city": "{city}"}}'
        result = names["load_to_catalog"](spark, [message(f"m{number}", body)], tmp_path)
        assert (result.ingested, result.table_version) == (1, number + 1)
    assert [row["city"] for row in spark.table("sales.customers").collect()] == ["Bonn"]
    history = spark.sql("DESCRIBE HISTORY sales.customers").select("userMetadata").collect()
    assert result.batch_id in history[0]["userMetadata"]
    spark.sql("OPTIMIZE sales.customers ZORDER BY (city)")

    again = names["load_to_catalog"](spark, [message("m1", body, receive_count=2)], tmp_path)
    assert (again.ingested, again.duplicates) == (0, 1)


def test_orders_are_loaded_into_a_lake(spark: SparkSession, names: dict[str, Any], tmp_path: Path) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.sales")
    for number in range(2):
        result = names["load_to_lake"](spark, [message(f"m{number}", f'{{"order_id": {number}}}')], tmp_path)
        assert result.ingested == 1
    spark.sql("CALL lake.system.rewrite_data_files(table => 'sales.orders', options => map('min-input-files', '2'))")
    again = [message(f"m{number}", f'{{"order_id": {number}}}', receive_count=2) for number in range(3)]
    result = names["load_to_lake"](spark, again, tmp_path)
    assert (result.ingested, result.duplicates) == (1, 2)
    assert sorted(row["order_id"] for row in spark.table("lake.sales.orders").collect()) == [0, 1, 2]


def test_sessions_get_jars_and_settings(names: dict[str, Any]) -> None:
    delta = names["with_delta"](Builder()).settings
    assert delta == {"spark.jars.packages": tested_jars().delta, **DELTA_SETTINGS}
    iceberg = names["with_iceberg"](Builder(), "/warehouse").settings
    assert iceberg["spark.sql.catalog.lake.warehouse"] == "/warehouse"
    assert iceberg["spark.jars.packages"] == tested_jars().iceberg
