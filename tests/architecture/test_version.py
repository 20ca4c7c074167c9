"""The package says which version it is, also where it was not installed, as in an archive for Spark's executors."""

from __future__ import annotations

import tomllib
from pathlib import Path

import sqs_lease

ROOT = Path(__file__).resolve().parents[2]


def test_the_version_is_that_of_the_distribution() -> None:
    assert sqs_lease.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_extra_for_clusters_has_all_of_spark_but_pyspark() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["spark-cluster"] == [one for one in extras["spark"] if not one.startswith("pyspark")]
