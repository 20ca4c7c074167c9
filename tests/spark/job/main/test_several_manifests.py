"""A batch of several manifests, as one job gets it from several lease tasks."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from sqs_lease.batch_files.manifest import write_manifest
from sqs_lease.ingestion.result import StoredResult
from sqs_lease.spark.job import main as job
from sqs_lease.spark.job.termination import Termination
from tests.spark.samples import SCHEMA, good, message


def test_a_batch_of_several_manifests_is_stored_as_one_and_rejects_what_one_manifest_would(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "driver_session", lambda **_: nullcontext(spark))
    monkeypatch.setattr(Termination, "install", lambda self: None)
    batches = [
        [*good([1]), message("half", '{"id": 2, "name": "\ud800"}'), *good([3])],
        [*good([4]), message("no JSON", "{'id': 5}"), *good([1], receive_count=2)],
    ]
    arguments = []
    for number, batch in enumerate(batches):
        manifest = tmp_path / f"{number}.parquet"
        write_manifest(manifest, batch_id=str(number), queue_url="orders", messages=batch)
        arguments += ["--manifest", str(manifest)]
    spec = {
        "version": 1,
        "source": {"kind": "json", "schema": SCHEMA},
        "sink": {"kind": "delta", "path": str(tmp_path / "table")},
        "workspace": str(tmp_path / "workspace"),
    }
    assert job.main([*arguments, "--result", str(tmp_path / "result.json"), "--spec", json.dumps(spec)]) == 0

    assert sorted(DeltaTable(tmp_path / "table").to_pyarrow_table()["id"].to_pylist()) == [1, 3, 4]
    result = StoredResult.decode((tmp_path / "result.json").read_text())
    assert (result.received, result.duplicates, result.ingested, result.rejected) == (6, 1, 3, 2)
    reasons = {failure["itemIdentifier"]: failure["reason"] for failure in result.batchItemFailures}
    assert reasons["half"] == "not text: half a surrogate pair"
    assert reasons["no JSON"].startswith("not valid JSON")
