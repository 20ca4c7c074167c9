"""Imports point one way: core <- sqs <- keeper <- airflow | dagster | spark | cli; the base needs no framework."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.import_rules import BASE, LAYERS, PACKAGE, layer_of, violations

SOURCE = Path(__file__).resolve().parents[2] / "providers" / PACKAGE

FRAMEWORKS = {"aiobotocore", "airflow", "dagster", "deltalake", "pyarrow", "pyspark"}

IMPORT_AND_LIST_MODULES = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def package_with(directory: Path, files: dict[str, str]) -> Path:
    """A package in a directory, with these sources by path."""
    for name, source in files.items():
        path = directory / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return directory / PACKAGE


def test_the_package_keeps_to_the_direction_of_imports() -> None:
    assert list(violations(SOURCE)) == []


def test_every_layer_that_exists_is_really_looked_at() -> None:
    seen = {layer_of(".".join(path.relative_to(SOURCE.parent).parts[:2])) for path in SOURCE.rglob("*/*.py")}

    assert {"core", "sqs", "airflow", "spark", "testing"} <= seen <= set(LAYERS)


@pytest.mark.parametrize(
    ("name", "source", "wrong"),
    [
        ("core/a.py", "import asyncio", "core must not import asyncio (it does no I/O and has no clock)"),
        ("core/a.py", "from time import monotonic", "core must not import time.monotonic"),
        ("core/a.py", "import boto3", "core must not import boto3 (not among its dependencies)"),
        ("core/a.py", "from sqs_lease.clock import Clock", "clock is not below it"),
        ("core/deep/a.py", "from ...sqs import transport", "core must not import sqs_lease.sqs.transport"),
        ("core/deep/__init__.py", "from ...keeper import Keeper", "keeper is not below it"),
        ("sqs/a.py", "from sqs_lease.keeper.keeper import Keeper", "keeper is not below it"),
        ("sqs/a.py", "from sqs_lease import keeper", "keeper is not below it"),
        ("sqs/a.py", "import airflow", "not among its dependencies"),
        ("keeper/a.py", "import boto3", "keeper must not import boto3"),
        ("keeper/driver.py", "import sqs_lease.testing", "testing is not below it"),
        ("keeper/a.py", "from sqs_lease.blocking import lease", "blocking is not below it"),
        ("keeper/a.py", "import sqs_lease", "sqs_lease is not below it"),
        ("core/a.py", "from sqs_lease import Receipt", "sqs_lease is not below it"),
        ("__init__.py", "import boto3", "not among its dependencies"),
        ("__init__.py", "from sqs_lease.airflow import sensor", "airflow is not below it"),
        ("airflow/a.py", "import sqs_lease.spark.ingestion", "spark is not below it"),
        ("airflow/a.py", "import pyspark", "not among its dependencies"),
        ("airflow/a.py", "def f():\n    import sqs_lease.dagster", "a.py:2: airflow must not import sqs_lease.dagster"),
        ("dagster/a.py", "from sqs_lease.airflow.settlement.rules import Judgement", "airflow is not below it"),
        ("spark/a.py", "from sqs_lease.airflow import keeping", "airflow is not below it"),
        ("spark/a.py", "import yaml", "not among its dependencies"),
        ("testing/a.py", "from sqs_lease.airflow import keeping", "airflow is not below it"),
        ("cli/a.py", "from sqs_lease.airflow import keeping", "airflow is not below it"),
        ("cli/a.py", "import airflow", "not among its dependencies"),
        ("cli/a.py", "def f():\n    import pyspark", "not among its dependencies"),
        (
            "core/a.py",
            "if TYPE_CHECKING:\n    from sqs_lease.keeper.keeper import Keeper",
            "a.py:2: core must not import sqs_lease.keeper.keeper.Keeper",
        ),
        ("sqs/a.py", "import types_boto3_sqs", "not among its dependencies"),
    ],
)
def test_an_import_against_the_direction_is_found(tmp_path: Path, name: str, source: str, wrong: str) -> None:
    (found,) = violations(package_with(tmp_path, {name: source}))

    assert found.startswith(f"{PACKAGE}/{name}:")
    assert wrong in found


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("core/a.py", "import heapq\nfrom random import Random\nfrom sqs_lease.core.messages import Receipt"),
        ("core/deep/a.py", "from ..messages import Receipt\nfrom . import b"),
        ("clock.py", "import time"),
        ("sqs/a.py", "import boto3, aiobotocore\nfrom sqs_lease.core import limits\nfrom sqs_lease.clock import Clock"),
        ("sqs/a.py", "if TYPE_CHECKING:\n    from types_boto3_sqs import SQSClient"),
        ("keeper/driver.py", "import asyncio\nimport sqs_lease.sqs.transport"),
        ("keeper/a.py", "from sqs_lease.keeper.driver import QueueDriver"),
        ("blocking.py", "import boto3\nfrom sqs_lease.keeper.keeper import Keeper"),
        ("__init__.py", "from sqs_lease.blocking import lease\nfrom sqs_lease.core.messages import Receipt"),
        ("airflow/a.py", "from airflow.sdk import BaseOperator\nfrom sqs_lease.keeper.keeper import Keeper"),
        ("spark/a.py", "import pyspark, pyarrow, deltalake, msgspec"),
        ("testing/a.py", "import pytest\nfrom sqs_lease.keeper.keeper import Keeper"),
        (
            "cli/a.py",
            "import typer\ndef f():\n    import airflow.configuration\n    from sqs_lease.dagster import spark",
        ),
    ],
)
def test_an_import_downwards_is_allowed(tmp_path: Path, name: str, source: str) -> None:
    assert list(violations(package_with(tmp_path, {name: source}))) == []


def base_modules() -> list[str]:
    """Every module that works with the base install alone: all but those of the hosts."""
    paths = [path.relative_to(SOURCE.parent).with_suffix("") for path in SOURCE.rglob("*.py")]
    names = [".".join(part for part in path.parts if part != "__init__") for path in paths]
    return sorted(name for name in names if layer_of(name) in BASE | {"blocking", PACKAGE})


def loaded_by(*modules: str) -> set[str]:
    """The top-level names of all modules that a fresh interpreter has after importing these."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_AND_LIST_MODULES, json.dumps(modules)],
        env={"PYTHONPATH": str(SOURCE.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_importing_the_base_loads_no_framework() -> None:
    modules = base_modules()
    assert {"sqs_lease", "sqs_lease.core.ledger", "sqs_lease.keeper.keeper"} <= set(modules)

    assert loaded_by(*modules) & FRAMEWORKS == set()


def test_importing_the_test_helpers_loads_no_framework() -> None:
    assert loaded_by("sqs_lease.testing") & FRAMEWORKS == set()


def test_importing_the_command_loads_no_framework() -> None:
    assert loaded_by("sqs_lease.cli.app") & FRAMEWORKS == set()


def test_modules_that_an_import_loads_are_seen() -> None:
    assert "pyarrow" in loaded_by("pyarrow")
