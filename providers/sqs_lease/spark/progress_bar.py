"""A line in a terminal or a notebook that says how far an ingestion is, as Spark's own shell does for its stages.

It is written to standard error, over and over at the same place, and removed at the end. Where nobody looks at standard
error (a log file, a pipe, the worker of an orchestrator) there is none.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TextIO

_SHOWN_NAME_CHARACTERS: Final = 24
_BAR_CHARACTERS: Final = 30
_NOTEBOOK_COLUMNS: Final = 100
# What standard error is an object of in a notebook; it says that it is no terminal, and can be written over.
_NOTEBOOK: Final = "ipykernel."


class ProgressBar:
    """One line about one ingestion. It is written by one thread at a time."""

    def __init__(self, name: str, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name if len(name) <= _SHOWN_NAME_CHARACTERS else f"{name[: _SHOWN_NAME_CHARACTERS - 3]}..."
        self._stream = stream
        self._clock = clock
        self._began = clock()
        self._shown = 0

    def show(self, step: str, stages: Sequence[tuple[int, int, int]]) -> None:
        """Write the line anew.

        Args:
            step: What is done now.
            stages: Of each stage that Spark runs its number, how many of its tasks are done, and how many it has.
        """
        done, tasks = sum(stage[1] for stage in stages), sum(stage[2] for stage in stages)
        text = f"{self._name}: {step or 'begins'}"
        if tasks:
            filled = _BAR_CHARACTERS * done // tasks
            bar = ("=" * filled + ">")[:_BAR_CHARACTERS]
            text += f" [{bar:<{_BAR_CHARACTERS}}] {done} of {tasks} tasks"
        self._write(f"{text}, {int(self._clock() - self._began)} s")

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            self._write("")

    def _write(self, text: str) -> None:
        # A line that is wrapped could not be written over.
        text = text[: self._columns() - 1]
        with suppress(OSError, ValueError):
            # The terminal may be gone, or the stream be closed; the ingestion goes on.
            self._stream.write(f"\r{text:<{self._shown}}" + ("" if text else "\r"))
            self._stream.flush()
        self._shown = len(text)

    def _columns(self) -> int:
        return _NOTEBOOK_COLUMNS if _is_notebook(self._stream) else shutil.get_terminal_size().columns


def progress_bar(name: str) -> ProgressBar | None:
    """A bar on standard error; None where that is neither a terminal nor a notebook."""
    stream: TextIO | None = sys.stderr
    # A process without a console has none.
    if stream is None or not (stream.isatty() or _is_notebook(stream)):
        return None
    return ProgressBar(name, stream)


def _is_notebook(stream: TextIO) -> bool:
    return type(stream).__module__.startswith(_NOTEBOOK)
