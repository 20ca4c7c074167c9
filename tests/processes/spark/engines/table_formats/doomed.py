"""A driver with a Spark of its own that is killed in the middle of a batch; told on standard input where."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql import SparkSession

from sqs_lease.spark.ledger import OpenLedger
from sqs_lease.spark.sinks.iceberg_sink import IcebergSink, IcebergTable
from sqs_lease.spark.sinks.native_delta_sink import NativeDeltaSink, NativeDeltaTable
from sqs_lease.spark.sinks.write_ahead import AppliedMarks
from tests.processes.spark.engines.table_formats.conftest import CATALOG, session_with_jars
from tests.processes.spark.engines.table_formats.test_staged_files import DELTA, Lake

STEPS = ("admitted", "taken", "marked")


def lake_on_disk(spark: SparkSession, root: Path, kind: str) -> Lake:
    """A table that another process finds, too: by its path, or in a catalog that is a directory."""
    name = f"delta.`{root / 'table'}`" if kind == DELTA else f"{CATALOG}.tests.{root.name}"
    ledger = root / "ledger"
    sink: Any = NativeDeltaSink(root / "table", ledger=ledger) if kind == DELTA else IcebergSink(name, ledger)
    return Lake(spark, name, sink, root / "workspace", kind)


def main() -> None:
    """Load record 2, and die when a step is done."""
    order = json.load(sys.stdin)
    table = NativeDeltaTable if order["kind"] == DELTA else IcebergTable
    done = {"admitted": (OpenLedger, "admit"), "taken": (table, "_take"), "marked": (AppliedMarks, "add")}
    owner, method = done[order["step"]]
    real = getattr(owner, method)

    def deadly(*arguments: Any) -> None:
        real(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    with session_with_jars(Path(order["warehouse"])) as spark, patch.object(owner, method, deadly):
        lake_on_disk(spark, Path(order["root"]), order["kind"]).load(2)


if __name__ == "__main__":
    main()
