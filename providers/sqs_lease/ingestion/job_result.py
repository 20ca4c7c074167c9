"""The result that a job left in a file."""

from __future__ import annotations

from typing import Any

from sqs_lease.ingestion.job import JobError
from sqs_lease.ingestion.result import ResultError, StoredResult


def read_result(path: Any) -> StoredResult:
    """Read what a job left that ended without an error.

    Args:
        path: The file: anything that opens files as :class:`pathlib.Path` does.

    Raises:
        JobError: It left nothing, or nothing that can be read.
    """
    try:
        with path.open("rb") as file:
            return StoredResult.decode(file.read().decode())
    except (OSError, ResultError) as error:
        raise JobError(f"the job ended without an error, and its result cannot be read: {error}") from error
