"""A bucket, as the tests of Delta have it."""

from __future__ import annotations

from tests.spark.sinks.delta.conftest import bucket

__all__ = ["bucket"]
