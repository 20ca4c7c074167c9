"""Calls to Spark's Java process that PySpark's public interface does not have.

Any release of PySpark, Delta or Iceberg may remove or change a name that is used here; a test makes sure that no other
file uses one. A session of Spark Connect has no Java process to ask: the answer is then None, and the caller uses SQL.
"""

from __future__ import annotations

import os
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession


def start_java() -> None:
    """Start Spark's Java process with ``PYSPARK_SUBMIT_ARGS``, unless this process has started one.

    The public way is ``getOrCreate()``. It puts each setting of the session on the command line.
    """
    SparkContext._ensure_initialized()  # noqa: SLF001


def has_java() -> bool:
    """Whether this process has started a Java process, or was started by one (``spark-submit``)."""
    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ  # noqa: SLF001


def iceberg_table(spark: SparkSession, name: str) -> tuple[Any, Any] | None:
    """Load an Iceberg table: return the JVM and an ``org.apache.iceberg.Table``.

    There is no public way: Iceberg's own catalogs for Java do not use the session's settings.
    """
    if (found := _java(spark)) is None:
        return None
    jvm, session = found
    return jvm, jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session, name)


def iceberg_version(spark: SparkSession) -> str | None:
    """Return the version of Iceberg's jar.

    The public way is the SQL function ``system.iceberg_version``. Spark's own catalog (``spark_catalog``) shows it from
    Spark 4.2 on only.
    """
    if (found := _java(spark)) is None:
        return None
    jvm, _ = found
    version: str = jvm.org.apache.iceberg.IcebergBuild.version()
    return version


def delta_log(spark: SparkSession, location: str) -> Any | None:
    """Return the log of a native Delta table, an ``org.apache.spark.sql.delta.DeltaLog``.

    The public way is ``DESCRIBE DETAIL``. It gives the same values, but counts all files for that: after each commit it
    took 4 to 5 s of every ingestion, however small the batch was.
    """
    if (found := _java(spark)) is None:
        return None
    jvm, session = found
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, location)


def cancel_group_and_future_jobs(context: Any, group: str) -> None:
    """Cancel the jobs of a group, and those that an interrupted query would start next.

    The public ``cancelJobGroup`` cancels only the jobs that run now.
    """
    context._jsc.sc().cancelJobGroupAndFutureJobs(group)  # noqa: SLF001


def close_connection(context: Any) -> None:
    """Close this thread's connection to Java, in which an unread answer is still on its way.

    There is no public way. The next call makes a new connection.
    """
    connection = context._gateway._gateway_client.get_thread_connection()  # noqa: SLF001
    if connection is not None:
        connection.close()


def _java(spark: SparkSession) -> tuple[Any, Any] | None:
    jvm, session = getattr(spark, "_jvm", None), getattr(spark, "_jsparkSession", None)
    return None if jvm is None or session is None else (jvm, session)
