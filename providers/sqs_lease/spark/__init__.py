"""Spark: batches of messages into tables, each message exactly once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
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
    from sqs_lease.spark.session import local_session
    from sqs_lease.spark.sinks.delta.sink import DeltaSink, DeltaTarget
    from sqs_lease.spark.sinks.iceberg_sink import IcebergSink
    from sqs_lease.spark.sinks.native_delta_sink import NativeDeltaSink
    from sqs_lease.spark.sinks.parquet_sink import ParquetSink
    from sqs_lease.spark.sinks.postgres.sink import PostgresSink
    from sqs_lease.spark.sinks.sink import CommitConflict, Sink, Staged
    from sqs_lease.spark.sinks.write_ahead import WriteAheadSink
    from sqs_lease.spark.sources.array_elements import ArrayElements
    from sqs_lease.spark.sources.attribute_columns import AttributeColumns
    from sqs_lease.spark.sources.functions import ParserSource, SparkSource
    from sqs_lease.spark.sources.json import JsonSource
    from sqs_lease.spark.sources.pinned_schema import InferredSchema
    from sqs_lease.spark.sources.s3_events import ExtendedClientSource, S3EventsSource, S3Read
    from sqs_lease.spark.sources.sns import SnsEnvelope
    from sqs_lease.spark.sources.source import Source
    from sqs_lease.spark.sources.whole_bodies import TextSource, VariantSource

__all__ = [
    "NOTHING_TO_STORE",
    "ArrayElements",
    "AttributeColumns",
    "BatchIdReusedError",
    "CommitConflict",
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
    "NativeDeltaSink",
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
    "local_session",
    "require_java",
]

# The modules of the names that are exported.
_MODULES: Final = {
    "columns": "NOTHING_TO_STORE",
    "errors": "BatchIdReusedError IngestionError JavaError LeaseLostError ReconciliationError RowsRefusedError "
    "SchemaError TableError WorkspaceError",
    "ingestion": "IngestResult ingest",
    "java_home": "require_java",
    "ledger": "Ledger",
    "session": "local_session",
    "sinks.delta.sink": "DeltaSink DeltaTarget",
    "sinks.iceberg_sink": "IcebergSink",
    "sinks.native_delta_sink": "NativeDeltaSink",
    "sinks.parquet_sink": "ParquetSink",
    "sinks.postgres.sink": "PostgresSink",
    "sinks.sink": "CommitConflict Sink Staged",
    "sinks.write_ahead": "WriteAheadSink",
    "sources.array_elements": "ArrayElements",
    "sources.attribute_columns": "AttributeColumns",
    "sources.functions": "ParserSource SparkSource",
    "sources.json": "JsonSource",
    "sources.pinned_schema": "InferredSchema",
    "sources.s3_events": "ExtendedClientSource S3EventsSource S3Read",
    "sources.sns": "SnsEnvelope",
    "sources.source": "Source",
    "sources.whole_bodies": "TextSource VariantSource",
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    # Imported when asked for: Spark's Python workers import modules of this package, and need few of them.
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    except ModuleNotFoundError as error:
        error.add_note('sqs_lease.spark needs an extra: pip install "sqs-lease[spark]"')
        raise
