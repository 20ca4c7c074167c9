"""The notes of a worker: a file of JSON, one line for each moment, by the machine's monotonic clock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any


@dataclass(frozen=True)
class Notebook:
    """The notes of one process. The words are those that :class:`tests.rounds.workers.Worker` reads."""

    path: Path

    def ready(self) -> None:
        """The process is about to lease its first batch."""
        self._note("ready")

    def holds(self, ids: list[str], **details: Any) -> None:
        """A block was entered with these messages."""
        self._note("holds", ids=ids, **details)

    def fails(self, message_id: str) -> None:
        """The block fails this message by itself."""
        self._note("fails", id=message_id)

    def ended(self, error: Exception | None) -> None:
        """The block was left."""
        self._note("ended", error=None if error is None else type(error).__name__)

    def _note(self, what: str, **details: Any) -> None:
        append(self.path, {"at": monotonic(), "what": what, **details})


def append(path: Path, line: dict[str, Any]) -> None:
    """Write a line. An error means that it is not there."""
    with path.open("a") as file:
        # On a line of its own, also where a full disk took only a part of the last one.
        file.write("\n" + json.dumps(line) + "\n")


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file of JSON that were written whole."""
    with suppress(FileNotFoundError):
        for line in path.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                parsed = json.loads(line)
                if isinstance(parsed, dict):
                    yield parsed
