"""The types of single values that tables of Parquet files have, whatever format keeps their list."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

PLAIN_TYPES: Final = (
    *(BinaryType, BooleanType, ByteType, DateType, DecimalType, DoubleType, FloatType, IntegerType),
    *(LongType, ShortType, StringType, TimestampNTZType, TimestampType),
)
"""All that is neither a structure nor something that only Spark knows (VARIANT, intervals, CHAR)."""
