"""Delta tables that Spark itself writes, with the jars of Delta: in a catalog or at a path, by append or MERGE."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltalake import Schema
from deltalake.exceptions import DeltaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sqs_lease.spark.batch_parts import BatchParts
from sqs_lease.spark.errors import SchemaError, TableError
from sqs_lease.spark.executors import SPARK_ERRORS
from sqs_lease.spark.ledger import Ledger
from sqs_lease.spark.paths import write_path
from sqs_lease.spark.sinks.delta.schema import delta_schema, differences
from sqs_lease.spark.sinks.row_rules import (
    DoubtfulDirectories,
    Rule,
    check_constraints,
    delta_directories,
    generated_values,
    invariants,
    is_object_store,
    judged,
)
from sqs_lease.spark.sinks.sink import Rest, Staged
from sqs_lease.spark.sinks.staged_rows import StagedRows, first_line, gone
from sqs_lease.spark.sinks.table_sql import (
    add_columns,
    check_keys,
    create_table,
    quoted,
    write,
)
from sqs_lease.spark.sinks.write_ahead import Application, WriteAheadTable
from sqs_lease.spark.waits import Others, among_others

logger = logging.getLogger(__name__)

_GENERATED: Final = "delta.generationExpression"
_INVARIANT: Final = "delta.invariants"
_IDENTITY: Final = "delta.identity."


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
        table = NativeDeltaTable(spark, self._name, tuple(self.upsert_by), StagedRows.beside(ledger, spark), columns)
        table.prepare(self.partition_by, widen=widen)
        return WriteAheadTable(table, ledger.open())

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
class NativeDeltaTable:
    """See :class:`.write_ahead.TargetTable`.

    Attributes:
        spark: The session.
        name: The table's name, quoted.
        upsert_by: The key's columns; none to append.
        staged: Where rows wait.
        columns: What is written into it.
    """

    spark: SparkSession
    name: str
    upsert_by: tuple[str, ...]
    staged: StagedRows
    columns: StructType

    def prepare(self, partition_by: Sequence[str], *, widen: bool) -> None:
        """Create the table where there is none, compare its columns, and add those that it lacks.

        Raises:
            SchemaError: The table has other columns, or cannot have these.
            TableError: The table cannot be used.
        """
        columns = self.columns
        # It names the column that a Delta table cannot have.
        delta_schema(columns)
        stored = self._columns_or_none()
        if stored is None:
            partitions = [quoted(name) for name in partition_by]
            try:
                self.spark.sql(create_table(self.name, columns, using="delta", partition_by=partitions)).collect()
            except SPARK_ERRORS as error:
                # Somebody else may be creating it at this moment.
                stored = self._columns_or_none()
                if stored is None:
                    raise self._unusable("cannot be created", error) from error
            stored = self._columns()
        if differs := differences(_as_delta(stored), columns, widen=widen):
            raise SchemaError(
                f"the schema does not fit table {self.name}: {'; '.join(differs)}. Change the schema or the table, or "
                "ingest into another one"
            )
        missing = [field for field in columns.fields if field.name not in stored.names]
        if missing:
            try:
                self.spark.sql(add_columns(self.name, StructType(missing))).collect()
            except SPARK_ERRORS as error:
                if not set(columns.names) <= set(self._columns().names):
                    raise self._unusable("cannot take more columns", error) from error

    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        """See :meth:`.write_ahead.TargetTable.stage`."""
        return self.staged.write(rows, batch_id)

    def stage_parts(self, spark: SparkSession, parts: BatchParts, rest: Rest, batch_id: str) -> Staged | None:
        """See :class:`.sink.PartsTable`. Where the table has rules of its own, Spark has to look at every row."""
        _, rules, directories = self._rules()
        if rules:
            return None
        doubtful = DoubtfulDirectories.of(self.columns, directories)
        return self.staged.write_parts(parts, rest, batch_id, self.columns, doubtful)

    def judged(self, rows: DataFrame, reason: str) -> DataFrame:
        """See :class:`.sink.JudgingTable`."""
        stored, rules, directories = self._rules()
        return judged(rows, reason, stored, [*rules, *delta_directories(stored, directories)])

    def _rules(self) -> tuple[StructType, Sequence[Rule], Sequence[str]]:
        """The table's columns, the rules that it has for their values, and those that name directories.

        Raises:
            SchemaError: A column that is written is one that the table numbers.
            TableError: The table cannot be read.
        """
        try:
            (detail,) = self.spark.sql(f"DESCRIBE DETAIL {self.name}").collect()
            stored = self._columns()
            metadata = _metadata(self.spark, detail["location"])
        except SPARK_ERRORS as error:
            raise self._unusable("cannot be read", error) from error
        if numbered := [
            name for name in self.columns.names if any(key.startswith(_IDENTITY) for key in metadata.get(name, ()))
        ]:
            raise SchemaError(
                f"table {self.name} numbers the column {', '.join(numbered)} itself: leave it out of the schema, or "
                "ingest into another table"
            )
        rules = [
            *check_constraints(detail["properties"]),
            *generated_values({name: str(its[_GENERATED]) for name, its in metadata.items() if _GENERATED in its}),
            *invariants({name: str(its[_INVARIANT]) for name, its in metadata.items() if _INVARIANT in its}),
        ]
        return stored, rules, [] if is_object_store(detail["location"]) else detail["partitionColumns"]

    def apply(self, location: str, application: Application) -> int | None:
        """See :meth:`.write_ahead.TargetTable.apply`."""
        with among_others(f"table {self.name}") as others:
            self._apply(location, application, others)
        self.staged.remove(location)
        return self.version()

    def _apply(self, location: str, application: Application, others: Others) -> None:
        while not self.staged.is_applied(application):
            try:
                rows = self.staged.read(location, self._columns())
                if rows is not None:
                    self._take(rows, application)
                elif not self.staged.is_applied(application):
                    raise gone(self.name, location, application)
            except SPARK_ERRORS as error:
                if "Concurrent" in str(error) or "FILE_NOT_EXIST" in str(error):
                    # Somebody else wrote the table meanwhile, perhaps this very batch.
                    others.again(self._newest_commit())
                    continue
                raise self._unusable("cannot be written", error) from error
            self.staged.mark_applied(application)
            return

    def version(self) -> int | None:
        """See :meth:`.write_ahead.TargetTable.version`."""
        (newest,) = self.spark.sql(f"DESCRIBE HISTORY {self.name} LIMIT 1").select("version").collect()
        version: int = newest["version"]
        return version

    def discard(self, location: str) -> None:
        """See :meth:`.write_ahead.TargetTable.discard`."""
        self.staged.remove(location)

    def _take(self, rows: DataFrame, application: Application) -> None:
        """One commit; none if the table has the application. If two try at once, Delta refuses the slower one."""
        settings = {
            "spark.databricks.delta.write.txnAppId": f"sqs-lease-{application.ledger_id}",
            "spark.databricks.delta.write.txnVersion": str(application.number),
            "spark.databricks.delta.commitInfo.userMetadata": json.dumps({"sqs_lease_batch": application.batch_id}),
        }
        write(self.spark, self.name, rows, self.upsert_by, settings)

    def _newest_commit(self) -> str:
        """What is known of whoever committed last."""
        try:
            history = self.spark.sql(f"DESCRIBE HISTORY {self.name} LIMIT 1")
            (newest,) = history.select("version", "operation", "engineInfo").collect()
        except SPARK_ERRORS:
            return "somebody else committed"
        return f"{newest['operation']} by {newest['engineInfo'] or 'somebody else'} made version {newest['version']}"

    def _columns(self) -> StructType:
        return self.spark.table(self.name).schema

    def _columns_or_none(self) -> StructType | None:
        try:
            return self._columns()
        except AnalysisException:
            # It may be there and be unreadable; then it cannot be created either, and that error says why.
            return None

    def _unusable(self, what: str, error: Exception) -> TableError:
        return TableError(
            f"table {self.name} {what}: {first_line(error)}. Check that the session has Delta's jars and settings "
            "(they are named in sqs_lease.spark.sinks.jars), and may write there"
        )


def _metadata(spark: SparkSession, location: str) -> Mapping[str, Mapping[str, object]]:
    """What the table's log says of each column, which Spark keeps to itself; nothing through Spark Connect."""
    jvm, session = getattr(spark, "_jvm", None), getattr(spark, "_jsparkSession", None)
    if jvm is None or session is None:
        return {}
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, location)
    schema = json.loads(log.unsafeVolatileSnapshot().metadata().schemaString())
    return {field["name"]: field["metadata"] for field in schema["fields"]}


def _as_delta(stored: StructType) -> Schema:
    try:
        return Schema.from_json(stored.json())
    except (DeltaError, ValueError) as error:
        raise SchemaError(f"the table has a column that ingestion cannot compare: {error}") from error
