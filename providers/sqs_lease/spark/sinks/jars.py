"""The jars of native Delta and of Iceberg that the sinks were tested with, by the version of Spark they are made for.

Both projects follow a release of Spark by some months, so the newest Spark may have none yet. Spark 4.3 runs neither
Iceberg's jar for 4.1 (its classes do not load) nor Delta's for 4.2 (reading a table's log fails).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

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
    "4.1": Jars(
        delta="io.delta:delta-spark_4.1_2.13:4.4.0",
        iceberg="org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    ),
}
"""Spark's minor version -> the jars that the tests run with."""
