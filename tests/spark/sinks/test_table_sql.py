"""The SQL for tables that Spark itself writes, without Spark."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from sqs_lease.spark.errors import SchemaError, TableError
from sqs_lease.spark.schemas import quoted
from sqs_lease.spark.sinks.iceberg_sink import IcebergSink
from sqs_lease.spark.sinks.native_delta_sink import NativeDeltaSink
from sqs_lease.spark.sinks.table_sql import (
    add_columns,
    create_table,
    literal,
    merge_newest,
    partition,
    type_of,
)

COLUMNS = StructType([StructField("id", LongType(), nullable=False), StructField("odd `name`", StringType())])


def test_a_table_is_created_with_its_columns_and_partitions() -> None:
    statement = create_table("c.`t`", COLUMNS, using="delta", partition_by=["`id`"])
    assert statement == (
        "CREATE TABLE IF NOT EXISTS c.`t` (`id` BIGINT NOT NULL, `odd ``name``` STRING) "
        "USING delta PARTITIONED BY (`id`)"
    )
    assert "PARTITIONED" not in create_table("t", COLUMNS, using="delta", partition_by=[])


def test_columns_that_are_added_may_be_null() -> None:
    assert add_columns("t", COLUMNS) == "ALTER TABLE t ADD COLUMNS (`id` BIGINT, `odd ``name``` STRING)"


def test_types_inside_of_a_column_are_spelled_out() -> None:
    inner = StructType([StructField("a b", ArrayType(DecimalType(10, 2))), StructField("m", StringType())])
    assert type_of(MapType(StringType(), inner)) == "MAP<STRING, STRUCT<`a b`: ARRAY<DECIMAL(10,2)>, `m`: STRING>>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id", "`id`"),
        ("days(id)", "days(`id`)"),
        ("bucket(16, id)", "bucket(16,`id`)"),
        ("truncate( 4 , id )", "truncate( 4 ,`id`)"),
    ],
)
def test_a_partition_is_a_column_or_a_transform_of_one(text: str, expected: str) -> None:
    assert partition(text, COLUMNS).replace(", `", ",`") == expected


@pytest.mark.parametrize("text", ["other", "days(other)", "days(id); drop table x", "seconds(id)", "bucket(id)"])
def test_other_partitions_are_refused(text: str) -> None:
    with pytest.raises(SchemaError, match="partition_by"):
        partition(text, COLUMNS)


def test_texts_and_names_do_not_end_early() -> None:
    assert quoted("a`b") == "`a``b`"
    assert literal("it's \\") == "'it\\'s \\\\'"


def test_the_newest_message_wins_by_all_columns_of_the_key() -> None:
    assert merge_newest("t", "v", ["id", "x"]) == (
        "MERGE INTO t t USING v s ON t.`id` = s.`id` AND t.`x` = s.`x` "
        "WHEN MATCHED AND (t.`_sent_at` IS NULL OR s.`_sent_at` >= CASE WHEN t.`_batch_id` = s.`_batch_id` "
        "THEN t.`_sent_at` ELSE date_trunc('MILLISECOND', t.`_sent_at`) END) THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT *"
    )


def test_an_iceberg_table_needs_its_catalog() -> None:
    with pytest.raises(TableError, match="needs its catalog"):
        IcebergSink("sales.orders", "ledger")


def test_the_ledger_of_a_table_in_a_catalog_needs_a_place() -> None:
    with pytest.raises(TableError, match="ledger="):
        NativeDeltaSink("main.sales.orders")._ledger()


@pytest.mark.parametrize(
    ("table", "ledger"),
    [("/data/orders", "/data/orders/_sqs_lease/ledger"), ("s3a://b/orders/", "s3://b/orders/_sqs_lease/ledger")],
)
def test_a_table_at_a_path_has_its_ledger_inside(table: str, ledger: str) -> None:
    assert NativeDeltaSink(table)._ledger().address == ledger
