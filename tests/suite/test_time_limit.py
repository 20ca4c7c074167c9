"""When the time is up, no further test begins, and pytest says how many were left out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suite.plans import ROOT
from tests.suite.time_limit import LEFT_OUT, VARIABLE


@pytest.mark.parametrize(
    ("until", "outcome"), [("0", f"2 {LEFT_OUT}"), ("inf", "2 passed")], ids=["time is up", "time is left"]
)
def test_tests_begin_only_while_there_is_time(tmp_path: Path, until: str, outcome: str) -> None:
    (tmp_path / "test_some.py").write_text("def test_a(): pass\ndef test_b(): pass\n")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.suite.time_limit", "-p", "no:cacheprovider", str(tmp_path)],
        env={**os.environ, VARIABLE: until, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert outcome in ended.stdout
    assert ("left out" in ended.stdout) == (until == "0")
