"""The table of docs/versions.md: what was seen in some cells is written, and the others keep what was seen before."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from datetime import date
from pathlib import Path

import pytest

from tests.suite.commands import Outcome
from tests.suite.plans import ROOT
from tests.suite.versions import (
    BEGIN,
    END,
    PAGE,
    PLATFORMS,
    PYTHONS,
    RESOLUTIONS,
    RESULTS,
    ROOMS,
    Cell,
    cells,
    commit_of,
    record,
    with_table,
)

DAY = date(2026, 1, 2)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / PAGE).write_text(f"before\n\n{BEGIN}\nstale\n{END}\nafter\n")
    for command in (
        ["init", "--quiet"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "--allow-empty", "-qm", "a"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    return tmp_path


def installed(checkout: Path, cell: Cell, version: str) -> None:
    directory = checkout / ".versions" / f"{cell.python}-{cell.resolution}-{cell.room}"
    directory.mkdir(parents=True)
    packages = [{"name": name, "version": version} for name in ROOMS[cell.room].named]
    (directory / "packages.json").write_text(json.dumps(packages))


def test_seen_cells_are_in_the_table_and_all_others_were_not_run(checkout: Path) -> None:
    cell = Cell("3.12", "lowest", "dagster")
    installed(checkout, cell, "1.2")
    record(checkout, [(cell, Outcome(cell.name, 1, passed=7, failed=2))], DAY, "1234567")
    page = (checkout / PAGE).read_text()
    assert (
        "| dagster, lowest | dagster 1.2, boto3 1.2 "
        "| not run | 7 passed, 2 failed (2026-01-02, 1234567) | not run | not run |" in page
    )
    assert page.startswith("before\n")
    assert page.endswith("\nafter\n")
    assert "stale" not in page
    assert page.count("not run") == len(list(cells())) - 1


def test_cells_that_did_not_run_again_keep_what_was_seen(checkout: Path) -> None:
    first, second = Cell("3.11", "newest", "core"), Cell("3.13", "newest", "core")
    for cell, version in ((first, "1.0"), (second, "2.0")):
        installed(checkout, cell, version)
        record(checkout, [(cell, Outcome(cell.name, 0, passed=3))], DAY, "1234567")
    assert "boto3 1.0 or 2.0" in (checkout / PAGE).read_text()
    assert (checkout / PAGE).read_text().count("3 passed (2026-01-02, 1234567)") == 2


def test_an_environment_that_could_not_be_made_is_in_the_table(checkout: Path) -> None:
    cell = Cell("3.13", "newest", "spark")
    record(checkout, [(cell, Outcome(cell.name, 1, has_report=False))], DAY, "1234567")
    assert "| spark, newest | - | not run | not run | ended with 1 (2026" in (checkout / PAGE).read_text()


def test_a_row_names_the_commit_and_whether_the_files_were_others(checkout: Path) -> None:
    (checkout / PAGE).unlink()
    commit = commit_of(checkout)
    assert len(commit) == 7
    (checkout / PAGE).write_text("another table")
    (checkout / RESULTS).write_text("{}")
    assert commit_of(checkout) == commit
    (checkout / "source.py").touch()
    assert commit_of(checkout) == f"{commit} with changes"


def test_some_cells_are_chosen() -> None:
    chosen = [cell.name for cell in cells(["3.13"], ["lowest"])]
    assert chosen == ["3.13 lowest core", "3.13 lowest airflow", "3.13 lowest dagster", "3.13 lowest spark"]
    everywhere = [room for room in ROOMS.values() if not room.is_for_platforms]
    on_platforms = sum(len(rooms) for _, rooms in PLATFORMS.values())
    assert len(list(cells())) == len(everywhere) * len(RESOLUTIONS) * len(PYTHONS) + on_platforms


def test_a_platform_is_tested_on_its_python_and_for_its_rooms() -> None:
    tested = {(cell.python, cell.room) for cell in cells(resolutions=["mwaa-3.3.1"])}
    assert tested == {("3.12", "airflow"), ("3.12", "airflow_alone"), ("3.12", "airflow_with_spark")}
    rows = [line for line in with_table(f"{BEGIN}{END}", {}).splitlines() if "mwaa-3.3.1" in line]
    assert rows[0] == "| airflow, mwaa-3.3.1 | - | - | not run | - | - |"
    assert len(rows) == 3


def test_the_constraints_of_a_platform_are_names_and_versions_only() -> None:
    files = {file.stem for file in (ROOT / "requirements" / "platforms").iterdir()}
    assert files == set(PLATFORMS)
    for platform in PLATFORMS:
        for line in (ROOT / "requirements" / "platforms" / f"{platform}.txt").read_text().splitlines():
            assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line), line


def test_the_page_has_the_table_of_the_results() -> None:
    page = (ROOT / PAGE).read_text()
    assert with_table(page, json.loads((ROOT / RESULTS).read_text())) == page


def test_the_classifiers_name_the_pythons_on_which_a_room_was_seen_to_pass() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if "Python :: 3." in line]
    results = json.loads((ROOT / RESULTS).read_text())
    good = {name.partition(" ")[0] for name, seen in results.items() if seen["good"]}
    assert named == [python for python in PYTHONS if python in good]


def test_rooms_are_tested_with_extras_that_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for room in ROOMS.values():
        assert set(room.extras) <= set(extras)
        assert all((ROOT / path).exists() for path in room.tests)


def test_tests_that_are_left_out_exist() -> None:
    for room in ROOMS.values():
        for test in room.left_out:
            file, _, name = test.partition("::")
            assert not name or f"\ndef {name.partition('[')[0]}(" in (ROOT / file).read_text()
            assert (ROOT / file).exists()
