"""How the demo ends when something is missing or in its way."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

from demo.processes import ROOT

PROGRAM = """
import sys
from pathlib import Path
import demo.__main__ as demo
demo.LAST = Path(sys.argv.pop(1))
sys.exit(demo.main())
"""


def command(last: Path, *arguments: str) -> list[str]:
    """The demo, with its files in a directory of the test."""
    return [sys.executable, "-c", PROGRAM, str(last), *arguments]


def test_without_java_it_says_so_before_anything_is_started(tmp_path: Path) -> None:
    last = tmp_path / "last"

    result = subprocess.run(
        command(last),
        env={**os.environ, "JAVA_HOME": "/nowhere"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 1
    assert "The demo failed: JAVA_HOME is /nowhere" in result.stderr
    assert "Java 17 or newer" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert not last.exists()


def test_a_second_demo_is_refused_while_one_runs(tmp_path: Path) -> None:
    last = tmp_path / "last"
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711")
        lock.flush()

        result = subprocess.run(command(last), cwd=ROOT, capture_output=True, text=True, check=False)

    assert result.returncode == 1
    assert "another demo of this checkout is running" in result.stderr
    assert "kill 4711" in result.stderr
    assert not last.exists()


def test_an_orchestrator_that_it_does_not_know_is_refused(tmp_path: Path) -> None:
    last = tmp_path / "last"

    result = subprocess.run(
        command(last, "--orchestrator", "cron"), cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert result.returncode == 2
    assert re.search(r"invalid choice: 'cron' \(choose from '?airflow'?, '?dagster'?\)", result.stderr)
    assert not last.exists()
