"""One local Spark for the tests of each package here."""

from __future__ import annotations

from tests.spark.conftest import place, spark

__all__ = ["place", "spark"]
