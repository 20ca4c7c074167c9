"""Delta tables keep what every sink promises also on S3 and with upserts; on disk: tests/spark/sinks/delta."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sqs_lease.spark import DeltaSink
from sqs_lease.testing.sink_contract import SinkContract, Subject
from sqs_lease.testing.upsert_contract import UpsertContract
from tests.spark.sinks.delta.conftest import Bucket
from tests.spark.sinks.delta.subjects import delta_subject

pytestmark = pytest.mark.processes


class TestOnS3(SinkContract):
    @pytest.fixture
    def subject(self, spark: SparkSession, bucket: Bucket) -> Subject:
        return delta_subject(spark, bucket.sink())


class TestUpsertsOnDisk(UpsertContract):
    @pytest.fixture
    def subject(self, spark: SparkSession, tmp_path: Path) -> Subject:
        return delta_subject(spark, DeltaSink(tmp_path / "a table", upsert_by=["id"]))


class TestUpsertsOnS3(UpsertContract):
    @pytest.fixture
    def subject(self, spark: SparkSession, bucket: Bucket) -> Subject:
        return delta_subject(spark, bucket.sink(upsert_by=("id",)))
