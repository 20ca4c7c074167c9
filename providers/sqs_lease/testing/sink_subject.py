# ruff: noqa: S101 - assertions are what it is for
"""A sink under test: its table is made, filled and read from outside; and the messages for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, Literal
from unittest.mock import patch

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sqs_lease.spark.columns import BATCH_ID, MESSAGE_ID, SENT_AT, table_columns
from sqs_lease.spark.session import INGESTION, session_settings
from sqs_lease.spark.sinks.sink import (
    ENTRIES,
    INGESTED,
    KNOWN,
    LOOKED_UP,
    Admission,
    Sink,
    Staged,
)

SENT: Final = datetime(2026, 3, 1, 12, 0, 0, 123000, tzinfo=UTC)
"""The default send time of the tests' messages."""

TYPES: Final[Mapping[DataType, Sequence[object]]] = {
    BooleanType(): [True, False],
    ShortType(): [-32768, 32767],
    IntegerType(): [-(2**31), 2**31 - 1],
    LongType(): [-(2**63), 2**63 - 1],
    FloatType(): [0.5, -65536.25],
    DoubleType(): [0.1, -1e300, float("inf")],
    DecimalType(38, 10): [Decimal("-1234567890123456789012345678.0123456789"), Decimal(0)],
    StringType(): ["", "quotes \" ' ` and \\, tabs\tand\r\nlines", "\\.", "\\N", "NULL", "ünïcödé 🎉"],
    BinaryType(): [b"", b"\x00\xff\\x"],
    DateType(): [date(1970, 1, 1), date(1066, 10, 14), date(9999, 12, 31)],
    TimestampType(): [SENT, datetime(1066, 10, 14, 9, 0, 0, 1, tzinfo=UTC)],
    TimestampNTZType(): [datetime(2026, 3, 29, 2, 30), datetime(1066, 10, 14, 9, 0, 0, 1)],  # noqa: DTZ001
    StructType([StructField("a", IntegerType()), StructField("b", StringType())]): [
        {"a": 1, "b": None},
        {"a": None, "b": 'x"y\\'},
    ],
    ArrayType(StringType()): [[], ["a", None, 'x"y']],
    MapType(StringType(), LongType()): [{}, {"k": 1, "": None}],
    ArrayType(StructType([StructField("s", StringType()), StructField("m", MapType(StringType(), DoubleType()))])): [
        [{"s": None, "m": {"x": 0.5}}, None]
    ],
}
"""Spark's types, each with values that have failed in some table format."""


def columns_of(**more: DataType) -> StructType:
    """The columns of a table whose records have a required ``id``, and more that may be null."""
    fields = [StructField(name, kind) for name, kind in more.items()]
    return table_columns(StructType([StructField("id", LongType(), nullable=False), *fields]))


COLUMNS: Final = columns_of(name=StringType())
"""The columns of most of the tests' tables."""

SPECIAL_TEXTS: Final = (
    *("scheduled__2026-03-01T00:00:00+00:00", "a/b", "..", "%2F", "it's; drop table x", 'double " quote'),
    *("{0}$x\\n", "ünïcödé 🎉", " spaces ", "line\nbreak", "NULL", "*?[a]", "long " * 60),
)
"""Unusual names for batches and messages."""


@contextmanager
def interrupted(owner: object, method: str, moment: Literal["before", "after"]) -> Iterator[None]:
    """Within the block, make a method raise: before it does anything, or after it has done all.

    Args:
        owner: The class, object or module that has it.
        method: Its name.
        moment: When it raises.
    """
    real = getattr(owner, method)

    def raising(*arguments: Any, **named: Any) -> Any:
        if moment == "after":
            real(*arguments, **named)
        raise InterruptionError

    with patch.object(owner, method, raising):
        yield


class InterruptionError(Exception):
    """Stand-in for errors that end a commit half-way."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A table that does not exist yet, and functions that read it from outside.

    Attributes:
        spark: A session.
        new_sink: Gives a new sink of that table, any number of times.
        read_rows: Returns the rows that a reader of the table sees, in any order, as ``{column: value}``, without the
            sink's internal columns. Maps may come as dicts or as lists of pairs.
        leftovers: Returns the names of staged data that is still there and was not committed.
        interruptions: Functions by name; each returns a context manager that ends a commit half-way: it is entered
            around one ``commit``, which it makes raise. :func:`interrupted` makes most of them.
        types: Spark's types that the table can have, with values for each.
        as_read: Returns a value of a type in the form in which a reader gets it; unchanged by default.
        refused_types: Types that the table cannot have.
        widens: Whether columns can be added to the table.
    """

    spark: SparkSession
    new_sink: Callable[[], Sink]
    read_rows: Callable[[], list[dict[str, Any]]]
    leftovers: Callable[[], Collection[str]]
    interruptions: Mapping[str, Callable[[], AbstractContextManager[object]]]
    types: Mapping[DataType, Sequence[object]] = field(default_factory=lambda: TYPES)
    as_read: Callable[[DataType, Any], object] = lambda _, value: value
    refused_types: Collection[DataType] = ()
    widens: bool = True

    def open(self, columns: StructType = COLUMNS, *, widen: bool = False) -> Any:
        """Open the table by a new sink."""
        return self.new_sink().open(self.spark, columns, widen=widen)

    def rows(self, records: Sequence[Mapping[str, Any]], columns: StructType = COLUMNS) -> DataFrame:
        """Make rows to stage; columns that a record does not name are null."""
        values = [tuple(record.get(name) for name in columns.names) for record in records]
        return self.spark.createDataFrame(values, columns)

    def broken_rows(self) -> DataFrame:
        """Make rows that cannot all be computed."""
        rows = self.rows([record("m1", 1), record("m2", 2)])
        broken = F.when(F.col("id") == 2, F.raise_error(F.lit("no such row"))).otherwise(F.col("name"))
        return rows.withColumn("name", broken)

    def stage(
        self, table: Any, batch_id: str, records: Sequence[Mapping[str, Any]], columns: StructType = COLUMNS
    ) -> Staged:
        """Stage rows as ingestion does."""
        with session_settings(self.spark, INGESTION):
            staged: Staged = table.stage(self.rows(records, columns), batch_id)
        return staged

    def store(
        self,
        table: Any,
        batch_id: str,
        records: Sequence[Mapping[str, Any]],
        others: pa.Table | None = None,
        columns: StructType = COLUMNS,
    ) -> int | None:
        """Store a whole batch: look up, stage, commit.

        Args:
            table: The open table.
            batch_id: The batch.
            records: Its rows, by :func:`record`.
            others: Entries of messages without rows.
            columns: The table's.
        """
        sent = {record[MESSAGE_ID]: record[SENT_AT] for record in records}
        admitted = [entries([message_id], sent_at=at) for message_id, at in sent.items()]
        admission = pa.concat_tables([*admitted, *([] if others is None else [others])])
        looked_up = table.look_up(admission.select(LOOKED_UP.names))
        staged = self.stage(table, batch_id, records, columns) if records else None
        version: int | None = table.commit(looked_up, Admission(batch_id, admission, staged))
        return version

    def ids(self) -> list[tuple[str, int]]:
        """Return the message id and record id of every row that a reader sees."""
        return sorted((row[MESSAGE_ID], row["id"]) for row in self.read_rows())


def record(
    message_id: str, number: int, *, batch_id: str = "b", sent_at: datetime | None = SENT, **more: Any
) -> dict[str, Any]:
    """Make a row of a message."""
    return {"id": number, "name": f"n{number}", MESSAGE_ID: message_id, SENT_AT: sent_at, BATCH_ID: batch_id, **more}


def entries(
    message_ids: Sequence[str], outcome: str = INGESTED, reason: str | None = None, sent_at: datetime | None = SENT
) -> pa.Table:
    """Make ledger entries of messages, in several pieces, like those of a large batch."""
    rows = (
        {"message_id": message_id, "sent_at": sent_at, "outcome": outcome, "reason": reason}
        for message_id in message_ids
    )
    return pa.concat_tables([ENTRIES.empty_table(), *(pa.Table.from_pylist([row], schema=ENTRIES) for row in rows)])


def asked(*message_ids: str, sent_at: datetime | None = SENT) -> pa.Table:
    """Make the table of messages to look up."""
    return entries(message_ids, sent_at=sent_at).select(LOOKED_UP.names)


def known(table: Any, *message_ids: str) -> dict[str, tuple[str, str, str | None]]:
    """Return a table's entries of messages: batch id, outcome and reason."""
    answer = table.look_up(asked(*message_ids)).known
    assert answer.schema.equals(KNOWN)
    found = {row["message_id"]: (row["batch_id"], row["outcome"], row["reason"]) for row in answer.to_pylist()}
    assert len(found) == answer.num_rows, "each message once"
    return found


def plain(value: Any) -> Any:
    """Return a value with maps as dicts."""
    if isinstance(value, list) and value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
        return {key: plain(inner) for key, inner in value}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return value
