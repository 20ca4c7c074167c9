"""Infers columns from JSON bodies, with types that every later body can be read by."""

from __future__ import annotations

from collections.abc import Collection

import pyspark
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from sqs_lease.spark import batch_file
from sqs_lease.spark.columns import BATCH_ID, MESSAGE_ID, REASON, SENT_AT
from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.sources.schemas import can_be_column

_CORRUPT = "_sqs_lease_corrupt"
_OWN = {MESSAGE_ID, SENT_AT, BATCH_ID, REASON}


def inferred_fields(messages: DataFrame, only: Collection[str] | None = None) -> list[StructField]:
    """Let Spark infer the fields of the messages' bodies; all may be null.

    What has no type yet is left out: fields that are null, empty arrays or empty objects in all bodies. So are names
    that no column should have, and of names that differ in case only all but one. A value that is an object with such
    names inside stays whole, as JSON text.

    Args:
        messages: The messages, checked for syntax.
        only: The fields wanted; None for all.

    Raises:
        SchemaError: This version of PySpark cannot infer.
    """
    if tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2):
        raise SchemaError(
            f"a schema is inferred by PySpark 4.2 or newer, and this is {pyspark.__version__}: name the fields in the "
            "schema, or write them to the pinned schema's file before the first batch"
        )
    if only is not None:
        wanted = F.array(*map(F.lit, sorted(only)))
        messages = messages.where(F.arrays_overlap(F.json_object_keys(batch_file.BODY), wanted))
    reader = messages.sparkSession.read.options(
        dropFieldIfAllNull="true", columnNameOfCorruptRecord=_CORRUPT, mode="PERMISSIVE", samplingRatio="1.0"
    )
    found: dict[str, StructField] = {}
    for field in reader.json(messages.select(batch_file.BODY)).schema.fields:
        if field.name == _CORRUPT or not can_be_inferred(field.name) or (only is not None and field.name not in only):
            continue
        found.setdefault(field.name.lower(), StructField(field.name, _storable(field.dataType)))
    return list(found.values())


def can_be_inferred(name: str) -> bool:
    """Whether a field of this name may become a column by itself."""
    return can_be_column(name) and name.lower() not in _OWN


def _storable(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        names = {name.lower() for name in kind.names if can_be_column(name)}
        if len(names) < len(kind.names):
            return StringType()
        return StructType([StructField(field.name, _storable(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_storable(kind.elementType))
    return kind
