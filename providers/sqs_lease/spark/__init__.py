"""Spark: batches of messages into tables, each message exactly once."""

from sqs_lease.spark.errors import (
    BatchIdReusedError,
    IngestionError,
    JavaError,
    LeaseLostError,
    ReconciliationError,
    SchemaError,
    TableError,
    WorkspaceError,
)
from sqs_lease.spark.ingestion import ingest
from sqs_lease.spark.java import require_java
from sqs_lease.spark.results import IngestResult
from sqs_lease.spark.session import local_session
from sqs_lease.spark.sinks.delta_sink import DeltaSink, DeltaTarget
from sqs_lease.spark.sinks.ledger import Ledger
from sqs_lease.spark.sinks.sink import Overtaken, Sink, Staged
from sqs_lease.spark.sinks.write_ahead import WriteAheadSink
from sqs_lease.spark.sources.json_source import JsonSource
from sqs_lease.spark.sources.source import Source

__all__ = [
    "BatchIdReusedError",
    "DeltaSink",
    "DeltaTarget",
    "IngestResult",
    "IngestionError",
    "JavaError",
    "JsonSource",
    "LeaseLostError",
    "Ledger",
    "Overtaken",
    "ReconciliationError",
    "SchemaError",
    "Sink",
    "Source",
    "Staged",
    "TableError",
    "WorkspaceError",
    "WriteAheadSink",
    "ingest",
    "local_session",
    "require_java",
]
