"""Delta tables that Spark itself writes, with the jars of Delta: in a catalog or at a path, by append or MERGE.

Delta knows application transactions: a commit may carry an application's name and a number, and Delta refuses a second
commit with the same number, also of two processes at the same time. The name is that of the ledger, the number that of
the admission (:mod:`.write_ahead`). So a batch is taken once. A table may be set to forget these numbers
(``delta.setTransactionRetentionDuration``); then the rows of the batch are looked for as well.

If the table asks for nothing but files, deltalake adds the staged files in one commit with the same number, without
Spark (:func:`.delta.schema.is_plain`). Otherwise Spark reads the staged files and writes them with the table's own
rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Final

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sqs_lease.spark._jvm import delta_log
from sqs_lease.spark.arguments import require_names, require_path
from sqs_lease.spark.errors import SchemaError, TableError
from sqs_lease.spark.ledger import Ledger
from sqs_lease.spark.paths import write_path
from sqs_lease.spark.places import OURS
from sqs_lease.spark.schemas import check_keys, quoted
from sqs_lease.spark.sinks.delta.files import add_action
from sqs_lease.spark.sinks.delta.schema import (
    CONSTRAINT,
    GENERATED,
    IDENTITY,
    INVARIANT,
    LENGTH,
    delta_schema,
    is_plain,
    spark_columns,
)
from sqs_lease.spark.sinks.delta.statistics import statistics_of
from sqs_lease.spark.sinks.differences import misfits
from sqs_lease.spark.sinks.jars import tested_jars
from sqs_lease.spark.sinks.row_rules import RowRequirements, Rule, delta_directories, is_object_store
from sqs_lease.spark.sinks.spark_table import SparkTable, StagedParquet, StagedRows
from sqs_lease.spark.sinks.staging import StagedFile
from sqs_lease.spark.sinks.table_sql import write
from sqs_lease.spark.sinks.write_ahead import Application, WriteAheadTable
from sqs_lease.spark.spark_errors import SPARK_ERRORS

# The time for which the table remembers the numbers of applications: for ever, unless it is set.
_RETENTION: Final = "delta.setTransactionRetentionDuration"


@dataclass(frozen=True, slots=True)
class NativeDeltaSink:
    """A Delta table that Spark writes with Delta's own jars (see :mod:`.jars`).

    Use it for a table of a catalog, or with features that ``DeltaSink`` cannot write: constraints, mapped columns,
    liquid clustering, deletion vectors. Each batch is one commit, with the batch's number as an application transaction
    of Delta: Delta itself refuses a second one, also of two processes at the same time.

    Attributes:
        table: The name of a table in a catalog (``"main.sales.orders"``), the path of a directory, or an address
            (``"/data/orders"``, ``"s3a://bucket/orders"``). It is created if it does not exist.
        partition_by: The partition columns of a table that is created. An existing table stays as it is.
        upsert_by: The key columns. Empty, the default, adds every record. With a key, a record replaces the one with
            the same key, unless that is from a message that was sent later; of messages sent at the same time, the
            later batch wins.
        ledger: The place of the message ids and of staged rows: see :class:`..ledger.Ledger`. No other table may use
            it. A table of a catalog needs it; other tables have it in ``_sqs_lease/ledger`` below their path.
    """

    table: str | Path
    partition_by: Sequence[str] = ()
    upsert_by: Sequence[str] = ()
    ledger: Ledger | str | Path | None = None

    def __post_init__(self) -> None:
        require_names(self.partition_by, "partition_by is a list of columns")
        require_names(self.upsert_by, "upsert_by is a list of columns")
        require_path(self.table, "the name or path of the table")
        if self.ledger is not None and not isinstance(self.ledger, Ledger):
            require_path(self.ledger, "ledger")

    def require_spark(self, version: str) -> None:
        """See :meth:`.jars.SinkOfJars.require_spark`."""
        tested_jars(version)

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> WriteAheadTable:
        """See :meth:`.sink.Sink.open`."""
        ledger = self._ledger()
        check_keys(columns, self.upsert_by)
        table = NativeDeltaTable(spark, self._name, tuple(self.upsert_by), StagedRows(spark, ledger.place), columns)
        return WriteAheadTable.of(table.prepared(self.partition_by, widen=widen), ledger)

    @property
    def _path(self) -> str | None:
        """The path or address; None for a table in a catalog."""
        if isinstance(self.table, Path) or ("/" in self.table and "://" not in self.table):
            return str(Path(self.table).absolute())
        return self.table.rstrip("/") if "://" in self.table else None

    @property
    def _name(self) -> str:
        path = self._path
        if path is None:
            return ".".join(quoted(part) for part in str(self.table).split("."))
        return f"delta.{quoted(path if '://' in path else write_path(path))}"

    def _ledger(self) -> Ledger:
        if isinstance(self.ledger, Ledger):
            return self.ledger
        if self.ledger is not None:
            return Ledger(self.ledger)
        if self._path is None:
            raise TableError(
                f"table {self.table} is in a catalog, and its ledger needs a place: give ledger= the path of a "
                "directory that all drivers and executors reach, or an address on S3"
            )
        # Spark's s3a is deltalake's s3.
        return Ledger(f"{self._path.replace('s3a://', 's3://')}/{OURS}/ledger")


@dataclass(frozen=True, slots=True)
class NativeDeltaTable(SparkTable):
    """See :class:`.spark_table.SparkTable`."""

    format_name: ClassVar[str] = "delta"
    needs: ClassVar[str] = "Delta's jars and settings"

    def identity(self) -> str:
        """See :class:`.write_ahead.IdentifiedTarget`."""
        return self._log().table_id

    def _as_stored(self, columns: StructType) -> StructType:
        # Raises an error that names a column which a Delta table cannot have.
        delta_schema(columns)
        return columns

    def _read_requirements(self) -> RowRequirements:
        try:
            stored = self._columns()
            log = self._log()
        except SPARK_ERRORS as error:
            raise self.unusable("cannot be read", error) from error
        if self.upsert_by and log.properties.get("delta.appendOnly") == "true":
            raise TableError(
                f"table {self.name}: its rows must not be changed (delta.appendOnly), which upsert_by does. Leave it "
                "out, or ingest into another table"
            )
        if numbered := [
            name for name in self.columns.names if any(key.startswith(IDENTITY) for key in log.columns.get(name, ()))
        ]:
            raise SchemaError(
                f"table {self.name} numbers the column {', '.join(numbered)} itself: leave it out of the schema, or "
                "ingest into another table"
            )
        tests = {
            f"CHECK constraint {name.removeprefix(CONSTRAINT)}": expression
            for name, expression in sorted(log.properties.items())
            if name.startswith(CONSTRAINT)
        }
        for name, its in sorted(log.columns.items()):
            if GENERATED in its:
                tests[f"generated column {name}"] = f"{quoted(name)} <=> ({its[GENERATED]})"
            if INVARIANT in its:
                invariant = json.loads(str(its[INVARIANT]))
                tests[f"invariant of column {name}"] = invariant["expression"]["expression"]
        for column in stored.fields:
            if limit := column.metadata.get(LENGTH):
                tests[f"{limit.upper()} of column {column.name}"] = self._length_test(column.name, limit)
        return RowRequirements(stored, tests, () if is_object_store(log.location) else tuple(log.partition_by))

    def _length_test(self, name: str, limit: str) -> str:
        length = re.fullmatch(r"(?:var)?char\((\d+)\)", limit)
        if length is None:
            raise SchemaError(
                f"table {self.name}: column {name} has strings of a limited length inside it ({limit}), which are not "
                "checked: ingest into another table"
            )
        return f"{quoted(name)} IS NULL OR char_length({quoted(name)}) <= {length[1]}"

    def _directory_rules(self, stored: StructType, names: Sequence[str]) -> Iterator[Rule]:
        return delta_directories(stored, names)

    def _take(self, location: str, application: Application) -> None:
        """Make one commit; none if the table has the application.

        If two processes try at once, Delta refuses the slower one. A table that forgets its applications does not
        notice that it has one, so its rows are looked for.
        """
        log, is_own = self._log(), location in self.own
        # Merging the newest batch twice changes nothing.
        is_sure = bool(self.upsert_by) or (is_own and _RETENTION not in log.properties)
        if is_sure and is_own and log.path is not None and self._adopt(location, Path(log.path), application):
            return
        rows = self._rows(location, application)
        if rows is None:
            return
        settings = {
            "spark.databricks.delta.write.txnAppId": _name(application),
            "spark.databricks.delta.write.txnVersion": str(application.number),
            "spark.databricks.delta.commitInfo.userMetadata": _note(application),
        }
        write(
            self.spark, self.name, rows, self.upsert_by, settings, unless_of=None if is_sure else application.batch_id
        )

    def _adopt(self, location: str, directory: Path, application: Application) -> bool:
        """Add the staged files themselves in one commit without Spark, so that no row is written twice.

        The commit carries the same number as a commit of Spark's, and is refused if another process commits meanwhile.

        Args:
            location: A location that this object staged.
            directory: The table's directory.
            application: The batch.

        Returns:
            Whether the table has the application; False if adding files is not enough for this table.
        """
        files = self.staged.files(location)
        # Delta-rs takes a % for an escape.
        if self.upsert_by or files is None or "%" in str(directory):
            return False
        try:
            table = DeltaTable(directory)
            schema = table.schema()
            if not is_plain(table.metadata(), schema, table.protocol()):
                return False
        except (DeltaError, ValueError):
            # Deltalake knows fewer of Delta's features than Spark does.
            return False
        if misfits(spark_columns(schema), self.columns):
            return False
        taken = table.transaction_version(_name(application))
        if taken is not None and taken >= application.number:
            return True
        now_milliseconds = int(datetime.now(UTC).timestamp() * 1000)
        table.create_write_transaction(
            [add_action(_named(file, file.put_into(directory))) for file in files],
            "append",
            schema,
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": _note(application)},
                max_commit_retries=0,
                app_transactions=[Transaction(_name(application), application.number, now_milliseconds)],
            ),
        )
        return True

    def _version(self) -> int | None:
        return self._log().version

    def _log(self) -> _Log:
        return _Log.of(self.spark, self.name, self._location())

    def _newest_commit(self) -> str:
        try:
            history = self.spark.sql(f"DESCRIBE HISTORY {self.name} LIMIT 1")
            (newest,) = history.select("version", "operation", "engineInfo").collect()
        except SPARK_ERRORS:
            return "another process committed"
        return f"{newest['operation']} by {newest['engineInfo'] or 'another program'} made version {newest['version']}"


@dataclass(frozen=True, slots=True)
class _Log:
    """Content of the table's log.

    Attributes:
        version: The table's version.
        table_id: Its id; no other table has it.
        location: The table's address.
        path: The address as a path of this machine; None if it is not a local one.
        properties: The table's properties.
        partition_by: The columns by which it is partitioned.
        columns: Column -> its metadata, with the rules of the table for it.
    """

    version: int
    table_id: str
    location: str
    path: str | None
    properties: Mapping[str, str]
    partition_by: Sequence[str]
    columns: Mapping[str, Mapping[str, object]]

    @classmethod
    def of(cls, spark: SparkSession, name: str, location: str) -> _Log:
        """Read the log."""
        # It is up to date, because Spark was asked for the location a moment ago.
        if (log := delta_log(spark, location)) is None:
            return cls._by_sql(spark, name)
        snapshot = log.unsafeVolatileSnapshot()
        metadata = json.loads(snapshot.metadata().json())["metaData"]
        address = log.dataPath().toUri()
        return cls(
            snapshot.version(),
            metadata["id"],
            location,
            address.getPath() if address.getScheme() in {None, "file"} else None,
            metadata["configuration"],
            metadata["partitionColumns"],
            {field["name"]: field["metadata"] for field in json.loads(metadata["schemaString"])["fields"]},
        )

    @classmethod
    def _by_sql(cls, spark: SparkSession, name: str) -> _Log:
        """Read the log through Spark Connect, which does not give the metadata of columns."""
        (detail,) = spark.sql(f"DESCRIBE DETAIL {name}").collect()
        (newest,) = spark.sql(f"DESCRIBE HISTORY {name} LIMIT 1").select("version").collect()
        return cls(
            newest["version"],
            detail["id"],
            detail["location"],
            None,
            detail["properties"],
            detail["partitionColumns"],
            {},
        )


def _name(application: Application) -> str:
    return f"sqs-lease-{application.ledger_id}"


def _note(application: Application) -> str:
    return json.dumps({"sqs_lease_batch": application.batch_id})


def _named(file: StagedParquet, path: Path) -> StagedFile:
    """Describe a file for the table's log."""
    status = path.stat()
    return StagedFile(
        path.name, status.st_size, file.footer.num_rows, {}, int(status.st_mtime * 1000), statistics_of(file.footer)
    )
