"""SQL for tables: names, columns, and the statement by which the newest message of a key wins."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from sqs_lease.spark.columns import BATCH_ID, MESSAGE_ID, SENT_AT
from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.schemas import quoted
from sqs_lease.spark.session import session_settings

_RANK: Final = "_sqs_lease_rank"
IS_AS_NEW: Final = (
    f"t.`{SENT_AT}` IS NULL OR s.`{SENT_AT}` >= CASE WHEN t.`{BATCH_ID}` = s.`{BATCH_ID}` THEN t.`{SENT_AT}` "
    f"ELSE date_trunc('MILLISECOND', t.`{SENT_AT}`) END"
)
"""The condition that a new row ``s`` replaces the row ``t`` of its key: its message was not sent earlier.

The microseconds of a FIFO queue's messages are counted from 0 in each batch (:mod:`..batch_file`), so they are compared
only within a batch.
"""

_TRANSFORM: Final = re.compile(
    r"(?P<head>(?:(?:years|months|days|hours)\(|(?:bucket|truncate)\(\s*\d+\s*,)\s*)(?P<column>[^()]+?)\s*\)"
)


def literal(text: str) -> str:
    """Write a string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def type_of(kind: DataType) -> str:
    """Write a type in SQL. Everything inside a column is nullable."""
    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(f'{quoted(field.name)}: {type_of(field.dataType)}' for field in kind.fields)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{type_of(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{type_of(kind.keyType)}, {type_of(kind.valueType)}>"
    return kind.simpleString().upper()


def create_table(table: str, columns: StructType, *, using: str, partition_by: Sequence[str]) -> str:
    """Write the statement that creates a table if it does not exist; its name and partitions must be quoted."""
    fields = ", ".join(
        f"{quoted(field.name)} {type_of(field.dataType)}{'' if field.nullable else ' NOT NULL'}"
        for field in columns.fields
    )
    partitions = f" PARTITIONED BY ({', '.join(partition_by)})" if partition_by else ""
    return f"CREATE TABLE IF NOT EXISTS {table} ({fields}) USING {using}{partitions}"


def append_missing(table: str, rows: str, batch_id: str) -> str:
    """Write the statement that adds the rows of messages without rows of this batch in the table."""
    message, batch = quoted(MESSAGE_ID), quoted(BATCH_ID)
    return (
        f"MERGE INTO {table} t USING {rows} s ON t.{message} = s.{message} AND t.{batch} = {literal(batch_id)} "
        "WHEN NOT MATCHED THEN INSERT *"
    )


def add_columns(table: str, columns: StructType) -> str:
    """Write the statement that adds columns, all of them nullable."""
    fields = ", ".join(f"{quoted(field.name)} {type_of(field.dataType)}" for field in columns.fields)
    return f"ALTER TABLE {table} ADD COLUMNS ({fields})"


def merge_newest(table: str, rows: str, upsert_by: Sequence[str]) -> str:
    """Write the statement by which the newest message of each key wins.

    Of messages that were sent in the same millisecond the later batch wins. A message without a time loses against
    every other; of two without a time the later batch wins. Both names must be quoted, and the new rows must be one for
    each key.
    """
    return (
        f"MERGE INTO {table} t USING {rows} s ON {same_key(upsert_by)} "
        f"WHEN MATCHED AND ({IS_AS_NEW}) THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def same_key(upsert_by: Sequence[str]) -> str:
    """Write the condition that a row ``t`` of the table and a new row ``s`` have the same key."""
    return " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in upsert_by)


def newest_of_each_key(rows: DataFrame, upsert_by: Sequence[str]) -> DataFrame:
    """Keep one row for each key: of the message sent last, and of several of those, the one with the highest id."""
    newest_first = Window.partitionBy(*map(quoted, upsert_by)).orderBy(
        F.col(SENT_AT).desc_nulls_last(), F.col(MESSAGE_ID).desc()
    )
    return rows.withColumn(_RANK, F.row_number().over(newest_first)).where(F.col(_RANK) == 1).drop(_RANK)


def write(
    spark: SparkSession,
    table: str,
    rows: DataFrame,
    upsert_by: Sequence[str],
    settings: Mapping[str, str],
    *,
    unless_of: str | None = None,
) -> None:
    """Write rows into a table in one statement: add them, or let the newest of each key win.

    Args:
        spark: The session.
        table: The table's name, quoted.
        rows: The rows.
        upsert_by: The key columns; empty to add rows.
        settings: Settings of the session for this statement.
        unless_of: A batch: rows of a message are added only if the table has no rows of that message from this batch.
            None, the default, adds them without this check.
    """
    view = f"sqs_lease_{uuid4().hex}"
    (newest_of_each_key(rows, upsert_by) if upsert_by else rows).createOrReplaceTempView(view)
    try:
        with session_settings(spark, settings):
            if upsert_by:
                statement = merge_newest(table, view, upsert_by)
            elif unless_of is None:
                statement = f"INSERT INTO {table} BY NAME SELECT * FROM {view}"  # noqa: S608 - both are quoted
            else:
                statement = append_missing(table, view, unless_of)
            spark.sql(statement).collect()
    finally:
        spark.catalog.dropTempView(view)


def partition(text: str, columns: StructType) -> str:
    """Write the part of ``PARTITIONED BY`` for a column, or for a transform of one such as ``days(_sent_at)``.

    Raises:
        SchemaError: The text is neither, or there is no such column.
    """
    found = _TRANSFORM.fullmatch(text)
    name = found["column"] if found else text
    if name not in columns.names:
        raise SchemaError(
            f"partition_by: {text} is neither a column nor a transform of one (years, months, days, hours, "
            f"bucket(n, ...), truncate(n, ...)); the schema has {', '.join(columns.names)}"
        )
    return f"{found['head']}{quoted(name)})" if found else quoted(name)
