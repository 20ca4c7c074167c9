"""What Spark raises, and whether it says that its executors cannot run this package."""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

SPARK_ERRORS: Final = (PySparkException, Py4JError)
"""What Spark raises: its own errors, and those of Java that it does not know."""

_SIGNS: Final = ("ModuleNotFoundError", "PYTHON_VERSION_MISMATCH", "Cannot run program")


def cannot_run_this(error: Exception) -> bool:
    """Whether Spark says that its executors lack this package, or the Python that it needs."""
    return any(sign in str(error) for sign in _SIGNS)
