"""How the demo ends when something is missing, in its way, or somebody stops it."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from demo.processes import ROOT
from tests.form import in_full_form

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


@pytest.mark.processes
@pytest.mark.parametrize(
    ("orchestrator", "moment", "number"),
    [
        ("airflow", "Airflow is starting", signal.SIGINT),
        ("airflow", "Airflow is starting", signal.SIGTERM),
        ("dagster", "Dagster is starting", signal.SIGINT),
        pytest.param("dagster", r"[1-9]\d* in flight", signal.SIGTERM, marks=in_full_form),
    ],
    ids=["Airflow, Ctrl-C", "Airflow, kill", "Dagster, Ctrl-C", "Dagster at work, kill"],
)
def test_what_it_started_is_stopped_when_somebody_stops_it(
    tmp_path: Path, orchestrator: str, moment: str, number: signal.Signals
) -> None:
    with subprocess.Popen(
        command(tmp_path / "last", "--orchestrator", orchestrator),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        for line in demo.stdout:
            if re.search(moment, line):
                break
        started = psutil.Process(demo.pid).children(recursive=True)

        demo.send_signal(number)
        errors = demo.stderr.read()

    assert demo.returncode == 130
    assert started
    assert not [process for process in started if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert re.search(r"Interrupted\. Everything that was started has been stopped", errors)
    assert "Traceback" not in errors
