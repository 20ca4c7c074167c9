"""Whether Spark's executors can run this package."""

from __future__ import annotations

from typing import Final

_SIGNS: Final = ("ModuleNotFoundError", "PYTHON_VERSION_MISMATCH", "Cannot run program")


def cannot_run_this(error: Exception) -> bool:
    """Whether Spark says that its executors lack this package, or the Python that it needs."""
    return any(sign in str(error) for sign in _SIGNS)
