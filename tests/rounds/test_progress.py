"""A run of rounds that was cut off goes on where it was, and only that one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rounds.progress import RoundSummary, Run


def kept(seed: int, *findings: tuple[str, str]) -> RoundSummary:
    return RoundSummary(seed, 12.5, 10, 14, ["kill -9"], [], list(findings), starved_seconds=1.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "plain-3.json"


def test_a_run_goes_on_with_the_seeds_that_are_left(path: Path) -> None:
    run = Run.begin(path, 3, ["plain"], 7)
    run.keep("plain", kept(8, ("a rule", "how it was broken")))

    again = Run.begin(path, 3, ["plain"], None)

    assert again.seed == 7
    assert again.left("plain") == [7, 9]
    assert [each.findings for each in again.kept["plain"]] == [[("a rule", "how it was broken")]]


def test_a_run_that_is_over_or_not_the_one_that_is_asked_for_begins_again(path: Path) -> None:
    run = Run.begin(path, 1, ["plain"], 7)
    run.keep("plain", kept(7))

    assert Run.begin(path, 1, ["plain"], 7).left("plain") == [7]
    run = Run.begin(path, 2, ["plain"], 7)
    run.keep("plain", kept(7))
    assert Run.begin(path, 2, ["plain"], 8).left("plain") == [8, 9]
    assert Run.begin(path, 2, ["plain", "spark-delta"], 7).left("plain") == [7, 8]


def test_the_table_counts_rounds_and_names_each_rule_that_was_broken(path: Path) -> None:
    run = Run.begin(path, 3, ["plain"], 7)
    run.keep("plain", kept(7))
    run.keep("plain", kept(8, ("a rule", "how it was broken")))

    lines = list(run.table())

    assert lines[1].split() == ["plain", "2", "1", "20", "28", "25", "3"]
    assert lines[-1] == "plain 8: a rule: how it was broken"
