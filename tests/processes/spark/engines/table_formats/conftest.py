"""One local Spark with the jars of Delta and Iceberg for all tests here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from demo.processes import ROOT
from sqs_lease.spark.sinks.jars import DELTA_SETTINGS, ICEBERG_SETTINGS, tested_jars

CATALOG = "lake"
JARS = ROOT / ".jars"


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="session")
def spark(warehouse: Path) -> Iterator[SparkSession]:
    with session_with_jars(warehouse) as session:
        yield session


@contextmanager
def session_with_jars(warehouse: Path) -> Iterator[SparkSession]:
    """A session that writes native Delta and Iceberg.

    Args:
        warehouse: The directory of its catalogs.
    """
    jars = tested_jars()
    extensions = ",".join(settings["spark.sql.extensions"] for settings in (DELTA_SETTINGS, ICEBERG_SETTINGS))
    settings = {
        **DELTA_SETTINGS,
        **ICEBERG_SETTINGS,
        "spark.sql.extensions": extensions,
        "spark.jars.packages": f"{jars.delta},{jars.iceberg}",
        "spark.jars.ivy": str(JARS),
        f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{CATALOG}.type": "hadoop",
        f"spark.sql.catalog.{CATALOG}.warehouse": str(warehouse / "iceberg"),
        "spark.sql.warehouse.dir": str(warehouse / "spark"),
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # A few rows in each table: more tasks would only take longer.
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.adaptive.enabled": "false",
        # Compiling a plan takes longer than running it.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.log.level": "ERROR",
    }
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        # Where this package is not installed: without it, Spark's tasks would leave all to Spark.
        environment.setenv("PYTHONPATH", f"{ROOT / 'providers'}{os.pathsep}{ROOT}")
        builder = SparkSession.builder.master("local[2]").appName("sqs-lease tests")
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        try:
            yield session
        finally:
            session.stop()
