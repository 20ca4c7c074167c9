"""Delta tables that Spark itself writes, with the jars of Delta: in a catalog or at a path, by append or MERGE."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sqs_lease.spark.errors import SchemaError, TableError
from sqs_lease.spark.ledger import Ledger
from sqs_lease.spark.paths import write_path
from sqs_lease.spark.schemas import check_keys, quoted
from sqs_lease.spark.sinks.delta.schema import CONSTRAINT, GENERATED, IDENTITY, INVARIANT, LENGTH, delta_schema
from sqs_lease.spark.sinks.row_rules import Asked, Rule, delta_directories, is_object_store
from sqs_lease.spark.sinks.spark_table import SparkTable, StagedRows
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
            (``"/data/orders"``, ``"s3a://bucket/orders"``). It is created where there is none.
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

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> WriteAheadTable:
        """See :meth:`.sink.Sink.open`."""
        ledger = self._ledger()
        check_keys(columns, self.upsert_by)
        table = NativeDeltaTable(spark, self._name, tuple(self.upsert_by), StagedRows(spark, ledger.place), columns)
        return WriteAheadTable(table.prepared(self.partition_by, widen=widen), ledger.open())

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
        return Ledger(f"{self._path.replace('s3a://', 's3://')}/_sqs_lease/ledger")


@dataclass(frozen=True, slots=True)
class NativeDeltaTable(SparkTable):
    """See :class:`.spark_table.SparkTable`."""

    format_name: ClassVar[str] = "delta"
    needs: ClassVar[str] = "Delta's jars and settings"

    def _as_stored(self, columns: StructType) -> StructType:
        # It names the column that a Delta table cannot have.
        delta_schema(columns)
        return columns

    def _ask(self) -> Asked:
        try:
            (detail,) = self.spark.sql(f"DESCRIBE DETAIL {self.name}").collect()
            stored = self._columns()
            metadata = _metadata(self.spark, detail["location"])
        except SPARK_ERRORS as error:
            raise self.unusable("cannot be read", error) from error
        properties = detail["properties"]
        if self.upsert_by and properties.get("delta.appendOnly") == "true":
            raise TableError(
                f"table {self.name}: its rows must not be changed (delta.appendOnly), which upsert_by does. Leave it "
                "out, or ingest into another table"
            )
        if numbered := [
            name for name in self.columns.names if any(key.startswith(IDENTITY) for key in metadata.get(name, ()))
        ]:
            raise SchemaError(
                f"table {self.name} numbers the column {', '.join(numbered)} itself: leave it out of the schema, or "
                "ingest into another table"
            )
        tests = {
            f"CHECK constraint {name.removeprefix(CONSTRAINT)}": expression
            for name, expression in sorted(properties.items())
            if name.startswith(CONSTRAINT)
        }
        for name, its in sorted(metadata.items()):
            if GENERATED in its:
                tests[f"generated column {name}"] = f"{quoted(name)} <=> ({its[GENERATED]})"
            if INVARIANT in its:
                invariant = json.loads(str(its[INVARIANT]))
                tests[f"invariant of column {name}"] = invariant["expression"]["expression"]
        for column in stored.fields:
            if limit := column.metadata.get(LENGTH):
                tests[f"{limit.upper()} of column {column.name}"] = self._length_test(column.name, limit)
        return Asked(stored, tests, () if is_object_store(detail["location"]) else tuple(detail["partitionColumns"]))

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
        rows = self._rows(location, application)
        if rows is None:
            return
        # To merge the newest batch twice changes nothing.
        is_sure = bool(self.upsert_by) or (location in self.own and not self._forgets())
        settings = {
            "spark.databricks.delta.write.txnAppId": f"sqs-lease-{application.ledger_id}",
            "spark.databricks.delta.write.txnVersion": str(application.number),
            "spark.databricks.delta.commitInfo.userMetadata": json.dumps({"sqs_lease_batch": application.batch_id}),
        }
        write(
            self.spark, self.name, rows, self.upsert_by, settings, unless_of=None if is_sure else application.batch_id
        )

    def _forgets(self) -> bool:
        # Not DESCRIBE DETAIL, for which Delta puts the whole state of the table together.
        properties = self.spark.sql(f"SHOW TBLPROPERTIES {self.name}").collect()
        return any(one["key"] == _RETENTION for one in properties)

    def _version(self) -> int | None:
        (newest,) = self.spark.sql(f"DESCRIBE HISTORY {self.name} LIMIT 1").select("version").collect()
        version: int = newest["version"]
        return version

    def _newest_commit(self) -> str:
        try:
            history = self.spark.sql(f"DESCRIBE HISTORY {self.name} LIMIT 1")
            (newest,) = history.select("version", "operation", "engineInfo").collect()
        except SPARK_ERRORS:
            return "somebody else committed"
        return f"{newest['operation']} by {newest['engineInfo'] or 'somebody else'} made version {newest['version']}"


def _metadata(spark: SparkSession, location: str) -> Mapping[str, Mapping[str, object]]:
    """What the table's log says of each column, which Spark keeps to itself; nothing through Spark Connect."""
    jvm, session = getattr(spark, "_jvm", None), getattr(spark, "_jsparkSession", None)
    if jvm is None or session is None:
        return {}
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, location)
    schema = json.loads(log.unsafeVolatileSnapshot().metadata().schemaString())
    return {field["name"]: field["metadata"] for field in schema["fields"]}
