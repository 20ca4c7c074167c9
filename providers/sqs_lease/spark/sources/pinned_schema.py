"""A schema that is inferred once and then stays: a JSON file, as Spark writes schemas, that several drivers share."""

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

from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.paths import write_whole
from sqs_lease.spark.schemas import without_case
from sqs_lease.spark.waits import while_contended

_REMEDY: Final = "put it right, or remove it and the next batch infers the schema again"


@dataclass(frozen=True)
class InferredSchema:
    """Take the schema from the first batch that comes, and keep it.

    The file holds what ``StructType.json()`` gives, so it may also be written by hand beforehand, for example to give
    some columns their types and ``NOT NULL``, and leave others to be added.

    Attributes:
        path: A file in a directory of a file system that all drivers of the table share; the directory is created.
            Drivers that change it at once wait for one another with a lock on ``<path>.lock``.
    """

    path: str | Path

    @property
    def file(self) -> Path:
        """The file, by its absolute path."""
        return Path(self.path).absolute()

    def load(self) -> StructType | None:
        """Read the schema; None where nothing is pinned yet.

        Raises:
            SchemaError: There is a file that holds no schema, or cannot be read.
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
        """Keep a schema, unless there is one.

        Returns:
            The schema that is pinned now: this one, or the one that another driver was faster with.

        Raises:
            SchemaError: The file cannot be written.
        """
        with self._locked():
            pinned = self.load()
            if pinned is None:
                self._write(schema)
            return pinned or schema

    def widen(self, fields: Sequence[StructField]) -> StructType:
        """Add columns at the end, of those fields that are not there yet.

        Returns:
            The schema that is pinned now; of a column that another driver added meanwhile, with that driver's type.

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
        """Keep other drivers out; the system ends the lock of a process that dies."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.with_name(f"{self.file.name}.lock").open("a+", encoding="utf-8") as lock:
                with while_contended(f"the schema {self.file}", SchemaError) as writers:
                    while not _locks(lock):
                        lock.seek(0)
                        writers.pause(f"the lock is held by {lock.read() or 'another driver'}")
                lock.seek(0)
                lock.truncate()
                # For drivers that wait.
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
    """Lock a file, unless another driver has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
