"""A driver of a process of its own is killed at each step of a batch: the next one finds the batch whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from demo.processes import ROOT
from tests.processes.spark.engines.table_formats.conftest import CATALOG
from tests.processes.spark.engines.table_formats.doomed import STEPS, lake_on_disk
from tests.processes.spark.engines.table_formats.subjects import staged_files
from tests.processes.spark.engines.table_formats.test_staged_files import DELTA, ICEBERG


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", [DELTA, ICEBERG])
def test_the_batch_of_a_killed_driver_is_there_once(
    spark: SparkSession, tmp_path: Path, warehouse: Path, kind: str, step: str
) -> None:
    root = tmp_path / f"t{uuid4().hex}"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.tests")
    lake = lake_on_disk(spark, root, kind)
    lake.load(1)

    ended = subprocess.run(
        [sys.executable, "-m", "tests.processes.spark.engines.table_formats.doomed"],
        input=json.dumps({"warehouse": str(warehouse), "root": str(root), "kind": kind, "step": step}),
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'providers'}{os.pathsep}{ROOT}"},
        cwd=ROOT,
        text=True,
        # Its Java has this end of the pipe, too, and so is waited for.
        capture_output=True,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert staged_files(root / "ledger") != []

    again = lake.load(2)

    assert (again.ingested, again.rows) == (1, 0), "it was admitted, and so it is completed"
    assert lake.ids() == [1, 2]
    assert staged_files(root / "ledger") == []
