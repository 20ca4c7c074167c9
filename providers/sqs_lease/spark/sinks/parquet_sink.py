"""A directory of plain Parquet files: each batch appears in it once, as one directory, by one rename.

Layout of a table::

    <path>/ingested_batch=000000000012-3f9a2c1e/part-*.parquet     the batches, by their numbers in the ledger
    <path>/_sqs_lease/ledger                                       the message ids
    <path>/_sqs_lease/columns/000001.json                          the columns, one more file for each widening
    <path>/_sqs_lease/staged/<batch>/<try>                         rows that are not in the table yet
    <path>/_sqs_lease/applied/<ledger>-<number>                    the mark that the newest batch is in the table,
                                                                   unless its rows are still staged

Spark, pyarrow and DuckDB's ``*/*.parquet`` ignore names that begin with ``_``. A reader that lists the directory while
a batch comes in sees the whole batch or nothing of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from sqs_lease.spark.arguments import require_path
from sqs_lease.spark.batch_parts import BatchParts
from sqs_lease.spark.columns import PARQUET_COLUMNS
from sqs_lease.spark.errors import SchemaError, TableError
from sqs_lease.spark.ledger import Ledger
from sqs_lease.spark.places import OURS, Place
from sqs_lease.spark.schemas import arrow_schema, require_plain, without_case
from sqs_lease.spark.sinks.differences import differences, misfits, require_fit, require_unchanged
from sqs_lease.spark.sinks.sink import Rest, Staged
from sqs_lease.spark.sinks.staging import Staging, Written, stage_directory
from sqs_lease.spark.sinks.write_ahead import Application, AppliedMarks, WriteAheadTable

(NUMBER_COLUMN,) = PARQUET_COLUMNS

_STAGED: Final = f"{OURS}/staged"
# Each failed try means that another driver widened the table; so many in a row mean that something is wrong.
_WIDENING_TRIES: Final = 100


@dataclass(frozen=True, slots=True)
class ParquetSink:
    """A directory of Parquet files on a local or shared file system, for tools that read no table format.

    Records are only added: a directory of files cannot change rows. Use a Delta table for upserts. You may compact or
    remove batches at any time, as whole directories ``ingested_batch=...``; the ledger still knows their messages.

    Attributes:
        path: The directory, which the driver and all executors reach by this path; it is created if it does not exist.
            It cannot be on S3 or another object store, because these cannot rename.
    """

    path: str | Path

    def __post_init__(self) -> None:
        require_path(self.path, "the path of the table")
        if "://" in str(self.path):
            raise TableError(
                f"{self.path} is not a directory: give the path of one on a file system that the driver and all "
                "executors share, or ingest into a Delta table"
            )

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> WriteAheadTable:
        """See :meth:`.sink.Sink.open`."""
        table = ParquetTable.opened(self.path, columns, widen=widen)
        return WriteAheadTable.of(table, Ledger(table.root / OURS / "ledger"))


@dataclass(frozen=True, slots=True)
class ParquetTable:
    """The open directory, without its ledger: see :class:`.write_ahead.TargetTable`."""

    root: Path
    columns: StructType

    @classmethod
    def opened(cls, path: str | Path, columns: StructType, *, widen: bool) -> ParquetTable:
        """See :meth:`.write_ahead.Target.open`."""
        require_plain(columns, "a directory of Parquet files cannot store")
        for name in columns.names:
            if without_case(name) == NUMBER_COLUMN:
                raise SchemaError(f"the schema has a column {name!r}, which is reserved for batches: rename it")
        table = cls(Path(path).absolute(), columns)
        try:
            _Columns(table.root).require(columns, widen=widen)
        except OSError as error:
            raise table.place.unusable("cannot be opened", error) from error
        return table

    def require_fit(self) -> None:
        """See :class:`.write_ahead.CheckedTarget`."""
        try:
            _, stored = _Columns(self.root).newest()
        except OSError as error:
            raise self.place.unusable("cannot be read", error) from error
        if stored is None:
            raise TableError(f"table {self.root} is gone: it was removed while it was used")
        require_unchanged(str(self.root), misfits(stored, self.columns))

    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        """See :meth:`.sink.Table.stage`."""
        return self._staged(batch_id, lambda staging: staging.write(rows))

    def stage_parts(self, spark: SparkSession, parts: BatchParts, rest: Rest, batch_id: str) -> Staged:
        """See :class:`.sink.PartsTable`."""
        return self._staged(batch_id, lambda staging: staging.write_parts(spark, parts, rest))

    def apply(self, location: str, application: Application) -> int | None:
        """See :meth:`.write_ahead.TargetTable.apply`."""
        directory = self.root / f"{NUMBER_COLUMN}={application.number:012d}-{application.ledger_id[:8]}"
        staged = Path(location)
        try:
            waits = staged.exists()
            if not waits and self._marks.has(application):
                return None
            if not waits and not directory.exists():
                raise TableError(
                    f"the rows of batch {application.batch_id}, which the ledger has admitted, are gone from "
                    f"{location}: restore them, or ingest into a new directory"
                )
            # The mark comes before the rename. After the rename the user may move the batch away, and only the mark
            # says that it was there.
            self._marks.add(application)
            if waits and not directory.exists():
                with suppress(FileNotFoundError):  # another process did the same at this moment
                    staged.rename(directory)
                _flush(self.root)
            self._marks.remove_old_tries(_STAGED, application)
        except OSError as error:
            raise self.place.unusable("cannot be written", error) from error
        return None

    def version(self) -> int | None:
        """Return None: a directory has no versions."""
        return None

    def discard(self, location: str) -> None:
        """See :meth:`.write_ahead.TargetTable.discard`."""
        self.place.remove(str(Path(location).relative_to(self.root)))

    def _staged(self, batch_id: str, write: Callable[[Staging], Written]) -> Staged:
        root = self.root / _STAGED
        directory, message_ids = stage_directory(root, batch_id, arrow_schema(self.columns), write)
        try:
            for file in directory.iterdir():
                _flush(file)
            _flush(directory)
        except BaseException:
            self.discard(str(directory))
            raise
        return Staged(str(directory), message_ids)

    @property
    def place(self) -> Place:
        """The directory."""
        return Place(str(self.root))

    @property
    def _marks(self) -> AppliedMarks:
        return AppliedMarks(self.place, f"{OURS}/applied")


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of a table: numbered files, of which the last one counts."""

    root: Path

    def require(self, columns: StructType, *, widen: bool) -> None:
        """Compare columns with the table's; write them if there is no table, or if it must be widened."""
        for _ in range(_WIDENING_TRIES):
            number, stored = self.newest()
            if stored is None:
                self._require_empty()
                wanted = columns
            else:
                require_fit(str(self.root), differences(stored, columns, widen=widen))
                added = [StructField(one.name, one.dataType) for one in columns.fields if one.name not in stored.names]
                wanted = StructType([*stored.fields, *added])
            if wanted == stored or self._publish(number + 1, wanted):
                return
        raise TableError(f"the columns of table {self.root} changed {_WIDENING_TRIES} times while it was opened")

    def newest(self) -> tuple[int, StructType | None]:
        """Return the number of the last file and the columns in it; 0 and None if there is no table."""
        files = sorted((self.root / OURS / "columns").glob("[0-9]*.json"))
        if not files:
            return 0, None
        return int(files[-1].stem), StructType.fromJson(json.loads(files[-1].read_text("utf-8")))

    def _publish(self, number: int, columns: StructType) -> bool:
        """Write a file that does not exist yet; False if another process was faster."""
        directory = self.root / OURS / "columns"
        directory.mkdir(parents=True, exist_ok=True)
        partial = directory / f".{uuid4().hex}"
        partial.write_text(columns.json(), "utf-8")
        try:
            _flush(partial)
            os.link(partial, directory / f"{number:06d}.json")
        except FileExistsError:
            return False
        finally:
            partial.unlink()
        return True

    def _require_empty(self) -> None:
        if self.root.exists() and not self.root.is_dir():
            raise TableError(f"{self.root} is a file: give the path of a directory for the table")
        has_others = self.root.is_dir() and any(entry.name != OURS for entry in self.root.iterdir())
        # Another driver may have created the table and stored a batch a moment ago.
        if has_others and self.newest()[1] is None:
            raise TableError(
                f"{self.root} has files in it that were not ingested: give the path of a directory that is empty or "
                "does not exist"
            )


def _flush(path: Path) -> None:
    """Make a file, or the names in a directory, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
