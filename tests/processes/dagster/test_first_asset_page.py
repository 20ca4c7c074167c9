"""The files of docs/first-asset.md, put side by side, are tests that pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_examples import ROOT, blocks

ASSET, CONFTEST, TESTS = blocks(ROOT / "docs" / "first-asset.md")

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


def test_the_files_of_the_page_are_tests_that_pass(tmp_path: Path) -> None:
    for name, text in (("orders.py", ASSET), ("conftest.py", CONFTEST), ("test_orders.py", TESTS)):
        (tmp_path / name).write_text(text)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW", "AWS_", "PYTEST", "ORDERS"))
    }
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**inherited, "AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert "2 passed" in ended.stdout
