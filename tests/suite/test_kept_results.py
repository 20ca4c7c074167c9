"""A run that was cut off goes on where it was: what passed on the same sources is not run again."""

from __future__ import annotations

from pathlib import Path

from tests.suite.commands import Outcome
from tests.suite.kept_results import KeptResults, fingerprint

GOOD = Outcome("airflow/failover", 0, passed=12, skipped=1, seconds=80.5, processor_seconds=30.25)
BAD = Outcome("airflow/shapes", 1, passed=3, failed=1)


def test_passed_parts_are_known_to_the_next_run_and_failed_ones_are_not(tmp_path: Path) -> None:
    first = KeptResults(tmp_path / "kept" / "results.json", lambda: "these sources")
    first.keep(GOOD)
    first.keep(BAD)

    assert KeptResults(tmp_path / "kept" / "results.json", lambda: "these sources").good == {GOOD.name: GOOD}


def test_the_newest_outcome_of_a_command_counts(tmp_path: Path) -> None:
    results = KeptResults(tmp_path / "results.json", lambda: "these sources")
    results.keep(GOOD)
    results.keep(Outcome(GOOD.name, 1, failed=1))
    assert results.good == {}


def test_results_on_other_sources_do_not_count(tmp_path: Path) -> None:
    KeptResults(tmp_path / "results.json", lambda: "these sources").keep(GOOD)
    assert KeptResults(tmp_path / "results.json", lambda: "other sources").good == {}


def test_a_result_is_not_kept_when_the_sources_changed_meanwhile(tmp_path: Path) -> None:
    sources = ["before", "after"]
    results = KeptResults(tmp_path / "results.json", lambda: sources.pop(0))
    assert not results.keep(GOOD)
    assert KeptResults(tmp_path / "results.json", lambda: "before").good == {}


def test_a_file_that_was_half_written_counts_as_missing(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"fingerprint": "these')
    assert KeptResults(tmp_path / "results.json", lambda: "these sources").good == {}


def test_results_can_be_forgotten(tmp_path: Path) -> None:
    results = KeptResults(tmp_path / "results.json", lambda: "these sources")
    results.keep(GOOD)
    results.forget()
    assert results.good == {}
    assert KeptResults(tmp_path / "results.json", lambda: "these sources").good == {}


def test_a_fingerprint_tells_contents_and_names_of_sources_apart_and_ignores_compiled_files(tmp_path: Path) -> None:
    source = tmp_path / "tests" / "test_a.py"
    source.parent.mkdir()
    source.write_text("one")
    names = ["tests"]
    before = fingerprint(tmp_path, names)

    (source.parent / "__pycache__").mkdir()
    (source.parent / "__pycache__" / "test_a.pyc").write_text("compiled")
    assert fingerprint(tmp_path, names) == before
    source.write_text("two")
    changed = fingerprint(tmp_path, names)
    source.rename(source.with_name("test_b.py"))

    assert len({before, changed, fingerprint(tmp_path, names)}) == 3
