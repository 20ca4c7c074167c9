"""How objects are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class S3Read:
    """How objects are read.

    Attributes:
        delimiter: What stands between the values of a CSV file.
        row_tag: The name of the elements of an XML document that are records, without a namespace.
        threads: How many messages one task works on at the same time, mostly waiting for S3.
        tasks: How many tasks Spark makes of a batch: its messages are small, and would otherwise all be one task's.
    """

    delimiter: str = ","
    row_tag: str = "row"
    threads: int = 16
    tasks: int = 8

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1:
            raise ValueError(f"delimiter must be one character, not {self.delimiter!r}")
        if not self.row_tag:
            raise ValueError("row_tag is empty: name the elements that are records")
        if min(self.threads, self.tasks) < 1:
            raise ValueError("threads and tasks must be at least 1")

    @classmethod
    def of(cls, given: S3Read | Mapping[str, Any]) -> S3Read:
        """The same, which may be given as a mapping of some attributes."""
        return given if isinstance(given, S3Read) else cls(**given)
