"""Runs a source over bodies as ingestion does, without a table: what becomes of each message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sqs_lease.spark import batch_file
from sqs_lease.spark.columns import MESSAGE_ID, NOTHING_TO_STORE, REASON, SENT_AT
from sqs_lease.spark.session import INGESTION, session_settings
from sqs_lease.spark.sources.source import Source

SENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass(frozen=True)
class Parsed:
    """The outcome: the columns found, the records by message id, and the reasons by message id."""

    columns: StructType
    records: dict[str, list[dict[str, Any]]]
    rejected: dict[str, str]
    empty: set[str]


def messages_of(
    spark: SparkSession, bodies: Mapping[str, str], attributes: str | None = None, system: str = "{}"
) -> DataFrame:
    """The bodies as the rows that ingestion gives a source."""
    count = len(bodies)
    return spark.createDataFrame(
        pa.table(
            {
                batch_file.MESSAGE_ID: pa.array(bodies.keys(), pa.string()),
                batch_file.BODY: pa.array(bodies.values(), pa.string()),
                batch_file.SENT_AT: pa.array([SENT] * count, pa.timestamp("us", tz="UTC")),
                batch_file.RECEIVE_COUNT: pa.array([1] * count, pa.int32()),
                batch_file.ATTRIBUTES: pa.array([system] * count, pa.string()),
                batch_file.MESSAGE_ATTRIBUTES: pa.array([attributes] * count, pa.string()),
            }
        )
    )


def parsed(
    spark: SparkSession,
    source: Source[Any],
    bodies: Mapping[str, str],
    attributes: str | None = None,
    system: str = "{}",
) -> Parsed:
    """Check the bodies, then parse those that pass."""
    checker = source.checker()
    reasons = dict(zip(bodies, checker.reasons(list(bodies.values())), strict=True))
    # The file of a batch does not have these, whatever its source is.
    rejected = {message_id: batch_file.NOT_TEXT for message_id, body in bodies.items() if not _is_text(body)}
    rejected |= {message_id: reason for message_id, reason in reasons.items() if reason is not None}
    passed = {message_id: body for message_id, body in bodies.items() if message_id not in rejected}
    with session_settings(spark, INGESTION):
        messages = messages_of(spark, passed, attributes, system)
        columns = source.columns(messages, checker)
        frame = source.parse(messages, columns)
        assert frame.columns == [*columns.names, MESSAGE_ID, SENT_AT, REASON]
        types = [field.dataType.simpleString() for field in frame.schema.fields]
        assert types == [*(field.dataType.simpleString() for field in columns), "string", "timestamp", "string"]
        rows = [row.asDict(recursive=True) for row in frame.collect()]
    records: dict[str, list[dict[str, Any]]] = {}
    empty = set()
    for row in rows:
        message_id, reason, sent_at = row.pop(MESSAGE_ID), row.pop(REASON), row.pop(SENT_AT)
        assert sent_at is not None
        if reason is None:
            records.setdefault(message_id, []).append(row)
        elif reason == NOTHING_TO_STORE:
            empty.add(message_id)
        else:
            rejected[message_id] = reason
    assert records.keys() | rejected.keys() | empty == bodies.keys()
    records = {message_id: its for message_id, its in records.items() if message_id not in rejected}
    return Parsed(columns, records, rejected, empty)


def _is_text(body: str) -> bool:
    return body.encode(errors="replace").decode() == body
