"""Drivers that load batches into one Delta table at the same time, beside all its upkeep: each message is there once.

No Spark: the rows are staged as its tasks stage them; the loop around them, the ledger and the table are real.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from threading import Barrier, Event, Semaphore
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable, Field
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType

from sqs_lease.spark import DeltaSink, Ledger, Staged, TableError
from sqs_lease.spark.batch_file import REASONS
from sqs_lease.spark.loading import Loading
from sqs_lease.spark.parsing import NO_IDS, Parsed
from sqs_lease.spark.sinks.sink import LOOKED_UP
from sqs_lease.spark.sinks.write_ahead import WriteAheadTable
from tests.spark.delta.tables import NOON, open_table, row, stage, stored

DRIVERS = 3
BATCHES = 4
SIZE = 9


@dataclass(frozen=True)
class RowParser:
    """Stages a row of each message."""

    numbers: Sequence[int]

    def parse(self, table: Any, known: pa.ChunkedArray, batch_id: str) -> Parsed:
        """See :class:`sqs_lease.spark.parsing.Parser`."""
        done = set(known.to_pylist())
        found = [number for number in self.numbers if name_of(number) not in done]
        if not found:
            return Parsed(None, NO_IDS, NO_IDS, REASONS.empty_table())
        rows = [row(number % 10, name_of(number), later=number, _batch_id=batch_id) for number in found]
        ids = pa.chunked_array([[name_of(number) for number in found]])
        location = stage(table.target, rows, batch=batch_id)
        return Parsed(Staged(location, ids), ids, NO_IDS, REASONS.empty_table())


def name_of(number: int) -> str:
    return f"m{number:03}"


def of_tries(_driver: int, batch: int) -> range:
    return range(batch * SIZE, (batch + 1) * SIZE)


def overlapping(driver: int, batch: int) -> range:
    start = batch * SIZE + driver * SIZE // 3
    return range(start, start + SIZE)


def of_queues(driver: int, batch: int) -> range:
    start = (driver * BATCHES + batch) * SIZE
    return range(start, start + SIZE)


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
    tmp_path: Path,
    batch_of: Callable[[int, int], range],
    upsert_by: tuple[str, ...],
    partition_by: tuple[str, ...],
) -> None:
    path = tmp_path / "table"

    def opened() -> WriteAheadTable:
        table = open_table(path, upsert_by=upsert_by, partition_by=partition_by, widen=True)
        return WriteAheadTable(table, Ledger(f"{path}/_sqs_lease/ledger").open())

    opened()
    together, done, wanted = Barrier(DRIVERS), Event(), Semaphore(0)

    def drive(driver: int) -> int:
        together.wait()
        ingested = 0
        for batch in range(BATCHES):
            # All the time, it would leave an upsert no moment for its commit.
            wanted.release()
            numbers = batch_of(driver, batch)
            ids = pa.chunked_array([[name_of(number) for number in numbers]])
            sent = pa.array([NOON + timedelta(seconds=number) for number in numbers], LOOKED_UP.field("sent_at").type)
            batch_id = f"b{batch}" if batch_of is of_tries else f"b{driver}-{batch}"
            loading = Loading(opened(), batch_id, pa.Table.from_arrays([ids, sent], schema=LOOKED_UP), ids)
            loaded = loading.load(RowParser(numbers))
            assert loaded.known.num_rows + loaded.ingested == SIZE
            ingested += loaded.ingested
        return ingested

    def keep_up() -> None:
        for upkeep in cycle(UPKEEP):
            wanted.acquire()
            if done.is_set():
                return
            # Its own commit may be refused.
            with suppress(DeltaError, TableError):
                upkeep(path)

    with ThreadPoolExecutor(DRIVERS + 1) as pool:
        keeping = pool.submit(keep_up)
        try:
            ingested = sum(pool.map(drive, range(DRIVERS)))
        finally:
            done.set()
            wanted.release()
        keeping.result()

    everything = {number for driver in range(DRIVERS) for batch in range(BATCHES) for number in batch_of(driver, batch)}
    assert ingested == len(everything)
    table = open_table(path, upsert_by=upsert_by, partition_by=partition_by, widen=True)
    if upsert_by:
        newest = {key: max(number for number in everything if number % 10 == key) for key in range(10)}
        assert stored(table) == [(key, name_of(number)) for key, number in sorted(newest.items())]
    else:
        assert stored(table) == sorted((number % 10, name_of(number)) for number in everything)
