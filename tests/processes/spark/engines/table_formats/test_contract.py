"""Native Delta and Iceberg tables keep what every sink promises."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sqs_lease.testing.rules_contract import RulesContract
from sqs_lease.testing.sink_contract import SinkContract, Subject
from sqs_lease.testing.upsert_contract import UpsertContract
from tests.processes.spark.engines.table_formats.subjects import iceberg_subject, native_delta_subject


class TestNativeDelta(SinkContract):
    @pytest.fixture
    def subject(self, spark: SparkSession, tmp_path: Path) -> Subject:
        return native_delta_subject(spark, tmp_path)


class TestIceberg(SinkContract):
    @pytest.fixture
    def subject(self, spark: SparkSession, tmp_path: Path) -> Subject:
        return iceberg_subject(spark, tmp_path)


class TestNativeDeltaUpserts(UpsertContract):
    @pytest.fixture
    def subject(self, spark: SparkSession, tmp_path: Path) -> Subject:
        return native_delta_subject(spark, tmp_path, ("id",))


class TestIcebergUpserts(UpsertContract):
    @pytest.fixture
    def subject(self, spark: SparkSession, tmp_path: Path) -> Subject:
        return iceberg_subject(spark, tmp_path, ("id",))


class TestNativeDeltaWithAConstraint(RulesContract):
    @pytest.fixture
    def subject(self, spark: SparkSession, tmp_path: Path) -> Subject:
        subject = native_delta_subject(spark, tmp_path)
        name = subject.open().target.name
        spark.sql(f"ALTER TABLE {name} ADD CONSTRAINT positive CHECK (id > 0)")
        return subject
