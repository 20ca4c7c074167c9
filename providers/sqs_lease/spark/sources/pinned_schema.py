"""A schema that is inferred once and then stays: a file with Spark's JSON of a schema, which several drivers share.

New fields can only be added to a schema in such a file. A column that was added must be found again by the next batch
and by other drivers, and the text of a schema in a user's code cannot grow. The file is widened first and the table
second, so a process that dies in between leaves nothing to repair.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import IO, Final

from pyspark.sql.types import StructField, StructType

from sqs_lease.spark.arguments import require_path
from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.paths import write_whole
from sqs_lease.spark.schemas import without_case
from sqs_lease.spark.waits import while_contended

_REMEDY: Final = "correct it, or remove it so that the next batch infers the schema again"


@dataclass(frozen=True)
class InferredSchema:
    """A schema that is inferred from the first batch, and kept.

    The file has the text of ``StructType.json()``. You may also write it by hand beforehand, for example to give some
    columns their types and ``NOT NULL``, and leave others to be added.

    Attributes:
        path: A file in a directory of a file system that all drivers of the table share; the directory is created.
            Drivers that change it at once wait for one another with a lock on ``<path>.lock``.
    """

    path: str | Path

    def __post_init__(self) -> None:
        require_path(self.path, "the path of the inferred schema")
        if "://" in str(self.path):
            raise ValueError(
                f"the path of the inferred schema is {self.path}: give a file in a directory that all drivers share"
            )

    @property
    def file(self) -> Path:
        """The absolute path of the file."""
        return Path(self.path).absolute()

    def load(self) -> StructType | None:
        """Read the schema; None if there is none yet.

        Raises:
            SchemaError: The file has something else than a schema, or cannot be read.
        """
        try:
            text = self.file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SchemaError(f"the schema {self.file} cannot be read ({error.strerror or error})") from error
        try:
            return StructType.fromJson(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SchemaError(f"{self.file} is not a Spark schema in JSON: {_REMEDY}") from error

    def pin(self, schema: StructType) -> StructType:
        """Pin a schema, unless there is one.

        Returns:
            The schema that is pinned now: this one, or the one of another driver that was faster.

        Raises:
            SchemaError: The file cannot be written.
        """
        with self._locked():
            pinned = self.load()
            if pinned is None:
                self._write(schema)
            return pinned or schema

    def widen(self, fields: Sequence[StructField]) -> StructType:
        """Add the fields that the schema lacks, as columns at the end.

        Returns:
            The schema that is pinned now. A column that another driver added meanwhile has that driver's type.

        Raises:
            SchemaError: The file is gone or cannot be written, or another driver added a column whose name differs
                in upper and lower case only.
        """
        with self._locked():
            pinned = self.load()
            if pinned is None:
                raise SchemaError(f"the schema {self.file} was removed while a batch used it: run the batch again")
            names = {without_case(name): name for name in pinned.names}
            added = [field for field in fields if field.name not in pinned.names]
            for field in added:
                if other := names.get(without_case(field.name)):
                    raise SchemaError(
                        f"another driver has just added the column {other} to {self.file}, and "
                        f"this batch was about to add {field.name}: run the batch again"
                    )
            if added:
                pinned = StructType([*pinned.fields, *added])
                self._write(pinned)
            return pinned

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the file against other drivers; the system releases the lock of a process that dies."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.with_name(f"{self.file.name}.lock").open("a+", encoding="utf-8") as lock:
                with while_contended(f"the schema {self.file}", SchemaError) as writers:
                    while not _locks(lock):
                        lock.seek(0)
                        writers.pause(f"the lock is held by {lock.read() or 'another driver'}")
                lock.seek(0)
                lock.truncate()
                # Other drivers read this name while they wait.
                lock.write(f"process {os.getpid()} on {gethostname()}")
                lock.flush()
                yield
        except OSError as error:
            raise SchemaError(
                f"the schema cannot be pinned in {self.file} ({error.strerror or error}): give a path in a directory "
                "that this process can write, on a file system that has locks"
            ) from error

    def _write(self, schema: StructType) -> None:
        write_whole(self.file, json.dumps(schema.jsonValue(), indent=2) + "\n")


def _locks(file: IO[str]) -> bool:
    """Lock a file; return False if another driver holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
