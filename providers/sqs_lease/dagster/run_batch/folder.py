"""A batch that several processes work on: a directory with its messages, and a report of each piece of work.

The files of a batch, all directly in its directory:

- ``messages.parquet``: the messages, a manifest (``sqs_lease/batch_files/manifest.py``);
- ``work-<name>-<digest>.json``: one for each *piece of work* (a step of a run) that began to work on the messages: the
  messages that it failed, and the exception that ended it, if any. Each is written by one process at a time.

The holder of the leases may keep files of its own beside them (:meth:`BatchFolder.put`). The files above have no
receipt handles, so their readers can neither delete nor release a message.

A *workspace* is a directory with the batches of many runs, which all of their processes share. The executor makes the
directory of its run in it, and a router those of its runs; a later run or evaluation removes what a crash left.

This module does not depend on an orchestrator. All its functions block. The messages need the extra ``manifest``, which
is imported when they are written or read.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote

import msgspec

from sqs_lease.core.failure_rules import exception_names, named_message_ids
from sqs_lease.core.messages import Message

if TYPE_CHECKING:
    from sqs_lease.batch_files.manifest import Manifest


_T = TypeVar("_T")


def check_workspace(workspace: object, owner: str) -> None:
    """Check a workspace when it is set; ``owner`` is what takes it, for the error.

    Raises:
        TypeError: It is not a string.
        ValueError: It is not an absolute path.
    """
    if not isinstance(workspace, str):
        raise TypeError(f"workspace of {owner} must be a string, the absolute path of a directory, not {workspace!r}")
    if not workspace.startswith("/"):
        raise ValueError(
            f"workspace of {owner} must be the absolute path of a directory that all processes of its runs share, not "
            f"{workspace!r}: they may have different working directories. An object store is not possible: messages "
            "and receipt handles are written for their owner alone, and readers of the store could delete the messages"
        )


logger = logging.getLogger(__name__)

_PREFIX: Final = "run-"
_ROUTED: Final = re.compile("[0-9a-f]{32}")

LEFT_OVER_AFTER_SECONDS: Final = 24 * 3600.0
"""Twice the longest time that SQS allows to hold a message: a process that still uses such files has lost them all."""


def run_batch_id(run_id: str) -> str:
    """Name the batch of a run."""
    return f"{_PREFIX}{run_id}"


def run_batch_path(workspace: str, run_id: str) -> str:
    """Return the directory of a run's batch."""
    return f"{workspace.rstrip('/')}/{run_batch_id(run_id)}"


def is_run_batch(path: str) -> bool:
    """Whether the executor received a batch, judging by its path."""
    return path.rstrip("/").rpartition("/")[2].startswith(_PREFIX)


def batches(workspace: str) -> list[BatchFolder]:
    """Return the batches of an executor or a router, judging by their names; an empty list without the directory.

    Raises:
        OSError: The workspace cannot be read.
    """
    paths = listed(Path(workspace))
    return [BatchFolder(path) for path in paths if path.name.startswith(_PREFIX) or _ROUTED.fullmatch(path.name)]


def remove_left_over(workspace: str) -> int:
    """Remove the batches of killed processes and of runs that never came, when all their leases must have ended.

    A directory that cannot be removed is logged, because nothing depends on it.

    Returns:
        The number of removed batches.
    """
    removed = 0
    oldest = time.time() - LEFT_OVER_AFTER_SECONDS
    try:
        for folder in batches(workspace):
            # A directory changes with each file that is written, taken up or removed.
            if folder.path.stat().st_mtime < oldest:
                folder.remove()
                removed += 1
    except OSError as error:
        logger.warning("Old batches in %s cannot be removed (%s: %s)", workspace, type(error).__name__, error)
    return removed


MESSAGES: Final = "messages.parquet"
"""The file with the messages."""

_WORK_PREFIX: Final = "work-"
_WORK_SUFFIX: Final = ".json"
_SHOWN_NAME_CHARACTERS: Final = 100


class BatchFolderError(RuntimeError):
    """Error for a directory of a batch that cannot be read; the text has its path and the remedy."""


@dataclass(frozen=True, slots=True)
class RaisedException:
    """The exception that ended a piece of work. Never its text, which may quote a message's body.

    Attributes:
        errors: The qualified names of its class and those it derives from, itself first.
        message_ids: The ids that ``MessageFailed`` named, alone or in groups; None for other exceptions.
    """

    errors: tuple[str, ...]
    message_ids: tuple[str, ...] | None = None

    @classmethod
    def by(cls, error: BaseException) -> RaisedException:
        """Describe an exception."""
        named = named_message_ids(error)
        return cls(exception_names(error), None if named is None else tuple(map(str, named)))


@dataclass(frozen=True, slots=True)
class PieceOfWork:
    """The report of one piece of work on the messages of a batch.

    Attributes:
        name: Its name, e.g. the key of the step.
        attempt: The attempt, e.g. the run's id and the number of the retry; a later one replaces it.
        is_over: Whether it ended and could report that. If false, it is under way, was killed or interrupted.
        failed: The messages that it failed one by one: reasons by message id.
        raised: The exception that ended it; None without one.
        errors: The classes of the exceptions behind failed messages, by message id, if it gave them.
        done: The messages that it succeeded one by one. A later attempt does not get them.
        released: The messages that it gave back one by one.
    """

    name: str
    attempt: str
    is_over: bool = False
    failed: Mapping[str, str] = field(default_factory=dict)
    raised: RaisedException | None = None
    errors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    done: frozenset[str] = frozenset()
    released: frozenset[str] = frozenset()

    def has_settled(self, message_id: str) -> bool:
        """Whether it succeeded, failed or released a message by its id."""
        return message_id in self.failed or message_id in self.done or message_id in self.released


class BatchFolder:
    """The directory of one batch."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    def create(self, *, batch_id: str, queue_url: str, messages: Sequence[Message]) -> None:
        """Write the messages; the directory is made, for its owner alone.

        Args:
            batch_id: Names the batch.
            queue_url: The queue.
            messages: The messages, in the order of the batch; their receipt handles are left out.

        Raises:
            OSError: It cannot be written.
            ModuleNotFoundError: The extra ``manifest`` is not installed.
        """
        from sqs_lease.batch_files.manifest import write_manifest

        self._make()
        write_manifest(self.path / MESSAGES, batch_id=batch_id, queue_url=queue_url, messages=messages)

    def manifest(self) -> Manifest:
        """Read the messages.

        Raises:
            BatchFolderError: They are not there, or cannot be read.
            ModuleNotFoundError: The extra ``manifest`` is not installed.
        """
        from sqs_lease.batch_files.manifest import ManifestError, read_manifest

        try:
            return read_manifest(self.path / MESSAGES)
        except FileNotFoundError as error:
            raise BatchFolderError(
                f"{self.path / MESSAGES} is not there, seen from {socket.gethostname()}. It is removed when the "
                "batch's messages were settled. If the run that works on them is under way, its steps do not reach "
                "them: steps in other containers or on other machines than the receiver need a shared volume at the "
                "same path"
            ) from error
        except ManifestError as error:
            raise BatchFolderError(str(error)) from error
        except OSError as error:
            raise BatchFolderError(
                f"{self.path / MESSAGES} cannot be read ({type(error).__name__}: {error}): check its permissions"
            ) from error

    def write(self, work: PieceOfWork) -> None:
        """Write the report of a piece of work, in place of its earlier report.

        Raises:
            OSError: It cannot be written.
        """
        # The names in the file are those of the class.
        self.put(_file_name(work.name), msgspec.json.encode(work, order="deterministic"))

    def read(self, name: str) -> PieceOfWork | None:
        """Return the report of a piece of work; None if it did not begin.

        Raises:
            OSError: It cannot be read.
            BatchFolderError: The file is damaged.
        """
        content = self.get(_file_name(name))
        return None if content is None else self._decoded(_file_name(name), content)

    def pieces(self) -> dict[str, PieceOfWork]:
        """Return the reports of all pieces of work that began, by name.

        Raises:
            OSError: A file cannot be read.
            BatchFolderError: A file is damaged.
        """
        works: dict[str, PieceOfWork] = {}
        for path in listed(self.path):
            if path.name.startswith(_WORK_PREFIX) and path.name.endswith(_WORK_SUFFIX):
                work = self._decoded(path.name, path.read_bytes())
                works[work.name] = work
        return works

    def put(self, name: str, content: bytes) -> None:
        """Write a small file. Its readers see all of it, or the file before it.

        Only its owner can read it; a missing directory is made.

        Raises:
            OSError: It cannot be written.
        """
        self._make()
        descriptor, temporary = tempfile.mkstemp(prefix=f".{name[:50]}-", dir=self.path)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(temporary).replace(self.path / name)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def get(self, name: str) -> bytes | None:
        """Return a file's content; None if there is no such file.

        Raises:
            OSError: It cannot be read.
        """
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def decoded(self, name: str, decode: Callable[[bytes], _T]) -> _T | None:
        """Return a file's content, decoded; None if there is no such file, or it is damaged.

        Args:
            name: The file.
            decode: Decodes it. Its error is left out, because its text may quote a receipt handle.

        Raises:
            OSError: It cannot be read, and may be later.
        """
        content = self.get(name)
        try:
            return None if content is None else decode(content)
        except (ValueError, msgspec.DecodeError, RecursionError):
            return None

    def remove(self) -> None:
        """Remove the directory and all its files; it need not be there.

        Raises:
            OSError: It cannot be removed.
        """
        for path in listed(self.path):
            path.unlink(missing_ok=True)
        if self.path.exists():
            self.path.rmdir()

    def discard(self) -> None:
        """Remove the directory, because all of the batch is settled. A failure is logged."""
        try:
            self.remove()
        except OSError as error:
            logger.warning("%s cannot be removed (%s: %s)", self, type(error).__name__, error)

    def _make(self) -> None:
        if not self.path.is_dir():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)

    def _decoded(self, name: str, content: bytes) -> PieceOfWork:
        try:
            return msgspec.json.decode(content, type=PieceOfWork)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise BatchFolderError(
                f"{self.path / name} is not a step's report: was it written by another program?"
            ) from error


def listed(path: Path) -> list[Path]:
    """Return the files of a directory, in the order of their names; an empty list if it does not exist.

    Raises:
        OSError: It cannot be read.
    """
    try:
        return sorted(path.iterdir(), key=str)
    except FileNotFoundError:
        return []


def _file_name(name: str) -> str:
    # Names may be too long for a file, and have any character; the digest tells similar ones apart.
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{_WORK_PREFIX}{quote(name, safe='')[:_SHOWN_NAME_CHARACTERS]}-{digest}{_WORK_SUFFIX}"
