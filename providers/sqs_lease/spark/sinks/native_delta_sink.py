"""Delta tables that Spark itself writes, with the jars of Delta: in a catalog or at a path, by append or MERGE."""

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

# How long the table knows the numbers of applications: for ever, unless somebody sets it.
_RETENTION: Final = "delta.setTransactionRetentionDuration"


@dataclass(frozen=True, slots=True)
class NativeDeltaSink:
    """A Delta table that Spark writes with Delta's own jars (see :mod:`.jars`).

    Take it where the table is one of a catalog, or has what ``DeltaSink`` cannot write: constraints, mapped columns,
    liquid clustering, deletion vectors. Each batch is one commit of Spark's, which carries the batch's number as an
    application transaction of Delta's; Delta itself refuses a second one, also of two processes at the same time.

    Attributes:
        table: The name of a table in a catalog (``"main.sales.orders"``), or the path of a directory or an address
            (``"/data/orders"``, ``"s3a://bucket/orders"``). It is created if it does not exist.
        partition_by: The columns by which a table that is created is partitioned; a table that is there stays as it is.
        upsert_by: The key's columns. None, the default, adds every record; with a key, a record replaces the one with
            the same key, unless that is of a message sent later; sent at the same time, the later batch wins.
        ledger: Where the ids of the messages are kept, and where rows wait: see :class:`..ledger.Ledger`. It belongs to
            this table alone. Tables of a catalog need it; others have it in ``_sqs_lease/ledger`` below their path.
    """

    table: str | Path
    partition_by: Sequence[str] = ()
    upsert_by: Sequence[str] = ()
    ledger: Ledger | str | Path | None = None

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
                f"table {self.table} is one of a catalog, and its ledger needs a place: give ledger= the path of a "
                "directory that all drivers and executors reach, or an address on S3"
            )
        # As deltalake calls what Spark calls s3a.
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
        # It names the column that a Delta table cannot have.
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
                f"table {self.name}: column {name} has texts of a limited length inside of it ({limit}), which are not "
                "looked at: ingest into another table"
            )
        return f"{quoted(name)} IS NULL OR char_length({quoted(name)}) <= {length[1]}"

    def _directory_rules(self, stored: StructType, names: Sequence[str]) -> Iterator[Rule]:
        return delta_directories(stored, names)

    def _take(self, location: str, application: Application) -> None:
        """One commit; none if the table has the application. If two try at once, Delta refuses the slower one.

        A table that soon forgets its applications does not see that it has one, so its rows are looked for.
        """
        log, is_own = self._log(), location in self.own
        # To merge the newest batch twice changes nothing.
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
        """Have the table name the staged files themselves, which writes no row again, in one commit without Spark.

        The commit carries the same number as one of Spark's, and is refused if anybody else commits meanwhile.

        Args:
            location: What this very object staged.
            directory: The table's.
            application: The batch.

        Returns:
            Whether the table has the application; False where that takes more than to name files.
        """
        files = self.staged.files(location)
        # delta-rs takes a % for an escape.
        if self.upsert_by or files is None or "%" in str(directory):
            return False
        try:
            table = DeltaTable(directory)
            schema = table.schema()
            if not is_plain(table.metadata(), schema, table.protocol()):
                return False
        except (DeltaError, ValueError):
            # It knows fewer of Delta's features than Spark does.
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
            return "somebody else committed"
        return f"{newest['operation']} by {newest['engineInfo'] or 'somebody else'} made version {newest['version']}"


@dataclass(frozen=True, slots=True)
class _Log:
    """What the table's log says.

    Attributes:
        version: The table's version.
        table_id: Its id, which another table never has.
        location: The table's address.
        path: The same as a path of this machine; None where it is on none of its disks.
        properties: What was set, in any way.
        partition_by: The columns by which it is partitioned.
        columns: Column -> what the table asks of it.
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
        """Read it."""
        # It is up to date since Spark has just been asked for the location.
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
        """Read it through Spark Connect, where nothing says what columns are asked."""
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
    """A file as the table's log has it."""
    status = path.stat()
    return StagedFile(
        path.name, status.st_size, file.footer.num_rows, {}, int(status.st_mtime * 1000), statistics_of(file.footer)
    )
