"""The commands of the test suite: the parts of `make test`, `make test-processes` and `make check`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.suite.affected import SourceTree
from tests.suite.commands import Command
from tests.suite.time_limit import VARIABLE

ROOT: Final = Path(__file__).resolve().parents[2]

PROCESSES: Final = Path("tests", "processes")
"""Tests that only `make test-processes` runs: a directory for each host, and others for what belongs to none."""

LONG_IN_FULL_FORM: Final = "tests/spark/sinks/write_ahead/test_killed_drivers.py"
"""The search for counterexamples, for longer in the full form; it needs no Spark."""

SAME_EXAMPLES: Final = ("--hypothesis-profile=ci",)
"""Hypothesis tries the same examples each time, and has no deadline for them: no luck, and no stop watch."""

FULL_FORM_VARIABLE: Final = "SQS_LEASE_CHAOS"
"""The environment variable that `tests/form.py` reads."""

HOSTS: Final = ("airflow", "dagster", "spark")

PARTS: Final = {
    "airflow on real processes": ("tests/skeletons/test_airflow.py",),
    "dagster on real processes": ("tests/skeletons/test_dagster.py",),
    "spark": ("tests/spark",),
    "spark scenarios": ("tests/scenarios/spark",),
    "airflow": ("tests/airflow", "tests/scenarios/airflow"),
    "simulation": ("tests/simulation",),
    "dagster": ("tests/dagster", "tests/scenarios/dagster"),
    "command": ("tests/cli", "tests/scenarios/cli"),
    "core": (
        "tests/asynchronous",
        "tests/batch_files",
        "tests/blocking",
        "tests/core",
        "tests/ingestion",
        "tests/keeper",
        "tests/scenarios/ingestion",
        "tests/scenarios/keeper",
        "tests/scenarios/testing",
        "tests/sqs",
        "tests/test_daemon_threads.py",
        "tests/testing",
    ),
    "spark on real processes": ("tests/skeletons/test_spark.py",),
    "everything else": (
        "tests/architecture",
        "tests/benchmarks",
        "tests/demo",
        "tests/docker",
        "tests/docs",
        "tests/model",
        "tests/mutants",
        "tests/rounds",
        "tests/suite",
    ),
}
"""The parts of `make test` in the order in which they begin: what takes longest comes first.

Each part is one process, which imports what it needs (Airflow, Dagster, Spark) once and has one SQS server.
"""


def static_checks() -> Iterator[Command]:
    """Yield the checks that run no code: format, lint, wording and types."""
    tools = Path(sys.executable).parent
    yield Command("format", (str(tools / "ruff"), "format", "--check"))
    yield Command("lint", (str(tools / "ruff"), "check"))
    yield Command("wording", (sys.executable, "-m", "tests.architecture.plain_english"))
    yield Command("types", (str(tools / "mypy"),))


def whole_test() -> list[Command]:
    """The commands of `make test`."""
    *quick, types = static_checks()
    parts = [pytest_over(name, paths, options=SAME_EXAMPLES) for name, paths in PARTS.items()]
    return [*quick, *parts[:2], types, *parts[2:]]


def on_processes(hosts: Sequence[str] = (), *, full: bool = False) -> list[Command]:
    """The commands of `make test-processes`: each file, or package of files that share a session, is one command.

    Args:
        hosts: The hosts to test; all, and what belongs to no host, when this is empty.
        full: Whether to add what `make test` has in a short form, for `make chaos`.
    """
    chosen = [path for path in sorted((ROOT / PROCESSES).iterdir()) if not hosts or path.name in hosts]
    paths = {
        f"{directory.name}/{path.stem.removeprefix('test_')}": str(path.relative_to(ROOT))
        for directory in chosen
        if directory.is_dir()
        for path in sorted(directory.iterdir())
        if _is_test_file(path) or any(map(_is_test_file, path.glob("*.py")))
    }
    if full and (not hosts or "spark" in hosts):
        paths["spark/write_ahead"] = LONG_IN_FULL_FORM
    # The figures of the full form are log lines.
    options = ("--log-cli-level=INFO", *(() if full else SAME_EXAMPLES))
    return [pytest_over(name, (path,), options=options) for name, path in paths.items()]


def changed_since_main(root: Path = ROOT) -> list[Path]:
    """The files of a checkout that differ from its main branch, committed or not; relative to the checkout.

    On the main branch itself: what differs from `origin/main` where there is one, else what is not committed.
    """

    known = {line.strip("* ") for line in git(root, "branch", "--all", "--format=%(refname:short)")}
    main = next((branch for branch in ("origin/main", "main") if branch in known), "HEAD")
    (base,) = git(root, "merge-base", "HEAD", main)
    changed = {*git(root, "diff", "--name-only", base), *git(root, "ls-files", "--others", "--exclude-standard")}
    return [Path(line) for line in sorted(changed)]


def git(root: Path, *arguments: str) -> list[str]:
    """Run git on a checkout, and return the lines that it prints.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    # In a hook, git names its own checkout by variables, which go before the directory.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(root), "-c", "core.quotePath=off", *arguments]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


def files_below(paths: Sequence[Path], root: Path = ROOT) -> list[Path]:
    """The files that paths stand for, relative to the checkout; a directory stands for all below it.

    Raises:
        FileNotFoundError: There is no such file in the checkout.
    """
    found = []
    for path in paths:
        absolute = path.resolve()
        if not absolute.exists() or not absolute.is_relative_to(root):
            raise FileNotFoundError(f"{path} is not a file or directory of this checkout.")
        files = sorted(absolute.rglob("*")) if absolute.is_dir() else [absolute]
        found += [file.relative_to(root) for file in files if file.is_file() and "__pycache__" not in file.parts]
    return found


def nearest_tests(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The deterministic tests that belong to some files.

    Args:
        files: The files that changed, relative to the checkout.

    Returns:
        The test files, first those in a directory that is named like one of a changed file; and those of the files
        that have none.
    """
    tree, candidates = SourceTree(ROOT), _deterministic_tests()
    tests = {file: tree.tests_of(file, candidates) for file in files}
    parts = {part for file in files for part in file.parent.parts} - {"providers", "sqs_lease", "tests"}
    ordered = sorted(set().union(*tests.values()), key=lambda test: (parts.isdisjoint(test.parent.parts), test))
    return ordered, [file for file, found in tests.items() if not found]


def quick_check(tests: Sequence[Path], until: float) -> list[Command]:
    """The commands of `make check`: format, types, and some test files.

    Args:
        tests: The test files, see :func:`nearest_tests`.
        until: When no more tests begin, in seconds of the monotonic clock.
    """
    parts: dict[str, list[str]] = {}
    for test in tests:
        parts.setdefault(_part_of(test), []).append(str(test))
    options = (*SAME_EXAMPLES, "-m", "not processes", "-p", "tests.suite.time_limit")
    environment = {VARIABLE: str(until), "PYTHONPATH": str(ROOT)}
    return [
        *static_checks(),
        # All tests of a file may be on real servers.
        *(
            replace(pytest_over(part, paths, options=options), may_be_empty=True, environment=environment)
            for part, paths in parts.items()
        ),
    ]


def pytest_over(name: str, paths: Iterable[str], *, options: Sequence[str] = ()) -> Command:
    """The command that runs pytest over some files."""
    arguments = (sys.executable, "-m", "pytest", "--durations=15", *options, *paths)
    return Command(name, arguments, is_pytest=True)


def _deterministic_tests() -> list[Path]:
    tests = (path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py"))
    return [path for path in tests if not path.is_relative_to(PROCESSES) and path.parts[1] != "skeletons"]


def _part_of(test: Path) -> str:
    return next((name for name, paths in PARTS.items() if any(map(test.is_relative_to, paths))), "everything else")


def _is_test_file(path: Path) -> bool:
    return path.name.startswith("test_") and path.suffix == ".py"
