"""Scratch directories in the workspace: one for each try of a batch, removed when the try has ended or was killed.

A directory has message bodies in it, so it is closed to other users from its first moment:

- A directory that only this process uses is made among the machine's temporary files, where every user may write. It
  has a name that cannot be guessed, and mode 0700.
- A directory in a workspace that the executors share is open to its owner only. If the owner opened the workspace for
  its group, it is open to the group, too: executors may run as another user, and some sinks let them write there
  (:mod:`.sinks.staging`).

Files in a directory need no mode of their own, because only users who may enter the directory reach them.

**Killed processes.** A process holds a lock on a file in its directory, and the system releases the lock when the
process dies. So the next process can tell a dead directory from a living one. It removes only real directories of its
own user: among the machine's temporary files, another user could put a link there. On a file system without locks, dead
directories stay.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from sqs_lease.spark.arguments import require_path
from sqs_lease.spark.errors import WorkspaceError

logger = logging.getLogger(__name__)

_PREFIX: Final = "try-"
_LOCK: Final = "lock"
_OWN: Final = "sqs-lease-batch-"
_OWNER: Final = 0o700
_GROUP: Final = 0o070


@contextmanager
def scratch_directory(workspace: str | Path | None) -> Iterator[Path]:
    """Make a scratch directory, and remove it at the end of the block. Remove those of killed processes as well.

    Args:
        workspace: The directory to make it in, which is created with mode 0700 if it does not exist. The group gets the
            same rights in the new directory as in this one (read, write, enter); other users never get any. None for
            this machine's directory for temporary files, with mode 0700.

    Raises:
        WorkspaceError: It cannot be made there, or the workspace is an address and not a directory.
    """
    if workspace is not None:
        require_path(workspace, "workspace")
    if "://" in str(workspace):
        raise WorkspaceError(
            f"{workspace} is an address: make workspace= a directory that this process and all executors reach by the "
            "same path, for example on NFS, or None if they share none; for a local session, any directory will do. "
            "Tables may lie on S3"
        )
    root = Path(tempfile.gettempdir()) if workspace is None else Path(workspace).absolute()
    prefix = _PREFIX if workspace is not None else f"{_OWN}{os.getuid()}-"
    try:
        if workspace is not None:
            root.parent.mkdir(parents=True, exist_ok=True)
            root.mkdir(mode=_OWNER, exist_ok=True)
        _sweep(root, prefix)
        directory, lock = _locked_directory(root, prefix, is_private=workspace is None)
    except OSError as error:
        raise WorkspaceError(
            f"the batch cannot be written to {root} ({error.strerror or error}): make workspace= a directory that this "
            "process can write and all executors can read"
        ) from error
    try:
        yield directory
    finally:
        remove_tree(directory)
        os.close(lock)


def _locked_directory(root: Path, prefix: str, *, is_private: bool) -> tuple[Path, int]:
    while True:
        # Makes it with mode 0700, under a name that did not exist.
        directory = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        if not is_private:
            directory.chmod(_OWNER | root.stat().st_mode & _GROUP)
        # Until the lock is there, another process may take the directory for a dead one and remove it.
        with suppress(FileNotFoundError):
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                # Without locks in the file system, a dead directory looks like a living one, and stays.
                with suppress(OSError):
                    fcntl.flock(lock, fcntl.LOCK_EX)
                if os.path.samestat((directory / _LOCK).stat(), os.fstat(lock)):
                    return directory, lock
            except BaseException:
                os.close(lock)
                raise


def _sweep(root: Path, prefix: str) -> None:
    for directory in root.glob(f"{prefix}*"):
        try:
            if not _is_own(directory):
                continue
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError:
            # It is gone already.
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # Its process is alive.
            pass
        else:
            remove_tree(directory)
        finally:
            os.close(lock)


def _is_own(directory: Path) -> bool:
    """Whether it is a directory of this user, and not a link."""
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def remove_tree(directory: Path) -> None:
    """Remove a directory with its content. A failure is only logged, because a directory that stays does no harm."""
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        logger.warning("left over in the workspace: %s (%s)", directory, error)
