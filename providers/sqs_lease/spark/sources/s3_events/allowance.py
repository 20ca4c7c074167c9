"""Limits for one message while its objects are read: bytes, rows, seconds, and room for temporary files.

The sender of a message, or the writer of an object, chooses the content of the object: a few kilobytes can stand for a
terabyte. So everything is counted *before* it is stored, against limits of two kinds:

- Each message has an :class:`Allowance`. A message that is over it is rejected, with the name of the limit, and the
  others go on.
- A :class:`Spool` is shared by the messages that one task works on at the same time. If it has no room for one more
  message, that message is not at fault: it is put aside, and read again alone. So a message never waits for another one
  while it holds room itself, and a task's temporary files never grow beyond the spool.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from threading import Lock
from types import TracebackType
from typing import Any, Final

_IN_MEMORY_BYTES: Final = 2 * 1024 * 1024


class OverAllowanceError(ValueError):
    """A message is over one of its limits; the text names the limit."""


class SpoolFullError(Exception):
    """There is no room for a message besides those that are being read; alone it may fit."""


class Spool:
    """Room for the temporary files of one task, shared by its threads.

    Args:
        most_bytes: The size of the room.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes: Final = most_bytes
        self._used = 0
        self._lock = Lock()

    @property
    def used(self) -> int:
        """The number of bytes that are taken."""
        return self._used

    def take(self, size: int) -> None:
        """Take room.

        Raises:
            SpoolFullError: There is not so much room.
        """
        with self._lock:
            if self._used + size > self.most_bytes:
                raise SpoolFullError
            self._used += size

    def give_back(self, size: int) -> None:
        """Give back room that was taken."""
        with self._lock:
            self._used -= size


class Allowance:
    """The rest of the limits of one message. One thread uses it.

    Args:
        fetched: The most bytes from S3, for all its objects together.
        content: The most bytes after decompression.
        rows: The most rows.
        seconds: The longest time for everything, from now.
        spool: The room for its temporary files; one message may fill all of it.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        *,
        fetched: int,
        content: int,
        rows: int,
        seconds: float,
        spool: Spool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetched = self._fetched_left = fetched
        self._content = self._content_left = content
        self._rows = self._rows_left = rows
        self._seconds = seconds
        self._ends_at = clock() + seconds
        self._clock = clock
        self._spool = spool
        self._spooled = 0

    def fetch(self, size: int) -> None:
        """Count bytes that come from S3, before they are stored.

        Raises:
            OverAllowanceError: They are too many, or it takes too long.
        """
        self.look_at_the_clock()
        self.require_fetchable(size)
        self._fetched_left -= size

    def require_fetchable(self, size: int) -> None:
        """Check a size that S3 gives before anything is fetched.

        Raises:
            OverAllowanceError: It is too much.
        """
        if size > self._fetched_left:
            raise OverAllowanceError(f"the message's objects have more than {self._fetched} bytes (max_bytes)")

    def decompress(self, size: int) -> None:
        """Count bytes of content after decompression.

        Raises:
            OverAllowanceError: They are too many, or it takes too long.
        """
        self.look_at_the_clock()
        self._content_left -= size
        if self._content_left < 0:
            raise OverAllowanceError(
                f"the message's objects have more than {self._content} bytes after decompression (max_content_bytes)"
            )

    def take_rows(self, count: int) -> None:
        """Count rows, before they are stored.

        Raises:
            OverAllowanceError: They are too many, or it takes too long.
        """
        self.look_at_the_clock()
        self._rows_left -= count
        if self._rows_left < 0:
            raise OverAllowanceError(f"the message's objects have more than {self._rows} rows (max_rows)")

    def look_at_the_clock(self) -> None:
        """Check the time.

        Raises:
            OverAllowanceError: The message takes too long.
        """
        if self._clock() > self._ends_at:
            raise OverAllowanceError(
                f"the message's objects take longer than {self._seconds:g} s to read (max_seconds)"
            )

    def spool(self, size: int) -> None:
        """Take room for temporary files.

        Raises:
            OverAllowanceError: It is more than one message may have.
            SpoolFullError: Other messages have the room at this moment.
        """
        if self._spooled + size > self._spool.most_bytes:
            raise OverAllowanceError(
                f"the message's objects and rows need more than {self._spool.most_bytes} bytes of temporary files "
                "(spool_bytes)"
            )
        self._spool.take(size)
        self._spooled += size

    def unspool(self, size: int) -> None:
        """Give room back."""
        self._spool.give_back(size)
        self._spooled -= size


class SpooledFile(tempfile.SpooledTemporaryFile[bytes]):
    """Temporary file that takes room before each write, and gives it back when it is closed. Small ones are in memory.

    The file never has a name, so other users cannot open it, and a killed process leaves none behind.

    Args:
        allowance: The limits of the message.
    """

    def __init__(self, allowance: Allowance) -> None:
        super().__init__(_IN_MEMORY_BYTES)
        self._allowance = allowance
        self._taken = 0

    def write(self, data: Any) -> int:
        """Write at the end.

        Raises:
            OverAllowanceError, SpoolFullError: As for :meth:`Allowance.spool`.
        """
        size = memoryview(data).nbytes
        self._allowance.spool(size)
        self._taken += size
        return super().write(data)

    def empty(self) -> None:
        """Remove the content."""
        self.seek(0)
        self.truncate()
        self._give_back()

    def close(self) -> None:
        """Remove the file."""
        super().close()
        self._give_back()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _give_back(self) -> None:
        self._allowance.unspool(self._taken)
        self._taken = 0
