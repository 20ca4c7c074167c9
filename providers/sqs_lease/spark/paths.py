"""Local paths as Spark takes them: differently for writing and for reading."""

from __future__ import annotations

import re
from pathlib import Path


def write_path(path: Path | str) -> str:
    """The address of one local file or directory for Spark to write.

    With the scheme, because a path without one belongs to the cluster's default file system; not
    percent-encoded, because Hadoop does not decode it.
    """
    return f"file://{path}"


def read_path(path: Path | str) -> str:
    """The address of one local file or directory for Spark to read, where Hadoop looks for patterns."""
    return write_path(re.sub(r"([\\*?\[\]{}])", r"\\\1", str(path)))
