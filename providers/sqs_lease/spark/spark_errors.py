"""Spark's errors: their kinds, and the parts of their texts that do not quote rows."""

from __future__ import annotations

import re
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

SPARK_ERRORS: Final = (PySparkException, Py4JError)
"""The errors that Spark raises: its own, and Java's that it does not translate."""

_SIGNS: Final = ("ModuleNotFoundError", "PYTHON_VERSION_MISMATCH", "Cannot run program")
_LACKING: Final = re.compile(r"No module named '([\w.]+)'")
_WITHOUT_RIGHTS: Final = ("PermissionError", "Permission denied", "Mkdirs failed")
# The last line of a traceback, and Java's text. Not within a line, because a value of a row may be quoted there.
_OF_SPACE: Final = re.compile(
    r"^OSError: \[Errno (28|122)\]|\bjava\.io\.IOException: (No space left on device|Disk quota exceeded)$",
    re.MULTILINE,
)
_INTRODUCTION: Final = "An error occurred while calling "


def cannot_run_this(error: Exception) -> bool:
    """Whether an error says that the executors lack this package, or a Python that can run it."""
    return any(sign in str(error) for sign in _SIGNS)


def why_cannot_run(error: Exception) -> str:
    """Why Spark's executors cannot run Python that needs this package, by an error of :func:`cannot_run_this`."""
    # They have a Spark. [spark] would put another PySpark over that of a managed cluster.
    lacking = _LACKING.search(str(error))
    why = kind_of(error) if lacking is None else f"they have no Python module {lacking[1]!r}"
    return (
        f"Spark's executors cannot run the Python of this ingestion ({why}): install sqs-lease[spark-cluster] on them, "
        "and what your own functions import, for the Python version of the driver"
    )


def cannot_write(error: Exception) -> bool:
    """Whether an error says that the executors may not write somewhere, from Python or from Java."""
    return any(sign in str(error) for sign in _WITHOUT_RIGHTS)


def lacks_space(error: Exception) -> bool:
    """Whether an error says that a disk is full, on any machine."""
    return _OF_SPACE.search(str(error)) is not None


def kind_of(error: Exception) -> str:
    """Return Spark's name for an error, or its class; not its text, which may quote rows."""
    return (error.getCondition() if isinstance(error, PySparkException) else None) or type(error).__name__


def first_line(error: Exception) -> str:
    """Return the first line of an error; stack traces, plans and rows follow in later lines."""
    first, _, rest = str(error).strip().partition("\n")
    # Py4J begins so if PySpark does not translate an exception of Java.
    return rest.partition("\n")[0].removeprefix(": ") if first.startswith(_INTRODUCTION) and rest else first
