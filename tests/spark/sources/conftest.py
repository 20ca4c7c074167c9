"""Spark's tasks that reach the server's S3."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from demo.sqs_server import SqsServer


@pytest.fixture
def on_s3(spark: SparkSession, server: SqsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have clients of this process and of Spark's tasks reach the server."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    # Spark's Python workers have this in their environment, besides that of the session's process at its start.
    environment = spark.sparkContext.environment
    before = dict(environment)
    environment.update(server.environment)
    yield
    environment.clear()
    environment.update(before)
