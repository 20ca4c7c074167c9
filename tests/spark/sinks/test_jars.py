"""A Spark for which no jars were tested is named before anything starts, with those for which some were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from sqs_lease.spark import IcebergSink, NativeDeltaSink, ParquetSink, TableError
from sqs_lease.spark.job import main as job
from sqs_lease.spark.job.termination import Termination
from sqs_lease.spark.sinks import jars
from sqs_lease.spark.sinks.jars import Jars, require_spark
from tests.spark.samples import Place, good

NATIVE = [NativeDeltaSink("/data/orders"), IcebergSink("lake.sales.orders", "/data/ledger")]
KINDS = ["native-delta", "iceberg"]

each_native_sink = pytest.mark.parametrize("sink", NATIVE, ids=KINDS)


@pytest.fixture
def spark_that_is_too_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """The PySpark that is installed is one without jars, whichever it is."""
    monkeypatch.setattr(jars, "TESTED", {"3.8": Jars("delta for 3.8", "iceberg for 3.8"), "3.9": Jars("a", "b")})


@pytest.mark.parametrize("version", ["4.0.2", "4.0.2-amzn-0", "4.0.0.dev1"])
def test_jars_are_made_for_a_minor_version_of_spark(version: str) -> None:
    found = jars.tested_jars(version)
    assert "_4.0_2.13:" in found.delta
    assert "-4.0_2.13:" in found.iceberg


def test_a_spark_without_jars_is_named_with_those_that_have_some_and_what_to_do() -> None:
    with pytest.raises(TableError) as raised:
        jars.tested_jars("4.3.0")
    said = str(raised.value)
    assert "4.3.0" in said
    assert "4.0 and 4.1" in said
    assert 'pip install "pyspark==4.1.*"' in said
    assert "DeltaSink" in said


def test_without_a_version_it_is_the_pyspark_that_is_installed(spark_that_is_too_new: None) -> None:
    with pytest.raises(TableError, match=f"Spark {pyspark.__version__}: .*3.8 and 3.9"):
        jars.tested_jars()


@each_native_sink
def test_a_sink_of_jars_is_for_the_sparks_that_have_some(sink: Any) -> None:
    require_spark(sink, "4.1.0")
    require_spark(sink, "4.0.2-amzn-0")
    with pytest.raises(TableError, match=r"4\.3\.0"):
        require_spark(sink, "4.3.0")


def test_other_sinks_are_for_any_spark() -> None:
    require_spark(ParquetSink("/data/orders"), "4.3.0")
    require_spark(None, "4.3.0")


@each_native_sink
@pytest.mark.parametrize("is_for_rejects", [False, True])
def test_an_ingestion_says_so_before_it_writes_a_file(
    place: Place, spark_that_is_too_new: None, sink: Any, is_for_rejects: bool
) -> None:
    sinks = {"rejects": sink} if is_for_rejects else {"sink": sink}
    with pytest.raises(TableError, match=f"Spark {pyspark.__version__}: "):
        place.ingest(good([1]), **sinks)
    assert not place.workspace.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_says_so_before_it_starts_spark(
    tmp_path: Path, spark_that_is_too_new: None, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(job, "driver_session", _no_session)
    manifest = tmp_path / "manifest"
    manifest.write_text("")
    sink = {"kind": kind, "table": "lake.sales.orders", "ledger": "/data/ledger"}
    spec = {"version": 1, "source": {"kind": "text"}, "sink": sink, "workspace": "/data/batches"}
    arguments = ["--manifest", str(manifest), "--result", str(tmp_path / "result"), "--spec", json.dumps(spec)]

    with pytest.raises(TableError, match=f"Spark {pyspark.__version__}: "):
        run_job([*arguments, "--master", "local[1]"])

    # A server of Spark Connect may be of another version than its client.
    with pytest.raises(AssertionError, match="a session was started"):
        run_job([*arguments, "--remote", "sc://127.0.0.1"])


def run_job(arguments: list[str]) -> None:
    job._run(job._parser().parse_args(arguments), Termination(), lambda stored: None)


def _no_session(**_: Any) -> SparkSession:
    raise AssertionError("a session was started")
