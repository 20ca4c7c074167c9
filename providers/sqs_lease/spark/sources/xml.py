"""XML elements as records, by Spark's own parser."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import StringType, StructField, StructType

from sqs_lease.spark.columns import REASON
from sqs_lease.spark.sources.json import NO_VALUE, missing
from sqs_lease.spark.sources.schemas import quoted

_CORRUPT: Final = "_sqs_lease_corrupt"
_RECORD: Final = "_sqs_lease_record"

OPTIONS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "ignoreNamespace": "true",
    # A timestamp without a zone means the same whichever session parses it.
    "timeZone": "UTC",
}


def xml_rows(frame: DataFrame, text: str, columns: StructType, carried: Sequence[str]) -> DataFrame:
    """Parse a column of XML elements; see :func:`.json.json_rows`.

    Attributes of the element are columns whose names begin with ``_``.
    """
    schema = StructType([*columns.fields, StructField(_CORRUPT, StringType())])
    record = F.col(_RECORD)
    parsed = frame.select(*carried, F.from_xml(text, schema, OPTIONS).alias(_RECORD)).select(
        *(record.getField(name).alias(name) for name in columns.names),
        *carried,
        record.getField(_CORRUPT).isNotNull().alias(_CORRUPT),
    )
    reason = F.coalesce(
        F.col(REASON),
        F.when(F.col(_CORRUPT), F.lit("a value is not of the type in the schema")),
        missing(columns),
        F.when(reduce(and_, (F.col(quoted(name)).isNull() for name in columns.names)), F.lit(NO_VALUE)),
    )
    return parsed.withColumn(REASON, reason).select(
        *(quoted(name) for name in columns.names), *(name for name in carried if name != REASON), REASON
    )
