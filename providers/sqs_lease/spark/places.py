"""Location of a table or a ledger: a directory or a prefix of a bucket, read and written by the same calls."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow.fs as pafs  # type: ignore[import-untyped]

from sqs_lease.spark.errors import TableError

logger = logging.getLogger(__name__)

OURS: Final = "_sqs_lease"
"""The directory below the table for our own files; because of the underscore, vacuum leaves it alone."""

_S3: Final = "s3://"
# Delta-rs shows chains of errors with colours for a terminal and arrows, one line for each error.
_DECORATION: Final = re.compile("\x1b\\[[0-9;]*m|\u21b3")
_OFF: Final = frozenset({"", "0", "false", "no", "off", "n", "f"})


@dataclass(frozen=True, slots=True)
class Place:
    """Location of one table or ledger, the same in the driver and in the executors.

    Attributes:
        uri: An absolute path, or an address such as ``s3://bucket/prefix``.
        options: The storage options of ``deltalake``. They may have credentials, so they are never shown.
        what: The kind of thing at this place, for errors.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    what: str = "table"

    @classmethod
    def of_ledger(cls, path: str | Path, options: Mapping[str, str] | None = None) -> Place:
        """Make the place of a ledger from a path or any address that deltalake knows.

        Raises:
            TableError: delta-rs cannot use the path, or an option would let two drivers overwrite each other.
        """
        uri = str(path)
        given = {str(name): str(value) for name, value in (options or {}).items()}
        if "://" in uri:
            if uri.startswith((_S3, "s3a://")):
                _require_safe(given)
            return cls(uri.rstrip("/"), given, "the ledger")
        root = str(Path(uri).absolute())
        if "%" in root:
            raise TableError(f"{root} has a % in it, which delta-rs takes for an escape: use another path")
        return cls(root, given, "the ledger")

    @classmethod
    def of(cls, path: str | Path, options: Mapping[str, str] | None = None) -> Place:
        """Make the place of a table from a path or an address on S3.

        Raises:
            TableError: As for :meth:`of_ledger`, or the address is not on S3.
        """
        uri = str(path)
        if "://" in uri and not uri.startswith(_S3):
            raise TableError(
                f"{uri} is neither a directory nor an address on S3: give the path of a directory on a file system "
                "that the driver and all executors share, or s3://bucket/prefix"
            )
        if options and not uri.startswith(_S3):
            raise TableError(f"{uri} is a directory, and storage_options are for tables on S3: leave them out")
        return replace(cls.of_ledger(path, options), what="table")

    def __str__(self) -> str:
        return f"{self.what} {self.uri}"

    @property
    def is_local(self) -> bool:
        """Whether it is a directory."""
        return "://" not in self.uri

    def file_system(self) -> Any:
        """Return a ``pyarrow.fs.FileSystem`` with paths relative to the place."""
        if self.is_local:
            return pafs.SubTreeFileSystem(self.uri, pafs.LocalFileSystem())
        # Imported only here: Spark's Python workers need this module, but deltalake only for S3.
        from sqs_lease.spark.delta_places import ObjectStore

        return pafs.PyFileSystem(ObjectStore(self.uri, dict(self.options)))

    def entries(self, directory: str) -> list[Any]:
        """List a directory of the place as ``pyarrow.fs.FileInfo``; a missing directory is an empty list.

        Raises:
            OSError: The directory cannot be listed.
        """
        try:
            return list(self.file_system().get_file_info(pafs.FileSelector(directory, allow_not_found=True)))
        except FileNotFoundError:
            # Arrow looks a second time at what it could not list; another driver may make the directory in between.
            return []

    def unusable(self, what: str, error: Exception) -> TableError:
        """Make the error that says what is wrong with the place, and what to check."""
        reached = (
            "that it is whole, that this process may read and write there, and that the disk is not full"
            if self.is_local
            else "that the bucket exists, that its region and endpoint are right (storage_options or the environment), "
            "and that this process has credentials for it"
        )
        reason = " ".join(_DECORATION.sub(" ", str(error)).split())
        return TableError(f"{self} {what} ({reason}): check {reached}")

    def remove(self, directory: str) -> None:
        """Remove files that no table has. A failure is only logged, because such files do no harm."""
        try:
            self.file_system().delete_dir(directory)
        except FileNotFoundError:
            # Nothing was written yet, or another try of the same batch was committed and has cleaned up.
            return
        except Exception as error:  # noqa: BLE001 - it is of many kinds, of pyarrow, deltalake and the system
            logger.warning("left over, and not part of the table: %s/%s (%s)", self.uri, directory, error)
        if self.is_local:
            # The directory of the batch stays while other tries have directories in it.
            with suppress(OSError):
                Path(self.uri, directory).parent.rmdir()


def _require_safe(options: Mapping[str, str]) -> None:
    """Refuse settings with which S3 would let a commit overwrite an existing one."""
    inherited = [(name, value) for name, value in os.environ.items() if name.startswith("AWS_")]
    for name, value in [*inherited, *options.items()]:
        plain = name.lower().removeprefix("aws_")
        if plain in {"s3_allow_unsafe_rename", "allow_unsafe_rename"} and value.lower() not in _OFF:
            raise TableError(f"{name} is set, with which two drivers can overwrite each other's commits: remove it")
        if plain == "conditional_put" and value.lower() != "etag":
            raise TableError(
                f"{name} is set to another value than etag, so that a commit could overwrite another: remove it"
            )
