"""Delta tables keep what every sink promises; on S3 and with upserts: tests/processes/spark/sinks."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sqs_lease.spark import DeltaSink
from sqs_lease.testing.sink_contract import SinkContract, Subject
from tests.spark.sinks.delta.subjects import delta_subject

pytestmark = pytest.mark.processes


class TestOnDisk(SinkContract):
    @pytest.fixture
    def subject(self, spark: SparkSession, tmp_path: Path) -> Subject:
        return delta_subject(spark, DeltaSink(tmp_path / "a table"))
