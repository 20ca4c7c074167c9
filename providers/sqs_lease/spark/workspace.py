"""Scratch directories in the workspace: one for each try of a batch, gone when the try is over or dead."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from sqs_lease.spark.errors import WorkspaceError

logger = logging.getLogger(__name__)

_PREFIX: Final = "try-"
_LOCK: Final = "lock"
_OWN: Final = "sqs-lease-batches-"


@contextmanager
def scratch_directory(workspace: str | Path | None) -> Iterator[Path]:
    """Make a directory of one's own, and remove it at the end of the block.

    Its process holds a lock on it. What other processes left there when they were killed has no lock any more, and is
    removed on the way.

    Args:
        workspace: The directory to make it in; it is created where it does not exist. None for one below this machine's
            directory for temporary files.

    Raises:
        WorkspaceError: It cannot be made there, or the workspace is no directory but an address.
    """
    if "://" in str(workspace):
        raise WorkspaceError(
            f"{workspace} is an address: make workspace= a directory that this process and all executors reach by the "
            "same path, for example on NFS, or None where they share none; for a local session, any directory will do. "
            "Tables may lie on S3"
        )
    root = Path(tempfile.gettempdir(), f"{_OWN}{os.getuid()}") if workspace is None else Path(workspace).absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        directory, lock = _locked_directory(root)
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


def _locked_directory(root: Path) -> tuple[Path, int]:
    while True:
        directory = root / f"{_PREFIX}{uuid4().hex}"
        directory.mkdir()
        # Somebody who sweeps may take the directory for a dead one until the lock is there.
        with suppress(FileNotFoundError):
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                # Where the file system has no locks, a dead process's directory looks like a living one's, and stays.
                with suppress(OSError):
                    fcntl.flock(lock, fcntl.LOCK_EX)
                if os.path.samestat((directory / _LOCK).stat(), os.fstat(lock)):
                    return directory, lock
            except BaseException:
                os.close(lock)
                raise


def _sweep(root: Path) -> None:
    for directory in root.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            # Somebody else's, or gone already.
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


def remove_tree(directory: Path) -> None:
    """Remove a directory with all that is in it; where that fails, it is logged as left over, and does no harm."""
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        logger.warning("left over in the workspace: %s (%s)", directory, error)
