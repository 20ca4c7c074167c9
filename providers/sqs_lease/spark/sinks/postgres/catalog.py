"""The tables in PostgreSQL: the user's table, created or checked, and ingestion's own tables beside it.

Our own tables are in the schema ``sqs_lease`` of the same database, so that one transaction reaches both:

- ``entries_<hash>``, one for each table of the user: a row for each message that it knows, with the number of its
  batch;
- ``batches``: each commit of a batch, by its number, with the number of its messages;
- ``staging``: the staging tables, named ``staging_<random>``, with the attempts whose rows count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql
from pyspark.sql.types import StructField, StructType

from sqs_lease.spark.columns import POSTGRES_COLUMNS
from sqs_lease.spark.errors import SchemaError, TableError
from sqs_lease.spark.schemas import check_keys
from sqs_lease.spark.sinks.differences import require_fit, require_unchanged
from sqs_lease.spark.sinks.postgres.types import postgres_type, takes

SCHEMA: Final = "sqs_lease"
STAGING: Final = sql.Identifier(SCHEMA, "staging")
BATCHES: Final = sql.Identifier(SCHEMA, "batches")

ENTRY_KINDS: Final = {"message_id": "text", "batch": "bigint", "outcome": "text", "reason": "text"}
"""The columns of an entry, with their types: few bytes, because each message has them."""

_LONGEST_NAME_BYTES: Final = 63
_DEFAULT_SCHEMA: Final = "public"

Cursor = psycopg.Cursor[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class TableName:
    """A table of the user.

    Attributes:
        schema: Its schema.
        name: Its name in that schema; upper and lower case count.
    """

    schema: str
    name: str

    @classmethod
    def of(cls, text: str) -> TableName:
        """Parse ``name`` or ``schema.name``.

        Raises:
            TableError: The text is neither.
        """
        schema, dot, name = text.rpartition(".")
        parts = (schema if dot else _DEFAULT_SCHEMA, name)
        # With quotes around it a name would be another one, which has the quotes in it.
        if any(not part or set('\0."') & set(part) or len(part.encode()) > _LONGEST_NAME_BYTES for part in parts):
            raise TableError(
                f"{text!r} is not the name of a PostgreSQL table: write name or schema.name, each of at most "
                f"{_LONGEST_NAME_BYTES} bytes and without dots or quotes of its own"
            )
        return cls(*parts)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def quoted(self) -> sql.Identifier:
        """The name for a statement."""
        return sql.Identifier(self.schema, self.name)

    @property
    def entries(self) -> sql.Identifier:
        """The name of its table of entries."""
        return sql.Identifier(SCHEMA, f"entries_{hashlib.sha256(str(self).encode()).hexdigest()[:16]}")


def require_columns(columns: StructType, upsert_by: Sequence[str]) -> None:
    """Check columns and keys without the server.

    Raises:
        SchemaError: PostgreSQL cannot have these columns, or these keys.
    """
    for field in columns.fields:
        postgres_type(field.name, field.dataType)
        if "\0" in field.name or len(field.name.encode()) > _LONGEST_NAME_BYTES:
            raise SchemaError(
                f"column {field.name!r}: PostgreSQL cuts names after {_LONGEST_NAME_BYTES} bytes: rename it"
            )
        if field.name in POSTGRES_COLUMNS:
            raise SchemaError(f"column {field.name!r}: PostgreSQL has a system column of this name: rename it")
    check_keys(columns, upsert_by)


def prepare(cursor: Cursor, table: TableName, columns: StructType, upsert_by: Sequence[str], *, widen: bool) -> None:
    """Create or check the user's table and our own, inside one transaction.

    Raises:
        SchemaError: The table has other columns, or lacks the unique index for upserts.
        TableError: The name is that of a view or of something else that is not a table.
    """
    _make_ours(cursor)
    # If two drivers create or widen the table at once, one of them waits here.
    cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"{SCHEMA} {table}"])
    found = cursor.execute(
        "SELECT c.oid, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s",
        [table.schema, table.name],
    ).fetchone()
    if found is None:
        _make(cursor, table, columns, upsert_by)
    elif found[1] not in ("r", "p"):
        raise TableError(f"{table} is not a table (but a view, for example): ingest into a table")
    else:
        stored = _stored(cursor, table)
        require_fit(str(table), _differences(stored, columns, widen=widen))
        for field in columns.fields:
            if field.name not in stored:
                cursor.execute(sql.SQL("ALTER TABLE {} ADD COLUMN {}").format(table.quoted, _definition(field)))
        _require_unique(cursor, found[0], table, upsert_by)
    _make_entries(cursor, table)


def _make_entries(cursor: Cursor, table: TableName) -> None:
    # Looks first, because CREATE INDEX waits for all writers, even if there is nothing to create.
    if cursor.execute("SELECT to_regclass(%s)", [table.entries.as_string()]).fetchone() != (None,):
        return
    cursor.execute(
        sql.SQL(
            # The collation "C" compares bytes, which is faster than the rules of a language. A second index would cost
            # time for each message.
            'CREATE TABLE {} (message_id text COLLATE "C" PRIMARY KEY, batch bigint NOT NULL, outcome text NOT NULL, '
            "reason text)"
        ).format(table.entries)
    )
    cursor.execute(
        sql.SQL("COMMENT ON TABLE {} IS {}").format(
            table.entries, sql.Literal(f"messages that sqs-lease brought into {table}")
        )
    )


def _make_ours(cursor: Cursor) -> None:
    if cursor.execute("SELECT to_regclass(%s)", [f"{SCHEMA}.batches"]).fetchone() != (None,):
        return
    cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [SCHEMA])
    # Looks first, because IF NOT EXISTS needs the right to create schemas even if there is nothing to create.
    if cursor.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [SCHEMA]).fetchone() is None:
        cursor.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(SCHEMA)))
    cursor.execute(
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {} (name text PRIMARY KEY, target text NOT NULL, batch_id text NOT NULL, "
            "created_at timestamptz NOT NULL DEFAULT now(), attempts bigint[], rows bigint)"
        ).format(STAGING)
    )
    cursor.execute(
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {} (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
            "target text NOT NULL, batch_id text NOT NULL, admitted_at timestamptz NOT NULL DEFAULT now(), "
            "messages bigint NOT NULL)"
        ).format(BATCHES)
    )
    cursor.execute(sql.SQL("CREATE INDEX IF NOT EXISTS batches_by_name ON {} (target, batch_id)").format(BATCHES))


def _make(cursor: Cursor, table: TableName, columns: StructType, upsert_by: Sequence[str]) -> None:
    parts = [_definition(field) for field in columns.fields]
    if upsert_by:
        parts.append(sql.SQL("PRIMARY KEY ({})").format(names_of(upsert_by)))
    cursor.execute(sql.SQL("CREATE TABLE {} ({})").format(table.quoted, sql.SQL(", ").join(parts)))
    # The entries of an earlier table of this name are useless, because its rows are gone.
    cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table.entries))
    cursor.execute(sql.SQL("DELETE FROM {} WHERE target = %s").format(BATCHES), [str(table)])


def _definition(field: StructField) -> sql.Composed:
    return sql.SQL("{} {}{}").format(
        sql.Identifier(field.name),
        sql.SQL(postgres_type(field.name, field.dataType)),  # of our own table
        sql.SQL("" if field.nullable else " NOT NULL"),
    )


def must_insert(cursor: Cursor, table: TableName) -> bool:
    """Whether the table needs INSERT: COPY ignores rules, and refuses a table with policies of row level security."""
    (found,) = cursor.execute(
        "SELECT relhasrules OR row_security_active(oid) FROM pg_class WHERE oid = %s::regclass",
        [table.quoted.as_string()],
    ).fetchone() or (True,)
    return bool(found)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A column of a table.

    Attributes:
        kind: Its type, as ``format_type`` writes it.
        is_required: Whether it is NOT NULL.
        is_filled: Whether it has a default.
        is_generated: Whether the table makes its value, so that a writer cannot give one.
    """

    kind: str
    is_required: bool
    is_filled: bool
    is_generated: bool


def _stored(cursor: Cursor, table: TableName) -> dict[str, _Stored]:
    cursor.execute(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull, "
        "atthasdef OR attidentity <> '', attgenerated <> '' OR attidentity = 'a' "
        "FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
        [table.quoted.as_string()],
    )
    return {name: _Stored(*found) for name, *found in cursor.fetchall()}


def _differences(stored: Mapping[str, _Stored], columns: StructType, *, widen: bool) -> list[str]:
    """List differences like :func:`..differences.differences`, for types of PostgreSQL."""
    wrong = []
    for field in columns.fields:
        there = stored.get(field.name)
        if there is None:
            if not widen:
                wrong.append(f"the table has no column {field.name} {field.dataType.simpleString()}")
            elif not field.nullable:
                wrong.append(f"column {field.name} would be added to the table, and must be nullable for that")
        elif there.is_generated:
            wrong.append(f"column {field.name} is generated by the table")
        elif not takes(there.kind, field.dataType):
            wrong.append(
                f"column {field.name} is {there.kind} in the table and {field.dataType.simpleString()} in the schema"
            )
        elif there.is_required and field.nullable:
            wrong.append(f"column {field.name} is NOT NULL in the table, and may be null in the schema")
    wrong += [
        f"the schema has no column {name} {there.kind}, which is NOT NULL in the table and has no default"
        for name, there in stored.items()
        if name not in columns.names and there.is_required and not there.is_filled
    ]
    return sorted(wrong)


def require_unchanged_columns(cursor: Cursor, table: TableName, columns: StructType) -> list[str]:
    """Check once more that a table takes these columns, and lock its definition until the transaction ends.

    Returns:
        Their types in the table, as ``format_type`` writes them.

    Raises:
        SchemaError: The table was changed and does not take them any more.
    """
    cursor.execute(sql.SQL("LOCK TABLE ONLY {} IN ROW EXCLUSIVE MODE").format(table.quoted))
    stored = _stored(cursor, table)
    require_unchanged(str(table), _differences(stored, columns, widen=False))
    return [stored[name].kind for name in columns.names]


def _require_unique(cursor: Cursor, oid: int, table: TableName, upsert_by: Sequence[str]) -> None:
    if not upsert_by:
        return
    cursor.execute(
        "SELECT array(SELECT attname::text FROM pg_attribute WHERE attrelid = i.indrelid "
        "AND attnum = ANY ((i.indkey::int2[])[0 : i.indnkeyatts - 1])) FROM pg_index i "
        "WHERE indrelid = %s AND indisunique AND indisvalid AND indimmediate AND indpred IS NULL AND indexprs IS NULL",
        [oid],
    )
    if not any(set(names) == set(upsert_by) for (names,) in cursor.fetchall()):
        raise SchemaError(
            f"table {table} cannot be upserted by {', '.join(upsert_by)}: it has no unique index of just these. "
            "Make one: CREATE UNIQUE INDEX ON ..."
        )


def names_of(names: Iterable[str]) -> sql.Composed:
    """Write a list of quoted names."""
    return sql.SQL(", ").join(map(sql.Identifier, names))
