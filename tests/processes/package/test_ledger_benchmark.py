"""The ledger's benchmark runs as a command, in a short form; the calls of a lease are counted in tests/benchmarks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[3]


def test_the_ledgers_benchmark_has_figures_for_each_size() -> None:
    # As a process of its own: it collects garbage all the time, and the tests' own process has much to look through.
    command = [sys.executable, "-m", "benchmarks.ledger", "--sizes", "100", "1000"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    operations, ticks = ([line.split() for line in table.splitlines()[2:]] for table in printed.strip().split("\n\n"))
    for rows in (operations, ticks):
        assert [row[0] for row in rows[:2]] == ["100", "1,000"]
        assert all(float(figure) >= 0 for row in rows[:2] for figure in row[1:])
    assert operations[2][0] == "ratio"
