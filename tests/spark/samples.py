"""Messages, a table and a sink to test ingestion with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sqs_lease.core.messages import Message, Receipt
from sqs_lease.spark import CommitConflict, DeltaSink, IngestResult, JsonSource, Sink, Source, ingest
from sqs_lease.spark.json_syntax import NotJsonError, decode_object
from sqs_lease.spark.sinks.sink import Admission
from sqs_lease.spark.sinks.write_ahead import WriteAheadLookUp, WriteAheadTable

SCHEMA = "id BIGINT NOT NULL, name STRING"


def why_not_json(text: str) -> str | None:
    """Why a text is not one JSON object; None if it is one."""
    try:
        decode_object(text)
    except NotJsonError as error:
        return str(error)
    return None


def message(message_id: str, body: str, *, receive_count: int = 1) -> Message:
    return Message(
        Receipt(message_id, f"handle-of-{message_id}-{receive_count}"),
        body,
        {"SentTimestamp": "1700000000123", "ApproximateReceiveCount": str(receive_count)},
    )


def good(numbers: Iterable[int], *, receive_count: int = 1) -> list[Message]:
    """Messages m1, m2, ... whose records have these numbers as their id."""
    return [
        message(f"m{number}", json.dumps({"id": number, "name": f"n{number}"}), receive_count=receive_count)
        for number in numbers
    ]


def rows(table: Path) -> list[dict[str, Any]]:
    """Read the table by message id, as a reader sees it."""
    read: list[dict[str, Any]] = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return sorted(read, key=lambda row: str(row["_message_id"]))


def stored_ids(table: Path) -> list[str]:
    return [row["_message_id"] for row in rows(table)]


def staged_files(table: Path) -> set[str]:
    """All data files below the table's directory, whether the table names them or not."""
    return {str(file) for file in table.rglob("part-*.parquet")}


def named_files(table: Path) -> set[str]:
    """The data files that the table names."""
    return {unquote(file) for file in DeltaTable(str(table)).file_uris()}


@dataclass(frozen=True)
class Place:
    """A table and a workspace, and ``ingest`` into them."""

    spark: SparkSession
    root: Path
    source: Source[Any] = field(default_factory=lambda: JsonSource(SCHEMA))

    @property
    def table(self) -> Path:
        return self.root / "table"

    @property
    def workspace(self) -> Path:
        return self.root / "batches"

    def ingest(
        self, messages: Iterable[Message | dict[str, Any]] | Path, *, sink: Sink | None = None, **options: Any
    ) -> IngestResult:
        return ingest(
            self.spark,
            messages,
            source=options.pop("source", self.source),
            sink=sink or DeltaSink(self.table),
            workspace=self.workspace,
            **options,
        )


@dataclass(frozen=True)
class InterruptedSink:
    """A Delta sink that calls something between staging and committing, the first time."""

    path: Path
    before_commit: Callable[[], object] = lambda: None
    calls: list[str] = field(default_factory=list)

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> InterruptedTable:
        table = DeltaSink(self.path).open(spark, columns, widen=widen)
        return InterruptedTable(table.target, table.ledger, self)


@dataclass(frozen=True)
class InterruptedTable(WriteAheadTable):
    sink: InterruptedSink

    def commit(self, looked_up: WriteAheadLookUp, admission: Admission) -> int | None:
        self.sink.calls.append("commit")
        if len(self.sink.calls) == 1:
            self.sink.before_commit()
        try:
            return super().commit(looked_up, admission)
        except CommitConflict:
            self.sink.calls.append("conflict")
            raise
