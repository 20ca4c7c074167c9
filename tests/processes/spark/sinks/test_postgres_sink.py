"""PostgreSQL keeps the contract of sinks, on a real server."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from sqs_lease.testing.rules_contract import RulesContract
from sqs_lease.testing.sink_contract import SinkContract, Subject
from sqs_lease.testing.upsert_contract import UpsertContract
from tests.spark.sinks.conftest import Database
from tests.spark.sinks.postgres_subject import subject_of

pytestmark = pytest.mark.processes


class TestPostgresSink(SinkContract):
    @pytest.fixture
    def subject(self, spark: SparkSession, database: Database) -> Subject:
        return subject_of(spark, database)


class TestUpsertingPostgresSink(UpsertContract):
    @pytest.fixture
    def subject(self, spark: SparkSession, database: Database) -> Subject:
        return subject_of(spark, database, upsert_by=("id",))


class TestPostgresSinkWithAConstraint(RulesContract):
    @pytest.fixture
    def subject(self, spark: SparkSession, database: Database) -> Subject:
        subject = subject_of(spark, database)
        subject.open()
        database.run("ALTER TABLE orders ADD CONSTRAINT positive CHECK (id > 0)")
        return subject
