"""What one message may cost while its objects are read: bytes, rows, seconds, and room for temporary files.

Whoever may send to a queue, or write to its bucket, chooses what an object holds: some kilobytes can stand for a
terabyte. So everything is counted *before* it is stored, against limits of two kinds:

- An :class:`Allowance` is one message's. What is over it rejects that message by name, and the others go on.
- A :class:`Spool` is shared by the messages that one task works on at the same time. Where it has no room for another
  one beside them, that message is not at fault: it is put aside, and read again alone. So no message waits for another
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
    """A message costs more than one message may; the text names the limit."""


class SpoolFullError(Exception):
    """There is no room for a message beside those that are being read; alone it may fit."""


class Spool:
    """Room for the temporary files of one task, which its threads share.

    Args:
        most_bytes: How much there is.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes: Final = most_bytes
        self._used = 0
        self._lock = Lock()

    @property
    def used(self) -> int:
        """How many bytes are taken."""
        return self._used

    def take(self, size: int) -> None:
        """Take room.

        Raises:
            SpoolFullError: There is not as much.
        """
        with self._lock:
            if self._used + size > self.most_bytes:
                raise SpoolFullError
            self._used += size

    def give_back(self, size: int) -> None:
        """Give room back that was taken."""
        with self._lock:
            self._used -= size


class Allowance:
    """What is left of the limits of one message. It is used by one thread.

    Args:
        fetched: How many bytes may come from S3, for all its objects together.
        content: How many bytes there may be once they are decompressed.
        rows: How many rows there may be.
        seconds: How long all of it may take, from now.
        spool: Where its temporary files find room; a message may fill it alone.
        clock: Says the time in seconds.
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
        """Check a size that S3 says before anything is fetched.

        Raises:
            OverAllowanceError: It is too much.
        """
        if size > self._fetched_left:
            raise OverAllowanceError(f"the message's objects have more than {self._fetched} bytes (max_bytes)")

    def decompress(self, size: int) -> None:
        """Count bytes of content, as they are once they are decompressed.

        Raises:
            OverAllowanceError: They are too many, or it takes too long.
        """
        self.look_at_the_clock()
        self._content_left -= size
        if self._content_left < 0:
            raise OverAllowanceError(
                f"the message's objects have more than {self._content} bytes once they are decompressed "
                "(max_content_bytes)"
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
            OverAllowanceError: It took too long.
        """
        if self._clock() > self._ends_at:
            raise OverAllowanceError(
                f"the message's objects take longer than {self._seconds:g} s to read (max_seconds)"
            )

    def spool(self, size: int) -> None:
        """Take room for temporary files.

        Raises:
            OverAllowanceError: One message may not have as much.
            SpoolFullError: Others have it at this moment.
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
    """A temporary file for which room is taken before each write, and given back at its end. Small ones are in memory.

    It never has a name, so no other user opens it, and a process that is killed leaves none.

    Args:
        allowance: The message's.
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
        """Remove what was written."""
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
