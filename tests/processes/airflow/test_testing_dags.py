"""The page about testing DAGs: its three files, put side by side, are a test that passes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from demo.airflow_stack import migrated_database
from tests.docs.test_examples import ROOT, blocks

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

PAGE = ROOT / "docs" / "testing-dags.md"


def run(directory: Path) -> subprocess.CompletedProcess[str]:
    """Run pytest in a directory as its owner would, with an Airflow of its own."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "AWS_", "PYTEST"))
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=directory,
        env={
            **inherited,
            "AIRFLOW_HOME": str(directory),
            "AIRFLOW__CORE__DAGS_FOLDER": str(directory),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{directory}/airflow.db",
            "PYTHONPATH": str(directory),
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    conftest, dag, test = blocks(PAGE)
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "orders.py").write_text(dag)
    (tmp_path / "test_orders.py").write_text(test)
    shutil.copy(migrated_database(), tmp_path / "airflow.db")
    return tmp_path


def test_the_files_of_the_page_are_a_test_that_passes(project: Path) -> None:
    ended = run(project)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert "2 passed" in ended.stdout
