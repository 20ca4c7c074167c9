"""The page of the first DAG: its three files, put side by side, are a test that passes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from demo.airflow_stack import migrated_database
from tests.docs.test_examples import ROOT, blocks

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

TUTORIAL = ROOT / "docs" / "first-dag.md"


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


def project(directory: Path, conftest: str, dag: str, test: str) -> Path:
    """Put the files of a page side by side, with a database."""
    (directory / "conftest.py").write_text(conftest)
    (directory / "orders.py").write_text(dag)
    (directory / "test_orders.py").write_text(test)
    shutil.copy(migrated_database(), directory / "airflow.db")
    return directory


def test_the_files_of_the_tutorial_are_a_test_that_passes(tmp_path: Path) -> None:
    dag, conftest, test = blocks(TUTORIAL)
    ended = run(project(tmp_path, conftest, dag, test))
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert "1 passed" in ended.stdout


def test_the_dead_letter_rule_of_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    dag, conftest, test = blocks(TUTORIAL)
    page = TUTORIAL.read_text()
    changed = "on_failure=by_exception({ValueError: dead_letter()})"
    assertion = 'assert queue.dead_letters == ["torn"]'
    assert changed in page
    assert assertion in page
    dag = f"from sqs_lease import by_exception, dead_letter\n{dag}".replace("timeout=5", f"timeout=5, {changed}")
    test = re.sub(r"assert queue\.deleted == .*\n *assert queue\.visible == .*", assertion, test)
    ended = run(project(tmp_path, conftest, dag, test))
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
