"""`benchmarks.scale` sets what was measured beside what the page computes; no figure that depends on time is judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.scale import compared, is_carried, page_constants, show


def phase(name: str, seconds: float, calls: Mapping[str, int], asked: int) -> dict[str, Any]:
    return {
        "name": name,
        "seconds": seconds,
        "real_seconds": 2 * seconds,
        "finished": True,
        "calls": dict(calls),
        "busiest_calls": 7,
        "asked": {"GetXCom": asked},
        "busiest_asked": 3,
        "blocked_seconds": 0.15,
        "blocked_looks": 0,
        "looks": 10,
        "cpu_seconds": 1.0,
        "stub_cpu_seconds": 0.1,
    }


@pytest.fixture
def figures() -> dict[str, Any]:
    """The figures of a process that carried ten runs of 25 messages."""
    return {
        "phases": [
            phase("take over", 2.0, {"extend": 25}, 40),
            phase("hold", 100.0, {"extend": 30}, 200),
            phase("settle", 5.0, {"delete": 35}, 30),
        ],
        "leases": 250,
        "extensions": 500,
        "batches": 10,
        "lapsed": 0,
        "lost": 0,
        "deleted": 250,
        "uncertain": 0,
        "overdue": 3,
        "most_overdue_seconds": 1.5,
        "least_left_seconds": 58.5,
        "base_mb": 150.0,
        "memory_mb": 200.0,
        "held_before_seconds": 30.0,
    }


def test_measured_figures_stand_beside_computed_ones(figures: dict[str, Any]) -> None:
    page = page_constants()
    lines = {name: (computed, measured) for name, computed, measured in compared(10, 25, figures, page)}
    assert lines["leases"] == (250, 250)
    assert lines["batches"] == (10, 10)
    # Of 25 messages there are three calls, and three of those.
    assert lines["calls to SQS"] == (90, 90)
    assert lines["seconds of the takeover"][1] == 2.0
    assert lines["questions to Airflow a second, holding"][1] == 2.0
    assert lines["MB"][1] == 200.0
    assert all(computed > 0 for computed, _ in lines.values())


def test_the_tables_have_a_line_for_each_figure_and_phase(
    figures: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    show(10, 25, figures, page_constants())
    out = capsys.readouterr().out
    assert "10 runs of 25 messages: carried" in out
    for begins in ("calls to SQS", "seconds of the takeover", "MB", "take over", "hold", "settle", "extensions: 500"):
        assert any(line.startswith(begins) for line in out.splitlines()), begins


@pytest.mark.parametrize("late", ["lapsed", "lost"])
def test_a_lease_that_ended_was_not_carried(figures: dict[str, Any], late: str) -> None:
    assert is_carried(figures)
    figures[late] = 1
    assert not is_carried(figures)


def test_a_phase_that_was_cut_off_was_not_carried(figures: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    del figures["phases"][1:]
    figures["phases"][0]["finished"] = False
    assert not is_carried(figures)
    show(10, 25, figures, page_constants())
    out = capsys.readouterr().out
    assert "NOT carried" in out
    assert "calls to SQS" not in out
