"""The files of docker/platforms fit the package, and do what docs/platforms.md says, as far as that shows here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from dockerfile_parse import DockerfileParser  # type: ignore[import-untyped]
from packaging.requirements import Requirement

from tests.docker.dockerfile import ROOT
from tests.docker.test_requirements import pins_here

PLATFORMS = ROOT / "docker" / "platforms"
PAGE = ROOT / "docs" / "platforms.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
WHEEL = f"sqs_lease-{PROJECT['version']}-py3-none-any.whl"
FILES = sorted(path for path in PLATFORMS.rglob("*") if path.is_file())


def requirements_of(path: Path) -> list[Requirement]:
    lines = (line.strip() for line in path.read_text().splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith(("#", "--"))]


def the_package(requirement: Requirement, *extras: str) -> None:
    """It is this package, in the version of this checkout, with extras that exist."""
    assert requirement.name == "sqs-lease"
    assert requirement.extras == set(extras) <= set(EXTRAS)
    if requirement.url is None:
        assert str(requirement.specifier) == f"=={PROJECT['version']}"
    else:
        assert requirement.url.startswith("file:///")
        assert requirement.url.endswith(f"/{WHEEL}")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PLATFORMS).as_posix())
def test_the_page_says_what_each_file_is_for(path: Path) -> None:
    assert f"](../{path.relative_to(ROOT).as_posix()})" in PAGE.read_text()


def test_the_page_marks_what_was_not_tried() -> None:
    for part in PAGE.read_text().split("\n## ")[1:]:
        assert "not tried by us" in part.lower(), part


def test_amazon_mwaa_adds_its_own_constraints() -> None:
    path = PLATFORMS / "mwaa" / "requirements.txt"
    # By which MWAA looks for constraints, in comments, too; where it finds some, it adds none.
    assert re.search(r"-c |--constraint ", path.read_text()) is None
    (requirement,) = requirements_of(path)
    the_package(requirement, "airflow", "manifest")
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert "\n".join(lines) in PAGE.read_text()


def test_the_chart_runs_two_triggerers_of_an_airflow_that_the_package_takes() -> None:
    values = yaml.safe_load((PLATFORMS / "helm" / "values.yaml").read_text())
    (airflow,) = (one for one in map(Requirement, EXTRAS["airflow"]) if one.name == "apache-airflow")
    assert airflow.specifier.contains(values["airflowVersion"])
    assert values["images"]["airflow"]["tag"].startswith(values["airflowVersion"])
    triggerer = values["triggerer"]
    assert triggerer["replicas"] >= 2
    assert not triggerer["keda"]["enabled"]
    assert triggerer["terminationGracePeriodSeconds"] >= 30
    assert triggerer["serviceAccount"]["annotations"] == values["workers"]["serviceAccount"]["annotations"]
    assert values["fernetKeySecretName"]


def test_the_image_for_astro_has_the_package_and_its_own_user() -> None:
    path = PLATFORMS / "astro" / "Dockerfile"
    steps = [(step["instruction"], step["value"]) for step in DockerfileParser(str(path)).structure]
    assert [name for name, _ in steps if name != "COMMENT"] == ["FROM", "USER", "RUN", "USER"]
    assert steps[-1][1] == "astro"
    (run,) = (value for name, value in steps if name == "RUN")
    (requirement,) = re.findall(r'"(sqs-lease[^"]*)"', run)
    the_package(Requirement(requirement), "airflow", "manifest")
    code = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert "\n".join(code) in PAGE.read_text()


def test_cloud_composer_gets_a_name_and_a_version_only() -> None:
    (line,) = (PLATFORMS / "composer" / "requirements.txt").read_text().splitlines()
    assert re.fullmatch(r"[a-z-]+==[0-9.]+", line)
    the_package(Requirement(line))


def stub(directory: Path, name: str, code: str) -> None:
    """A program in the place of a real one; it writes its arguments into a file of its name."""
    program = directory / name
    program.write_text(f'#!/bin/sh\necho "$@" >>"{directory}/{name}.log"\n{code}\n')
    program.chmod(0o755)


def test_the_bootstrap_action_makes_an_environment_of_its_own(tmp_path: Path) -> None:
    programs, wheel = tmp_path / "bin", tmp_path / WHEEL
    programs.mkdir()
    wheel.touch()
    environment = tmp_path / "sqs-lease"
    # aws s3 cp --quiet FROM TO
    stub(programs, "aws", f'cp "{wheel}" "$5"')
    stub(programs, "sudo", 'exec "$@"')
    stub(programs, "python3.12", f'mkdir -p "$3/bin" && cp "{programs}/pip" "$3/bin/python"')
    stub(programs, "pip", 'for last; do :; done; test -e "${last#*file://}"')
    script = PLATFORMS / "emr" / "bootstrap.sh"
    assert os.access(script, os.X_OK)
    subprocess.run(
        [script, f"s3://bucket/{WHEEL}", "python3.12", environment],
        check=True,
        env={"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "TMPDIR": str(tmp_path)},
    )
    assert (programs / "aws.log").read_text().startswith(f"s3 cp --quiet s3://bucket/{WHEEL} ")
    assert (programs / "python3.12.log").read_text() == f"-m venv {environment}\n"
    installed = (programs / "pip.log").read_text()
    (requirement,) = re.findall(r"sqs-lease.*", installed)
    the_package(Requirement(requirement), "spark-cluster")
    assert not Path(str(Requirement(requirement).url).removeprefix("file://")).exists(), "the download is left"


def test_spark_on_emr_runs_in_that_environment() -> None:
    (directory,) = re.findall(r"\$\{3:-(.+)\}", (PLATFORMS / "emr" / "bootstrap.sh").read_text())
    (spark,) = json.loads((PLATFORMS / "emr" / "configuration.json").read_text())
    assert set(spark["Properties"].values()) == {f"{directory}/bin/python"}


def test_a_cluster_of_databricks_gets_the_requirements_beside_the_wheel() -> None:
    (requirement,) = requirements_of(PLATFORMS / "databricks" / "requirements.txt")
    the_package(requirement, "spark-cluster")
    (library,) = json.loads((PLATFORMS / "databricks" / "libraries.json").read_text())
    assert Path(library["requirements"]).parent == Path(str(requirement.url).removeprefix("file://")).parent


def test_the_modules_of_a_glue_job_are_all_of_the_extra_in_the_versions_of_the_image() -> None:
    arguments = json.loads((PLATFORMS / "glue" / "job-arguments.json").read_text())
    wheel, *modules = arguments["--additional-python-modules"].split(",")
    assert wheel.endswith(f"/{WHEEL}")
    wanted = {one.name: one for one in map(Requirement, EXTRAS["spark-cluster"])}
    named = {one.name: one for one in map(Requirement, modules)}
    assert named.keys() == wanted.keys()
    pins = pins_here(ROOT / "docker" / "requirements" / "spark.txt")
    for name, one in named.items():
        assert str(one.specifier) == f"=={pins[name]}"
        assert wanted[name].specifier.contains(pins[name])


GLUE = """
def getResolvedOptions(arguments, names):
    return {name: arguments[arguments.index(f"--{name}") + 1] for name in names}
"""
JOB = """
import sys
def main(arguments):
    print(*arguments)
    return int(arguments[1] == "bad")
"""


@pytest.mark.parametrize(("manifest", "code"), [("good", 0), ("bad", 1)])
def test_the_script_of_a_glue_job_ingests_with_its_arguments(tmp_path: Path, manifest: str, code: int) -> None:
    for name, text in {"awsglue/utils.py": GLUE, "sqs_lease/spark/job/main.py": JOB}.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
        for package in file.relative_to(tmp_path).parents[:-1]:
            # Without it, the installed package would come first.
            (tmp_path / package / "__init__.py").touch()
    shutil.copy(PLATFORMS / "glue" / "job.py", tmp_path)
    given = ["--JOB_ID", "j_1", "--manifest", manifest, "--TempDir", "t", "--result", "r", "--spec", "s"]
    run: Any = subprocess.run(
        [sys.executable, tmp_path / "job.py", *given], capture_output=True, text=True, check=False
    )
    assert run.returncode == code
    assert run.stdout == f"--manifest {manifest} --result r --spec s\n"
    assert ("the ingestion failed" in run.stderr) == bool(code)
