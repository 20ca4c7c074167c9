"""A table that Spark itself writes, in any format: rows wait beside its ledger, and one statement takes them.

There are two ways into such a table. If the table asks for nothing but files (no partitions, no upsert, no rules of its
own), the staged files are put beside the table's own and named in one commit, so that no row is written twice. In all
other cases Spark reads the staged files and writes the rows: the table format itself then applies its partitions,
merges and rules. The subclasses decide, for Delta in :mod:`.native_delta_sink` and for Iceberg in :mod:`.iceberg_sink`.
"""

from __future__ import annotations

import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Final, Self
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake.exceptions import DeltaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import StructType

from sqs_lease.spark.batch_parts import BatchParts
from sqs_lease.spark.columns import MESSAGE_ID
from sqs_lease.spark.errors import TableError
from sqs_lease.spark.paths import read_parquet
from sqs_lease.spark.places import Place
from sqs_lease.spark.schemas import arrow_schema, nullable, quoted
from sqs_lease.spark.sinks.differences import differences, misfits, require_fit, require_taken, require_unchanged
from sqs_lease.spark.sinks.row_rules import DoubtfulDirectories, RowRequirements, Rule, judged
from sqs_lease.spark.sinks.sink import Rest, Staged
from sqs_lease.spark.sinks.staging import Staging, Written, new_try, nothing_left, stage_directory
from sqs_lease.spark.sinks.table_sql import add_columns, create_table, partition
from sqs_lease.spark.sinks.write_ahead import Application, AppliedMarks
from sqs_lease.spark.spark_errors import SPARK_ERRORS, first_line
from sqs_lease.spark.waits import while_contended

_STAGED: Final = "_staged"
_S3A: Final = re.compile("^s3://")
_NOTHING_THERE: Final = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")
# Texts of Delta and Iceberg after a concurrent write, and of Spark if that write was this very batch, whose staged rows
# were then removed.
_COLLISIONS: Final = ("Concurrent", "CommitFailed", "Cannot fast-forward", "FILE_NOT_EXIST")


def is_empty(location: str) -> bool:
    """Whether a location has no rows: there need not be a file then, and the table has nothing to take."""
    return location.endswith("#0")


@dataclass(frozen=True, slots=True)
class StagedParquet:
    """One file of staged rows, in a directory that all share.

    Attributes:
        path: Its path. Two staged files never have the same name.
        footer: Its Parquet footer.
    """

    path: Path
    footer: pq.FileMetaData

    def put_into(self, directory: Path) -> Path:
        """Put the file into another directory as well, under its own name. If it is there already, nothing happens.

        The result is a second link to the same bytes, or a copy if the file system has no links, so it stays when the
        staged file is removed.

        Raises:
            OSError: The file cannot be put there.
        """
        target = directory / self.path.name
        if target.exists():
            return target
        directory.mkdir(parents=True, exist_ok=True)
        try:
            os.link(self.path, target)
        except OSError:
            copied = directory / f".{uuid4().hex}-{target.name}"
            shutil.copyfile(self.path, copied)
            copied.replace(target)
        # Clean-ups remove old files that the table does not have, and these rows may have waited for a long time.
        os.utime(target)
        return target


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows that wait beside a ledger until the table has taken them, and the marks of those that it took.

    A batch's rows are Parquet files below ``_staged`` in the ledger's directory. When the table has them, a mark is
    written, and only then they are removed. So rows that are missing either have a mark, or were removed by a user.
    Spark writes and reads the rows; everything else goes through the ledger's own file system.
    """

    spark: SparkSession
    place: Place

    def write(self, rows: DataFrame, batch_id: str) -> Staged:
        """See :meth:`.sink.Table.stage`. The location ends with the number of rows."""
        if self.place.is_local:
            return self.write_files(batch_id, arrow_schema(rows.schema), lambda staging: staging.write(rows))
        directory = f"{self.directory}/{new_try(batch_id)}"
        try:
            rows.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(directory)
            written = read_parquet(self.spark, directory, f"{MESSAGE_ID} STRING").toArrow()
        except BaseException:
            self._remove(directory)
            raise
        message_ids = written[MESSAGE_ID].cast(pa.string())
        return Staged(f"{directory}#{len(message_ids)}", message_ids)

    def write_files(
        self,
        batch_id: str,
        schema: pa.Schema,
        write: Callable[[Staging], Written],
        is_left: Callable[[pa.Table], pa.ChunkedArray] = nothing_left,
    ) -> Staged:
        """Stage rows as :meth:`write` does, in a directory that tasks reach: see :func:`.staging.stage_directory`."""
        directory, message_ids = stage_directory(Path(self.directory), batch_id, schema, write, is_left)
        return Staged(f"{directory}#{len(message_ids)}", message_ids)

    def read(self, location: str) -> DataFrame | None:
        """Read the rows at a location; None if some of them are missing.

        Args:
            location: The location that :meth:`write` returned, here or in another process.
        """
        directory, _, count = location.rpartition("#")
        try:
            rows = read_parquet(self.spark, directory)
            # Spark answers this from the footers.
            found = rows.count()
        except AnalysisException as error:
            if error.getCondition() in _NOTHING_THERE:
                return None
            raise
        return rows if found == int(count) else None

    def files(self, location: str) -> Sequence[StagedParquet] | None:
        """Return the files at a location; None if some are missing, or if only Spark can reach them.

        Raises:
            OSError: A file cannot be read.
        """
        if not self.place.is_local:
            return None
        directory, _, count = location.rpartition("#")
        found = [StagedParquet(path, pq.read_metadata(path)) for path in sorted(Path(directory).glob("*.parquet"))]
        return found if sum(one.footer.num_rows for one in found) == int(count) else None

    def remove(self, location: str) -> None:
        """Remove rows that the table has taken, or that it will never be told to take."""
        self._remove(location.rpartition("#")[0])

    @property
    def directory(self) -> str:
        """The absolute path, or the address in Spark's notation; ``vacuum`` leaves a directory of this name alone."""
        # Spark's name for S3 is that of Hadoop's file system.
        return f"{_S3A.sub('s3a://', self.place.uri)}/{_STAGED}"

    @property
    def marks(self) -> AppliedMarks:
        """The marks of taken applications. If a process was killed, the table may have taken one without a mark."""
        return AppliedMarks(self.place, f"{_STAGED}/applied")

    def _remove(self, directory: str) -> None:
        self.place.remove(f"{_STAGED}{directory.removeprefix(self.directory)}")


@dataclass(frozen=True, slots=True)
class SparkTable(ABC):
    """The open table: see :class:`.write_ahead.TargetTable`.

    Attributes:
        spark: The session.
        name: The table's name, quoted.
        upsert_by: The key columns; empty to append.
        staged: The rows that wait.
        columns: The columns that are written.
        requirements: The requirements for its rows when it was opened.
        own: Locations that this object staged, and that no other process can have taken.
    """

    spark: SparkSession
    name: str
    upsert_by: tuple[str, ...]
    staged: StagedRows
    columns: StructType
    requirements: RowRequirements = field(default_factory=RowRequirements, kw_only=True)
    own: set[str] = field(default_factory=set, kw_only=True)

    format_name: ClassVar[str]
    """The format's name in ``USING``."""

    needs: ClassVar[str]
    """The jars and settings of a session that writes such a table, for error texts."""

    def prepared(self, partition_by: Sequence[str], *, widen: bool) -> Self:
        """Create the table if it does not exist, compare its columns, add missing ones, and read its requirements.

        Raises:
            SchemaError: The table has other columns, or cannot have these.
            TableError: The table cannot be used.
        """
        wanted = self._as_stored(self.columns)
        stored = self._columns_or_none()
        if stored is None:
            partitions = [partition(text, self.columns) for text in partition_by]
            statement = create_table(self.name, wanted, using=self.format_name, partition_by=partitions)
            try:
                self.spark.sql(statement).collect()
            except SPARK_ERRORS as error:
                # Another process may be creating it at this moment.
                if self._columns_or_none() is None:
                    raise self.unusable("cannot be created", error) from error
            stored = self._columns()
        require_fit(self.name, differences(stored, wanted, widen=widen))
        missing = [column for column in wanted.fields if column.name not in stored.names]
        if missing:
            try:
                self.spark.sql(add_columns(self.name, StructType(missing))).collect()
            except SPARK_ERRORS as error:
                if not set(wanted.names) <= set(self._columns().names):
                    raise self.unusable("cannot take more columns", error) from error
        return replace(self, requirements=self._read_requirements())

    def require_fit(self) -> None:
        """See :class:`.write_ahead.CheckedTarget`."""
        now = self._read_requirements()
        # No row was checked against rules that were added meanwhile.
        tests = [name for name, test in now.tests.items() if self.requirements.tests.get(name) != test]
        directories = [f"partitions by {name}" for name in now.directories if name not in self.requirements.directories]
        differs = misfits(now.columns, self._as_stored(self.columns))
        require_unchanged(self.name, differs + [f"it now has {rule}" for rule in (*tests, *directories)])

    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        """See :meth:`.write_ahead.TargetTable.stage`."""
        return self._noted(self.staged.write(rows, batch_id))

    def stage_parts(self, spark: SparkSession, parts: BatchParts, rest: Rest, batch_id: str) -> Staged | None:
        """See :class:`.sink.PartsTable`."""
        # If the table has rules of its own, Spark must check every row. Some places can be reached only by Spark.
        if self.requirements.tests or not self.staged.place.is_local:
            return None
        doubtful = DoubtfulDirectories.of(self.columns, self.requirements.directories)
        schema = arrow_schema(self.columns) if self.requirements.file_schema is None else self.requirements.file_schema
        staged = self.staged.write_files(
            batch_id, schema, lambda staging: staging.write_parts(spark, parts, rest), doubtful
        )
        return self._noted(staged)

    def _noted(self, staged: Staged) -> Staged:
        self.own.add(staged.location)
        return staged

    def judged(self, rows: DataFrame, reason: str) -> DataFrame:
        """See :class:`.sink.JudgingTable`."""
        tests = [(name, F.expr(test)) for name, test in self.requirements.tests.items()]
        stored = self.requirements.columns
        return judged(rows, reason, stored, [*tests, *self._directory_rules(stored, self.requirements.directories)])

    def apply(self, location: str, application: Application) -> int | None:
        """See :meth:`.write_ahead.TargetTable.apply`."""
        try:
            with while_contended(f"table {self.name}") as writers:
                while not is_empty(location) and not self.staged.marks.has(application):
                    before = None
                    try:
                        before = self._version()
                        self._take(location, application)
                    except (*SPARK_ERRORS, DeltaError, OSError) as error:
                        if not self._is_for_others(error, before):
                            raise self.unusable("cannot be written", error) from error
                        # The other process may have completed this very batch.
                        self.own.discard(location)
                        writers.pause(self._newest_commit())
                    else:
                        self.staged.marks.add(application)
                        self.staged.marks.remove_old_tries(_STAGED, application)
                        break
        finally:
            self.own.discard(location)
        self.staged.remove(location)
        return self.version()

    def version(self) -> int | None:
        """See :meth:`.write_ahead.TargetTable.version`."""
        try:
            return self._version()
        except SPARK_ERRORS as error:
            raise self.unusable("cannot be read", error) from error

    def discard(self, location: str) -> None:
        """See :meth:`.write_ahead.TargetTable.discard`."""
        self.staged.remove(location)

    def unusable(self, what: str, error: Exception) -> TableError:
        """Make the error that says what is wrong with the table, and what to check."""
        return TableError(
            f"table {self.name} {what}: {first_line(error)}. Check that the session has {self.needs} (they are named "
            "in sqs_lease.spark.sinks.jars), and may write there"
        )

    @abstractmethod
    def _as_stored(self, columns: StructType) -> StructType:
        """Translate columns to those that the format stores.

        Raises:
            SchemaError: The format cannot store one of them.
        """

    @abstractmethod
    def _read_requirements(self) -> RowRequirements:
        """Read what the table requires of its rows now.

        Raises:
            SchemaError: The table does not take a column that is written.
            TableError: The table cannot be read, or cannot be written in this way.
        """

    @abstractmethod
    def _directory_rules(self, stored: StructType, names: Sequence[str]) -> Iterator[Rule]:
        """Yield the rules that strings can be names of directories.

        Args:
            stored: The table's columns.
            names: The columns whose values name directories.
        """

    @abstractmethod
    def _take(self, location: str, application: Application) -> None:
        """Take staged rows, if the table does not have them yet.

        Raises:
            SPARK_ERRORS, DeltaError, OSError: It did not take them. Another process may have written it meanwhile.
        """

    @abstractmethod
    def _version(self) -> int | None:
        """Read the table's version."""

    @abstractmethod
    def _newest_commit(self) -> str:
        """Return what is known of the last writer."""

    def _rows(self, location: str, application: Application) -> DataFrame | None:
        """Read staged rows, with all columns of the table; None if the table has taken them meanwhile.

        Raises:
            TableError: The rows are gone, or the table was changed and would convert them.
        """
        rows = self.staged.read(location)
        if rows is None:
            if self.staged.marks.has(application):
                return None
            raise TableError(
                f"table {self.name}: the rows of batch {application.batch_id}, which was admitted, have gone from "
                f"{location.rpartition('#')[0]}. Only ingestion may remove files there: restore them, or start "
                "a new table with a new ledger"
            )
        stored = self._columns()
        # Staged files do not say which columns are NOT NULL; the table itself checks that.
        require_taken(self.name, misfits(nullable(stored), self._as_stored(rows.schema)))
        lacking = [F.lit(None).cast(one.dataType).alias(one.name) for one in stored if one.name not in rows.columns]
        return rows.select(*map(quoted, rows.columns), *lacking)

    def _is_for_others(self, error: Exception, before: int | None) -> bool:
        """Whether the write failed because another process wrote the table."""
        if any(sign in str(error) for sign in _COLLISIONS):
            return True
        try:
            return self._version() != before
        except SPARK_ERRORS:
            return False

    def _columns(self) -> StructType:
        return self.spark.table(self.name).schema

    def _location(self) -> str:
        described = self.spark.sql(f"DESCRIBE TABLE EXTENDED {self.name}").where("col_name = 'Location'").collect()
        # The last row, because a column of the table may have the same name.
        location: str = described[-1]["data_type"]
        return location

    def _columns_or_none(self) -> StructType | None:
        try:
            return self._columns()
        except AnalysisException:
            # The table may exist and be unreadable. Then creating it fails, and that error says why.
            return None
