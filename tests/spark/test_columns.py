"""Which names of columns are the same to Spark."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it

from sqs_lease.spark.columns import is_reserved, table_columns, without_case
from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.schemas import struct_type

PAIRS = [
    ("id", "ID"),
    ("id", "\u0130d"),
    ("id", "\u0131d"),
    ("small", "\u017fmall"),
    ("key", "\u212aey"),
    ("stra\u00dfe", "STRA\u1e9eE"),
    ("\u03c3", "\u03c2"),
    ("\u1fb3", "\u1fbc"),
    ("stra\u00dfe", "strasse"),
    ("id", "idd"),
    ("e", "\u00e9"),
]


@pytest.mark.processes
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_names_are_the_same_where_spark_finds_one_by_the_other(spark: SparkSession, one: str, other: str) -> None:
    struct = F.struct(F.lit(1).alias(one))
    try:
        spark.range(1).select(struct.getField(other))
        found = True
    except AnalysisException:
        found = False

    assert (without_case(one) == without_case(other)) == found


@pytest.mark.processes
def test_a_schema_in_which_spark_cannot_tell_two_columns_apart_is_refused(spark: SparkSession) -> None:
    with pytest.raises(SchemaError, match="twice"):
        table_columns(struct_type("id BIGINT, `\u0130d` BIGINT"))


@pytest.mark.parametrize("name", ["_MESSAGE_ID", "_\u017fent_at", "_\u017fqs_lease_attempt"])
def test_a_name_that_spark_takes_for_one_of_ingestion_is_reserved(name: str) -> None:
    assert is_reserved(name)
