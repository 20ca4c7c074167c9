"""The files that a job takes and leaves: on a file system of its machine, or on S3."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from sqs_lease.spark.errors import WorkspaceError
from sqs_lease.spark.paths import write_whole


def local_copy(uri: str, directory: Path) -> Path:
    """Return a local file with the content of a URI: the file itself where it is local.

    Args:
        uri: A path, ``file://...`` or ``s3://bucket/key`` (a connection of Airflow before the bucket is left out; how
            S3 is reached, the environment says, as for any AWS client).
        directory: Where a copy goes.

    Raises:
        WorkspaceError: It cannot be read.
    """
    path = _local_path(uri)
    if path is not None:
        if not path.is_file():
            raise WorkspaceError(f"{uri} is not there: check that the machine of the job reaches that path")
        return path
    copy = directory / uuid4().hex
    bucket, key = _place_on_s3(uri)
    try:
        _client().download_file(bucket, key, str(copy))
    except (BotoCoreError, ClientError) as error:
        raise WorkspaceError(f"{uri} cannot be read: {error}") from None
    return copy


def write_text(uri: str, text: str) -> None:
    """Write a file that appears whole or not at all, in place of what was there.

    Raises:
        WorkspaceError: It cannot be written.
    """
    path = _local_path(uri)
    try:
        if path is None:
            bucket, key = _place_on_s3(uri)
            _client().put_object(Bucket=bucket, Key=key, Body=text.encode(), ContentType="application/json")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
    except (OSError, BotoCoreError, ClientError) as error:
        raise WorkspaceError(f"{uri} cannot be written: {error}") from None


def _local_path(uri: str) -> Path | None:
    if uri.startswith("s3://"):
        return None
    if uri.startswith("file://"):
        return Path(unquote(urlsplit(uri).path))
    if "://" in uri:
        raise WorkspaceError(f"{uri} is neither a path nor a file:// or s3:// address")
    return Path(uri)


def _place_on_s3(uri: str) -> tuple[str, str]:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    bucket = bucket.rpartition("@")[2]
    if not bucket or not key:
        raise WorkspaceError(f"{uri} is no object on S3: it must be s3://bucket/key")
    return bucket, key


def _client() -> Any:
    return boto3.client("s3")
