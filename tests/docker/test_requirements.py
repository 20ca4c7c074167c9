"""The pinned requirements of the image: exact, complete, and the versions that the tests run with."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docker.dockerfile import ROOT

REQUIREMENTS = ROOT / "docker" / "requirements"
DEVELOPMENT = ROOT / "requirements" / "development.txt"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

PINNED = sorted(REQUIREMENTS.glob("*.txt"))
RESOLVED_FROM = sorted(REQUIREMENTS.glob("*.in"))
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
"""The requirements of `pip install "sqs-lease[...]"`, by the extra."""
SERVED = [path for path in PINNED if path.stem in EXTRAS]
"""Those that go into the image for an extra; the package itself is installed without dependencies."""

PIN = re.compile(
    r"(?P<name>[a-z0-9-]+)(\[[a-z0-9,-]+\])?==(?P<version>[\w.+!]+)( ; (?P<marker>[^#]+?))?"
    r"(?P<hashes>( +--hash=sha256:[0-9a-f]{64})+)"
)

each_file = pytest.mark.parametrize("path", PINNED, ids=lambda path: path.name)
each_extra = pytest.mark.parametrize("path", SERVED, ids=lambda path: path.stem)


@dataclass(frozen=True, slots=True)
class Resolution:
    """The inputs of a command of `make requirements` for one file."""

    inputs: frozenset[Path]
    extras: frozenset[str]
    constraints: frozenset[Path]


def lines_of(path: Path) -> list[str]:
    """The requirements of a file, each with its hashes in one line; without comments."""
    joined = path.read_text().replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.startswith("#")]


@cache
def pins_of(path: Path) -> frozenset[Requirement]:
    """The pinned requirements of a file, without the hashes."""
    return frozenset(Requirement(line.partition(" --hash")[0]) for line in lines_of(path))


def pins_here(path: Path) -> dict[str, str]:
    """The versions that a file pins for this Python on this machine, by the names of the packages."""
    here = (pin for pin in pins_of(path) if pin.marker is None or pin.marker.evaluate())
    return {pin.name: str(pin.specifier).removeprefix("==") for pin in here}


@cache
def resolutions() -> Mapping[Path, Resolution]:
    """The commands of `make requirements`, by the files that they make."""
    # As if nothing had called this but a shell: in `make test`, make's own variables are there.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--dry-run", "--no-print-directory", "requirements"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    found = {}
    for line in done.stdout.replace("\\\n", " ").splitlines():
        if " pip compile " in line:
            words = shlex.split(line)
            values: dict[str, set[str]] = {"-o": set(), "--extra": set(), "--constraints": set()}
            for option, value in pairwise(words):
                values.get(option, set()).add(value)
            inputs = {word for word in words if word.endswith((".in", "pyproject.toml"))}
            (output,) = values["-o"]
            found[ROOT / output] = Resolution(
                frozenset(ROOT / name for name in inputs),
                frozenset(values["--extra"]),
                frozenset(ROOT / name for name in values["--constraints"]),
            )
    return found


def wanted_by(path: Path) -> Iterator[Requirement]:
    """The requirements behind a pinned file: the package's own, those of extras, and those of its .in file."""
    resolution = resolutions()[path]
    if ROOT / "pyproject.toml" in resolution.inputs:
        own = [PYPROJECT["project"]["dependencies"], *(EXTRAS[extra] for extra in resolution.extras)]
        yield from (Requirement(text) for texts in own for text in texts)
    for source in resolution.inputs - {ROOT / "pyproject.toml"}:
        yield from map(Requirement, lines_of(source))


def missing_in(path: Path, wanted: Requirement) -> bool:
    """Whether a file does not pin a package, or at a version that is not wanted."""
    version = pins_here(path).get(canonicalize_name(wanted.name))
    return version is None or not wanted.specifier.contains(version, prereleases=True)


def test_the_versions_on_the_page_are_those_that_the_tests_run_with() -> None:
    page = (REQUIREMENTS.parent / "README.md").read_text()
    here = pins_here(DEVELOPMENT)
    assert set(re.findall(r"apache/airflow:([\d.]+)", page)) == {here["apache-airflow"]}
    assert dict(re.findall(r"\b(dagster[a-z-]*)==([\d.]+)", page)) == {
        name: here[name] for name in ("dagster", "dagster-postgres")
    }
    assert set(re.findall(r"sqs_lease-([\d.]+)-py3", page)) == {PYPROJECT["project"]["version"]}


@each_file
def test_every_line_pins_one_version_of_a_package_by_its_hashes(path: Path) -> None:
    assert lines_of(path)
    assert [line for line in lines_of(path) if PIN.fullmatch(line) is None] == []


@each_file
def test_the_versions_are_those_that_the_tests_run_with(path: Path) -> None:
    tested = {(pin.name, str(pin.specifier)) for pin in pins_of(DEVELOPMENT)}
    assert {(pin.name, str(pin.specifier)) for pin in pins_of(path)} - tested == set()
    assert pins_here(path).items() <= pins_here(DEVELOPMENT).items()


@each_file
def test_make_requirements_makes_the_file_under_the_versions_of_the_tests(path: Path) -> None:
    assert resolutions()[path].constraints == {DEVELOPMENT}


@pytest.mark.parametrize("path", RESOLVED_FROM, ids=lambda path: path.name)
def test_each_list_of_what_is_wanted_is_used_for_the_file_of_its_name(path: Path) -> None:
    assert {output for output, how in resolutions().items() if path in how.inputs} == {path.with_suffix(".txt")}


def test_a_release_looks_up_every_pinned_package_among_known_vulnerabilities(tmp_path: Path) -> None:
    pinned = {path.relative_to(ROOT) for path in (*PINNED, *DEVELOPMENT.parent.glob("*.txt"))}
    for path in [*pinned, Path("requirements/release.sh")]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    for program in ("requirements/environment.sh", ".release/bin/python", ".venv/bin/uv", ".release/bin/pip-audit"):
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / program).write_text(f'#!/bin/sh\necho "{Path(program).name} $@" >>{tmp_path}/called\n')
        (tmp_path / program).chmod(0o755)

    subprocess.run([tmp_path / "requirements/release.sh"], check=True, capture_output=True)

    called = (tmp_path / "called").read_text()
    assert {Path(name) for name in re.findall(r"^pip-audit .*--requirement (\S+)$", called, re.MULTILINE)} == pinned


@each_extra
def test_a_file_for_an_extra_is_made_from_the_package_with_that_extra(path: Path) -> None:
    assert ROOT / "pyproject.toml" in resolutions()[path].inputs
    assert path.stem in resolutions()[path].extras


@each_file
def test_each_dependency_is_pinned_within_its_bounds(path: Path) -> None:
    wanted = list(wanted_by(path))
    assert wanted
    assert [str(requirement) for requirement in wanted if missing_in(path, requirement)] == []


@each_extra
def test_packages_that_are_installed_without_dependencies_have_all_of_them(path: Path) -> None:
    excluded = set(PYPROJECT["tool"]["uv"]["exclude-dependencies"])
    missing: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [(requirement, "make requirements") for requirement in wanted_by(path)]
    while waiting:
        requirement, by = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in excluded:
            continue
        if missing_in(path, requirement):
            missing.add(f"{requirement}, for {by}")
            continue
        asked = {(name, extra) for extra in {"", *requirement.extras}} - seen
        seen |= asked
        for text in distribution(name).requires or () if asked else ():
            needed = Requirement(text)
            if any(needed.marker is None or needed.marker.evaluate({"extra": extra}) for _, extra in asked):
                waiting.append((needed, name))
    assert missing == set()
