"""Shared by the scenarios and the tests of Spark's modules: places, and tasks that reach the server's S3."""

from __future__ import annotations

from tests.spark.shared_session import place
from tests.spark.sources.conftest import on_s3

__all__ = ["on_s3", "place"]
