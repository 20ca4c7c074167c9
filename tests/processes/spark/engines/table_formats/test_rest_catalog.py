"""Iceberg tables keep what every sink promises through a REST catalog, too, in which a commit is a request."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pyiceberg.catalog import load_catalog  # type: ignore[import-not-found]
from pyspark.sql import SparkSession

from demo.processes import LOOPBACK, ROOT, free_port, listens, start_process, wait_until
from sqs_lease.spark import JsonSource, ingest
from sqs_lease.spark.columns import table_columns
from sqs_lease.spark.schemas import arrow_schema, struct_type
from sqs_lease.spark.sinks.iceberg_sink import IcebergSink
from sqs_lease.testing.sink_contract import SinkContract, Subject
from sqs_lease.testing.upsert_contract import UpsertContract
from tests.processes.spark.engines.table_formats.subjects import iceberg_subject
from tests.spark.samples import SCHEMA, good, message

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


@pytest.mark.parametrize("upsert_by", [(), ("id",)], ids=["append", "upsert"])
def test_pyiceberg_reads_what_was_ingested_into_a_table_that_it_made(
    spark: SparkSession, tmp_path: Path, catalog: str, upsert_by: tuple[str, ...]
) -> None:
    client = load_catalog("client", type="rest", uri=spark.conf.get(f"spark.sql.catalog.{catalog}.uri"))
    client.create_namespace_if_not_exists("made")
    name = f"made.t{uuid4().hex}"
    client.create_table(name, arrow_schema(table_columns(struct_type(SCHEMA))))
    sink = IcebergSink(f"{catalog}.{name}", tmp_path / "ledger", (), upsert_by)

    for batch in (good(range(5)), [message("m9", "no JSON"), *good(range(3, 8))]):
        ingest(spark, batch, source=JsonSource(SCHEMA), sink=sink, workspace=tmp_path / "batches")

    table = client.load_table(name)
    found = table.scan().to_arrow().sort_by("id").to_pylist()
    assert [(row["id"], row["name"], row["_message_id"]) for row in found] == [
        (number, f"n{number}", f"m{number}") for number in range(8)
    ]
    # The first commit of a new table has no batch yet.
    batches = [snapshot.summary["sqs-lease.batch"] for snapshot in table.snapshots() if snapshot.summary]
    assert len(set(batches) - {None}) == 2
