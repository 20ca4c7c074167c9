"""The recipes do what they say: each is run by `dag.test()`, as its user would test it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from demo.airflow_stack import migrated_database
from demo.processes import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

BESIDE_THEM = Path(__file__).parent / "recipes"


def test_the_recipes_do_what_they_say(tmp_path: Path) -> None:
    dags = shutil.copytree(ROOT / "dags" / "recipes", tmp_path / "dags")
    (dags / "conftest.py").write_text('pytest_plugins = ["sqs_lease.testing.pytest_plugin"]\n')
    shutil.copy(BESIDE_THEM / "checks.py", dags / "test_recipes.py")
    shutil.copy(BESIDE_THEM / "jobs.py", dags)
    shutil.copy(migrated_database(), tmp_path / "airflow.db")
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "AWS_", "PYTEST"))
    }
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=dags,
        env={
            **inherited,
            "AIRFLOW_HOME": str(tmp_path),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
            "PYTHONPATH": str(ROOT / "providers"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-3000:]
