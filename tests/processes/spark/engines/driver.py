"""A driver in a process of its own: ingests what its argument says, and says what became of each batch."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from sqs_lease.spark import JsonSource, Source
from sqs_lease.spark.sources.functions import ParserSource
from tests.processes.spark.engines.cluster import session_settings
from tests.spark.driver import DeadlySink
from tests.spark.samples import SCHEMA, Place, good

DOOR: Final = "door"
OPENED: Final = "opened"


def gated(gate: Path) -> Callable[[pa.RecordBatch], pa.Table]:
    """A parser that announces itself and waits at a door (a FIFO), until it was opened."""

    def parse(messages: pa.RecordBatch) -> pa.Table:
        if not (gate / OPENED).exists():
            (gate / f"worker-{os.getpid()}").touch()
            with (gate / DOOR).open():
                pass
        ids = messages.column("message_id")
        numbers = pc.utf8_replace_slice(ids, 0, 1, "").cast(pa.int64())
        return pa.table({"message_id": ids, "id": numbers, "name": ids})

    return parse


def session(engine: str) -> SparkSession:
    """A session on a cluster, or of a Connect server."""
    if engine.startswith("sc://"):
        connected: SparkSession = SparkSession.builder.remote(engine).getOrCreate()
        return connected
    builder = SparkSession.builder.master(engine).appName("sqs-lease tests")
    for name, value in session_settings().items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main() -> None:
    order: dict[str, Any] = json.loads(sys.argv[1])
    spark = session(order["engine"])
    for step in order["steps"]:
        gate = step.get("gate")
        source: Source[Any] = ParserSource(gated(Path(gate)), SCHEMA) if gate else JsonSource(SCHEMA)
        place = Place(spark, Path(order["root"]), source)
        sink = DeadlySink(place.table, step["die"]) if "die" in step else None
        result = place.ingest(good(step["messages"]), sink=sink, batch_id=step.get("batch_id"))
        sys.stdout.write(f"\n@{json.dumps(asdict(result))}\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
