"""The ledger's benchmark runs as a command, in a short form; its figures are measured elsewhere, its counts exact."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[3]


def test_the_ledgers_benchmark_runs_and_counts_the_calls_that_the_readme_quotes() -> None:
    # As a process of its own: it collects garbage all the time, and the tests' own process has much to look through.
    command = [sys.executable, "-m", "benchmarks.ledger", "--sizes", "100", "1000"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    calls = dict(line.split()[:2] for line in printed.split("\n\n")[-1].splitlines()[1:])
    assert calls == {"Growing": "1,400", "Threshold": "14,500", "Buffered": "12,200", "Fixed": "24,100"}
