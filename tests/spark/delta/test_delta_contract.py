"""Delta tables keep what every sink promises, on disk and on S3."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sqs_lease.spark import DeltaSink
from sqs_lease.testing.sink_contract import SinkContract, Subject
from sqs_lease.testing.upsert_contract import UpsertContract
from tests.form import FULL_FORM
from tests.spark.delta.conftest import Bucket
from tests.spark.delta.subjects import delta_subject

pytestmark = pytest.mark.processes


class TestOnDisk(SinkContract):
    @pytest.fixture
    def subject(self, spark: SparkSession, tmp_path: Path) -> Subject:
        return delta_subject(spark, DeltaSink(tmp_path / "a table"))


class OnS3:
    @pytest.fixture
    def subject(self, spark: SparkSession, bucket: Bucket) -> Subject:
        return delta_subject(spark, bucket.sink())


class TestUpsertsOnDisk(UpsertContract):
    @pytest.fixture
    def subject(self, spark: SparkSession, tmp_path: Path) -> Subject:
        return delta_subject(spark, DeltaSink(tmp_path / "a table", upsert_by=["id"]))


if FULL_FORM:

    class TestOnS3(OnS3, SinkContract):
        pass

    class TestUpsertsOnS3(UpsertContract):
        @pytest.fixture
        def subject(self, spark: SparkSession, bucket: Bucket) -> Subject:
            return delta_subject(spark, bucket.sink(upsert_by=("id",)))

else:

    class TestOnS3InShort(OnS3):
        """What is done by other code there than on disk; test_delta_table.py has the rest, without Spark."""

        test_ids = SinkContract.test_staged_rows_are_invisible_and_their_ids_are_read_back
        test_once = SinkContract.test_staging_runs_the_rows_once_and_to_the_end
        test_failure = SinkContract.test_a_try_that_cannot_be_staged_leaves_nothing
        test_discard = SinkContract.test_discard_leaves_what_a_commit_took
        test_types = SinkContract.test_values_of_every_type_come_back
