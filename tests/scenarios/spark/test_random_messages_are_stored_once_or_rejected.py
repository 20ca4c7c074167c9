"""Random messages of every kind, from every source: each is in its table once, or rejected with a reason.

`make fuzz-ingestion` does the same with thousands of messages, every source into every table, and new seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from demo.postgres import postgres_server
from tests.spark.fuzz.cases import SOURCES, Case, KindOfTable, named
from tests.spark.fuzz.tables import DELTA, PARQUET, postgres
from tests.spark.inferring import infers

pytestmark = pytest.mark.processes

SEED = 7
BODIES = 150
APPEND: tuple[str, ...] = ()
BY_ID = ("id",)

CHOSEN = {
    "json": ("delta", BY_ID),
    "json-rich": ("delta", APPEND),
    "json-nullable": ("parquet", APPEND),
    "json-closed": ("postgres", APPEND),
    "json-units": ("postgres", BY_ID),
    "json-variants": ("postgres", APPEND),
    "json-inferred": ("delta", APPEND),
    "json-inferred-closed": ("parquet", APPEND),
    "json-inferred-growing": ("postgres", APPEND),
    "json-growing": ("delta", BY_ID),
    "json-rescued": ("delta", APPEND),
    "json-array": ("postgres", APPEND),
    "json-attributes": ("parquet", APPEND),
    "text": ("postgres", APPEND),
    "variant": ("postgres", APPEND),
    "sns-json": ("delta", BY_ID),
    "sns-text": ("parquet", APPEND),
    "parser": ("delta", APPEND),
}
"""Of each source one table."""


@pytest.fixture(scope="module")
def tables() -> Iterator[dict[str, KindOfTable]]:
    with postgres_server() as server:
        kinds = (DELTA, PARQUET, postgres(server.url.replace("+psycopg2", "")))
        yield {kind.name: kind for kind in kinds}


@pytest.mark.parametrize(
    "name", [pytest.param(source.name, marks=infers if source.infers else ()) for source in SOURCES]
)
def test_each_message_is_in_the_table_once_or_rejected_with_a_reason(
    spark: SparkSession, tmp_path: Path, tables: dict[str, KindOfTable], name: str
) -> None:
    (source,) = named(SOURCES, [name])
    table, upsert_by = CHOSEN[name]
    # By which the table in PostgreSQL is called.
    root = tmp_path / f"t{uuid4().hex}"
    Case(spark, root, tables[table], source, upsert_by, SEED).run(BODIES)


def test_every_source_is_among_them() -> None:
    assert [source.name for source in SOURCES] == list(CHOSEN)
