"""A driver that commits what another one staged for a directory of Parquet files, and is killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa  # type: ignore[import-untyped]

from sqs_lease.spark.ledger import OpenLedger
from sqs_lease.spark.sinks.parquet_sink import ParquetSink
from sqs_lease.spark.sinks.sink import Admission, Staged
from sqs_lease.spark.sinks.write_ahead import AppliedMarks, WriteAheadTable
from sqs_lease.testing.sink_contract import COLUMNS
from sqs_lease.testing.sink_subject import asked, entries

ROOT = Path(__file__).parents[3]
STEPS: dict[str, tuple[type, str, bool]] = {
    "before the admission": (OpenLedger, "admit", False),
    "before the mark": (AppliedMarks, "add", False),
    "before the rename": (Path, "rename", False),
    "after the rename": (Path, "rename", True),
}
"""Where a driver is killed: the owner of a method, its name, and whether that is done by then."""


def open_table(path: Path) -> WriteAheadTable:
    # Staged rows need no Spark any more.
    session: Any = None
    return ParquetSink(path).open(session, COLUMNS, widen=False)


def commit(table: WriteAheadTable, location: str) -> None:
    """Commit message m1, whose row is staged."""
    staged = Staged(location, pa.chunked_array([["m1"]], pa.string()))
    table.commit(table.look_up(asked("m1")), Admission("b", entries(["m1"]), staged))


def killed(path: Path, location: str, step: str) -> None:
    """Have a driver of its own commit what is staged, and be killed at a step."""
    ended = subprocess.run(
        [sys.executable, "-m", __name__, json.dumps([str(path), location, step])],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'providers'}{os.pathsep}{ROOT}"},
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL


def commit_and_die(path: str, location: str, step: str) -> None:
    """Commit message m1, and die at a step."""
    owner, method, is_done = STEPS[step]
    real = getattr(owner, method)

    def deadly(*arguments: Any) -> None:
        if is_done:
            real(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    with patch.object(owner, method, deadly):
        commit(open_table(Path(path)), location)


if __name__ == "__main__":
    commit_and_die(*json.loads(sys.argv[1]))
