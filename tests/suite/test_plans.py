"""Every test has its place: in one part of `make test`, or among the tests on real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.suite.plans import (
    HOSTS,
    PARTS,
    PROCESSES,
    ROOT,
    changed_since_main,
    files_below,
    git,
    nearest_tests,
    on_processes,
    quick_check,
    whole_test,
)
from tests.suite.versions import ROOMS

TEST_FILES = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")]


def arguments_of_pytest() -> list[Path]:
    return [Path(path) for paths in PARTS.values() for path in paths]


def test_every_test_file_is_in_one_part_or_among_the_tests_on_real_processes() -> None:
    places = [*arguments_of_pytest(), *(Path(command.arguments[-1]) for command in on_processes())]
    # In environments of their own: `make versions`.
    places += map(Path, ROOMS["older_airflow"].tests)
    where = {test: [place for place in places if test == place or place in test.parents] for test in TEST_FILES}
    assert {str(test): found for test, found in where.items() if len(found) != 1} == {}


def test_every_path_of_a_part_exists() -> None:
    assert [path for path in arguments_of_pytest() if not (ROOT / path).exists()] == []


def test_make_test_also_looks_at_format_wording_and_types() -> None:
    assert {"format", "lint", "wording", "types"} <= {command.name for command in whole_test()}
    assert len({command.name for command in whole_test()}) == len(whole_test())


def test_each_host_has_tests_on_real_processes_of_its_own() -> None:
    names = {host: {command.name for command in on_processes([host])} for host in HOSTS}
    assert all(names.values())
    everything = {command.name for command in on_processes()}
    assert set().union(*names.values()) < everything
    assert sum(map(len, names.values())) == len(set().union(*names.values()))


def test_a_check_of_one_file_runs_the_tests_that_are_nearest_to_it_and_no_real_processes() -> None:
    tests, untested = nearest_tests([Path("providers/sqs_lease/core/ledger.py"), Path("gone.py")])
    assert (tests[0].parent, untested) == (Path("tests/core/ledger"), [Path("gone.py")])
    commands = {command.name: command for command in quick_check(tests, 0.0)}
    assert {"format", "lint", "wording", "types", "core"} <= commands.keys()
    assert "tests/core/ledger/test_extending.py" in commands["core"].arguments
    assert not [argument for command in commands.values() for argument in command.arguments if "skeletons" in argument]
    assert not [command for command in commands.values() if str(PROCESSES) in " ".join(command.arguments)]


def test_a_directory_stands_for_the_files_below_it() -> None:
    files = files_below([ROOT / "tests" / "suite"])
    assert Path("tests/suite/plans.py") in files
    assert {file.suffix for file in files} == {".py"}


@pytest.mark.parametrize("path", ["tests/core/test_leger.py", "/etc/hostname"])
def test_a_path_outside_of_the_checkout_is_refused(path: str) -> None:
    with pytest.raises(FileNotFoundError, match="not a file or directory of this checkout"):
        files_below([Path(path)])


def test_changes_since_main_are_committed_changed_and_new_files_also_in_a_hook_of_another_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "another checkout" / ".git"))
    root = tmp_path / "this one"
    root.mkdir()
    for name in ("same.py", "committed.py", "changed.py"):
        (root / name).write_text("")
    git(root, "init", "--initial-branch=main")
    git(root, "config", "core.hooksPath", str(tmp_path / "no hooks"))
    commit(root, "All")
    git(root, "checkout", "--quiet", "-b", "work")
    (root / "committed.py").write_text("1")
    commit(root, "One")
    (root / "changed.py").write_text("1")
    (root / "made für alle.py").write_text("")

    assert changed_since_main(root) == [Path("changed.py"), Path("committed.py"), Path("made für alle.py")]


def commit(root: Path, message: str) -> None:
    git(root, "add", ".")
    git(root, "-c", "user.name=Somebody", "-c", "user.email=somebody@example.org", "commit", f"--message={message}")
