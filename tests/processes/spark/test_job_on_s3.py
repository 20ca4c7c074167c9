"""A job with a driver that shares nothing but S3 with other machines: messages, table, rejects and result are there."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import boto3
import pytest
from deltalake import DeltaTable

from demo.processes import ROOT
from demo.sqs_server import SqsServer
from sqs_lease.batch_files.manifest import write_manifest
from sqs_lease.ingestion.result import StoredResult
from tests.spark.samples import good, message

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

BUCKET = "job-on-s3"
WORKSPACE = f"s3://{BUCKET}/batches"


def test_a_job_stores_a_batch_by_way_of_s3_and_leaves_no_file(
    tmp_path: Path, server: SqsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {
        **server.environment,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": server.environment["AWS_DEFAULT_REGION"],
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket=BUCKET)
    write_manifest(
        tmp_path / "manifest",
        batch_id="b",
        queue_url="orders",
        messages=[*good(range(3)), message("bad", '{"id": "x"}')],
    )
    s3.upload_file(str(tmp_path / "manifest"), BUCKET, "batches/manifests/m.parquet")
    spec = {
        "version": 1,
        "source": {"kind": "json", "schema": "id BIGINT NOT NULL, name STRING"},
        "sink": {"kind": "delta", "path": f"s3://{BUCKET}/table"},
        "rejects": {"kind": "delta", "path": f"s3://{BUCKET}/rejects"},
        "workspace": WORKSPACE,
    }
    own = tmp_path / "own"
    own.mkdir()

    done = subprocess.run(
        [
            *(sys.executable, "-m", "sqs_lease.spark.job", "--master", "local[2]"),
            *("--manifest", f"{WORKSPACE}/manifests/m.parquet", "--result", f"{WORKSPACE}/results/r.json"),
            *("--spec", json.dumps(spec)),
        ],
        cwd=own,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'providers'}{os.pathsep}{ROOT}",
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
            "TMPDIR": str(own),
        },
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    answer = io.BytesIO()
    s3.download_fileobj(BUCKET, "batches/results/r.json", answer)
    result = StoredResult.decode(answer.getvalue().decode())
    assert (result.ingested, result.rejected, result.rejects_stored) == (3, 1, True)
    assert sorted(DeltaTable(f"s3://{BUCKET}/table").to_pyarrow_table()["id"].to_pylist()) == [0, 1, 2]
    assert DeltaTable(f"s3://{BUCKET}/rejects").to_pyarrow_table()["body"].to_pylist() == ['{"id": "x"}']
    assert list(own.rglob("*.parquet")) == []
