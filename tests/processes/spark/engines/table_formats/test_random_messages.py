"""Random messages into native Delta and Iceberg tables: each is there once, or rejected with a reason."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from tests.processes.spark.engines.table_formats.fuzz_tables import table_formats
from tests.spark.fuzz.cases import SOURCES, Case, named

SEED = 7
BODIES = 150


@pytest.mark.parametrize("table", ["native-delta", "iceberg"])
@pytest.mark.parametrize(
    ("name", "upsert_by"), [("json-rich", ()), ("json", ("id",))], ids=["rich append", "plain upsert"]
)
def test_each_message_is_in_the_table_once_or_rejected_with_a_reason(
    spark: SparkSession, tmp_path: Path, table: str, name: str, upsert_by: tuple[str, ...]
) -> None:
    (kind,) = named(table_formats(spark), [table])
    (source,) = named(SOURCES, [name])
    Case(spark, tmp_path / f"t{uuid4().hex}", kind, source, upsert_by, SEED).run(BODIES)
