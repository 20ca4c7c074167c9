"""A bucket on a real S3 server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import boto3
import pytest

from demo.sqs_server import REGION, SqsServer
from sqs_lease.spark import DeltaSink


@dataclass(frozen=True)
class Bucket:
    """A bucket of its own, and how deltalake reaches it."""

    name: str
    storage_options: dict[str, str]

    def sink(
        self, name: str = "a table", *, upsert_by: tuple[str, ...] = (), partition_by: tuple[str, ...] = ()
    ) -> DeltaSink:
        return DeltaSink(f"s3://{self.name}/{name}", partition_by, upsert_by, self.storage_options)


@pytest.fixture
def bucket(server: SqsServer) -> Bucket:
    credentials = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    name = f"tables-{uuid4().hex}"
    client: Any = boto3.client(  # type: ignore[call-overload]
        "s3", endpoint_url=server.endpoint_url, region_name=REGION, **credentials
    )
    client.create_bucket(Bucket=name)
    options = {"AWS_ENDPOINT_URL": server.endpoint_url, "AWS_REGION": REGION, "AWS_ALLOW_HTTP": "true"}
    return Bucket(name, options | {key.upper(): value for key, value in credentials.items()})
