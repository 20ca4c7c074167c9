"""A Delta table on a file system or on S3: executors write Parquet files, and the driver commits them, without jars.

On S3 the tasks write through deltalake's own object store, so one set of options and credentials serves the log and the
files. Upserts are merged in the driver, because deltalake has no distributed MERGE: a batch of 100 000 messages of 1 KB
into 400 000 rows took 1.3 s and 1.1 GB if the keys were recent, and 4 s and 1.3 GB if they were all over the table. For
larger tables there are :mod:`..native_delta_sink` and :mod:`..iceberg_sink`, with Spark's MERGE.

Each commit carries the number of the admission as an application transaction (:mod:`..write_ahead`), and is made
without retries: it is refused if another process commits meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType

from sqs_lease.core.failure_rules import printable
from sqs_lease.spark.arguments import require_names, require_path
from sqs_lease.spark.batch_parts import BatchParts
from sqs_lease.spark.delta_places import create_table, existing_table, load_table, require_empty
from sqs_lease.spark.errors import SchemaError, TableError
from sqs_lease.spark.ledger import Ledger
from sqs_lease.spark.places import OURS, Place
from sqs_lease.spark.schemas import check_keys
from sqs_lease.spark.sinks.delta.files import (
    FILES,
    Listing,
    add_action,
    directory_of,
    mark_added,
    tries_beside,
    was_added,
)
from sqs_lease.spark.sinks.delta.merge import merge_newest
from sqs_lease.spark.sinks.delta.schema import (
    added_columns,
    check_partitions,
    delta_schema,
    spark_columns,
    unsupported,
    unwritten,
)
from sqs_lease.spark.sinks.delta.statistics import statistics_of
from sqs_lease.spark.sinks.differences import differences, misfits, require_fit, require_taken, require_unchanged
from sqs_lease.spark.sinks.row_rules import (
    DoubtfulDirectories,
    EmptyTexts,
    is_directory,
    judged,
    merge_directories,
    not_empty,
)
from sqs_lease.spark.sinks.sink import LOOKED_UP, Rest, Staged
from sqs_lease.spark.sinks.staging import Staging, Written, new_try
from sqs_lease.spark.sinks.write_ahead import Application, AppliedMarks, WriteAheadSink, WriteAheadTable
from sqs_lease.spark.waits import ConcurrentWriters, while_contended

logger = logging.getLogger(__name__)

_LONGEST_BATCH: Final = timedelta(days=1)
_MOST_TRIES: Final = 10


@dataclass(frozen=True, slots=True)
class Optimized:
    """Result of an optimization.

    Attributes:
        files_removed: The number of files that were replaced.
        files_added: The number of files that replace them.
        table_version: The table's version afterwards.
    """

    files_removed: int
    files_added: int
    table_version: int


@dataclass(frozen=True, slots=True)
class DeltaSink:
    """A Delta table, with its ledger inside it.

    Attributes:
        path: The table's directory, which the driver and all executors reach by this path, or
            ``s3://bucket/prefix``. It is created if it does not exist.
        partition_by: Columns of the record by which the table is partitioned: strings, integers, dates or booleans with
            few values. A null and an empty string are the same partition in Delta.
        upsert_by: Key columns. Empty, the default, adds every record. Otherwise the table has one row for each key:
            that of the message that was sent last, in whichever order messages arrive. Key columns must be NOT NULL.
        storage_options: For S3, the storage options of ``deltalake``, for example ``AWS_REGION``. Options that are not
            given come from the environment, in the driver and in the executors; leave credentials there.
    """

    path: str | Path
    partition_by: Sequence[str] = ()
    upsert_by: Sequence[str] = ()
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require_names(self.partition_by, "partition_by is a list of columns")
        require_names(self.upsert_by, "upsert_by is a list of columns")
        require_path(self.path, "the path of the table")
        # Refuses a path that can never be a table.
        Place.of(self.path, self.storage_options)

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> WriteAheadTable:
        """See :meth:`..sink.Sink.open`."""
        target = DeltaTarget(self.path, self.partition_by, self.upsert_by, self.storage_options)
        return WriteAheadSink(target, self._ledger).open(spark, columns, widen=widen)

    def optimize(self, *, z_order_by: Sequence[str] = (), target_file_bytes: int | None = None) -> Optimized:
        """Rewrite many small files of the table as few large ones. Call it from a maintenance task now and then.

        It needs no Spark, and changes no row. Batches may be ingested meanwhile: they are not lost or doubled. If an
        upsert replaces rows of files that are being rewritten, this starts again. The replaced files stay for readers
        of earlier versions, until :meth:`vacuum`. A partition is left as it is if deltalake cannot name a directory by
        its value (more than 255 bytes with the column's name, or Spark's name for null).

        Args:
            z_order_by: Sort rows by these columns together, so that a reader that filters by one of them opens few
                files; all files are then rewritten. Empty, the default, puts small files together without sorting.
            target_file_bytes: The size of the new files; None takes the table's own setting, or deltalake's default.

        Raises:
            TableError: There is no table, it cannot be written, or its rows changed during each of 10 tries.
        """
        storage = self._storage
        for _ in range(_MOST_TRIES):
            table = existing_table(storage)
            _check_order(storage, table, z_order_by)
            try:
                removed, added = _rewrite(table, z_order_by, target_file_bytes)
            except CommitFailedError as error:
                if existing_table(storage).version() == table.version():
                    raise storage.unusable("cannot be optimized", error) from error
                logger.info("table %s: rows changed in files that were being rewritten, starting again", storage.uri)
            except (DeltaError, OSError) as error:
                raise storage.unusable("cannot be optimized", error) from error
            else:
                return Optimized(removed, added, existing_table(storage).version())
        raise TableError(
            f"table {storage.uri} was not optimized: its rows changed during each of {_MOST_TRIES} tries. Do it when "
            "fewer batches come"
        )

    def vacuum(self, *, older_than: timedelta = timedelta(days=7)) -> list[str]:
        """Remove files that the table does not have: replaced files, and files of killed processes.

        It needs no Spark. If a batch was admitted but is not in the table yet, it is added first, so that its files are
        not removed.

        Args:
            older_than: Younger files stay, because a batch may be writing them or a reader may read an earlier version.
                At least a day, and at least the table's own setting ``delta.deletedFileRetentionDuration``, 7 days by
                default.

        Returns:
            The removed files.

        Raises:
            TableError: There is no table, it cannot be written, or the ledger belongs to an earlier table at this path.
            ValueError: Files that a batch may need would be removed.
        """
        if older_than < _LONGEST_BATCH:
            raise ValueError(f"older_than is {older_than}, and a batch may take longer: give {_LONGEST_BATCH} or more")
        storage = self._storage
        existing_table(storage)
        WriteAheadTable.of(OpenDelta(storage), self._ledger).look_up(LOOKED_UP.empty_table())
        hours = -(-older_than // timedelta(hours=1))
        try:
            removed: list[str] = existing_table(storage).vacuum(retention_hours=hours, dry_run=False, full=True)
        except (DeltaError, OSError) as error:
            raise storage.unusable("cannot be vacuumed", error) from error
        logger.info("table %s: %d unused files removed", storage.uri, len(removed))
        return removed

    @property
    def _storage(self) -> Place:
        return Place.of(self.path, self.storage_options)

    @property
    def _ledger(self) -> Ledger:
        return Ledger(f"{self._storage.uri}/{OURS}/ledger", self._storage.options or None)


def _check_order(storage: Place, table: DeltaTable, z_order_by: Sequence[str]) -> None:
    partitions = table.metadata().partition_columns
    possible = [field.name for field in table.schema().fields if field.name not in partitions]
    for name in z_order_by:
        if name not in possible:
            raise SchemaError(
                f"z_order_by: table {storage.uri} has no column {name} within its partitions; it has "
                f"{', '.join(possible)}"
            )


def _rewrite(table: DeltaTable, z_order_by: Sequence[str], target_file_bytes: int | None) -> tuple[int, int]:
    """Rewrite what can be rewritten, and return the numbers of removed and added files."""
    removed = added = 0
    for chosen in product(*_rewritable(table)):
        # delta-rs lets this commit pass after a concurrent one that only added files, and refuses it after one that
        # removed files that this one replaces.
        if z_order_by:
            metrics = table.optimize.z_order(list(z_order_by), list(chosen) or None, target_size=target_file_bytes)
        else:
            metrics = table.optimize.compact(list(chosen) or None, target_size=target_file_bytes)
        removed, added = removed + metrics["numFilesRemoved"], added + metrics["numFilesAdded"]
    return removed, added


def _rewritable(table: DeltaTable) -> Iterator[Sequence[tuple[str, str, Any]]]:
    """Make filters that leave out partitions with values by which deltalake cannot name a directory.

    Yields:
        Two filters for each column with such values: one for the other values, and one for null, which ``not in``
            drops.
    """
    stored = pa.table(table.get_add_actions(flatten=True))
    for name in table.metadata().partition_columns:
        values = pc.unique(stored[f"partition.{name}"]).to_pylist()
        if odd := [value for value in values if isinstance(value, str) and not is_directory(name, value)]:
            yield (name, "not in", odd), (name, "=", "")


@dataclass(frozen=True, slots=True)
class DeltaTarget:
    """The table without its ledger: see :class:`..write_ahead.Target`.

    Each try of a batch writes into a directory of its own, ``batches/<batch>/<try>``. Until a commit names the files
    there, readers do not see them. A try that fails removes its files, and a try that is added removes the files of
    killed tries of the same batch. If a batch never comes back, :meth:`DeltaSink.vacuum` removes its files.

    Attributes:
        path: See :class:`DeltaSink`, also for the other attributes.
    """

    path: str | Path
    partition_by: Sequence[str] = ()
    upsert_by: Sequence[str] = ()
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> OpenDelta:
        """See :meth:`..write_ahead.Target.open`."""
        storage = Place.of(self.path, self.storage_options)
        check_partitions(columns, self.partition_by, merges=bool(self.upsert_by))
        check_keys(columns, self.upsert_by)
        table = OpenDelta(storage, columns, tuple(self.partition_by), tuple(self.upsert_by))
        table.prepare(widen=widen)
        return table


@dataclass(frozen=True, slots=True)
class OpenDelta:
    """The open table: see :class:`..write_ahead.TargetTable`.

    Attributes:
        storage: Its location.
        columns: The columns that are written; empty if it is opened only to complete a batch that was admitted, whose
            listing has its columns.
        partition_by: See :class:`DeltaSink`, also for ``upsert_by``.
    """

    storage: Place
    columns: StructType = field(default_factory=StructType)
    partition_by: Sequence[str] = ()
    upsert_by: Sequence[str] = ()

    def prepare(self, *, widen: bool) -> None:
        """Create the table if it does not exist, and make sure that it takes these columns."""
        table = load_table(self.storage)
        if table is None:
            require_empty(self.storage)
            create_table(self.storage, delta_schema(self.columns), partition_by=self.partition_by)
            table = self._existing()
        self._require_writable(table, self.partition_by, self.upsert_by)
        with while_contended(f"table {self.storage.uri}") as writers:
            self._add_columns(table, writers, widen=widen)

    def _add_columns(self, table: DeltaTable, writers: ConcurrentWriters, *, widen: bool) -> None:
        while True:
            require_fit(self.storage.uri, differences(spark_columns(table.schema()), self.columns, widen=widen))
            added = added_columns(table.schema(), self.columns)
            if not added:
                return
            try:
                table.alter.add_columns(added, commit_properties=CommitProperties(max_commit_retries=0))
                names = printable(", ".join(one.name for one in added))
                logger.info("table %s has new columns: %s", self.storage.uri, names)
            except CommitFailedError:
                writers.pause(self._newest_commit())
            except (DeltaError, OSError) as error:
                raise self.storage.unusable("cannot be given columns", error) from error
            table = self._existing()

    def identity(self) -> str:
        """See :class:`..write_ahead.IdentifiedTarget`."""
        return str(self._existing().metadata().id)

    def require_fit(self) -> None:
        """See :class:`..write_ahead.CheckedTarget`."""
        if not self.columns.fields:
            return
        table = self._existing()
        self._require_writable(table, self.partition_by, self.upsert_by)
        require_unchanged(self.storage.uri, misfits(spark_columns(table.schema()), self.columns))

    def judged(self, rows: DataFrame, reason: str) -> DataFrame:
        """See :class:`..sink.JudgingTable`."""
        directories = merge_directories(self._named_by_texts.names) if self.upsert_by else ()
        return judged(rows, reason, StructType(), [*not_empty(self._never_empty), *directories])

    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        """See :meth:`..write_ahead.TargetTable.stage`."""
        return self._staged(batch_id, lambda staging: staging.write(rows))

    def stage_parts(self, spark: SparkSession, parts: BatchParts, rest: Rest, batch_id: str) -> Staged:
        """See :class:`..sink.PartsTable`."""
        return self._staged(batch_id, lambda staging: staging.write_parts(spark, parts, rest))

    def apply(self, location: str, application: Application) -> int | None:
        """See :meth:`..write_ahead.TargetTable.apply`."""
        with while_contended(f"table {self.storage.uri}") as writers:
            return self._apply(location, application, writers)

    def _apply(self, location: str, application: Application, writers: ConcurrentWriters) -> int | None:
        while True:
            table = self._existing()
            if self._has(table, application):
                return table.version()
            try:
                listing = Listing.read(self.storage, location)
                tries = tries_beside(self.storage, location)
                version = self._commit(table, listing, application)
            except (DeltaError, OSError, TableError) as error:
                now = self._existing()
                if self._has(now, application):
                    # Another process added it and cleaned up the files, or the answer to our own commit was lost.
                    return now.version()
                if isinstance(error, TableError):
                    raise
                if not isinstance(error, CommitFailedError) or now.version() == table.version():
                    raise self.storage.unusable("cannot be written", error) from error
                writers.pause(self._newest_commit())
            else:
                self._remember(application)
                self._tidy(location, listing, tries)
                return version

    def version(self) -> int | None:
        """See :meth:`..write_ahead.TargetTable.version`."""
        return self._existing().version()

    def discard(self, location: str) -> None:
        """See :meth:`..write_ahead.TargetTable.discard`."""
        self.storage.remove(directory_of(location))

    def _has(self, table: DeltaTable, application: Application) -> bool:
        """Whether the table took an application, by its own memory or by our marks, which last longer."""
        if self._marks.has(application):
            return True
        if is_remembered := _remembers(table, application):
            # The process that added the rows died before it wrote the mark.
            self._remember(application)
        return is_remembered

    def _remember(self, application: Application) -> None:
        try:
            self._marks.add(application)
        except TableError as error:
            # The table itself remembers it for now; the next look-up writes the mark.
            logger.warning(
                "table %s: the mark that a batch was added could not be written: %s", self.storage.uri, error
            )

    @property
    def _marks(self) -> AppliedMarks:
        return AppliedMarks(self.storage, f"{OURS}/applied")

    @property
    def _never_empty(self) -> tuple[str, ...]:
        """The partition columns that cannot have an empty string, because Delta reads it as null."""
        texts = (one for one in self.columns.fields if isinstance(one.dataType, StringType) and not one.nullable)
        return tuple(one.name for one in texts if one.name in self.partition_by)

    @property
    def _named_by_texts(self) -> DoubtfulDirectories:
        """The string columns by which files are partitioned: a merge, unlike a task, makes directories for them."""
        return DoubtfulDirectories.of(self.columns, self.partition_by)

    def _staged(self, batch_id: str, write: Callable[[Staging], Written]) -> Staged:
        directory = f"{FILES}/{new_try(batch_id)}"
        schema = pa.schema(delta_schema(self.columns).to_arrow())
        is_left = self._named_by_texts if self.upsert_by else EmptyTexts(self._never_empty)
        try:
            written = write(Staging(self.storage, directory, schema, self.partition_by, statistics_of, is_left))
            listing = Listing(self.upsert_by, written.files, self.columns.jsonValue(), self.partition_by)
            return Staged(listing.write(self.storage, directory), written.message_ids)
        except BaseException:
            self.storage.remove(directory)
            raise

    def _commit(self, table: DeltaTable, listing: Listing, application: Application) -> int:
        """Add the rows and return the version that has them, if no other process commits in between."""
        self._require_fit_of(table, listing)
        version = table.version() + 1
        properties = CommitProperties(
            # Without retries the commit is refused if another process was faster, so the rows are in exactly the
            # version that is returned. A merge is refused anyway, but not the commit below after a merge that changed
            # nothing.
            max_commit_retries=0,
            app_transactions=[Transaction(_name(application), application.number)],
        )
        if listing.upsert_by:
            merge_newest(table, self.storage, listing.files, listing.upsert_by, properties)
            if _remembers(table, application):
                return version
            # The table has newer rows of all keys. The merge made no commit then, so the number needs one of its own.
        table.create_write_transaction(
            [] if listing.upsert_by else [add_action(file) for file in listing.files],
            "append",
            table.schema(),
            partition_by=table.metadata().partition_columns,
            commit_properties=properties,
        )
        return version

    def _tidy(self, location: str, listing: Listing, tries: Sequence[str]) -> None:
        """Remove the files of other tries of the batch: they cannot be admitted any more."""
        if listing.upsert_by:
            # The merge wrote the rows again.
            self.discard(location)
        else:
            self._mark_added(location)
        if not tries:
            return
        # A try may have been added earlier, if rejected messages came again in the same batch. Its process may have
        # died before it wrote the mark, so the table is asked as well.
        taken = {file.partition("/part-")[0] for file in self._existing().get_add_actions()["path"].to_pylist()}
        for other in tries:
            has_rows = any(directory == other or directory.startswith(f"{other}/") for directory in taken)
            if not has_rows and not was_added(self.storage, other):
                self.storage.remove(other)

    def _mark_added(self, location: str) -> None:
        try:
            mark_added(self.storage, directory_of(location))
        except (DeltaError, OSError) as error:
            logger.warning("table %s: the mark beside %s could not be written: %s", self.storage.uri, location, error)

    def _require_fit_of(self, table: DeltaTable, listing: Listing) -> None:
        """Refuse files that the table cannot take as they are, because it was changed after their admission."""
        if listing.columns is None:
            return
        self._require_writable(table, listing.partition_by, listing.upsert_by)
        given = StructType.fromJson(dict(listing.columns))
        require_taken(self.storage.uri, misfits(spark_columns(table.schema()), given))

    def _require_writable(self, table: DeltaTable, partition_by: Sequence[str], upsert_by: Sequence[str]) -> None:
        metadata = table.metadata()
        problems = [*unsupported(metadata, table.schema()), *unwritten(table.protocol())]
        if metadata.partition_columns != list(partition_by):
            are = ", ".join(metadata.partition_columns) or "no column"
            problems.append(f"it is partitioned by {are}, and partition_by says {', '.join(partition_by) or 'none'}")
        if upsert_by and metadata.configuration.get("delta.appendOnly") == "true":
            problems.append("its rows must not be changed (delta.appendOnly), which upsert_by does")
        if problems:
            raise TableError(
                f"table {self.storage.uri} cannot be written: {'; '.join(problems)}. Ingest into another one, or let "
                "Spark write it: NativeDeltaSink keeps a table's rules"
            )

    def _existing(self) -> DeltaTable:
        return existing_table(self.storage, was_there=True)

    def _newest_commit(self) -> str:
        """Return what is known of the last writer."""
        try:
            (commit,) = self._existing().history(1)
        except (DeltaError, OSError, TableError, ValueError):
            return "another process committed"
        by = commit.get("engineInfo") or commit.get("clientVersion") or "another program"
        return f"{commit.get('operation', 'a commit')} by {by} made version {commit.get('version')}"


def _name(application: Application) -> str:
    return f"sqs-lease:{application.ledger_id}"


def _remembers(table: DeltaTable, application: Application) -> bool:
    taken = table.transaction_version(_name(application))
    return taken is not None and taken >= application.number
