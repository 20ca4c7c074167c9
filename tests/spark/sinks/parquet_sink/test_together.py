"""Drivers load batches into one directory of Parquet files at the same time, beside its upkeep: each message once."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.dataset as pds  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql.types import StringType

from sqs_lease.spark import Staged
from sqs_lease.spark.columns import MESSAGE_ID
from sqs_lease.spark.schemas import arrow_schema
from sqs_lease.spark.sinks.parquet_sink import NUMBER_COLUMN, ParquetSink
from sqs_lease.spark.sinks.write_ahead import WriteAheadTable
from sqs_lease.testing.sink_subject import COLUMNS, columns_of
from tests.spark.together import BatchOf, expected, load_together, of_queues, of_tries, overlapping


def staged(table: WriteAheadTable, rows: Sequence[dict[str, Any]], batch_id: str) -> Staged:
    """Stage rows as a task of Spark's does."""
    target: Any = table.target
    directory = target.root / "_sqs_lease" / "staged" / batch_id / uuid4().hex
    directory.mkdir(parents=True)
    written = pa.Table.from_pylist(list(rows), schema=arrow_schema(COLUMNS))
    pq.write_table(written, directory / "part-0.parquet")
    return Staged(str(directory), written[MESSAGE_ID])


@pytest.mark.parametrize("batch_of", [of_tries, overlapping, of_queues])
def test_each_message_is_there_once(tmp_path: Path, batch_of: BatchOf) -> None:
    session: Any = None
    path, archive = tmp_path / "table", tmp_path / "archive"
    archive.mkdir()
    numbers = count()

    def opened() -> WriteAheadTable:
        return ParquetSink(path).open(session, COLUMNS, widen=True)

    def widened() -> None:
        kind = {f"c{next(numbers)}": StringType()}
        ParquetSink(path).open(session, columns_of(name=StringType(), **kind), widen=True)

    def moved_away() -> None:
        """The user compacts a batch into another place."""
        for batch in sorted(path.glob(f"{NUMBER_COLUMN}=*"))[:1]:
            shutil.move(batch, archive / batch.name)

    everything = load_together(opened, staged, batch_of, [widened, moved_away], (OSError,))

    found = pds.dataset([*path.glob("*/*.parquet"), *archive.glob("*/*.parquet")], format="parquet").to_table()
    stored = sorted((row[MESSAGE_ID], row["id"]) for row in found.select([MESSAGE_ID, "id"]).to_pylist())
    assert stored == expected(everything, ())
