"""The jars of native Delta and of Iceberg that the sinks were tested with, by the version of Spark they are made for.

Both projects follow a release of Spark by some months, so the newest Spark may have none yet. Spark 4.3 runs neither
Iceberg's jar for 4.1 (its classes do not load) nor Delta's for 4.2 (reading a table's log fails). What Spark then says
names a class of Java, so the version is compared before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import pyspark

from sqs_lease.spark.errors import TableError

DELTA_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""What a session needs for native Delta, beside the jars."""

ICEBERG_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
"""What a session needs for Iceberg, beside the jars and a catalog of Iceberg's (``spark.sql.catalog.<name>``)."""


@dataclass(frozen=True, slots=True)
class Jars:
    """Coordinates for ``spark.jars.packages``, each ``group:artifact:version``."""

    delta: str
    iceberg: str


TESTED: Final[Mapping[str, Jars]] = {
    "4.0": Jars(
        delta="io.delta:delta-spark_4.0_2.13:4.4.0",
        iceberg="org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
    ),
    "4.1": Jars(
        delta="io.delta:delta-spark_4.1_2.13:4.4.0",
        iceberg="org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    ),
}
"""Spark's minor version -> the jars that the tests run with."""


@runtime_checkable
class SinkOfJars(Protocol):
    """A sink of a table that Spark itself writes, with jars."""

    def require_spark(self, version: str) -> None:
        """Refuse a Spark for which no jars were tested.

        Args:
            version: Spark's, for example ``4.1.0``; a vendor may have added to it (``4.0.2-amzn-0``).

        Raises:
            TableError: None were. It says for which versions some were, and what to do.
        """


def tested_jars(version: str = pyspark.__version__) -> Jars:  # noqa: PT028 - it is no test
    """The jars that were tested with a version of Spark: give them to ``spark.jars.packages``.

    Args:
        version: Spark's version; that of the PySpark which is installed, by default.

    Raises:
        TableError: None were tested with it. It says with which versions some were, and what to do.
    """
    jars = TESTED.get(".".join(version.split(".")[:2]))
    if jars is None:
        *earlier, newest = TESTED
        raise TableError(
            f"Spark {version} has no jars of native Delta and Iceberg that were tested: they are made for one version "
            f"of Spark each, and those for {', '.join(earlier)} and {newest} were. Run one of these "
            f'(pip install "pyspark=={newest}.*"), or ingest into another table: DeltaSink, ParquetSink and '
            "PostgresSink need no jars, and run on any Spark from 4.0 on"
        )
    return jars


def require_spark(sink: object, version: str) -> None:
    """Refuse a Spark that a sink cannot run on; most sinks run on any.

    Args:
        sink: The sink; None where there is none.
        version: Spark's version.

    Raises:
        TableError: The sink needs jars, and none were tested with this version.
    """
    if isinstance(sink, SinkOfJars):
        sink.require_spark(version)
