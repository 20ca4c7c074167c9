"""Spark: batches of messages into tables, each message exactly once."""

from sqs_lease.spark.columns import NOTHING_TO_STORE
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
from sqs_lease.spark.sources.parser_source import ParserSource
from sqs_lease.spark.sources.pinned_schema import InferredSchema
from sqs_lease.spark.sources.s3_events import S3EventsSource, S3Read
from sqs_lease.spark.sources.sns import SnsEnvelope
from sqs_lease.spark.sources.source import Source
from sqs_lease.spark.sources.text_source import TextSource
from sqs_lease.spark.sources.variant_source import VariantSource

__all__ = [
    "NOTHING_TO_STORE",
    "BatchIdReusedError",
    "DeltaSink",
    "DeltaTarget",
    "InferredSchema",
    "IngestResult",
    "IngestionError",
    "JavaError",
    "JsonSource",
    "LeaseLostError",
    "Ledger",
    "Overtaken",
    "ParserSource",
    "ReconciliationError",
    "S3EventsSource",
    "S3Read",
    "SchemaError",
    "Sink",
    "SnsEnvelope",
    "Source",
    "Staged",
    "TableError",
    "TextSource",
    "VariantSource",
    "WorkspaceError",
    "WriteAheadSink",
    "ingest",
    "local_session",
    "require_java",
]
