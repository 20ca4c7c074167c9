"""The benchmarks run, in a short form; their figures are measured elsewhere, but the counts are exact."""

from __future__ import annotations

import sys

import pytest

from benchmarks import ledger


def test_the_ledgers_benchmark_runs_and_counts_the_calls_that_the_readme_quotes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ledger", "--sizes", "100", "1000"])
    ledger.main()
    calls = dict(line.split()[:2] for line in capsys.readouterr().out.split("\n\n")[-1].splitlines()[1:])
    assert calls == {"Growing": "1,400", "Threshold": "14,500", "Buffered": "12,200", "Fixed": "24,100"}
