"""Names of columns that are the same to Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StringType, StructType

from sqs_lease.spark import ExtendedClientSource, InferredSchema, JsonSource, ParserSource, S3EventsSource, SparkSource
from sqs_lease.spark.columns import is_reserved, table_columns
from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.schemas import struct_type, without_case
from sqs_lease.spark.sources.source import Source

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


TWINS = StructType().add("town", StringType()).add("Town", StringType())


@pytest.mark.parametrize(
    ("place", "path"),
    [
        pytest.param(TWINS, "place", id="a struct"),
        pytest.param(ArrayType(TWINS), "place", id="in an array"),
        pytest.param(MapType(StringType(), StructType().add("its", TWINS)), "place.its", id="in a map"),
    ],
)
def test_fields_of_a_struct_that_spark_cannot_tell_apart_are_named_before_anything_is_parsed(
    place: DataType, path: str
) -> None:
    columns = StructType().add("id", LongType(), nullable=False).add("place", place)

    with pytest.raises(SchemaError, match=f"column {path} has the field 'Town' twice .* STRING or a MAP"):
        table_columns(columns)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(JsonSource, id="json"),
        pytest.param(ExtendedClientSource, id="extended client"),
        pytest.param(lambda schema: ParserSource(str, schema), id="parser"),
        pytest.param(lambda schema: SparkSource(str, schema), id="spark"),
        *(pytest.param(lambda schema, its=its: S3EventsSource(its, schema), id=its) for its in ("jsonl", "parquet")),
    ],
)
def test_a_source_says_so_before_a_batch_is_written(source: Callable[[StructType], Source[Any]]) -> None:
    with pytest.raises(SchemaError, match="column place has the field 'Town' twice"):
        source(StructType().add("place", TWINS)).checker()


def test_a_pinned_schema_that_was_written_by_hand_is_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(StructType().add("place", TWINS).json())

    with pytest.raises(SchemaError, match="column place has the field 'Town' twice"):
        JsonSource(InferredSchema(tmp_path / "schema.json")).checker()


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800"])
@pytest.mark.parametrize(
    "columns",
    [
        pytest.param(lambda name: StructType().add(name, LongType()), id="a column"),
        pytest.param(lambda name: StructType().add("its", StructType().add(name, LongType())), id="a field"),
        pytest.param(lambda name: StructType().add("its", ArrayType(StructType().add(name, LongType()))), id="deeper"),
    ],
)
def test_a_name_that_no_table_can_have_is_refused(columns: Callable[[str], StructType], name: str) -> None:
    with pytest.raises(SchemaError, match="a name must have characters, and none of them NUL"):
        JsonSource(columns(name)).checker()
    with pytest.raises(SchemaError, match="a name must have characters"):
        table_columns(columns(name))


@pytest.mark.parametrize("name", ["_MESSAGE_ID", "_\u017fent_at", "_\u017fqs_lease_attempt"])
def test_a_name_that_spark_takes_for_one_of_ingestion_is_reserved(name: str) -> None:
    assert is_reserved(name)
