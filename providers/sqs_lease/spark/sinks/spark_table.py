"""A table that Spark itself writes, in whichever format: rows wait beside its ledger, and one statement takes them."""

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
# What Delta and Iceberg say when somebody else wrote the table, and Spark when that was this very batch, whose rows
# were then removed.
_COLLISIONS: Final = ("Concurrent", "CommitFailed", "Cannot fast-forward", "FILE_NOT_EXIST")


def is_empty(location: str) -> bool:
    """Whether no row was staged at a location: nothing may be there then, and a table has nothing to take."""
    return location.endswith("#0")


@dataclass(frozen=True, slots=True)
class StagedParquet:
    """One file of staged rows, in a directory that all share.

    Attributes:
        path: Where it is. No two staged files have the same name.
        footer: Its Parquet footer.
    """

    path: Path
    footer: pq.FileMetaData

    def put_into(self, directory: Path) -> Path:
        """Have it in another directory, too, under its own name; nothing happens where it is there already.

        The file that is staged may be removed afterwards, and the other one stays: it is a second link to the same
        bytes, or a copy where the file system has no such links.

        Raises:
            OSError: It cannot be put there.
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
        # What removes files that the table does not have goes by their age, and these rows may have waited for long.
        os.utime(target)
        return target


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows that wait beside a ledger until the table has taken them, and the marks of those that it took.

    A batch's rows are Parquet files below ``_staged`` in the ledger's directory. When the table has them, that is
    marked beside them, and only then they are removed: so rows that are not there either have their mark, or were
    removed by somebody else. Spark writes and reads the rows; all else is done through the ledger's own file system.
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
        """As :meth:`write`, in a directory that the tasks reach, too: see :func:`.staging.stage_directory`."""
        directory, message_ids = stage_directory(Path(self.directory), batch_id, schema, write, is_left)
        return Staged(f"{directory}#{len(message_ids)}", message_ids)

    def read(self, location: str) -> DataFrame | None:
        """The rows at a location; None where they are not all there any more.

        Args:
            location: What :meth:`write` returned, here or in another process.
        """
        directory, _, count = location.rpartition("#")
        try:
            rows = read_parquet(self.spark, directory)
            # Parquet's footers say it.
            found = rows.count()
        except AnalysisException as error:
            if error.getCondition() in _NOTHING_THERE:
                return None
            raise
        return rows if found == int(count) else None

    def files(self, location: str) -> Sequence[StagedParquet] | None:
        """The files at a location; None where they are not all there, or this process reaches them only by Spark.

        Raises:
            OSError: One cannot be read.
        """
        if not self.place.is_local:
            return None
        directory, _, count = location.rpartition("#")
        found = [StagedParquet(path, pq.read_metadata(path)) for path in sorted(Path(directory).glob("*.parquet"))]
        return found if sum(one.footer.num_rows for one in found) == int(count) else None

    def remove(self, location: str) -> None:
        """Remove rows that the table has taken, or will not be told to take."""
        self._remove(location.rpartition("#")[0])

    @property
    def directory(self) -> str:
        """An absolute path, or an address as Spark takes it: below a name that ``vacuum`` leaves alone."""
        # Spark calls it by the name of the file system that ships with it.
        return f"{_S3A.sub('s3a://', self.place.uri)}/{_STAGED}"

    @property
    def marks(self) -> AppliedMarks:
        """Which applications the table is known to have taken; it may have taken one that nobody could mark."""
        return AppliedMarks(self.place, f"{_STAGED}/applied")

    def _remove(self, directory: str) -> None:
        self.place.remove(f"{_STAGED}{directory.removeprefix(self.directory)}")


@dataclass(frozen=True, slots=True)
class SparkTable(ABC):
    """The open table: see :class:`.write_ahead.TargetTable`.

    Attributes:
        spark: The session.
        name: The table's name, quoted.
        upsert_by: The key's columns; none to append.
        staged: Where rows wait.
        columns: What is written into it.
        requirements: What it required of its rows when it was opened.
        own: What this very object staged, and of which nothing says that somebody else might have taken it.
    """

    spark: SparkSession
    name: str
    upsert_by: tuple[str, ...]
    staged: StagedRows
    columns: StructType
    requirements: RowRequirements = field(default_factory=RowRequirements, kw_only=True)
    own: set[str] = field(default_factory=set, kw_only=True)

    format_name: ClassVar[str]
    """As ``USING`` has it."""

    needs: ClassVar[str]
    """What a session needs to write such a table, for people."""

    def prepared(self, partition_by: Sequence[str], *, widen: bool) -> Self:
        """Create the table if it does not exist, compare its columns, add those that it lacks, and see what it asks.

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
                # Somebody else may be creating it at this moment.
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
        # By what came meanwhile, no row was judged.
        tests = [name for name, test in now.tests.items() if self.requirements.tests.get(name) != test]
        directories = [f"partitions by {name}" for name in now.directories if name not in self.requirements.directories]
        differs = misfits(now.columns, self._as_stored(self.columns))
        require_unchanged(self.name, differs + [f"it has got {rule}" for rule in (*tests, *directories)])

    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        """See :meth:`.write_ahead.TargetTable.stage`."""
        return self._noted(self.staged.write(rows, batch_id))

    def stage_parts(self, spark: SparkSession, parts: BatchParts, rest: Rest, batch_id: str) -> Staged | None:
        """See :class:`.sink.PartsTable`."""
        # Spark has to look at every row where the table has rules of its own; and some places only Spark reaches.
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
                        # It may have been somebody who completed this very batch.
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
        """The error that says what is wrong with the table, and what to look at."""
        return TableError(
            f"table {self.name} {what}: {first_line(error)}. Check that the session has {self.needs} (they are named "
            "in sqs_lease.spark.sinks.jars), and may write there"
        )

    @abstractmethod
    def _as_stored(self, columns: StructType) -> StructType:
        """Columns as the format has them.

        Raises:
            SchemaError: It cannot have one of them.
        """

    @abstractmethod
    def _read_requirements(self) -> RowRequirements:
        """What the table asks of its rows now.

        Raises:
            SchemaError: It does not take a column that is written.
            TableError: It cannot be read, or not be written in this way.
        """

    @abstractmethod
    def _directory_rules(self, stored: StructType, names: Sequence[str]) -> Iterator[Rule]:
        """That texts can be names of directories.

        Args:
            stored: The table's columns.
            names: Those whose values name directories.
        """

    @abstractmethod
    def _take(self, location: str, application: Application) -> None:
        """Take staged rows, if the table does not have them yet.

        Raises:
            SPARK_ERRORS, DeltaError, OSError: It did not. Somebody else may have written it meanwhile.
        """

    @abstractmethod
    def _version(self) -> int | None:
        """The table's version now."""

    @abstractmethod
    def _newest_commit(self) -> str:
        """What is known of the last writer."""

    def _rows(self, location: str, application: Application) -> DataFrame | None:
        """Staged rows with all columns of the table; None where it has taken them meanwhile.

        Raises:
            TableError: They are gone, or the table was changed and would bend them.
        """
        rows = self.staged.read(location)
        if rows is None:
            if self.staged.marks.has(application):
                return None
            raise TableError(
                f"table {self.name}: the rows of batch {application.batch_id}, which was admitted, have gone from "
                f"{location.rpartition('#')[0]}. Nothing but ingestion may remove what is there: restore it, or start "
                "a new table with a new ledger"
            )
        stored = self._columns()
        # Parquet files do not say which columns have no nulls; the table itself looks for them.
        require_taken(self.name, misfits(nullable(stored), self._as_stored(rows.schema)))
        lacking = [F.lit(None).cast(one.dataType).alias(one.name) for one in stored if one.name not in rows.columns]
        return rows.select(*map(quoted, rows.columns), *lacking)

    def _is_for_others(self, error: Exception, before: int | None) -> bool:
        """Whether the table was not written because somebody else wrote it."""
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
        # After the columns, of which one may be called the same.
        location: str = described[-1]["data_type"]
        return location

    def _columns_or_none(self) -> StructType | None:
        try:
            return self._columns()
        except AnalysisException:
            # It may be there and be unreadable; then it cannot be created either, and that error says why.
            return None
