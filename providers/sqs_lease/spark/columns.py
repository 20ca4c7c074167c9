"""The columns that ingestion adds to every record, and the names that it reserves."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.schemas import require_names, without_case

MESSAGE_ID: Final = "_message_id"
"""The id that SQS gave the message: each is in a table at most once."""

SENT_AT: Final = "_sent_at"
"""When the message was sent; null if the service did not say."""

BATCH_ID: Final = "_batch_id"
"""The batch that brought the message into the table."""

REASON: Final = "_rejected"
"""Why a parsed row is not a valid record; null for a valid one. Never stored."""

STRANGE_TIME: Final = "a time beyond the years 1 to 9999"
"""The beginning of the reason for a time or date that Python, or some table, cannot hold."""

NOTHING_TO_STORE: Final = "(nothing to store)"
"""Given instead of a reason: the message is valid, has no record, and is done."""

REJECT: Final = StructType(
    [StructField("body", StringType(), nullable=False), StructField("reason", StringType(), nullable=False)]
)
"""The columns of a table of rejects, besides those of every table."""

POSTGRES_COLUMNS: Final = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
"""Names of columns that every table in PostgreSQL has, in lower case."""

ICEBERG_COLUMNS: Final = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
)
"""Names of Iceberg's metadata columns. A column of the table with such a name could not be read."""

DELTA_COLUMNS: Final = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})
"""Names that a Delta table cannot have once its change data feed is turned on."""

PARQUET_COLUMNS: Final = frozenset({"ingested_batch"})
"""The name of the directories of batches in a directory of Parquet files: readers see it as a column."""

NULL_DIRECTORY: Final = "__HIVE_DEFAULT_PARTITION__"
"""The text for a null in the name of a partition's directory, in Hive and in Spark."""

_TAKEN_SOMEWHERE: Final = POSTGRES_COLUMNS | ICEBERG_COLUMNS | DELTA_COLUMNS | PARQUET_COLUMNS

_RESERVED: Final = (MESSAGE_ID, SENT_AT, BATCH_ID, REASON)
_RESERVED_PREFIX: Final = "_sqs_lease"


def is_reserved(name: str) -> bool:
    """Whether ingestion reserves a name, in upper or lower case."""
    return without_case(name) in _RESERVED or without_case(name).startswith(_RESERVED_PREFIX)


def is_taken(name: str) -> bool:
    """Whether ingestion, or a kind of table that has a sink, reserves a name."""
    return is_reserved(name) or without_case(name) in _TAKEN_SOMEWHERE


def table_columns(record: StructType) -> StructType:
    """Return the columns of the table: the record's, then :data:`MESSAGE_ID`, :data:`SENT_AT`, :data:`BATCH_ID`.

    Raises:
        SchemaError: There are no columns; ingestion reserves the name of one (one of its own columns, or a name that
            begins with ``_sqs_lease``); or a name cannot be used: see :func:`.schemas.require_names`.
    """
    if not record.fields:
        raise SchemaError("the schema has no columns; give at least one, for example 'id BIGINT NOT NULL'")
    for name in record.names:
        if is_reserved(name):
            raise SchemaError(f"the schema has a column {name!r}, which ingestion reserves: rename it")
    require_names(record)
    return StructType(
        [
            *record.fields,
            StructField(MESSAGE_ID, StringType(), nullable=False),
            StructField(SENT_AT, TimestampType()),
            StructField(BATCH_ID, StringType(), nullable=False),
        ]
    )
