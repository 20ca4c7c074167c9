"""A driver that is killed between its commit and its clean-up: the next one stores nothing, and cleans up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest

from demo.processes import ROOT
from demo.sqs_server import SqsServer
from tests.spark.cleaning_driver import DIES
from tests.spark.samples import rows
from tests.spark.sources.s3_messages import direct, record

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


def test_objects_that_a_killed_driver_did_not_delete_are_deleted_by_the_next_one(
    tmp_path: Path, server: SqsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    s3, bucket = boto3.client("s3"), "killed-after-its-commit"
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    read = s3.put_object(Bucket=bucket, Key="a", Body=b'{"id": 1}')["VersionId"]
    s3.put_object(Bucket=bucket, Key="a", Body=b'{"id": 2}')
    notification = direct(record(bucket, "a", version_id=read))

    def versions() -> list[str]:
        return [its["VersionId"] for its in s3.list_object_versions(Bucket=bucket)["Versions"]]

    def drive(mode: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tests.spark.cleaning_driver", str(tmp_path), notification, mode],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT / 'providers'}{os.pathsep}{ROOT}",
                "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
                "TMPDIR": str(tmp_path),
            },
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert drive(DIES).returncode == -signal.SIGKILL
    assert [row["id"] for row in rows(tmp_path / "table")] == [1]
    assert read in versions()

    answer = drive("lives")

    assert answer.returncode == 0
    result: dict[str, Any] = json.loads(answer.stdout)
    assert (result["ingested"], result["rows"], result["objects"]["cleaned"]) == (1, 0, 1)
    assert [row["id"] for row in rows(tmp_path / "table")] == [1]
    assert len(versions()) == 1
    assert read not in versions()
