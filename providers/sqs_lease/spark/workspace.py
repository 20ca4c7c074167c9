"""Scratch directories in the workspace: one for each try of a batch, gone when the try is over or dead.

Bodies are in them, so they are closed from the moment that they exist. One that only this process uses lies in the
machine's directory for temporary files, where every user may put what they like: it has a name that cannot be guessed,
and mode 0700. One in a workspace that the executors share is closed to all but the owner and, where the owner of the
workspace opened that for its group, the group: executors may run as another user, and some sinks let them write there
(:mod:`.sinks.staging`). What is in a directory need not be closed by itself, as only those reach it who may enter the
directory.

What killed processes left is removed only where it is a directory of this user's own, and no link.
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

from sqs_lease.spark.errors import WorkspaceError

logger = logging.getLogger(__name__)

_PREFIX: Final = "try-"
_LOCK: Final = "lock"
_OWN: Final = "sqs-lease-batch-"
_OWNER: Final = 0o700
_GROUP: Final = 0o070


@contextmanager
def scratch_directory(workspace: str | Path | None) -> Iterator[Path]:
    """Make a directory of one's own, and remove it at the end of the block.

    Its process holds a lock on it. What other processes left there when they were killed has no lock any more, and is
    removed on the way.

    Args:
        workspace: The directory to make it in; it is created where it does not exist, with mode 0700. What its group
            may do in it (read, write, enter), the group may do in the new directory, too; other users never may. None
            for this machine's directory for temporary files, with mode 0700.

    Raises:
        WorkspaceError: It cannot be made there, or the workspace is no directory but an address.
    """
    if "://" in str(workspace):
        raise WorkspaceError(
            f"{workspace} is an address: make workspace= a directory that this process and all executors reach by the "
            "same path, for example on NFS, or None where they share none; for a local session, any directory will do. "
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
        # With mode 0700, and a name that did not exist.
        directory = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        if not is_private:
            directory.chmod(_OWNER | root.stat().st_mode & _GROUP)
        # Another process that sweeps may take the directory for a dead one until the lock is there.
        with suppress(FileNotFoundError):
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                # Where the file system has no locks, a dead process's directory looks like a living one's, and stays.
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
            # Gone already.
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # Alive.
            pass
        else:
            remove_tree(directory)
        finally:
            os.close(lock)


def _is_own(directory: Path) -> bool:
    """Whether it is a directory of this user's, and no link to one."""
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def remove_tree(directory: Path) -> None:
    """Remove a directory with all that is in it; where that fails, it is logged as left over, and does no harm."""
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        logger.warning("left over in the workspace: %s (%s)", directory, error)
