"""A table in PostgreSQL: rows wait in files, or in a staging table, and one transaction takes them.

**Staging.** Several connections cannot share a transaction in PostgreSQL, so the rows of Spark's tasks have to wait
somewhere. Rows that tasks make of parts of a batch wait in Parquet files beside the batch's own file, and the driver
copies them into the table while it commits. Rows that Spark itself makes are copied by the tasks into a staging table,
because there may be no directory that all of them reach.

**The commit** is one transaction. It writes the batch's entries first, and their primary key is the message id. So of
two batches with a message in common, the second waits until the first ends. If the first was committed, the second gets
a conflict and looks up again. Batches without a common message do not wait for each other.

**The cost.** One connection copies the rows while the tasks' cores are idle: of 7.5 s for a million messages, that COPY
took 3.4 s, the tasks 2.1 s, the message ids with their index 0.9 s, and the look-up 0.8 s. When tasks copied everything
into a staging table, an ingestion took 2.0 times as long as a plain COPY; now it takes 1.1 times as long. An entry has
the number of its batch instead of the batch's id and two times, and there is no index of times: that took a third of
what the ids took.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

try:
    import psycopg
    from psycopg import sql
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"PostgresSink needs psycopg ({error}): pip install 'sqs-lease[postgres]', also for the executors",
        name=error.name,
    ) from error
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sqs_lease.spark.arguments import require_names
from sqs_lease.spark.batch_parts import BatchParts
from sqs_lease.spark.columns import BATCH_ID, MESSAGE_ID, SENT_AT
from sqs_lease.spark.errors import BatchIdReusedError, SchemaError, TableError
from sqs_lease.spark.message_ids import constant, in_order, mapped, slices, without
from sqs_lease.spark.sinks.postgres.catalog import (
    BATCHES,
    ENTRY_KINDS,
    SCHEMA,
    STAGING,
    Cursor,
    TableName,
    must_insert,
    names_of,
    prepare,
    require_columns,
    require_unchanged_columns,
)
from sqs_lease.spark.sinks.postgres.connection import (
    Parameters,
    bounded_locks,
    connect,
    explained,
    parameters_of,
    place_of,
    reason_of,
)
from sqs_lease.spark.sinks.postgres.copy import (
    ATTEMPT,
    ATTEMPT_KIND,
    COPIED_DDL,
    CopyRows,
    UnwritableTexts,
    WithJsonTexts,
    copy_in,
    copy_out,
    refused_in_task,
    staged_rows,
    staged_schema,
)
from sqs_lease.spark.sinks.postgres.types import can_write, is_json, written
from sqs_lease.spark.sinks.sink import (
    KNOWN,
    REMEMBERED,
    STAGED_KEPT,
    Admission,
    CommitConflict,
    Rest,
    Staged,
)
from sqs_lease.spark.sinks.staging import stage_directory
from sqs_lease.spark.spark_errors import SPARK_ERRORS, cannot_write
from sqs_lease.spark.waits import while_contended
from sqs_lease.spark.workspace import remove_tree

logger = logging.getLogger(__name__)

_LOCK_MILLISECONDS: Final = 10_000
_WAITING: Final = "sqs_lease_waiting"
# Old entries are removed once a day. That reads all of them: an index of their times would cost each message more.
_REMOVED_EVERY: Final = timedelta(days=1)
# The planner's ways to join other than through an index.
_OTHER_WAYS: Final = ["hashjoin", "mergejoin", "seqscan", "bitmapscan"]
# The columns that are read of an entry.
_FOUND: Final = pa.schema(
    [("message_id", pa.string()), ("batch", pa.int64()), ("outcome", pa.string()), ("reason", pa.string())]
)


@dataclass(frozen=True, slots=True)
class PostgresLookUp:
    """Answer of the table at one moment.

    Attributes:
        messages: The messages of the look-up.
        known: See :class:`..sink.LookUp`.
        version: None: a table in PostgreSQL has no versions.
    """

    messages: pa.Table
    known: pa.Table
    version: None = None


@dataclass(frozen=True)
class PostgresSink:
    """A table in PostgreSQL 14 or newer, with the schema ``sqs_lease`` beside it for ingestion's own tables.

    The role needs the right to create that schema (or must own it), to create the table (or to insert into it, and with
    ``upsert_by`` also to select and update), and to make temporary tables. Each Spark task that writes holds one
    connection. The driver and the executors need the extra ``postgres``.

    Attributes:
        url: The server and database in libpq's notation: ``postgresql://user@host:5432/database``. A password in it
            travels to the executors inside the pickled function, and is not in any plan, log or error. Without a
            password, each process uses the one that libpq finds where it runs (``PGPASSWORD``, ``PGPASSFILE``,
            ``~/.pgpass``).
        table: ``name`` or ``schema.name``; without a schema it is in ``public``. It is created if it does not exist,
            with the types that ``docs/sink-postgres.md`` lists. An existing table may have further columns, if they are
            nullable or have defaults.
        upsert_by: The key columns, each ``NOT NULL``; an existing table must have a unique index of them. A row
            replaces the row with the same key, unless its message was sent earlier. Of messages that were sent at the
            same time, the later batch wins, and within a batch the higher message id. Empty, the default, only adds
            rows.
    """

    url: str = field(repr=False)
    table: str
    upsert_by: Sequence[str] = ()

    def __post_init__(self) -> None:
        parameters_of(self.url)
        TableName.of(self.table)
        require_names(self.upsert_by, "upsert_by is a list of columns")
        if len(set(self.upsert_by)) != len(self.upsert_by):
            raise SchemaError("upsert_by is a list of columns, each once: upsert_by=['order_id']")

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> PostgresTable:
        """See :meth:`..sink.Sink.open`."""
        name, parameters = TableName.of(self.table), parameters_of(self.url)
        require_columns(columns, self.upsert_by)
        table = PostgresTable(name, parameters, columns, tuple(self.upsert_by))
        with table.transaction("cannot be opened") as cursor:
            prepare(cursor, name, columns, self.upsert_by, widen=widen)
        return table


@dataclass(frozen=True, slots=True)
class PostgresTable:
    """The open table. Each method has a connection of its own, so that none is held while Spark works."""

    name: TableName
    parameters: Parameters = field(repr=False)
    columns: StructType
    upsert_by: tuple[str, ...]

    def look_up(self, messages: pa.Table) -> PostgresLookUp:
        """See :meth:`..sink.Table.look_up`."""
        with self.transaction("cannot be read") as cursor:
            return PostgresLookUp(messages, self._known(cursor, messages["message_id"]))

    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        """See :meth:`..sink.Table.stage`."""
        return self._staged(batch_id, lambda copy: self._as_copied(rows).mapInArrow(copy, COPIED_DDL).toArrow())

    def stage_parts(self, spark: SparkSession, parts: BatchParts, rest: Rest, batch_id: str) -> Staged | None:
        """See :class:`..sink.PartsTable`. For some nested types, only Spark can make the JSON."""
        if not all(can_write(column.dataType) for column in self.columns.fields if is_json(column.dataType)):
            return None
        texts = replace(parts, parser=WithJsonTexts(parts.parser, self.columns))
        nested = [column.name for column in self.columns.fields if is_json(column.dataType)]
        workspace = Path(parts.path).parent

        def copied_rest(left: pa.Table) -> DataFrame | None:
            rows = rest(left)
            return None if rows is None else self._as_copied(rows)

        try:
            directory, message_ids = stage_directory(
                workspace,
                batch_id,
                staged_schema(self.columns),
                lambda staging: replace(staging, is_read_once=True).write_parts(spark, texts, copied_rest),
                UnwritableTexts(nested),
            )
        except SPARK_ERRORS as error:
            if not cannot_write(error):
                raise
            logger.warning(
                "batch %s: all rows pass through Spark, which takes longer: its executors cannot write in %s. "
                "Give that directory a group of theirs which may write in it, and this process a umask with which it "
                "makes directories that their group may write in",
                batch_id,
                workspace.parent,
            )
            return None
        return Staged(str(directory), message_ids)

    def commit(self, looked_up: PostgresLookUp, admission: Admission) -> int | None:
        """See :meth:`..sink.Table.commit`.

        There is a conflict if a message of the admission has an entry by now, or gets one from another transaction that
        is under way; and if the server ended this transaction because of another one.
        """
        with self.transaction("cannot be written") as cursor:
            try:
                self._admit(cursor, looked_up, admission)
                if admission.staged is not None:
                    self._take(cursor, admission.staged)
                cursor.connection.commit()
            except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
                raise CommitConflict(f"PostgreSQL preferred another transaction on table {self._place}") from None
        self._tidy(admission)
        return None

    def discard(self, staged: Staged) -> None:
        """See :meth:`..sink.Table.discard`. Rows that a commit took are in the table itself."""
        if _is_of_files(staged):
            remove_tree(Path(staged.location))
        else:
            self._drop([staged.location])

    @contextmanager
    def transaction(self, what: str) -> Iterator[Cursor]:
        """Open a connection and a transaction for one block; ``what`` begins the text of its errors.

        Raises:
            TableError: The server raised an error, or another transaction held a lock for too long.
        """
        with (
            explained(f"table {self._place} {what}"),
            while_contended(f"table {self._place}") as writers,
            connect(self.parameters) as connection,
            bounded_locks(connection, self.parameters, writers),
            connection.cursor() as cursor,
        ):
            yield cursor

    @property
    def _place(self) -> str:
        return f"{self.name} in {place_of(self.parameters)}"

    def _staged(self, batch_id: str, write: Callable[[CopyRows], pa.Table]) -> Staged:
        name = f"staging_{uuid4().hex}"
        self._drop_left_over("created_at < now() - %s", [STAGED_KEPT])
        try:
            return Staged(name, self._fill(name, batch_id, write))
        except BaseException:
            self._drop([name])
            raise

    def _as_copied(self, rows: DataFrame) -> DataFrame:
        return rows.select(*(written(column.name, column.dataType) for column in self.columns.fields))

    def _fill(self, name: str, batch_id: str, write: Callable[[CopyRows], pa.Table]) -> pa.ChunkedArray:
        """Make a staging table, let Spark write it, and return the message ids in it."""
        staging = sql.Identifier(SCHEMA, name)
        with self.transaction("cannot be written") as cursor:
            # The tasks write with the types that the table has now.
            kinds = require_unchanged_columns(cursor, self.name, self.columns)
            # Without a log. If the server crashes, the rows are gone, and the commit notices that.
            cursor.execute(
                sql.SQL("CREATE UNLOGGED TABLE {} AS SELECT {}, 0::bigint AS {} FROM {} WITH NO DATA").format(
                    staging, names_of(self.columns.names), sql.Identifier(ATTEMPT), self.name.quoted
                )
            )
            cursor.execute(
                sql.SQL("INSERT INTO {} (name, target, batch_id) VALUES (%s, %s, %s)").format(STAGING),
                [name, str(self.name), batch_id],
            )
        statement = sql.SQL("COPY {} ({}, {}) FROM STDIN (FORMAT binary)").format(
            staging, names_of(self.columns.names), sql.Identifier(ATTEMPT)
        )
        copy = CopyRows(self.parameters, statement.as_string(), [*kinds, ATTEMPT_KIND], self._place)
        try:
            copied = write(copy)
        except PythonException as error:
            raise refused_in_task(error) or error from None
        attempts, count = copied["attempt"].to_pylist(), pc.sum(copied["rows"], min_count=0).as_py()
        with self.transaction("cannot be written") as cursor:
            cursor.execute(
                sql.SQL("UPDATE {} SET attempts = %s, rows = %s WHERE name = %s").format(STAGING),
                [attempts, count, name],
            )
            query = sql.SQL("COPY (SELECT {} FROM {} WHERE {} = ANY ({}::bigint[])) TO STDOUT (FORMAT csv)").format(
                sql.Identifier(MESSAGE_ID), staging, sql.Identifier(ATTEMPT), sql.Literal(attempts)
            )
            message_ids = copy_out(cursor, query, pa.schema([(MESSAGE_ID, pa.string())]))[MESSAGE_ID]
        if len(message_ids) != count:
            raise TableError(
                f"table {self._place}: {count} rows were staged, and {len(message_ids)} are there; the server was "
                "restarted, or another try has cleaned up. Run the batch again"
            )
        return message_ids

    def _known(self, cursor: Cursor, message_ids: pa.ChunkedArray) -> pa.Table:
        """Return what the table knows of messages."""
        cursor.execute('CREATE TEMPORARY TABLE sqs_lease_asked (message_id text COLLATE "C") ON COMMIT DROP')
        # Forces the index: the planner would rather read all entries, which may be many millions.
        cursor.execute("SELECT set_config('enable_' || way, 'off', true) FROM unnest(%s::text[]) way", [_OTHER_WAYS])
        return mapped((self._known_of(cursor, part) for part in slices(message_ids)), KNOWN)

    def _known_of(self, cursor: Cursor, message_ids: pa.ChunkedArray) -> pa.Table:
        # Sorted, because reading an index in its own order is fastest.
        order = pc.sort_indices(message_ids)
        asked = pa.table([message_ids.take(order)], names=["message_id"])
        cursor.execute("TRUNCATE pg_temp.sqs_lease_asked")
        copy_in(cursor, "COPY pg_temp.sqs_lease_asked FROM STDIN (FORMAT binary)", asked.to_batches(), ["text"])
        query = sql.SQL(
            "COPY (SELECT e.message_id, e.batch, e.outcome, e.reason "
            "FROM pg_temp.sqs_lease_asked JOIN {} e USING (message_id)) TO STDOUT (FORMAT csv)"
        ).format(self.name.entries)
        found = copy_out(cursor, query, _FOUND)
        brought = cursor.execute(
            sql.SQL("SELECT number, batch_id FROM {} WHERE number = ANY (%s)").format(BATCHES),
            [pc.unique(found["batch"]).to_pylist()],
        ).fetchall()
        numbers = pa.array([number for number, _ in brought], pa.int64())
        batch_ids = pa.array([batch_id for _, batch_id in brought], pa.string())
        place = pc.index_in(found["batch"], value_set=numbers)
        known = found.set_column(1, "batch_id", batch_ids.take(place.combine_chunks())).select(KNOWN.names)
        # Another process may have removed old batches a moment ago, with their entries.
        known = known.filter(pc.is_valid(place)).cast(KNOWN)
        # If all are known, they are put into the order of the look-up, so that comparing the two is fast.
        return known.take(pc.sort_indices(order)) if known.num_rows == len(order) else known

    def _admit(self, cursor: Cursor, looked_up: PostgresLookUp, admission: Admission) -> None:
        # A commit must survive a crash of the server, whatever the role's default is.
        cursor.execute(
            "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
        )
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 1))", [f"{self.name} {admission.batch_id}"])
        (number,) = cursor.execute(
            sql.SQL("INSERT INTO {} (target, batch_id, messages) VALUES (%s, %s, %s) RETURNING number").format(BATCHES),
            [str(self.name), admission.batch_id, admission.entries.num_rows],
        ).fetchone() or (None,)
        entries = admission.entries
        entries = entries.append_column("batch", constant(number, pa.int64(), entries.num_rows))
        # Sorted, so that two batches never wait for each other in both directions.
        parts = in_order(entries.select(list(ENTRY_KINDS)))
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(self.name.entries, names_of(ENTRY_KINDS))
        try:
            batches = chain.from_iterable(part.to_batches() for part in parts)
            copy_in(cursor, statement, batches, list(ENTRY_KINDS.values()))
        except psycopg.errors.UniqueViolation:
            raise CommitConflict(
                f"another batch with one of the messages was committed to table {self._place}"
            ) from None
        self._require_batch(cursor, looked_up, admission, number)

    def _require_batch(
        self, cursor: Cursor, looked_up: PostgresLookUp, admission: Admission, number: int | None
    ) -> None:
        """Refuse a batch id if the table has other messages under it than those of the look-up."""
        (stored,) = cursor.execute(
            sql.SQL(
                "SELECT coalesce(sum(messages), 0)::bigint FROM {} WHERE target = %s AND batch_id = %s AND number <> %s"
            ).format(BATCHES),
            [str(self.name), admission.batch_id, number],
        ).fetchone() or (0,)
        brought = _brought_by(looked_up.known, admission.batch_id)
        if stored == brought:
            return
        others = without(looked_up.messages["message_id"], admission.entries["message_id"])
        if _brought_by(self._known(cursor, others), admission.batch_id) != brought:
            raise CommitConflict(f"another try of the batch committed a part of it to table {self._place}")
        raise BatchIdReusedError(
            f"batch id {admission.batch_id} stands for other messages already: table {self._place} has {stored} under "
            f"it, of which {brought} are in this batch. Leave batch_id out, or give every batch an id of its own"
        )

    def _take(self, cursor: Cursor, staged: Staged) -> None:
        # If the type of a column had changed, the server would convert the values.
        kinds = require_unchanged_columns(cursor, self.name, self.columns)
        if not _is_of_files(staged):
            taken, expected = self._take_staging(cursor, staged)
        else:
            expected = len(staged.message_ids)
            taken = self._take_files(cursor, Path(staged.location), kinds)
        if taken != expected:
            raise TableError(
                f"of {expected} rows staged for table {self._place}, {taken} were there at the commit: the server was "
                "restarted, or the table has a trigger or rule that keeps rows out. Nothing was committed; run the "
                "batch again"
            )

    def _take_files(self, cursor: Cursor, directory: Path, kinds: Sequence[str]) -> int:
        """Copy rows from files into the table, by COPY itself if the table allows that; return the number of rows."""
        into = self.name.quoted
        by_statement = self.upsert_by or must_insert(cursor, self.name)
        if by_statement:
            # With the schema, because the role's search path may have temporary tables last.
            into = sql.Identifier("pg_temp", _WAITING)
            cursor.execute(
                sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
                    into, names_of(self.columns.names), self.name.quoted
                )
            )
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(into, names_of(self.columns.names))
        try:
            copy_in(cursor, statement, staged_rows(directory), kinds)
        except OSError as error:
            raise TableError(
                f"the rows staged for table {self._place} cannot be read ({error.strerror or error}), and nothing was "
                f"committed: only ingestion may remove files in {directory}; run the batch again"
            ) from error
        return self._insert(cursor, sql.SQL("FROM {}").format(into)) if by_statement else cursor.rowcount

    def _take_staging(self, cursor: Cursor, staged: Staged) -> tuple[int, int]:
        """Insert the rows of a staging table; return the number of rows that were taken and that were staged."""
        found = cursor.execute(
            sql.SQL("SELECT attempts, rows FROM {} WHERE name = %s").format(STAGING), [staged.location]
        ).fetchone()
        if found is None:
            raise TableError(
                f"the rows staged for table {self._place} are gone: another try of the batch was committed, or this "
                f"one took longer than {STAGED_KEPT.days} days. Run the batch again"
            )
        attempts, expected = found
        # Literals and not parameters: with parameters, psycopg would take a % in a name for a placeholder.
        rows = sql.SQL("FROM {} WHERE {} = ANY ({}::bigint[])").format(
            sql.Identifier(SCHEMA, staged.location), sql.Identifier(ATTEMPT), sql.Literal(attempts)
        )
        return self._insert(cursor, rows), expected

    def _insert(self, cursor: Cursor, rows: sql.Composed) -> int:
        """Insert or upsert rows, and return their number."""
        if self.upsert_by:
            (taken,) = cursor.execute(sql.SQL("SELECT count(*) {}").format(rows)).fetchone() or (0,)
            cursor.execute(self._upsert(rows))
            return int(taken)
        names = names_of(self.columns.names)
        cursor.execute(sql.SQL("INSERT INTO {} ({}) SELECT {} {}").format(self.name.quoted, names, names, rows))
        return cursor.rowcount

    def _upsert(self, rows: sql.Composed) -> sql.Composed:
        keys = names_of(self.upsert_by)
        changes = sql.SQL(", ").join(
            sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name))
            for name in self.columns.names
            if name not in self.upsert_by
        )
        return sql.SQL(
            "INSERT INTO {table} AS stored ({names}) SELECT DISTINCT ON ({keys}) {names} {rows} "
            "ORDER BY {keys}, {sent_at} DESC NULLS LAST, {message_id} DESC "
            "ON CONFLICT ({keys}) DO UPDATE SET {changes} "
            # The microseconds of a FIFO queue's messages are counted from 0 in each batch.
            "WHERE stored.{sent_at} IS NULL OR excluded.{sent_at} >= CASE WHEN stored.{batch_id} = excluded.{batch_id} "
            "THEN stored.{sent_at} ELSE date_trunc('milliseconds', stored.{sent_at}) END"
        ).format(
            table=self.name.quoted,
            names=names_of(self.columns.names),
            keys=keys,
            rows=rows,
            sent_at=sql.Identifier(SENT_AT),
            message_id=sql.Identifier(MESSAGE_ID),
            batch_id=sql.Identifier(BATCH_ID),
            changes=changes,
        )

    def _tidy(self, admission: Admission) -> None:
        """Remove the staged rows of the batch, and the entries of messages that cannot come again."""
        if admission.staged is not None and _is_of_files(admission.staged):
            self.discard(admission.staged)
        self._drop_left_over("batch_id = %s", [admission.batch_id])
        try:
            with connect(self.parameters) as connection:
                (is_due,) = connection.execute(
                    sql.SQL("SELECT min(admitted_at) < now() - %s FROM {} WHERE target = %s").format(BATCHES),
                    [REMEMBERED + _REMOVED_EVERY, str(self.name)],
                ).fetchone() or (None,)
                if is_due:
                    connection.execute(
                        sql.SQL(
                            "WITH old AS (DELETE FROM {} WHERE target = %s AND admitted_at < now() - %s "
                            "RETURNING number) DELETE FROM {} WHERE batch IN (SELECT number FROM old)"
                        ).format(BATCHES, self.name.entries),
                        [str(self.name), REMEMBERED],
                    )
        except psycopg.Error as error:
            logger.warning("old entries of %s were not removed: %s", self._place, reason_of(error))

    def _drop_left_over(self, condition: Any, values: list[object]) -> None:
        try:
            with connect(self.parameters) as connection:
                found = connection.execute(
                    sql.SQL("SELECT name FROM {} WHERE target = %s AND {}").format(STAGING, sql.SQL(condition)),
                    [str(self.name), *values],
                ).fetchall()
        except psycopg.Error as error:
            logger.warning("staging tables of %s were not looked for: %s", self._place, reason_of(error))
        else:
            self._drop([name for (name,) in found])

    def _drop(self, names: Sequence[str]) -> None:
        """Drop staging tables. A failure is only logged, because a table that stays does no harm."""
        for name in names:
            try:
                with connect(self.parameters) as connection:
                    # A task that Spark has given up may still be writing.
                    connection.execute("SELECT set_config('lock_timeout', %s, true)", [str(_LOCK_MILLISECONDS)])
                    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(SCHEMA, name)))
                    connection.execute(sql.SQL("DELETE FROM {} WHERE name = %s").format(STAGING), [name])
            except psycopg.Error as error:
                logger.warning("left over, and not part of %s: %s.%s (%s)", self._place, SCHEMA, name, reason_of(error))


def _is_of_files(staged: Staged) -> bool:
    return Path(staged.location).is_absolute()


def _brought_by(known: pa.Table, batch_id: str) -> int:
    count: int = pc.sum(pc.equal(known["batch_id"], batch_id), min_count=0).as_py()
    return count
