"""The columns that ingestion adds to every record, and the names it keeps for itself."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.schemas import require_names, without_case

MESSAGE_ID: Final = "_message_id"
"""The id that SQS gave the message: each is in a table at most once."""

SENT_AT: Final = "_sent_at"
"""When the message was sent; null where the service did not say."""

BATCH_ID: Final = "_batch_id"
"""The batch that brought the message into the table."""

REASON: Final = "_rejected"
"""Why a parsed row is no record of the table; null for a good one. Never stored."""

STRANGE_TIME: Final = "a time beyond the years 1 to 9999"
"""How the reason starts for a time or a date that neither Python nor every table can hold."""

NOTHING_TO_STORE: Final = "(nothing to store)"
"""Instead of a reason: the message was understood, gives no record and is done."""

REJECT: Final = StructType(
    [StructField("body", StringType(), nullable=False), StructField("reason", StringType(), nullable=False)]
)
"""What a table of rejects has of each message, besides the columns of every table."""

POSTGRES_COLUMNS: Final = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
"""Names of columns that every table in PostgreSQL has, in lower case."""

ICEBERG_COLUMNS: Final = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
)
"""Names under which Iceberg answers with something else than a column of the table, which cannot be read then."""

DELTA_COLUMNS: Final = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})
"""Names that a Delta table cannot have once it is to keep a feed of its changes."""

PARQUET_COLUMNS: Final = frozenset({"ingested_batch"})
"""The name by which readers find the directories of batches in a directory of Parquet files."""

NULL_DIRECTORY: Final = "__HIVE_DEFAULT_PARTITION__"
"""How Hive, and Spark with it, writes a null in the name of a partition's directory."""

_TAKEN_SOMEWHERE: Final = POSTGRES_COLUMNS | ICEBERG_COLUMNS | DELTA_COLUMNS | PARQUET_COLUMNS

_RESERVED: Final = (MESSAGE_ID, SENT_AT, BATCH_ID, REASON)
_RESERVED_PREFIX: Final = "_sqs_lease"


def is_reserved(name: str) -> bool:
    """Whether ingestion keeps a name for itself, in upper or lower case."""
    return without_case(name) in _RESERVED or without_case(name).startswith(_RESERVED_PREFIX)


def is_taken(name: str) -> bool:
    """Whether ingestion keeps a name for itself, or some table that there is a sink for does."""
    return is_reserved(name) or without_case(name) in _TAKEN_SOMEWHERE


def table_columns(record: StructType) -> StructType:
    """Return the columns of the table: the record's, then :data:`MESSAGE_ID`, :data:`SENT_AT`, :data:`BATCH_ID`.

    Raises:
        SchemaError: There are none, one has a name that ingestion keeps for itself (one of its columns, or one that
            begins with ``_sqs_lease``), no table can have one, or Spark cannot tell two names apart: see
            :func:`.schemas.require_names`.
    """
    if not record.fields:
        raise SchemaError("the schema has no columns; give at least one, for example 'id BIGINT NOT NULL'")
    for name in record.names:
        if is_reserved(name):
            raise SchemaError(f"the schema has a column {name!r}, which ingestion keeps for itself: rename it")
    require_names(record)
    return StructType(
        [
            *record.fields,
            StructField(MESSAGE_ID, StringType(), nullable=False),
            StructField(SENT_AT, TimestampType()),
            StructField(BATCH_ID, StringType(), nullable=False),
        ]
    )
