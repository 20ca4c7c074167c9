"""A job reads and writes files by path, and on a real S3 server."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import pytest

from demo.sqs_server import SqsServer
from sqs_lease.spark import WorkspaceError
from sqs_lease.spark.job.main import local_copy, write_text


@pytest.fixture
def bucket(server: SqsServer, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    s3: Any = boto3.client("s3")
    s3.create_bucket(Bucket=(name := f"jobs-{uuid4().hex}"))
    return name


def test_a_local_file_is_read_where_it_is_and_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "new directory" / "result.json"
    write_text(str(path), "one")
    write_text(f"file://{tmp_path}/new%20directory/result.json", "two")
    assert local_copy(str(path), tmp_path) == path
    assert local_copy(f"file://{tmp_path}/new%20directory/result.json", tmp_path) == path
    assert path.read_text() == "two"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("/nowhere/a.jsonl", "is not there"),
        ("gs://a/b", "neither a path nor"),
        ("s3://bucket", "must be s3://bucket/key"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, uri: str, said: str) -> None:
    with pytest.raises(WorkspaceError, match=said):
        local_copy(uri, tmp_path)


def test_a_file_in_place_of_a_directory_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkspaceError, match="cannot be written"):
        write_text(str(tmp_path / "file" / "result.json"), "")


@pytest.mark.processes
def test_an_object_is_written_and_read_with_or_without_airflows_connection(bucket: str, tmp_path: Path) -> None:
    write_text(f"s3://aws_default@{bucket}/results/a b.json", "on S3")
    assert local_copy(f"s3://{bucket}/results/a b.json", tmp_path).read_text() == "on S3"


@pytest.mark.processes
def test_an_object_that_is_not_there_is_said(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match=f"s3://{bucket}/a cannot be read: .*404"):
        local_copy(f"s3://{bucket}/a", tmp_path)
