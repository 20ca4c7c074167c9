"""The Spark hosts: two drivers that ingest batches of one queue into one table, of Delta or of plain Parquet files."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake import DeltaTable

from tests.rounds.audit import Done
from tests.rounds.crew import Consumers, Ground, consumers
from tests.rounds.draw import Kind, Traits, Work

TRAITS: Final = Traits(
    name="spark",
    workers=2,
    faults=(
        Kind.KILL,
        Kind.STOP,
        Kind.CUT,
        Kind.SILENCE,
        Kind.LOST,
        Kind.ERRORS,
        Kind.THROTTLE,
        Kind.LATENCY,
        Kind.DISK,
        Kind.MEMORY,
    ),
    visibility_seconds=(6, 10, 15),
    messages=(10, 40),
    work_seconds=(0.0, 0.0),
    kinds=("good", "good", "good", "good", "good", "good", "good", "poison"),
)


@dataclass(frozen=True, slots=True)
class SparkHost:
    """Drivers with a local Spark each.

    Attributes:
        table_format: The format of the table.
    """

    table_format: Literal["delta", "parquet"]
    each_once: bool = True
    takeover: None = None
    passed_on_seconds: float = 0.0
    disk_megabytes: int = 128
    start_seconds: float = 600.0

    @property
    def traits(self) -> Traits:
        """The same for both kinds of tables, but drawn apart."""
        return replace(TRAITS, name=f"spark-{self.table_format}")

    def crew(self, ground: Ground) -> AbstractContextManager[Consumers]:
        """The drivers."""
        program = [sys.executable, "-W", "ignore", "-m", "tests.rounds.spark_consumer"]
        return consumers(ground, self.traits, lambda _: [*program, self.table_format, ground.disk])

    def table(self, disk: Path) -> list[Done]:
        """The message ids in the table, as its readers see them."""
        table = disk / "table"
        if self.table_format == "delta":
            if not (table / "_delta_log").exists():
                return []
            ids = DeltaTable(str(table)).to_pyarrow_table(columns=["_message_id"])["_message_id"].to_pylist()
        else:
            files = sorted(table.glob("*/*.parquet"))
            ids = [each for file in files for each in _ids_of(file)]
        return [Done(each) for each in ids]

    def forget(self, disk: Path) -> None:
        """The table goes on: what was stored in earlier rounds must not come again either."""

    def body(self, work: Work) -> str:
        """A record; poison has no id."""
        record = {"number": work.number, "kind": work.kind}
        return json.dumps(record if work.kind == "poison" else {**record, "id": work.number})


def _ids_of(file: Path) -> list[str]:
    ids: list[str] = pq.ParquetFile(file).read(columns=["_message_id"])["_message_id"].to_pylist()
    return ids
