"""Iceberg tables, written by Spark with Iceberg's jar: each batch on a branch of its own, which then becomes the table.

Iceberg has no write that happens at most once: after a collision it repeats an append by itself, so two processes that
complete the same batch would both succeed. Therefore a batch is written in four steps:

1. Look at the newest snapshot of the table, and whether the batch is in it or in an earlier one.
2. Make a branch at exactly that snapshot.
3. Write the batch to the branch; the snapshot has the number of the batch as a property.
4. Fast-forward the table to the branch. Iceberg refuses that if the table has a newer snapshot than that of step 1;
   then the branch is dropped, and everything starts again.

Readers of the table do not see a branch. The branch of a killed process is removed by ``expire_snapshots`` after a
week.

If the table can take the staged files as they are, steps 2 to 4 are one transaction, and no row is written twice. That
is not done with the procedure ``add_files``, because it cannot be tied to a snapshot. The staged files carry the
numbers by which Iceberg knows columns, because a column that was dropped and added again is another column.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import ByteType, DataType, IntegerType, ShortType, StructField, StructType

from sqs_lease.spark._jvm import iceberg_table, iceberg_version
from sqs_lease.spark.arguments import require_names, require_path
from sqs_lease.spark.columns import BATCH_ID, ICEBERG_COLUMNS, MESSAGE_ID
from sqs_lease.spark.errors import SchemaError, TableError
from sqs_lease.spark.ledger import Ledger
from sqs_lease.spark.schemas import arrow_schema, check_keys, quoted, relaxed, require_plain, without_case
from sqs_lease.spark.sinks.differences import misfits
from sqs_lease.spark.sinks.jars import tested_jars
from sqs_lease.spark.sinks.row_rules import (
    RowRequirements,
    Rule,
    iceberg_directories,
    is_object_store,
    too_long_for_iceberg,
)
from sqs_lease.spark.sinks.spark_table import SparkTable, StagedParquet, StagedRows
from sqs_lease.spark.sinks.table_sql import literal, write
from sqs_lease.spark.sinks.write_ahead import Application, WriteAheadTable
from sqs_lease.spark.spark_errors import SPARK_ERRORS

logger = logging.getLogger(__name__)

_BATCH: Final = "sqs-lease.batch"
_ENCRYPTION: Final = "encryption.key-id"
# The key of a column's number in Parquet, and so in pyarrow.
_FIELD_ID: Final = "PARQUET:field_id"
_ANY: Final = "part.parquet"
# With these settings, Iceberg writes beside the table ("write-audit-publish"), until a user publishes the rows.
_UNPUBLISHED: Final = ("spark.wap.id", "spark.wap.branch")
# Iceberg 1.10 ignores `spark.sql.iceberg.snapshot-property.*`, by which a batch is known after an interrupted commit.
_OLDEST: Final = (1, 11)
# The transforms that make a string of a string; the others make numbers.
_OF_TEXTS: Final = re.compile(r"identity|truncate\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class IcebergSink:
    """An Iceberg table, written with Iceberg's own jar (see :mod:`.jars`).

    Each batch is one snapshot of the table, with the batch id in its summary (``sqs-lease.batch``).

    Attributes:
        table: The table's name with its catalog and namespace: ``"lake.sales.orders"``. The namespace must exist; the
            table is created if it does not exist.
        ledger: The place of the message ids and of staged rows: a directory that all drivers and executors reach by
            this path, or an address on S3, see :class:`..ledger.Ledger`. No other table may use it.
        partition_by: The partitions of a table that is created: columns, or transforms of columns such as
            ``days(_sent_at)`` or ``bucket(16, customer)``. An existing table stays as it is.
        upsert_by: The key columns. Empty, the default, adds every record. With a key, a record replaces the one with
            the same key, unless that is from a message that was sent later; of messages sent at the same time, the
            later batch wins.
    """

    table: str
    ledger: Ledger | str | Path
    partition_by: Sequence[str] = ()
    upsert_by: Sequence[str] = ()

    def __post_init__(self) -> None:
        require_names(self.partition_by, "partition_by is a list of columns")
        require_names(self.upsert_by, "upsert_by is a list of columns")
        require_path(self.table, "the name of the table")
        if not isinstance(self.ledger, Ledger):
            require_path(self.ledger, "ledger")
        if self.table.count(".") < 2:
            raise TableError(f"table {self.table} needs its catalog and its namespace: for example lake.sales.orders")

    def require_spark(self, version: str) -> None:
        """See :meth:`.jars.SinkOfJars.require_spark`."""
        tested_jars(version)

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> WriteAheadTable:
        """See :meth:`.sink.Sink.open`."""
        check_keys(columns, self.upsert_by)
        if unpublished := [setting for setting in _UNPUBLISHED if spark.conf.get(setting, None) is not None]:
            raise TableError(
                f"table {self.table}: the session has {' and '.join(unpublished)}, so ingested rows are not in the "
                "table until they are published, but their messages are deleted before: unset it"
            )
        ledger = self.ledger if isinstance(self.ledger, Ledger) else Ledger(self.ledger)
        parts = [quoted(part) for part in self.table.split(".")]
        staged = StagedRows(spark, ledger.place)
        table = IcebergTable(spark, ".".join(parts), tuple(self.upsert_by), staged, columns, parts[0])
        table.require_version()
        return WriteAheadTable.of(table.prepared(self.partition_by, widen=widen), ledger)


@dataclass(frozen=True, slots=True)
class IcebergTable(SparkTable):
    """See :class:`.spark_table.SparkTable`.

    Attributes:
        catalog: The table's catalog, quoted.
    """

    catalog: str

    format_name: ClassVar[str] = "iceberg"
    needs: ClassVar[str] = "Iceberg's jar and settings and the table's catalog"

    def require_version(self) -> None:
        """Refuse an Iceberg that is too old, also one of a platform.

        Raises:
            TableError: It is too old, or does not tell its version.
        """
        try:
            version = iceberg_version(self.spark) or self._version_by_sql()
        except (*SPARK_ERRORS, TypeError) as error:
            # A class that is not there is a package of Java's, which cannot be called.
            raise self.unusable("cannot be used", error) from error
        if tuple(map(int, re.findall(r"\d+", version)[:2])) < _OLDEST:
            raise TableError(
                f"table {self.name}: Iceberg {version} does not write into a snapshot of which batch it is, so "
                "a batch may be stored twice if its commit is interrupted. Give the session the jar of Iceberg "
                f"{'.'.join(map(str, _OLDEST))} or newer for this Spark ({tested_jars.__name__}() names one), or "
                "ingest into another table: NativeDeltaSink, DeltaSink, ParquetSink and PostgresSink"
            )

    def _version_by_sql(self) -> str:
        (row,) = self.spark.sql(f"SELECT {self.catalog}.system.iceberg_version() AS version").collect()
        version: str = row["version"]
        return version

    def identity(self) -> str | None:
        """See :class:`.write_ahead.IdentifiedTarget`. It is unknown through Spark Connect."""
        stored = _StoredTable.of(self.spark, self.name)
        return None if stored is None else str(stored.table.uuid().toString())

    def _as_stored(self, columns: StructType) -> StructType:
        for name in columns.names:
            if without_case(name) in ICEBERG_COLUMNS:
                raise SchemaError(f"column {name}: Iceberg has a metadata column of this name: rename it")
        require_plain(columns, "an Iceberg table cannot store")
        # Iceberg's integers have at least 32 bits.
        return StructType(
            [StructField(field.name, relaxed(field.dataType, _wider), field.nullable) for field in columns.fields]
        )

    def _read_requirements(self) -> RowRequirements:
        try:
            columns = self._columns()
            location = self._location()
            stored = _StoredTable.of(self.spark, self.name)
            partitions = self._partitions_by_sql() if stored is None else stored.text_partitions
            schema = None if stored is None else stored.file_schema(self._as_stored(self.columns))
        except SPARK_ERRORS as error:
            raise self.unusable("cannot be read", error) from error
        if is_object_store(location):
            return RowRequirements(columns, file_schema=schema)
        plain = [one.name for one in partitions if one.name == one.column in columns.names and one.width is None]
        tests: dict[str, str] = {}
        for one in partitions:
            if one.name not in plain:
                path = [one.column] if one.column in columns.names else one.column.split(".")
                tests |= too_long_for_iceberg(one.name, ".".join(map(quoted, path)), one.width)
        return RowRequirements(columns, tests, plain, schema)

    def _partitions_by_sql(self) -> list[_TextPartition]:
        """Read the partitions through Spark Connect, which gives only their names: those that may be columns."""
        partitions = self.spark.table(f"{self.name}.partitions").schema
        by = partitions["partition"].dataType if "partition" in partitions.names else StructType()
        names = by.names if isinstance(by, StructType) else []
        return [_TextPartition(name, name) for name in names if name in self.columns.names]

    def _directory_rules(self, stored: StructType, names: Sequence[str]) -> Iterator[Rule]:
        return iceberg_directories(stored, names)

    def _take(self, location: str, application: Application) -> None:
        while (before := self._version()) is None:
            # A table without snapshots needs one first: a branch of it would not be bound to anything.
            self.spark.table(self.name).where("false").writeTo(self.name).append()
        if self._has(application):
            return
        if self._adopt(location, before, application):
            return
        rows = self._rows(location, application)
        if rows is not None and (location in self.own or not self._has_rows(rows, application)):
            with self._branch(before, application) as branch:
                self._write(rows, f"{self.name}.{quoted(f'branch_{branch}')}", application)
                self.spark.sql(
                    f"CALL {self.catalog}.system.fast_forward("
                    f"table => {literal(self.name)}, branch => 'main', to => {literal(branch)})"
                ).collect()

    def _adopt(self, location: str, before: int, application: Application) -> bool:
        """Add the staged files themselves, so that no row is written twice: steps 2 to 4 in one commit.

        Only the object that staged the rows does it, because only then no other process can have added them.

        Returns:
            Whether the table has them; False if it cannot take them as they are.
        """
        if self.upsert_by or location not in self.own:
            return False
        stored, files = _StoredTable.of(self.spark, self.name), self.staged.files(location)
        columns = self._as_stored(self.columns)
        if stored is None or not stored.takes_files or files is None or misfits(self._columns(), columns):
            return False
        # Compares the numbers of columns as well: a column may have been dropped and added again.
        schema = stored.file_schema(columns)
        if not all(file.footer.schema.to_arrow_schema().equals(schema, check_metadata=True) for file in files):
            return False
        stored.take(files, before, _branch_name(application), _properties(application))
        return True

    @contextmanager
    def _branch(self, snapshot: int, application: Application) -> Iterator[str]:
        branch = _branch_name(application)
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
        settings = {
            f"spark.sql.iceberg.snapshot-property.{name}": value for name, value in _properties(application).items()
        }
        write(self.spark, branch, rows, self.upsert_by, settings)

    def _has(self, application: Application) -> bool:
        """Whether a snapshot of the table's history has the application, or a later one, in its summary."""
        number = F.col("summary").getItem(_property(application)).cast("bigint")
        snapshots = self.spark.table(f"{self.name}.snapshots").where(number >= application.number)
        return not snapshots.join(self.spark.table(f"{self.name}.history"), "snapshot_id").isEmpty()

    def _has_rows(self, rows: DataFrame, application: Application) -> bool:
        """Whether rows of the batch are in the table: the snapshot with its number may have expired.

        With upserts the answer does not matter, because merging the newest batch twice changes nothing.
        """
        if self.upsert_by:
            return False
        stored = self.spark.table(self.name).where(F.col(BATCH_ID) == application.batch_id)
        return not stored.join(F.broadcast(rows.select(MESSAGE_ID).distinct()), MESSAGE_ID, "left_semi").isEmpty()

    def _version(self) -> int | None:
        """The id of the table's newest snapshot; None if it has none."""
        stored = _StoredTable.of(self.spark, self.name)
        if stored is not None:
            snapshot = stored.table.currentSnapshot()
            return None if snapshot is None else snapshot.snapshotId()
        self._refresh()
        rows = self.spark.table(f"{self.name}.refs").where("name = 'main'").select("snapshot_id").collect()
        return rows[0]["snapshot_id"] if rows else None

    def _newest_commit(self) -> str:
        try:
            snapshots = self.spark.table(f"{self.name}.snapshots").where(F.col("snapshot_id") == F.lit(self._version()))
            (newest,) = snapshots.select("operation", F.col("summary").getItem(_BATCH).alias("batch_id")).collect()
        except (*SPARK_ERRORS, ValueError):
            return "another process committed"
        return f"batch {newest['batch_id']}" if newest["batch_id"] else f"another program's {newest['operation']}"

    def _columns(self) -> StructType:
        self._refresh()
        return self.spark.table(self.name).schema

    def _refresh(self) -> None:
        # Iceberg's catalogs cache tables for half a minute.
        self.spark.sql(f"REFRESH TABLE {self.name}").collect()


@dataclass(frozen=True, slots=True)
class _TextPartition:
    """A partition of a table whose values are strings.

    Attributes:
        name: The name of the partition, with which directories begin.
        column: The column, or a field inside one, with dots between the names.
        width: The number of characters that count; all of them if it is None.
    """

    name: str
    column: str
    width: int | None = None


@dataclass(frozen=True, slots=True)
class _StoredTable:
    """The table in Iceberg's own library for Java.

    Attributes:
        jvm: The JVM with the library.
        table: An ``org.apache.iceberg.Table``.
    """

    jvm: Any
    table: Any

    @classmethod
    def of(cls, spark: SparkSession, name: str) -> _StoredTable | None:
        """Load it; None through Spark Connect, which gives no access to Java."""
        if (found := iceberg_table(spark, name)) is None:
            return None
        jvm, table = found
        table.refresh()
        return cls(jvm, table)

    @property
    def takes_files(self) -> bool:
        """Whether a file beside the table's own files can be added as it is."""
        is_plain = self.table.spec().isUnpartitioned() and _ENCRYPTION not in self.table.properties()
        return is_plain and self._uri(self._address(_ANY)).getScheme() in {None, "file"}

    @property
    def text_partitions(self) -> list[_TextPartition]:
        """The current partitions with strings as values."""
        schema, found = self.table.schema(), []
        for field in self.table.spec().fields():
            of_texts = _OF_TEXTS.fullmatch(field.transform().toString())
            if of_texts and schema.findType(field.sourceId()).toString() == "string":
                width = int(of_texts[1]) if of_texts[1] else None
                found.append(_TextPartition(field.name(), schema.findColumnName(field.sourceId()), width))
        return found

    def file_schema(self, columns: StructType) -> pa.Schema:
        """Return the schema of a file of these columns, with the table's numbers of columns."""
        stored = json.loads(self.jvm.org.apache.iceberg.SchemaParser.toJson(self.table.schema()))
        return pa.schema(list(_with_numbers(pa.struct(list(arrow_schema(columns))), stored)))

    def take(self, files: Sequence[StagedParquet], before: int, branch: str, properties: Mapping[str, str]) -> None:
        """Add files to the table, if its newest snapshot is still ``before``.

        Args:
            files: The files, which are put beside the table's own.
            before: The id of that snapshot.
            branch: The name of the branch, which exists only inside this transaction.
            properties: Properties for the summary of the new snapshot.

        Raises:
            OSError: A file cannot be put there.
        """
        iceberg = self.jvm.org.apache.iceberg
        measured = iceberg.MetricsConfig.forTable(self.table)
        transaction = self.table.newTransaction()
        transaction.manageSnapshots().createBranch(branch, before).commit()
        appended = transaction.newAppend().toBranch(branch)
        for name, value in properties.items():
            appended.set(name, value)
        for file in files:
            # The location provider may give each file another directory.
            address = self._address(file.path.name)
            file.put_into(Path(self._uri(address).getPath()).parent)
            source = self.table.io().newInputFile(address)
            appended.appendFile(
                iceberg.DataFiles.builder(self.table.spec())
                .withPath(address)
                .withFormat("parquet")
                .withFileSizeInBytes(source.getLength())
                .withMetrics(iceberg.parquet.ParquetUtil.fileMetrics(source, measured))
                .build()
            )
        appended.commit()
        # Iceberg checks it again when the transaction commits, because another process may commit before that.
        transaction.manageSnapshots().fastForwardBranch("main", branch).commit()
        transaction.manageSnapshots().removeBranch(branch).commit()
        transaction.commitTransaction()

    def _address(self, file_name: str) -> str:
        address: str = self.table.locationProvider().newDataLocation(file_name)
        return address

    def _uri(self, address: str) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(address).toUri()


def _numbered(field: pa.Field, stored: Mapping[str, Any]) -> pa.Field:
    return field.with_type(_with_numbers(field.type, stored["type"])).with_metadata({_FIELD_ID: str(stored["id"])})


def _with_numbers(kind: pa.DataType, stored: Any) -> pa.DataType:
    """Add the table's numbers to a type; parts that the table lacks, or has with another type, get none.

    ``stored`` is the table's type in Iceberg's JSON: a string for a single value, or an object.
    """
    its = stored["type"] if isinstance(stored, Mapping) else None
    if its == "struct" and pa.types.is_struct(kind):
        found = {field["name"]: field for field in stored["fields"]}
        return pa.struct([_numbered(field, found[field.name]) if field.name in found else field for field in kind])
    if its == "list" and pa.types.is_list(kind):
        return pa.list_(_numbered(kind.value_field, {"id": stored["element-id"], "type": stored["element"]}))
    if its == "map" and pa.types.is_map(kind):
        return pa.map_(
            _numbered(kind.key_field, {"id": stored["key-id"], "type": stored["key"]}),
            _numbered(kind.item_field, {"id": stored["value-id"], "type": stored["value"]}),
        )
    return kind


def _branch_name(application: Application) -> str:
    return f"sqs_lease_{application.number}_{uuid4().hex}"


def _property(application: Application) -> str:
    return f"sqs-lease.ledger.{application.ledger_id}"


def _properties(application: Application) -> dict[str, str]:
    """Return the properties for the summary of a batch's snapshot."""
    return {_property(application): str(application.number), _BATCH: application.batch_id}


def _wider(kind: DataType) -> DataType:
    return IntegerType() if isinstance(kind, ByteType | ShortType) else kind
