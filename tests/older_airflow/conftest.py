"""A database for the Airflow that is installed here, in a directory of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

HOME = tempfile.TemporaryDirectory(prefix="older-airflow-")
# Before anything imports Airflow.
os.environ.update(AIRFLOW_HOME=HOME.name, AIRFLOW__CORE__LOAD_EXAMPLES="False", AIRFLOW__CORE__UNIT_TEST_MODE="False")


@pytest.fixture(scope="session", autouse=True)
def database() -> Iterator[None]:
    """Airflow's own tables, in SQLite."""
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True, capture_output=True)
    yield
    HOME.cleanup()
