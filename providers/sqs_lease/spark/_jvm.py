"""All that is asked of Spark's Java process past PySpark's public interface.

Each name here may go or change with any release of PySpark, Delta or Iceberg; a test sees to it that no other file has
one. Through Spark Connect there is no Java process to ask: then the answer is None, and the caller goes by SQL.
"""

from __future__ import annotations

import os
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession


def start_java() -> None:
    """Start Spark's Java process with what ``PYSPARK_SUBMIT_ARGS`` says, unless this process has one.

    Public instead: ``getOrCreate()``, which puts each setting of the session on the command line.
    """
    SparkContext._ensure_initialized()  # noqa: SLF001


def has_java() -> bool:
    """Whether this process has started one, or was started by one (``spark-submit``)."""
    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ  # noqa: SLF001


def iceberg_table(spark: SparkSession, name: str) -> tuple[Any, Any] | None:
    """Load a table of Iceberg's: the JVM, and an ``org.apache.iceberg.Table``.

    Public instead: none. Iceberg's own catalogs for Java are not reached with the session's settings.
    """
    if (found := _java(spark)) is None:
        return None
    jvm, session = found
    return jvm, jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session, name)


def delta_log(spark: SparkSession, location: str) -> Any | None:
    """The log of a native Delta table, an ``org.apache.spark.sql.delta.DeltaLog``.

    Public instead: ``DESCRIBE DETAIL``, which says the same, and takes seconds after each commit: it counts all files.
    """
    if (found := _java(spark)) is None:
        return None
    jvm, session = found
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, location)


def cancel_group_and_future_jobs(context: Any, group: str) -> None:
    """Cancel the jobs of a group, and those that an interrupted query would begin next.

    Public instead: ``cancelJobGroup``, which has no word for the next ones.
    """
    context._jsc.sc().cancelJobGroupAndFutureJobs(group)  # noqa: SLF001


def close_connection(context: Any) -> None:
    """Give up this thread's connection to Java: an answer that was not read is still on its way through it.

    Public instead: none. The next call makes a new connection.
    """
    connection = context._gateway._gateway_client.get_thread_connection()  # noqa: SLF001
    if connection is not None:
        connection.close()


def _java(spark: SparkSession) -> tuple[Any, Any] | None:
    jvm, session = getattr(spark, "_jvm", None), getattr(spark, "_jsparkSession", None)
    return None if jvm is None or session is None else (jvm, session)
