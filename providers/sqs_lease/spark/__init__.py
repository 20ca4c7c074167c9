"""Spark: batches of messages into tables, each message exactly once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sqs_lease.spark.batch_reader import BatchDataSource
    from sqs_lease.spark.columns import NOTHING_TO_STORE
    from sqs_lease.spark.errors import (
        BatchIdReusedError,
        IngestionError,
        JavaError,
        LeaseLostError,
        ReconciliationError,
        RowsRefusedError,
        SchemaError,
        TableError,
        WorkspaceError,
    )
    from sqs_lease.spark.ingestion import IngestResult, ingest
    from sqs_lease.spark.java_home import require_java
    from sqs_lease.spark.ledger import Ledger
    from sqs_lease.spark.rejected import rejected_messages
    from sqs_lease.spark.session import local_session
    from sqs_lease.spark.sinks.delta.sink import DeltaSink, DeltaTarget
    from sqs_lease.spark.sinks.iceberg_sink import IcebergSink
    from sqs_lease.spark.sinks.native_delta_sink import NativeDeltaSink
    from sqs_lease.spark.sinks.parquet_sink import ParquetSink
    from sqs_lease.spark.sinks.postgres.sink import PostgresSink
    from sqs_lease.spark.sinks.sink import Overtaken, Sink, Staged
    from sqs_lease.spark.sinks.write_ahead import WriteAheadSink
    from sqs_lease.spark.sources.array_elements import ArrayElements
    from sqs_lease.spark.sources.attribute_columns import AttributeColumns
    from sqs_lease.spark.sources.functions import ParserSource, SparkSource
    from sqs_lease.spark.sources.json import JsonSource
    from sqs_lease.spark.sources.pinned_schema import InferredSchema
    from sqs_lease.spark.sources.s3_events import (
        ExtendedClientSource,
        ListedObjects,
        S3EventsSource,
        S3Read,
        listed_objects,
    )
    from sqs_lease.spark.sources.sns import SnsEnvelope
    from sqs_lease.spark.sources.source import Source
    from sqs_lease.spark.sources.whole_bodies import TextSource, VariantSource

__all__ = [
    "NOTHING_TO_STORE",
    "ArrayElements",
    "AttributeColumns",
    "BatchDataSource",
    "BatchIdReusedError",
    "DeltaSink",
    "DeltaTarget",
    "ExtendedClientSource",
    "IcebergSink",
    "InferredSchema",
    "IngestResult",
    "IngestionError",
    "JavaError",
    "JsonSource",
    "LeaseLostError",
    "Ledger",
    "ListedObjects",
    "NativeDeltaSink",
    "Overtaken",
    "ParquetSink",
    "ParserSource",
    "PostgresSink",
    "ReconciliationError",
    "RowsRefusedError",
    "S3EventsSource",
    "S3Read",
    "SchemaError",
    "Sink",
    "SnsEnvelope",
    "Source",
    "SparkSource",
    "Staged",
    "TableError",
    "TextSource",
    "VariantSource",
    "WorkspaceError",
    "WriteAheadSink",
    "ingest",
    "listed_objects",
    "local_session",
    "rejected_messages",
    "require_java",
]

_MODULES: Final = {
    "NOTHING_TO_STORE": "sqs_lease.spark.columns",
    "ArrayElements": "sqs_lease.spark.sources.array_elements",
    "AttributeColumns": "sqs_lease.spark.sources.attribute_columns",
    "BatchDataSource": "sqs_lease.spark.batch_reader",
    "BatchIdReusedError": "sqs_lease.spark.errors",
    "DeltaSink": "sqs_lease.spark.sinks.delta.sink",
    "DeltaTarget": "sqs_lease.spark.sinks.delta.sink",
    "ExtendedClientSource": "sqs_lease.spark.sources.s3_events",
    "IcebergSink": "sqs_lease.spark.sinks.iceberg_sink",
    "InferredSchema": "sqs_lease.spark.sources.pinned_schema",
    "IngestResult": "sqs_lease.spark.ingestion",
    "IngestionError": "sqs_lease.spark.errors",
    "JavaError": "sqs_lease.spark.errors",
    "JsonSource": "sqs_lease.spark.sources.json",
    "LeaseLostError": "sqs_lease.spark.errors",
    "Ledger": "sqs_lease.spark.ledger",
    "ListedObjects": "sqs_lease.spark.sources.s3_events",
    "NativeDeltaSink": "sqs_lease.spark.sinks.native_delta_sink",
    "Overtaken": "sqs_lease.spark.sinks.sink",
    "ParquetSink": "sqs_lease.spark.sinks.parquet_sink",
    "ParserSource": "sqs_lease.spark.sources.functions",
    "PostgresSink": "sqs_lease.spark.sinks.postgres.sink",
    "ReconciliationError": "sqs_lease.spark.errors",
    "RowsRefusedError": "sqs_lease.spark.errors",
    "S3EventsSource": "sqs_lease.spark.sources.s3_events",
    "S3Read": "sqs_lease.spark.sources.s3_events",
    "SchemaError": "sqs_lease.spark.errors",
    "Sink": "sqs_lease.spark.sinks.sink",
    "SnsEnvelope": "sqs_lease.spark.sources.sns",
    "Source": "sqs_lease.spark.sources.source",
    "SparkSource": "sqs_lease.spark.sources.functions",
    "Staged": "sqs_lease.spark.sinks.sink",
    "TableError": "sqs_lease.spark.errors",
    "TextSource": "sqs_lease.spark.sources.whole_bodies",
    "VariantSource": "sqs_lease.spark.sources.whole_bodies",
    "WorkspaceError": "sqs_lease.spark.errors",
    "WriteAheadSink": "sqs_lease.spark.sinks.write_ahead",
    "ingest": "sqs_lease.spark.ingestion",
    "listed_objects": "sqs_lease.spark.sources.s3_events",
    "local_session": "sqs_lease.spark.session",
    "rejected_messages": "sqs_lease.spark.rejected",
    "require_java": "sqs_lease.spark.java_home",
}


def __getattr__(name: str) -> Any:
    # Imported when asked for: Spark's Python workers import modules of this package, and need few of them.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
