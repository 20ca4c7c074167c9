"""Iceberg tables keep what every sink promises through a REST catalog, too, in which a commit is a request."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from demo.processes import LOOPBACK, ROOT, free_port, listens, start_process, wait_until
from sqs_lease.testing.sink_contract import SinkContract, Subject
from sqs_lease.testing.upsert_contract import UpsertContract
from tests.processes.spark.engines.table_formats.subjects import iceberg_subject

SOURCES = Path(__file__).parent / "rest_catalog"
INSTALLED = ROOT / ".jars" / "rest_catalog"
CATALOG = "rest"


@pytest.fixture(scope="module")
def catalog(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a catalog of Spark's that is behind Iceberg's own server."""
    if shutil.which("mvn") is None:
        pytest.skip("Iceberg's server comes by Maven: apt install maven")
    maven = ["mvn", "-q", "-B", "-f", str(SOURCES / "pom.xml"), "dependency:copy-dependencies"]
    subprocess.run([*maven, f"-DoutputDirectory={INSTALLED}"], check=True)
    port, directory = free_port(), tmp_path_factory.mktemp("rest-catalog")
    server = start_process(
        "REST catalog",
        ["/usr/bin/env", "java", "-cp", f"{INSTALLED}/*", str(SOURCES / "RestCatalog.java"), str(port), str(directory)],
        log_path=directory / "server.log",
        environment={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        directory=directory,
    )
    try:
        wait_until(lambda: listens(port), processes=[server], what="ready", deadline_seconds=60)
        settings = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": f"http://{LOOPBACK}:{port}"}
        for name, value in settings.items():
            spark.conf.set(f"spark.sql.catalog.{CATALOG}{name}", value)
        yield CATALOG
    finally:
        server.stop()


class TestIcebergBehindREST(SinkContract):
    @pytest.fixture
    def subject(self, spark: SparkSession, tmp_path: Path, catalog: str) -> Subject:
        return iceberg_subject(spark, tmp_path, catalog=catalog)


class TestIcebergUpsertsBehindREST(UpsertContract):
    @pytest.fixture
    def subject(self, spark: SparkSession, tmp_path: Path, catalog: str) -> Subject:
        return iceberg_subject(spark, tmp_path, ("id",), catalog=catalog)
