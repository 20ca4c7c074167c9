"""A sink in memory, right in all that the contract asks for; `flaws` has wrong ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DayTimeIntervalType, StructType

from sqs_lease.spark.columns import BATCH_ID, MESSAGE_ID, SENT_AT
from sqs_lease.spark.errors import BatchIdReusedError, SchemaError
from sqs_lease.spark.sinks.sink import KNOWN, Admission, CommitConflict, Staged
from sqs_lease.testing.sink_contract import Subject, interrupted


@dataclass
class MemoryStore:
    """The data that outlives a sink."""

    columns: StructType | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    staged: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    version: int = 0

    @property
    def names(self) -> list[str]:
        return [] if self.columns is None else self.columns.names


@dataclass(frozen=True)
class MemoryLookUp:
    version: int
    known: pa.Table

    def brought_by(self, batch_id: str) -> int:
        """How many of the messages asked for the batch brought."""
        return sum(1 for known_by in self.known["batch_id"].to_pylist() if known_by == batch_id)


@dataclass
class MemoryTable:
    store: MemoryStore
    upsert_by: str | None = None

    def look_up(self, messages: pa.Table) -> MemoryLookUp:
        found = [
            {"message_id": message_id, **self.store.entries[message_id]}
            for message_id in messages["message_id"].to_pylist()
            if message_id in self.store.entries
        ]
        return MemoryLookUp(self.store.version, pa.Table.from_pylist(found, schema=KNOWN))

    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        written = rows.toArrow().to_pylist()
        location = f"{batch_id}/{uuid4()}"
        self.store.staged[location] = written
        return Staged(location, pa.chunked_array([[row[MESSAGE_ID] for row in written]], pa.string()))

    def commit(self, looked_up: MemoryLookUp, admission: Admission) -> int | None:
        if looked_up.version != self.store.version:
            raise CommitConflict
        self.check_batch(looked_up, admission.batch_id)
        rows = [] if admission.staged is None else self.store.staged[admission.staged.location]
        entries = {
            entry["message_id"]: {
                "batch_id": admission.batch_id,
                "outcome": entry["outcome"],
                "reason": entry["reason"],
            }
            for entry in admission.entries.to_pylist()
        }
        self.save(self.merged([dict.fromkeys(self.store.names) | row for row in rows]), entries)
        if admission.staged is not None:
            self.discard(admission.staged)
        return self.store.version

    def check_batch(self, looked_up: MemoryLookUp, batch_id: str) -> None:
        stored = sum(1 for entry in self.store.entries.values() if entry["batch_id"] == batch_id)
        if stored != looked_up.brought_by(batch_id):
            raise BatchIdReusedError(f"batch id {batch_id} stands for other messages already")

    def discard(self, staged: Staged) -> None:
        self.store.staged.pop(staged.location, None)

    def merged(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        if self.upsert_by is None:
            return [*self.store.rows, *rows]
        by_key: dict[Any, dict[str, Any]] = {}
        for row in [*self.store.rows, *rows]:
            known = by_key.get(row[self.upsert_by])
            if known is None or row[SENT_AT] >= at_least(known, row):
                by_key[row[self.upsert_by]] = row
        return list(by_key.values())

    def save(self, rows: list[dict[str, Any]], entries: dict[str, dict[str, Any]]) -> None:
        self.store.rows = rows
        self.store.entries |= entries
        self.store.version += 1


def at_least(known: dict[str, Any], row: dict[str, Any]) -> datetime:
    """When a row was sent that replaces one; each batch counts the microseconds of messages from 0."""
    sent_at: datetime = known[SENT_AT]
    if known[BATCH_ID] == row[BATCH_ID]:
        return sent_at
    return sent_at.replace(microsecond=sent_at.microsecond // 1000 * 1000)


@dataclass
class MemorySink:
    store: MemoryStore
    upsert_by: str | None = None
    table: type[MemoryTable] = MemoryTable

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> MemoryTable:
        self.check(columns, widen)
        self.store.columns = StructType(
            list({column.name: column for column in (*(self.store.columns or ()), *columns)}.values())
        )
        return self.table(self.store, self.upsert_by)

    def check(self, columns: StructType, widen: bool) -> None:
        if self.upsert_by is not None and (self.upsert_by not in columns.names or columns[self.upsert_by].nullable):
            raise SchemaError(f"column {self.upsert_by} is a key: it must be there and NOT NULL")
        for wanted in columns:
            if "INTERVAL" in wanted.dataType.simpleString().upper():
                raise SchemaError(f"column {wanted.name} has a type that this table cannot have")
        if self.store.columns is None:
            return
        stored = {column.name: column for column in self.store.columns}
        for wanted in columns:
            if wanted.name not in stored:
                if not widen or not wanted.nullable:
                    raise SchemaError(f"the table has no column {wanted.name}")
                self.store.rows = [{**row, wanted.name: None} for row in self.store.rows]
            elif stored[wanted.name].dataType != wanted.dataType:
                raise SchemaError(f"column {wanted.name} has another type in the table")


class PlainRows:
    """Stands for a DataFrame, without Spark."""

    def __init__(self, records: list[dict[str, Any]] | None) -> None:
        self._records = records

    def toArrow(self) -> PlainRows:  # noqa: N802 - the name that Spark gave it
        if self._records is None:
            raise RuntimeError("no such row")
        return self

    def to_pylist(self) -> list[dict[str, Any]]:
        assert self._records is not None
        return self._records


class PlainSettings:
    """Stands for a session, which has settings."""

    class conf:  # noqa: N801 - the name that Spark gave it
        @staticmethod
        def get(name: str, default: None) -> None: ...

        @staticmethod
        def set(name: str, value: str) -> None: ...

        @staticmethod
        def unset(name: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class MemorySubject(Subject):
    """Stages without Spark."""

    def rows(self, records: Any, columns: StructType | None = None) -> Any:
        return PlainRows([dict(record) for record in records])

    def broken_rows(self) -> Any:
        return PlainRows(None)


def memory_subject(
    *,
    upsert_by: str | None = None,
    table: type[MemoryTable] = MemoryTable,
    sink: type[MemorySink] = MemorySink,
    spark: SparkSession | None = None,
) -> Subject:
    """A table in memory; with a session its rows come from Spark."""
    store = MemoryStore()
    made: Any = MemorySubject if spark is None else Subject
    subject: Subject = made(
        spark=PlainSettings() if spark is None else spark,
        new_sink=lambda: sink(store, upsert_by, table),
        read_rows=lambda: store.rows,
        leftovers=lambda: list(store.staged),
        interruptions={
            "before it is saved": lambda: interrupted(MemoryTable, "save", "before"),
            "after it is saved": lambda: interrupted(MemoryTable, "save", "after"),
        },
        refused_types=[DayTimeIntervalType()],
    )
    return subject
