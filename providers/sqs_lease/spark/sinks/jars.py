"""The tested jars of native Delta and of Iceberg, by the version of Spark that they are made for.

Both projects follow a release of Spark after some months, so there may be no jars for the newest Spark. Spark 4.3 can
run neither Iceberg's jar for 4.1 (its classes do not load) nor Delta's for 4.2 (reading a table's log fails). Spark's
error then only names a class of Java, so the version is checked before anything starts.
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
"""The settings of a session for native Delta, besides the jars."""

ICEBERG_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
"""The settings of a session for Iceberg, besides the jars and an Iceberg catalog (``spark.sql.catalog.<name>``)."""


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
    """A sink for a table that Spark itself writes, with jars."""

    def require_spark(self, version: str) -> None:
        """Refuse a Spark for which no jars were tested.

        Args:
            version: Spark's version, for example ``4.1.0``, or with a vendor's addition, ``4.0.2-amzn-0``.

        Raises:
            TableError: There are no tested jars. The text names the versions with tested jars and says what to do.
        """


def tested_jars(version: str = pyspark.__version__) -> Jars:  # noqa: PT028 - it is not a test
    """Return the jars that were tested with a version of Spark, for ``spark.jars.packages``.

    Args:
        version: Spark's version; by default the version of the installed PySpark.

    Raises:
        TableError: There are no tested jars. The text names the versions with tested jars and says what to do.
    """
    jars = TESTED.get(".".join(version.split(".")[:2]))
    if jars is None:
        *earlier, newest = TESTED
        raise TableError(
            f"no jars of native Delta and Iceberg were tested with Spark {version}: each is made for one version of "
            f"Spark, and those for {', '.join(earlier)} and {newest} were tested. Run one of these "
            f'(pip install "pyspark=={newest}.*"), or ingest into another table: DeltaSink, ParquetSink and '
            "PostgresSink need no jars, and run on any Spark from 4.0 on"
        )
    return jars


def require_spark(sink: object, version: str) -> None:
    """Refuse a version of Spark that a sink cannot run on; most sinks run on any.

    Args:
        sink: The sink; None if there is none.
        version: Spark's version.

    Raises:
        TableError: The sink needs jars, and there are no tested jars for this version.
    """
    if isinstance(sink, SinkOfJars):
        sink.require_spark(version)
