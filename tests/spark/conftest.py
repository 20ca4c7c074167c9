"""Where ingestions of the tests here write to."""

from __future__ import annotations

from tests.spark.shared_session import place

__all__ = ["place"]
