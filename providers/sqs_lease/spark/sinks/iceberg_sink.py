"""Iceberg tables, written by Spark with Iceberg's jar: each batch on a branch of its own, which then becomes the table.

Iceberg has no notion of a write that must happen once: it repeats appends that collide with others, so two processes
that complete the same batch would both succeed. Therefore a batch is written in four steps:

1. Look at the newest snapshot of the table, and whether a snapshot up to it says that it has the batch.
2. Make a branch at that very snapshot.
3. Write the batch to the branch; the snapshot carries the number of the batch as a property.
4. Fast-forward the table to the branch. Iceberg refuses if the table is not at the snapshot of step 1 any more; then
   the branch is dropped, and all begins again.

Readers of the table see nothing of a branch. That of a killed process is removed by ``expire_snapshots`` after a week.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

from deltalake import Schema
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    IntegerType,
    MapType,
    ShortType,
    StructField,
    StructType,
)

from sqs_lease.spark.batch_parts import BatchParts
from sqs_lease.spark.column_types import PLAIN_TYPES
from sqs_lease.spark.columns import BATCH_ID, ICEBERG_COLUMNS, MESSAGE_ID
from sqs_lease.spark.errors import SchemaError, TableError
from sqs_lease.spark.executors import SPARK_ERRORS
from sqs_lease.spark.ledger import Ledger
from sqs_lease.spark.sinks.delta.schema import differences
from sqs_lease.spark.sinks.row_rules import DoubtfulDirectories, iceberg_directories, is_object_store, judged
from sqs_lease.spark.sinks.sink import Rest, Staged
from sqs_lease.spark.sinks.staged_rows import StagedRows, first_line, gone
from sqs_lease.spark.sinks.table_sql import (
    add_columns,
    check_keys,
    create_table,
    literal,
    partition,
    quoted,
    write,
)
from sqs_lease.spark.sinks.write_ahead import Application, WriteAheadTable
from sqs_lease.spark.waits import Others, among_others

logger = logging.getLogger(__name__)

_BATCH: Final = "sqs-lease.batch"
# Iceberg's only types for them.
_WIDER: Final[Mapping[type[DataType], DataType]] = {ByteType: IntegerType(), ShortType: IntegerType()}


@dataclass(frozen=True, slots=True)
class IcebergSink:
    """An Iceberg table, written with Iceberg's own jar (see :mod:`.jars`).

    Each batch is one snapshot of the table, whose summary names it (``sqs-lease.batch``).

    Attributes:
        table: The table's name with its catalog and namespace: ``"lake.sales.orders"``. The namespace must exist, the
            table is created where there is none.
        ledger: Where the ids of the messages are kept, and where rows wait: a directory that all drivers and executors
            reach by this path, or an address on S3, see :class:`..ledger.Ledger`. It belongs to this table alone.
        partition_by: How a table that is created is partitioned: columns, or transforms of columns such as
            ``days(_sent_at)`` or ``bucket(16, customer)``; a table that is there stays as it is.
        upsert_by: The key's columns. None, the default, adds every record; with a key, a record replaces the one with
            the same key, unless that is of a message sent later; sent at the same time, the later batch wins.
    """

    table: str
    ledger: Ledger | str | Path
    partition_by: Sequence[str] = ()
    upsert_by: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.table.count(".") < 2:
            raise TableError(f"table {self.table} needs its catalog and its namespace: for example lake.sales.orders")

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> WriteAheadTable:
        """See :meth:`.sink.Sink.open`."""
        check_keys(columns, self.upsert_by)
        ledger = self.ledger if isinstance(self.ledger, Ledger) else Ledger(self.ledger)
        catalog, *names = self.table.split(".")
        table = IcebergTable(
            spark,
            quoted(catalog),
            ".".join(map(quoted, names)),
            tuple(self.upsert_by),
            StagedRows.beside(ledger, spark),
            columns,
        )
        table.prepare(self.partition_by, widen=widen)
        return WriteAheadTable(table, ledger.open())


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """See :class:`.write_ahead.TargetTable`.

    Attributes:
        spark: The session.
        catalog: The table's catalog, quoted.
        identifier: Its name there, quoted.
        upsert_by: The key's columns; none to append.
        staged: Where rows wait.
        columns: What is written into it.
        own: What this very object staged and was not told to take yet: nobody else can have taken it.
    """

    spark: SparkSession
    catalog: str
    identifier: str
    upsert_by: tuple[str, ...]
    staged: StagedRows
    columns: StructType
    own: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The table's full name, quoted."""
        return f"{self.catalog}.{self.identifier}"

    def prepare(self, partition_by: Sequence[str], *, widen: bool) -> None:
        """Create the table where there is none, compare its columns, and add those that it lacks.

        Raises:
            SchemaError: The table has other columns, or cannot have these.
            TableError: The table cannot be used.
        """
        wanted = _as_iceberg(self.columns)
        stored = self._columns_or_none()
        if stored is None:
            partitions = [partition(text, self.columns) for text in partition_by]
            statement = create_table(self.name, wanted, using="iceberg", partition_by=partitions)
            try:
                self.spark.sql(statement).collect()
            except SPARK_ERRORS as error:
                # Somebody else may be creating it at this moment.
                stored = self._columns_or_none()
                if stored is None:
                    raise self._unusable("cannot be created", error) from error
            stored = self._columns()
        if differs := differences(Schema.from_json(stored.json()), wanted, widen=widen):
            raise SchemaError(
                f"the schema does not fit table {self.name}: {'; '.join(differs)}. Change the schema or the table, or "
                "ingest into another one"
            )
        missing = [field for field in wanted.fields if field.name not in stored.names]
        if missing:
            try:
                self.spark.sql(add_columns(self.name, StructType(missing))).collect()
            except SPARK_ERRORS as error:
                if not set(wanted.names) <= set(self._columns().names):
                    raise self._unusable("cannot take more columns", error) from error

    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        """See :meth:`.write_ahead.TargetTable.stage`."""
        staged = self.staged.write(rows, batch_id)
        self.own.add(staged.location)
        return staged

    def stage_parts(self, spark: SparkSession, parts: BatchParts, rest: Rest, batch_id: str) -> Staged | None:
        """See :class:`.sink.PartsTable`."""
        _, directories = self._directories()
        doubtful = DoubtfulDirectories.of(self.columns, directories)
        staged = self.staged.write_parts(parts, rest, batch_id, self.columns, doubtful)
        if staged is not None:
            self.own.add(staged.location)
        return staged

    def judged(self, rows: DataFrame, reason: str) -> DataFrame:
        """See :class:`.sink.JudgingTable`."""
        stored, directories = self._directories()
        return judged(rows, reason, stored, list(iceberg_directories(stored, directories)))

    def _directories(self) -> tuple[StructType, Sequence[str]]:
        """The table's columns, and the names of those whose values name directories.

        Raises:
            TableError: The table cannot be read.
        """
        try:
            columns = self._columns()
            partitions = self.spark.table(f"{self.name}.partitions").schema
            described = self.spark.sql(f"DESCRIBE TABLE EXTENDED {self.name}")
            (location,) = described.where("col_name = 'Location'").collect()
        except SPARK_ERRORS as error:
            raise self._unusable("cannot be read", error) from error
        by = partitions["partition"].dataType if "partition" in partitions.names else StructType()
        if not isinstance(by, StructType) or is_object_store(location["data_type"]):
            return columns, []
        # The field of a transform is called otherwise than its column.
        return columns, by.names

    def apply(self, location: str, application: Application) -> int | None:
        """See :meth:`.write_ahead.TargetTable.apply`."""
        is_first = location in self.own
        self.own.discard(location)
        with among_others(f"table {self.name}") as others:
            self._apply(location, application, others, is_first=is_first)
        self.staged.remove(location)
        return self.version()

    def _apply(self, location: str, application: Application, others: Others, *, is_first: bool) -> None:
        while not self.staged.is_applied(application):
            before = None
            try:
                columns = self._columns()
                before = self._newest_snapshot()
                if before is None:
                    # A branch of a table without snapshots is not bound to anything.
                    self._make_first_snapshot()
                    continue
                if not self._has(application):
                    rows = self.staged.read(location, columns)
                    if rows is None:
                        if self.staged.is_applied(application):
                            return
                        raise gone(self.name, location, application)
                    if is_first or not self._has_rows(rows, application):
                        self._take(rows, before, application)
            except SPARK_ERRORS as error:
                if not _collided(error) and self.version() == before:
                    raise self._unusable("cannot be written", error) from error
                others.again(self._newest_commit())
                continue
            self.staged.mark_applied(application)
            return

    def version(self) -> int | None:
        """The id of the table's newest snapshot."""
        self._refresh()
        return self._newest_snapshot()

    def discard(self, location: str) -> None:
        """See :meth:`.write_ahead.TargetTable.discard`."""
        self.staged.remove(location)

    def _take(self, rows: DataFrame, before: int, application: Application) -> None:
        """Steps 2 to 4."""
        with self._branch(before, application) as branch:
            self._write(rows, f"{self.name}.{quoted(f'branch_{branch}')}", application)
            self.spark.sql(
                f"CALL {self.catalog}.system.fast_forward("
                f"table => {literal(self.name)}, branch => 'main', to => {literal(branch)})"
            ).collect()

    @contextmanager
    def _branch(self, snapshot: int, application: Application) -> Iterator[str]:
        branch = f"sqs_lease_{application.number}_{uuid4().hex}"
        self.spark.sql(
            f"ALTER TABLE {self.name} CREATE BRANCH {quoted(branch)} AS OF VERSION {snapshot} RETAIN 7 DAYS"
        ).collect()
        try:
            yield branch
        finally:
            try:
                self.spark.sql(f"ALTER TABLE {self.name} DROP BRANCH IF EXISTS {quoted(branch)}").collect()
            except SPARK_ERRORS as error:
                logger.info("table %s: branch %s is left to expire (%s)", self.name, branch, type(error).__name__)

    def _write(self, rows: DataFrame, branch: str, application: Application) -> None:
        properties = {_property(application): str(application.number), _BATCH: application.batch_id}
        settings = {f"spark.sql.iceberg.snapshot-property.{name}": value for name, value in properties.items()}
        write(self.spark, branch, rows, self.upsert_by, settings)

    def _has(self, application: Application) -> bool:
        """Whether a snapshot that was the table's says that it has the application, or a later one."""
        said = F.col("summary").getItem(_property(application)).cast("bigint")
        snapshots = self.spark.table(f"{self.name}.snapshots").where(said >= application.number)
        return not snapshots.join(self.spark.table(f"{self.name}.history"), "snapshot_id").isEmpty()

    def _has_rows(self, rows: DataFrame, application: Application) -> bool:
        """Whether rows of the batch are in the table, although the snapshot that said so may have expired.

        To merge the newest batch twice changes nothing, so it needs no such question.
        """
        if self.upsert_by:
            return False
        stored = self.spark.table(self.name).where(F.col(BATCH_ID) == application.batch_id)
        return not stored.join(F.broadcast(rows.select(MESSAGE_ID).distinct()), MESSAGE_ID, "left_semi").isEmpty()

    def _newest_snapshot(self) -> int | None:
        rows = self.spark.table(f"{self.name}.refs").where("name = 'main'").select("snapshot_id").collect()
        return rows[0]["snapshot_id"] if rows else None

    def _newest_commit(self) -> str:
        """What is known of whoever committed last."""
        try:
            snapshots = self.spark.table(f"{self.name}.snapshots").where(F.col("snapshot_id") == F.lit(self.version()))
            (newest,) = snapshots.select("operation", F.col("summary").getItem(_BATCH).alias("batch_id")).collect()
        except (*SPARK_ERRORS, ValueError):
            return "somebody else committed"
        return f"batch {newest['batch_id']}" if newest["batch_id"] else f"somebody's {newest['operation']}"

    def _make_first_snapshot(self) -> None:
        self.spark.table(self.name).where("false").writeTo(self.name).append()

    def _refresh(self) -> None:
        """Iceberg's catalogs remember tables for half a minute."""
        self.spark.sql(f"REFRESH TABLE {self.name}").collect()

    def _columns(self) -> StructType:
        self._refresh()
        return self.spark.table(self.name).schema

    def _columns_or_none(self) -> StructType | None:
        try:
            return self._columns()
        except AnalysisException:
            # It may be there and be unreadable; then it cannot be created either, and that error says why.
            return None

    def _unusable(self, what: str, error: Exception) -> TableError:
        return TableError(
            f"table {self.name} {what}: {first_line(error)}. Check that the session has Iceberg's jar and settings "
            "(they are named in sqs_lease.spark.sinks.jars) and the table's catalog, and may write there"
        )


def _collided(error: Exception) -> bool:
    """Whether somebody else wrote the table, or removed the rows because the table has them."""
    return any(sign in str(error) for sign in ("CommitFailed", "Cannot fast-forward", "FILE_NOT_EXIST"))


def _property(application: Application) -> str:
    return f"sqs-lease.ledger.{application.ledger_id}"


def _as_iceberg(columns: StructType) -> StructType:
    """The columns as the table has them: integers have at least 32 bits.

    Raises:
        SchemaError: A column has a type or a name that Iceberg's tables cannot have.
    """
    for name in columns.names:
        if name.lower() in ICEBERG_COLUMNS:
            raise SchemaError(f"column {name}: every Iceberg table has a column of its own there: rename it")
    return StructType(
        [StructField(field.name, _kind(field.name, field.dataType), field.nullable) for field in columns.fields]
    )


def _kind(path: str, kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        fields = [StructField(field.name, _kind(f"{path}.{field.name}", field.dataType)) for field in kind.fields]
        return StructType(fields)
    if isinstance(kind, ArrayType):
        return ArrayType(_kind(path, kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_kind(path, kind.keyType), _kind(path, kind.valueType))
    wider = _WIDER.get(type(kind), kind)
    if not isinstance(wider, PLAIN_TYPES):
        raise SchemaError(f"column {path}: an Iceberg table cannot store the type {kind.simpleString()}")
    return wider
