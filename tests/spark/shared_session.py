"""The local Spark of a test run, and a place for ingestions on it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sqs_lease.spark import local_session
from tests.spark.samples import Place


@contextmanager
def shared_session() -> Iterator[SparkSession]:
    """Start Spark; the fixture `spark` of tests/conftest.py has one for all tests of a run."""
    # It tells of every connection that it closes, even after the last line of the test run.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    with pytest.MonkeyPatch.context() as environment:
        # These JVMs live for seconds: without the optimizing compiler they need half the processor time.
        environment.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
        with local_session(cores=2) as session:
            yield session


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)
