"""Keeps two runs of a kind from one directory: a lock file that its holder's process id is written to."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LockedError(RuntimeError):
    """Another process holds the lock.

    Attributes:
        pid: Its process id, as it wrote it down.
    """

    def __init__(self, path: Path, pid: str) -> None:
        super().__init__(f"{path} is locked by the process {pid}")
        self.pid = pid


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock until the block ends, or the process.

    Args:
        path: The lock file; it and its directory are made when they are missing.

    Raises:
        LockedError: Another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise LockedError(path, lock.read()) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield
