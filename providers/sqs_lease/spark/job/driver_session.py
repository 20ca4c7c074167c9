"""The Spark session of a job: one of its own, one of a Connect server, or that of spark-submit."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from pyspark.sql import SparkSession

from sqs_lease.spark.java_home import java_for_spark, require_java


@contextmanager
def driver_session(*, master: str | None, remote: str | None, conf: Mapping[str, Any]) -> Iterator[SparkSession]:
    """Start or join a session, and stop it at the end of the block.

    It works in UTC, unless ``conf`` says otherwise: timestamps without a zone in messages are read in its zone.

    Args:
        master: For example ``local[2]`` or ``spark://host:7077``; None where spark-submit says it.
        remote: The address of a Connect server, ``sc://host:port``; None for a driver in this process.
        conf: Settings; they override those made here.

    Raises:
        JavaError: There is no Java that Spark can run on.
    """
    is_local = master is not None and master.startswith("local")
    if master is not None and not is_local:
        require_java()
    builder = SparkSession.builder.appName("sqs-lease")
    settings: dict[str, Any] = {"spark.sql.session.timeZone": "UTC"}
    if remote is not None:
        builder = builder.remote(remote)
    else:
        settings["spark.ui.showConsoleProgress"] = "false"
        if master is not None:
            # Python workers must run what the driver runs, not the first python3 on PATH.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            builder = builder.master(master)
            settings["spark.ui.enabled"] = "false"
            if is_local:
                settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    for name, value in {**settings, **conf}.items():
        builder = builder.config(name, value)
    with java_for_spark() if is_local else nullcontext():
        spark = builder.getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()
