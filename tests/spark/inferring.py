"""Tests that need a Spark that infers schemas; test_pinned_schema.py has those for older ones."""

from __future__ import annotations

from typing import Final

import pyspark
import pytest

CAN_INFER: Final = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
"""Whether the installed Spark does."""

infers = pytest.mark.skipif(not CAN_INFER, reason="schemas are inferred by PySpark 4.2 and newer")
