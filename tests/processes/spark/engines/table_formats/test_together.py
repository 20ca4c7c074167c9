"""Drivers load batches into one native Delta or Iceberg table at the same time, beside its upkeep: each message once,
or by a key the newest of each.

A driver is a session with a catalog of its own, in the same JVM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sqs_lease.spark import Staged
from sqs_lease.spark.sinks.write_ahead import WriteAheadTable
from sqs_lease.spark.spark_errors import SPARK_ERRORS
from tests.processes.spark.engines.table_formats.conftest import CATALOG
from tests.processes.spark.engines.table_formats.test_changed_tables import DELTA, ICEBERG, place_of
from tests.spark.together import expected, load_together, overlapping

UPKEEP = {
    "delta": (
        "OPTIMIZE {t}",
        "ALTER TABLE {t} ADD COLUMN c{n} STRING",
        "VACUUM {t}",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.setTransactionRetentionDuration' = 'interval 0 seconds')",
    ),
    "iceberg": (
        f"CALL {CATALOG}.system.rewrite_data_files(table => '{{t}}', options => map('min-input-files', '2'))",
        "ALTER TABLE {t} ADD COLUMN c{n} STRING",
        f"CALL {CATALOG}.system.expire_snapshots(table => '{{t}}', retain_last => 1, "
        "older_than => TIMESTAMP '2100-01-01 00:00:00')",
        f"CALL {CATALOG}.system.rewrite_manifests(table => '{{t}}')",
    ),
}


@pytest.mark.parametrize("upsert_by", [(), ("id",)], ids=["append", "upsert"])
@pytest.mark.parametrize("kind", [DELTA, ICEBERG])
def test_each_message_is_there_once(spark: SparkSession, tmp_path: Path, kind: str, upsert_by: tuple[str, ...]) -> None:
    place = place_of(spark, tmp_path, kind, upsert_by)
    subject = place.subject
    numbers = count()
    keeper = spark.newSession()
    # VACUUM lists a table in ten thousand tasks otherwise.
    keeper.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "1")

    def opened() -> WriteAheadTable:
        table: WriteAheadTable = replace(subject, spark=spark.newSession()).open(widen=True)
        return table

    def staged(table: WriteAheadTable, rows: Sequence[dict[str, Any]], batch_id: str) -> Staged:
        target: Any = table.target
        return replace(subject, spark=target.spark).stage(table, batch_id, rows)

    def keep_up(statement: str) -> None:
        keeper.sql(statement.format(t=place.name, n=next(numbers))).collect()

    upkeep = [partial(keep_up, statement) for statement in UPKEEP[kind]]
    everything = load_together(opened, staged, overlapping, upkeep, SPARK_ERRORS, drivers=2)

    assert subject.ids() == expected(everything, upsert_by)
    spark.sql(f"DROP TABLE {place.name}")
