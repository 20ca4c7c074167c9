"""Where a Delta table or a ledger lies: a directory or a prefix of a bucket, read and written by the same calls."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.fs as pafs  # type: ignore[import-untyped]
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from sqs_lease.spark.errors import TableError

logger = logging.getLogger(__name__)

LOG: Final = "_delta_log"
OURS: Final = "_sqs_lease"
"""The directory below the table for what is not its data; the underscore keeps vacuum away from it."""

_S3: Final = "s3://"
# How delta-rs shows which error came of which: colours for a terminal, arrows, a line each.
_DECORATION: Final = re.compile("\x1b\\[[0-9;]*m|\u21b3")
_OFF: Final = frozenset({"", "0", "false", "no", "off", "n", "f"})


@dataclass(frozen=True, slots=True)
class Place:
    """Says where one table or ledger lies, in the driver as in the executors.

    Attributes:
        uri: An absolute path, or an address such as ``s3://bucket/prefix``.
        options: What ``deltalake`` calls storage options. They may hold credentials, so they are never shown.
        what: What is there, for errors.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    what: str = "table"

    @classmethod
    def of_ledger(cls, path: str | Path, options: Mapping[str, str] | None = None) -> Place:
        """Take what a user wrote; any address that deltalake knows.

        Raises:
            TableError: delta-rs does not take the path, or options would let two drivers overwrite each other.
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
        """Take what a user wrote of a table.

        Raises:
            TableError: As for :meth:`of_ledger`, or it is an address of another kind than S3.
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
        """A ``pyarrow.fs.FileSystem`` whose paths are relative to the place."""
        if self.is_local:
            return pafs.SubTreeFileSystem(self.uri, pafs.LocalFileSystem())
        return pafs.PyFileSystem(ObjectStore(self.uri, dict(self.options)))

    def entries(self, directory: str) -> list[Any]:
        """What is in a directory of the place, as ``pyarrow.fs.FileInfo``; nothing where there is no such directory.

        Raises:
            OSError: It cannot be listed.
        """
        try:
            return list(self.file_system().get_file_info(pafs.FileSelector(directory, allow_not_found=True)))
        except FileNotFoundError:
            # Arrow looks a second time at what it could not list, and another driver made the directory in between.
            return []

    def load(self) -> DeltaTable | None:
        """What is there, as it is now; None where there is nothing.

        Raises:
            TableError: It cannot be read.
        """
        if self.is_local and Path(self.uri).is_file():
            raise TableError(f"{self.uri} is a file: give the path of a directory for the table")
        try:
            return DeltaTable(self.uri, storage_options=dict(self.options) or None)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise self.unusable("cannot be read", error) from error

    def existing(self, *, was_there: bool = False) -> DeltaTable:
        """What is there, as it is now.

        Raises:
            TableError: There is nothing, whether or not there was something before; or it cannot be read.
        """
        table = self.load()
        if table is None and was_there:
            raise TableError(f"{self} is gone: somebody removed it while it was used")
        if table is None:
            raise TableError(f"there is no {self.what.removeprefix('the ')} at {self.uri}")
        return table

    def create(
        self, schema: Schema, *, partition_by: Sequence[str], configuration: Mapping[str, str | None] | None = None
    ) -> None:
        """Create what is there, unless somebody else does at this moment.

        Raises:
            TableError: It cannot be created.
        """
        try:
            DeltaTable.create(
                self.uri,
                schema,
                mode="ignore",
                partition_by=list(partition_by),
                configuration=configuration,
                storage_options=dict(self.options) or None,
                # With retries, two processes that create it at once both succeed, the second on top of the first.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError:
            logger.info("%s was created by somebody else at this moment", self)
        except (DeltaError, OSError) as error:
            raise self.unusable("cannot be created", error) from error

    def require_empty(self) -> None:
        """Refuse to make a table where something else is.

        Raises:
            TableError: There are files, or the place cannot be looked at.
        """
        try:
            found = self.entries("")
        except (DeltaError, OSError) as error:
            raise self.unusable("cannot be looked at", error) from error
        # Another driver may be creating the table at this moment, or have done so a moment ago.
        if any(entry.base_name not in {LOG, OURS} for entry in found) and self.load() is None:
            raise TableError(
                f"{self.uri} has files in it, but is no Delta table: give the path of a table, or of a "
                "directory that is empty or does not exist"
            )

    def unusable(self, what: str, error: Exception) -> TableError:
        """The error that says what is wrong with it, and what to look at."""
        reached = (
            "that it is whole, that this process may read and write there, and that the disk is not full"
            if self.is_local
            else "that the bucket exists, that its region and endpoint are right (storage_options or the environment), "
            "and that this process has credentials for it"
        )
        said = " ".join(_DECORATION.sub(" ", str(error)).split())
        return TableError(f"{self} {what} ({said}): check {reached}")

    def remove(self, directory: str) -> None:
        """Remove files that no table has. They do no harm where that fails, so it must not fail the batch."""
        try:
            self.file_system().delete_dir(directory)
        except FileNotFoundError:
            # Nothing was written yet, or another try of the same batch was committed and has tidied up.
            return
        except (DeltaError, OSError) as error:
            logger.warning("left over, and not part of the table: %s/%s (%s)", self.uri, directory, error)
        if self.is_local:
            # The batch's directory stays while other tries have theirs in it.
            with suppress(OSError):
                Path(self.uri, directory).parent.rmdir()


class ObjectStore(DeltaStorageHandler):
    """The object store as delta-rs sees it: same options, same credentials, same errors."""

    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> Any:
        """A stream for one file, which takes what Arrow writes."""
        return pa.PythonFile(_ByteStream(self._handler.open_output_stream(path, metadata)), mode="w")


class _ByteStream:
    """Hands on bytes: Arrow writes large pieces as buffers, which delta-rs's streams do not take."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, data: Any) -> int:
        return int(self._stream.write(bytes(data)))


def _require_safe(options: Mapping[str, str]) -> None:
    """Refuse settings by which S3 would take a commit over an existing one."""
    inherited = [(name, value) for name, value in os.environ.items() if name.startswith("AWS_")]
    for name, value in [*inherited, *options.items()]:
        plain = name.lower().removeprefix("aws_")
        if plain in {"s3_allow_unsafe_rename", "allow_unsafe_rename"} and value.lower() not in _OFF:
            raise TableError(f"{name} is set, with which two drivers can overwrite each other's commits: remove it")
        if plain == "conditional_put" and value.lower() != "etag":
            raise TableError(
                f"{name} is set to something else than etag, and a commit could then overwrite another: remove it"
            )
