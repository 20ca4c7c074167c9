"""A driver that commits what another one staged, and ends in the middle of it as if it had been killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa  # type: ignore[import-untyped]

from sqs_lease.spark.sinks.postgres.sink import PostgresSink, PostgresTable
from sqs_lease.spark.sinks.sink import Admission, Staged
from sqs_lease.testing.sink_contract import COLUMNS
from sqs_lease.testing.sink_subject import asked, entries

ROOT = Path(__file__).parents[3]
KILLED = 9


def killed(url: str, location: str, method: str) -> None:
    """Have a driver of its own commit what is staged, and be killed: see :func:`commit_and_die`."""
    ended = subprocess.run(
        [sys.executable, "-m", __name__, url, location, method],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'providers'}{os.pathsep}{ROOT}"},
        check=False,
    )
    assert ended.returncode == KILLED


def commit_and_die(url: str, location: str, method: str) -> None:
    """Commit message m1, and die when a method of the table is done (``_tidy``: when it begins).

    Args:
        url: The database.
        location: Where its rows are, which are two if they are in files.
        method: The method's name.
    """
    real = getattr(PostgresTable, method)

    def deadly(*arguments: Any) -> None:
        if method != "_tidy":
            real(*arguments)
        os._exit(KILLED)

    # Staged rows need no Spark any more.
    session: Any = None
    table = PostgresSink(url, "orders").open(session, COLUMNS, widen=False)
    with patch.object(PostgresTable, method, deadly):
        table.commit(
            table.look_up(asked("m1")),
            Admission("b", entries(["m1"]), Staged(location, pa.chunked_array([["m1", "m1"]], pa.string()))),
        )


if __name__ == "__main__":
    commit_and_die(*sys.argv[1:])
