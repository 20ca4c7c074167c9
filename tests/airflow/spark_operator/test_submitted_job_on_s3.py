"""A job that is submitted with a workspace on S3: its manifest goes there, and its result is read there."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import boto3
import pytest

from demo.sqs_server import REGION, SqsServer
from sqs_lease.batch_files.manifest import read_manifest
from tests.airflow.spark_operator.test_spark_operator import MESSAGES, SPEC, TaskInstance, load_task, run
from tests.ingestion.job_program import RESULT, JobProgram

pytestmark = pytest.mark.processes


def test_manifest_and_result_are_on_s3_and_nothing_is_left_there(
    server: SqsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STORE", server.airflow_connection)
    bucket: Any = boto3.resource(
        "s3",
        endpoint_url=server.endpoint_url,
        region_name=REGION,
        aws_access_key_id="test",
        aws_secret_access_key="test",
    ).create_bucket(Bucket=f"jobs-{uuid4()}")
    taken: list[str] = []

    class Hook:
        """In place of the provider's: what it submits does as the job does, without the connection in the address."""

        def __init__(self, **options: Any) -> None:
            self.given: list[str] = options["application_args"]

        def submit(self, application: str) -> None:
            manifest, result = (urlsplit(self.given[self.given.index(of) + 1]) for of in ("--manifest", "--result"))
            path = tmp_path / "manifest"
            bucket.download_file(manifest.path.lstrip("/"), str(path))
            taken.extend(message.body for message in read_manifest(path).messages)
            bucket.upload_fileobj(io.BytesIO(RESULT.encode().encode()), result.path.lstrip("/"))

    provider: Any = ModuleType("spark_submit")
    provider.SparkSubmitHook = Hook
    monkeypatch.setitem(sys.modules, "airflow.providers.apache.spark.hooks.spark_submit", provider)
    spec = {**SPEC, "workspace": f"s3://store@{bucket.name}/batches"}

    load = load_task(JobProgram(tmp_path), spec=spec, submit_conn_id="cluster")

    assert run(load, TaskInstance(MESSAGES))["ingested"] == 2
    assert taken == ["body 0", "body 1", "body 2"]
    assert list(bucket.objects.all()) == []
