"""The servers that sinks write to."""

from __future__ import annotations

from tests.spark.sinks.conftest import database, postgres_url
from tests.spark.sinks.delta.conftest import bucket

__all__ = ["bucket", "database", "postgres_url"]
