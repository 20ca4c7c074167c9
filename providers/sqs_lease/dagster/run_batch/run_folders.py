"""Where the files of batches are: a directory, or a prefix of an object store, that all steps of a run reach.

The executor puts each batch into a directory for its run, and removes later what a crash left.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any, Final

from upath import UPath

from sqs_lease.dagster.run_batch.folder import MESSAGES, BatchFolder, listed

_LOCAL = "file://"


def check_workspace(workspace: object, whose: str) -> None:
    """Check a workspace when it is set.

    Args:
        workspace: A URI or an absolute path.
        whose: What it is the workspace of, for the error.

    Raises:
        TypeError: It is no text.
        ValueError: It is neither a URI nor an absolute path.
    """
    if not isinstance(workspace, str):
        raise TypeError(f"workspace of {whose} must be a text, a URI or an absolute path, not {workspace!r}")
    if not (workspace.startswith("/") or "://" in workspace):
        raise ValueError(
            f"workspace of {whose} must be a URI (s3://bucket/prefix, file:///directory) or an absolute path, "
            f"not {workspace!r}: run workers and steps need not have the same working directory"
        )


def workspace_path(uri: str) -> Any:
    """Return the path of a URI or an absolute path, local ones as :class:`pathlib.Path`."""
    if uri.startswith(("/", _LOCAL)):
        return Path(uri.removeprefix(_LOCAL))
    return UPath(uri)


logger = logging.getLogger(__name__)

_PREFIX: Final = "run-"

LEFT_OVER_AFTER_SECONDS: Final = 24 * 3600.0
"""Twice as long as SQS lets anybody hold a message: a process that still works on these files has lost all of it."""


def run_batch_id(run_id: str) -> str:
    """Name the batch of a run."""
    return f"{_PREFIX}{run_id}"


def run_batch_uri(workspace: str, run_id: str) -> str:
    """Return where the batch of a run is."""
    return f"{workspace.rstrip('/')}/{run_batch_id(run_id)}"


def is_run_batch(uri: str) -> bool:
    """Whether a batch is one that the executor received, by where it is."""
    return uri.rstrip("/").rpartition("/")[2].startswith(_PREFIX)


def remove_left_over(workspace: str) -> int:
    """Remove the batches of runs whose worker was killed, once nobody can hold their messages any more.

    What cannot be removed is logged: nothing depends on it.

    Returns:
        How many were removed.
    """
    removed = 0
    oldest = time.time() - LEFT_OVER_AFTER_SECONDS
    try:
        for path in listed(workspace_path(workspace)):
            if path.name.startswith(_PREFIX) and _written_at(path) < oldest:
                BatchFolder(path).remove()
                removed += 1
    except Exception as error:  # noqa: BLE001 - each store has errors of its own
        logger.warning("Old batches in %s cannot be removed (%s: %s)", workspace, type(error).__name__, error)
    return removed


def _written_at(path: Any) -> float:
    try:
        return float((path / MESSAGES).stat().st_mtime)
    except FileNotFoundError:
        # Not yet written, or removed by somebody else meanwhile.
        return float("inf")
