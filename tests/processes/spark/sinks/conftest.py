"""The servers that sinks write to."""

from __future__ import annotations

from tests.spark.delta.conftest import bucket
from tests.spark.sinks.conftest import database, postgres_url

__all__ = ["bucket", "database", "postgres_url"]
