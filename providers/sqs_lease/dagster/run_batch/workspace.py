"""Where the files of batches are: a directory, or a prefix of an object store, that all steps of a run reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from upath import UPath

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
