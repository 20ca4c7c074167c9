"""Drivers load batches into one Delta table at the same time, beside all its upkeep: each message is there once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable, Field
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType

from sqs_lease.spark import DeltaSink, Ledger, Staged, TableError
from sqs_lease.spark.columns import MESSAGE_ID
from sqs_lease.spark.sinks.staging import Staging, Written
from sqs_lease.spark.sinks.write_ahead import WriteAheadTable
from tests.spark.sinks.delta.tables import open_table, stage, stored, write_files
from tests.spark.together import (
    BatchOf,
    expected,
    load_during_another_try,
    load_together,
    of_queues,
    of_tries,
    overlapping,
)


def staged(table: WriteAheadTable, rows: Sequence[dict[str, Any]], batch_id: str) -> Staged:
    target: Any = table.target
    ids = pa.chunked_array([[row[MESSAGE_ID] for row in rows]])
    return Staged(stage(target, rows, batch=batch_id), ids)


def compacted(path: Path) -> None:
    DeltaSink(path).optimize()


def vacuumed(path: Path) -> None:
    DeltaTable(str(path)).vacuum(retention_hours=168, dry_run=False)


def checkpointed(path: Path) -> None:
    table = DeltaTable(str(path))
    table.create_checkpoint()
    table.cleanup_metadata()


def widened(path: Path) -> None:
    table = DeltaTable(str(path))
    table.alter.add_columns([Field(f"c{table.version()}", PrimitiveType("string"))])


def described(path: Path) -> None:
    table = DeltaTable(str(path))
    table.alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 0 seconds"})


UPKEEP = (compacted, vacuumed, checkpointed, widened, described)


@pytest.mark.parametrize("batch_of", [of_tries, overlapping, of_queues])
@pytest.mark.parametrize("upsert_by", [(), ("id",)], ids=["append", "upsert"])
@pytest.mark.parametrize("partition_by", [(), ("name",)], ids=["plain", "partitioned"])
def test_each_message_is_there_once(
    tmp_path: Path, batch_of: BatchOf, upsert_by: tuple[str, ...], partition_by: tuple[str, ...]
) -> None:
    path = tmp_path / "table"

    def opened() -> WriteAheadTable:
        table = open_table(path, upsert_by=upsert_by, partition_by=partition_by, widen=True)
        return WriteAheadTable(table, Ledger(f"{path}/_sqs_lease/ledger").open())

    upkeep = [partial(one, path) for one in UPKEEP]
    everything = load_together(opened, staged, batch_of, upkeep, (DeltaError, TableError))

    table = open_table(path, upsert_by=upsert_by, partition_by=partition_by, widen=True)
    assert sorted((message_id, key) for key, message_id in stored(table)) == expected(everything, upsert_by)


def test_a_try_that_another_overtakes_while_it_stages_is_not_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "table"

    def opened() -> WriteAheadTable:
        return WriteAheadTable(open_table(path), Ledger(f"{path}/_sqs_lease/ledger").open())

    def stage_slowly(
        table: WriteAheadTable, rows: Sequence[dict[str, Any]], batch_id: str, *, meanwhile: Callable[[], object]
    ) -> Staged:
        target: Any = table.target

        def write(staging: Staging) -> Written:
            files = write_files(target, staging.directory, rows)
            meanwhile()
            return staging.read_back(files)

        staged: Staged = target._staged(batch_id, write)
        return staged

    load_during_another_try(opened, stage_slowly)
