"""The Dockerfile: what it takes from the checkout, what it builds on, and what its two images are like."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, distributions
from pathlib import Path, PurePosixPath
from string import Template

import pytest
from packaging.specifiers import SpecifierSet
from pathspec import GitIgnoreSpec

from tests.docker.dockerfile import DOCKERFILE, ROOT, Dockerfile, IgnoreFile, Stage
from tests.docker.test_requirements import SERVED, pins_here

DOCKER = Dockerfile.read()
IGNORED = IgnoreFile(DOCKERFILE.with_name("Dockerfile.dockerignore").read_text())
IGNORED_BY_GIT = GitIgnoreSpec.from_lines((ROOT / ".gitignore").read_text().splitlines())
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

SERVER_ENVIRONMENT = ROOT / ".ministack"
BUILD_TOOLS = {"apt-key", "curl", "gcc", "git", "hatchling", "make", "pip", "pip3", "uv", "wget"}
"""Programs that an image does not need to run something."""

IMAGES = [pytest.param(DOCKER.stages[name], id=name) for name in ("emulator", "sqs-lease")]
FROM_CONTEXT = [
    pytest.param(source, id=f"{stage.name}-{source}")
    for stage in DOCKER.stages.values()
    for copied in stage.copies()
    if copied.stage is None
    for source in copied.sources
]


def files_of(source: str) -> list[Path]:
    """The files that a path of the checkout stands for, without those that git ignores."""
    path = ROOT / source
    found = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return [file.relative_to(ROOT) for file in found if not IGNORED_BY_GIT.match_file(file.relative_to(ROOT))]


# Files from the checkout


@pytest.mark.parametrize("source", FROM_CONTEXT)
def test_files_that_are_copied_from_the_checkout_exist_and_reach_the_builder(source: str) -> None:
    files = files_of(source)
    assert [file for file in files if not (ROOT / file).exists()] == []
    kept_back = {file for file in files if not IGNORED.lets_through(file)}
    assert kept_back < set(files)
    assert {file.suffix for file in kept_back} <= {".in"}, "only what requirements are resolved from is not needed"


def test_the_builder_gets_nothing_that_is_not_copied_and_nothing_that_git_ignores() -> None:
    copied = {Path(str(parameter.values[0])) for parameter in FROM_CONTEXT}
    context = list(IGNORED.files(ROOT))
    assert [path for path in context if copied.isdisjoint({path, *path.parents})] == []
    assert [path for path in context if IGNORED_BY_GIT.match_file(path)] == []


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        ".git/config",
        ".venv/bin/python",
        ".ministack/bin/python",
        ".demo/airflow/airflow.cfg",
        "docker/.env",
        "docker/compose.yaml",
        "docker/requirements/.env",
        "demo/sqs_server.py",
        "demo/compose/__pycache__/queues.cpython-311.pyc",
        "providers/sqs_lease/core/__pycache__/ledger.cpython-311.pyc",
        "tests/conftest.py",
    ],
)
def test_secrets_environments_and_what_the_image_does_without_do_not_reach_the_builder(path: str) -> None:
    assert not IGNORED.lets_through(Path(path))


@pytest.mark.parametrize(
    ("patterns", "path", "passes"),
    [
        ("", "a", True),
        ("a", "a/b/c", False),
        ("a", "b/a", True),
        ("*", "a/b", False),
        ("*\n!a", "a/b", True),
        ("*\n!a\n# !b", "b", False),
        ("!a\n*", "a", False),
        ("*\n!a/b", "a/c", False),
        ("*\n!a/*.txt", "a/b.txt", True),
        ("*\n!a/*.txt", "a/b/c.txt", False),
        ("*\n!a/*.txt", "a/b.txts", False),
        ("**/c", "c", False),
        ("**/c", "a/b/c/d", False),
        ("**/c", "a/bc", True),
    ],
)
def test_a_pattern_of_the_ignore_file_means_what_docker_says(patterns: str, path: str, passes: bool) -> None:
    assert IgnoreFile(patterns).lets_through(Path(path)) == passes


def test_files_below_a_directory_that_is_left_out_are_found_where_a_pattern_names_them(tmp_path: Path) -> None:
    for name in ("a/b/wanted", "a/unwanted", "c/unwanted", "wanted"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    assert set(IgnoreFile("*\n!wanted\n!a/b").files(tmp_path)) == {Path("wanted"), Path("a/b/wanted")}


# Base images


def test_each_stage_builds_on_the_base_image_or_on_an_earlier_stage() -> None:
    earlier = {"${BASE_IMAGE}"}
    for stage in DOCKER.stages.values():
        assert stage.base in earlier
        assert {copied.stage for copied in stage.copies()} <= {None, *earlier}
        earlier.add(stage.name)


def test_the_base_image_is_pinned_to_one_release_of_a_python_that_the_package_supports() -> None:
    pinned = re.fullmatch(r"python:(\d+\.\d+\.\d+)-slim-[a-z]+", DOCKER.arguments["BASE_IMAGE"])
    assert pinned is not None
    assert pinned[1] in SpecifierSet(PYPROJECT["requires-python"])


@pytest.mark.parametrize("extra", DOCKER.arguments["EXTRAS"].split())
def test_each_default_extra_is_one_of_the_package_and_has_pinned_requirements(extra: str) -> None:
    assert extra in PYPROJECT["optional-dependencies"]
    assert (DOCKERFILE.parent / "requirements" / f"{extra}.txt").exists()


def test_nothing_is_installed_from_a_registry_without_hashes() -> None:
    installing = [
        command for stage in DOCKER.stages.values() for command in stage.shell_commands() if "pip install" in command
    ]
    assert any("--require-hashes" in command for command in installing)
    assert [command for command in installing if not re.search(r"--(require-hashes|no-index)\b", command)] == []


# The images


def test_the_last_stage_is_the_image() -> None:
    assert list(DOCKER.stages)[-1] == "sqs-lease"


COPYLEFT = {"LGPL": "LGPL|Lesser", "MPL": "MPL|Mozilla", "GPL": "GPL|GNU General"}
"""Families of licences that ask for more than a notice, and how the metadata of packages names them."""

OF_JAVA = {"GPL"}
"""The family of OpenJDK's licence."""


def copyleft_of_the_extras() -> set[str]:
    """The families of licences of what the extras bring; a package that lets one choose is left out."""
    found = set()
    for name in {name for path in SERVED for name in pins_here(path)}:
        about = distribution(name).metadata
        named = [*about.get_all("License", []), *about.get_all("Classifier", [])]
        said = " ".join(about.get_all("License-Expression") or named)
        if "Artistic" not in said:
            found |= {family for family, pattern in COPYLEFT.items() if re.search(rf"\b(?:{pattern})\b", said)}
    return found


@pytest.mark.parametrize("stage", IMAGES)
def test_an_image_has_the_labels_of_what_is_in_it(stage: Stage) -> None:
    labels = {name: Template(value).substitute(stage.pairs("ARG")) for name, value in stage.pairs("LABEL").items()}
    prefix = "org.opencontainers.image."
    assert labels[f"{prefix}title"] in {stage.name, f"sqs-lease-{stage.name}"}
    assert labels[f"{prefix}description"]
    if stage.name == "sqs-lease":
        assert labels[f"{prefix}version"] == PYPROJECT["version"]
        licences = labels[f"{prefix}licenses"].split(" AND ")
        assert licences[0] == PYPROJECT["license"]
        assert {licence.partition("-")[0] for licence in licences[1:]} == {*copyleft_of_the_extras(), *OF_JAVA}
        assert "sqs-lease.extras" in labels
    else:
        (packages,) = SERVER_ENVIRONMENT.glob("lib/python*/site-packages")
        (server,) = distributions(name="ministack", path=[str(packages)])
        assert server.metadata["License"].startswith(f"{labels[f'{prefix}licenses']} License")


@pytest.mark.parametrize("stage", IMAGES)
def test_an_image_runs_as_a_user_of_its_own_that_is_not_root(stage: Stage) -> None:
    names = [name for name, _ in stage.instructions]
    (user,) = stage.values("USER")
    assert {"RUN", "COPY", "ADD"}.isdisjoint(names[names.index("USER") :])
    made = [command for command in stage.shell_commands() if command.startswith("useradd ")]
    assert [re.search(r"--uid 10001 .* ([\w-]+)$", command)[1] for command in made] == [user]  # type: ignore[index]


@pytest.mark.parametrize("stage", IMAGES)
def test_an_image_says_what_it_runs_without_a_shell(stage: Stage) -> None:
    (command,) = stage.values("CMD")
    program, *_ = json.loads(command)
    assert program == "python"


@pytest.mark.parametrize("stage", IMAGES)
def test_an_image_has_nothing_of_what_it_is_built_with(stage: Stage) -> None:
    assert stage.base == "${BASE_IMAGE}"
    from_stages = [copied for copied in stage.copies() if copied.stage is not None]
    assert "builder" not in {copied.stage for copied in from_stages}
    tools = {PurePosixPath("/build/environment"), PurePosixPath("/usr/local/bin/uv")}
    copied = {PurePosixPath(source) for copied in from_stages for source in copied.sources}
    assert [path for path in copied if any(path in {tool, *tool.parents} for tool in tools)] == []
    words = {PurePosixPath(word).name for run in stage.values("RUN") for word in re.findall(r"[\w./+-]+", run)}
    assert words & BUILD_TOOLS == set()


@pytest.mark.parametrize("stage", IMAGES)
def test_the_python_of_an_image_is_the_one_with_the_packages(stage: Stage) -> None:
    first = stage.pairs("ENV")["PATH"].partition(":")[0]
    environments = {copied.target for copied in stage.copies() if copied.target.startswith("/opt/")}
    assert environments == {str(PurePosixPath(first).parent)}


def test_the_parts_of_the_demo_that_are_copied_are_enough_for_its_commands(tmp_path: Path) -> None:
    for copied in DOCKER.stages["project"].copies():
        for file in [file for source in copied.sources if copied.stage is None for file in files_of(source)]:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, tmp_path / file)

    command = [sys.executable, "-m", "demo.compose", "secrets", "secrets"]
    (tmp_path / "secrets").mkdir()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
