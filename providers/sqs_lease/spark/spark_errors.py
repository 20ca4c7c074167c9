"""What Spark raises, and what may be said of it."""

from __future__ import annotations

import re
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

SPARK_ERRORS: Final = (PySparkException, Py4JError)
"""What Spark raises: its own errors, and those of Java that it does not know."""

_SIGNS: Final = ("ModuleNotFoundError", "PYTHON_VERSION_MISMATCH", "Cannot run program")
_LACKING: Final = re.compile(r"No module named '([\w.]+)'")
_WITHOUT_RIGHTS: Final = ("PermissionError", "Permission denied", "Mkdirs failed")
# As the last line of a traceback, and as Java says it; not within a line, where a value of a row may be quoted.
_OF_SPACE: Final = re.compile(
    r"^OSError: \[Errno (28|122)\]|\bjava\.io\.IOException: (No space left on device|Disk quota exceeded)$",
    re.MULTILINE,
)
_INTRODUCTION: Final = "An error occurred while calling "


def cannot_run_this(error: Exception) -> bool:
    """Whether Spark says that its executors lack this package, or the Python that it needs."""
    return any(sign in str(error) for sign in _SIGNS)


def why_cannot_run(error: Exception) -> str:
    """Why Spark's executors cannot run Python that needs this package, by an error of :func:`cannot_run_this`."""
    lacking = _LACKING.search(str(error))
    why = kind_of(error) if lacking is None else f"they have no Python module {lacking[1]!r}"
    return (
        f"Spark's executors cannot run the Python of this ingestion ({why}): install sqs-lease[spark] on them, and "
        "what your own functions import, for the Python version of the driver"
    )


def cannot_write(error: Exception) -> bool:
    """Whether Spark says that its executors may not write somewhere, be it from Python or by itself."""
    return any(sign in str(error) for sign in _WITHOUT_RIGHTS)


def lacks_space(error: Exception) -> bool:
    """Whether Spark says that a disk is full, of whichever machine."""
    return _OF_SPACE.search(str(error)) is not None


def kind_of(error: Exception) -> str:
    """Spark's name for an error, or else its class; no value of a row, which texts may quote."""
    return (error.getCondition() if isinstance(error, PySparkException) else None) or type(error).__name__


def first_line(error: Exception) -> str:
    """What an error of Spark's says, without stack traces, plans, and rows, which follow in further lines."""
    first, _, rest = str(error).strip().partition("\n")
    # As Py4J introduces an exception of Java that PySpark does not know.
    return rest.partition("\n")[0].removeprefix(": ") if first.startswith(_INTRODUCTION) and rest else first
