"""The triggerer's benchmark runs, in a short form; its counts hold whatever the machine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
KEEPERS = 20
DAGS = 2
LEASES = 50


@pytest.fixture(scope="module")
def printed() -> str:
    scale = ["--keepers", str(KEEPERS), "--leases", str(LEASES), "--queues", str(DAGS), "--seconds", "10"]
    # Beside other tests, whose processes would leave those that stand back next to nothing.
    arguments = [*scale, "--niceness", "0"]
    # As a process of its own: it configures Airflow by the environment before it is imported.
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.triggerer", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def calls(printed: str, *phases: str) -> int:
    """The number of calls to SQS in some phases."""
    lines = [line for phase in phases for line in re.findall(rf"^{phase} .*$", printed, re.MULTILINE)]
    assert len(lines) == len(phases)
    return sum(
        int(line.removeprefix(phase).split()[4].replace(",", "")) for phase, line in zip(phases, lines, strict=True)
    )


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_all_leases_are_taken_over_and_settled_by_calls_of_ten_without_a_late_one(printed: str) -> None:
    assert "late extensions: 0 as the service saw it, 0 as the keepers did" in printed
    assert f"deleted: {KEEPERS * LEASES:,}; pollers of task states: {DAGS};" in printed
    full_calls = KEEPERS * LEASES // 10
    # The first of them come when all triggers were started, which is seen up to seconds later.
    assert full_calls <= calls(printed, "start", "take over") <= 1.2 * full_calls
    assert full_calls <= calls(printed, "settle") <= 1.2 * full_calls
