"""Rate-limited logging: one line for many events, the first line soon, later ones at growing intervals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

GATHERING_SECONDS: Final = 0.5
"""The time for which events of one kind are gathered for the first line."""

LONGEST_GATHERING_SECONDS: Final = 60.0
"""The longest time for which they are gathered while more and more follow."""

CALM_SECONDS: Final = 30.0
"""After this long without events of a kind, the next one is logged soon again."""

_Line = TypeVar("_Line")


class GatheredLog(Generic[_Line]):
    """A log that gathers events of one kind for half a second, and twice as long for each further line.

    So any number of events make seven lines in the first minute, and then one a minute. A line is logged in the context
    of the first event that it is about.

    Args:
        say: Logs one line.
    """

    def __init__(self, say: Callable[[_Line], None]) -> None:
        self._say = say
        self._lines: dict[Hashable, _Line] = {}
        self._waited: dict[Hashable, float] = {}  # how long the last line of a kind that goes on was gathered for

    def line(self, kind: Hashable, new: Callable[[], _Line]) -> _Line:
        """Return the line for one more event, from the event loop.

        Args:
            kind: The kind of the event: events of one kind make one line.
            new: Makes a line without events.
        """
        if (line := self._lines.get(kind)) is None:
            line = self._lines[kind] = new()
            seconds = min(2 * self._waited.get(kind, GATHERING_SECONDS / 2), LONGEST_GATHERING_SECONDS)
            self._waited[kind] = seconds
            asyncio.get_running_loop().call_later(seconds, self._end, kind)
        return line

    def flush(self) -> None:
        """Log all gathered events at once."""
        for kind in tuple(self._lines):
            self._end(kind)

    def _end(self, kind: Hashable) -> None:
        line = self._lines.pop(kind, None)
        if line is not None:
            self._say(line)
            asyncio.get_running_loop().call_later(CALM_SECONDS, self._calm_down, kind)

    def _calm_down(self, kind: Hashable) -> None:
        """Begin with a short time again if no event followed a line."""
        if kind not in self._lines:
            self._waited.pop(kind, None)
