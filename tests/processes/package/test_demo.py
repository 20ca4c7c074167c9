"""How the demo ends when it is stopped."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from demo.processes import ROOT

pytestmark = pytest.mark.processes

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


@pytest.mark.parametrize(
    ("orchestrator", "moment", "number"),
    [
        ("airflow", "Airflow is starting", signal.SIGINT),
        ("airflow", "Airflow is starting", signal.SIGTERM),
        ("dagster", "Dagster is starting", signal.SIGINT),
        ("dagster", r"[1-9]\d* in flight", signal.SIGTERM),
    ],
    ids=["Airflow, Ctrl-C", "Airflow, kill", "Dagster, Ctrl-C", "Dagster at work, kill"],
)
def test_its_processes_are_stopped_when_it_is_stopped(
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
