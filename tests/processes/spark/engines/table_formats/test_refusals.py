"""A message that the table refuses is rejected before its batch is admitted, and stops neither batch nor table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from deltalake import DeltaTable, Schema
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from sqs_lease.spark import JsonSource, SchemaError, ingest
from sqs_lease.spark.columns import table_columns
from sqs_lease.spark.errors import TableError
from sqs_lease.spark.schemas import struct_type
from sqs_lease.spark.session import session_settings
from sqs_lease.spark.sinks.delta.schema import delta_schema
from sqs_lease.spark.sinks.iceberg_sink import IcebergSink
from sqs_lease.spark.sinks.native_delta_sink import NativeDeltaSink
from tests.processes.spark.engines.table_formats.conftest import CATALOG
from tests.spark.samples import good, message

SCHEMA = "id BIGINT NOT NULL, name STRING"
OURS = "_message_id STRING NOT NULL, _sent_at TIMESTAMP, _batch_id STRING NOT NULL"


def load(spark: SparkSession, workspace: Path, sink: Any, messages: list[Any], schema: str = SCHEMA) -> Any:
    return ingest(spark, messages, source=JsonSource(schema), sink=sink, workspace=workspace / "batches")


def body(**fields: Any) -> str:
    return json.dumps(fields)


def native_delta(name: str, ledger: Path) -> NativeDeltaSink:
    return NativeDeltaSink(f"default.{name}", ledger=ledger)


def iceberg(name: str, ledger: Path) -> IcebergSink:
    return IcebergSink(f"{CATALOG}.tests.{name}", ledger)


@pytest.mark.parametrize("sink_of", [native_delta, iceberg])
def test_a_ledger_is_of_one_table(spark: SparkSession, tmp_path: Path, sink_of: Any) -> None:
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.tests")
    name, ledger = f"t{uuid4().hex}", tmp_path / "ledger"
    sink = sink_of(name, ledger)
    load(spark, tmp_path, sink, good([1]))

    with pytest.raises(TableError, match="is of another table"):
        load(spark, tmp_path, sink_of(f"{name}_other", ledger), good([1, 2]))
    with pytest.raises(TableError, match="is of another table"):
        ingest(
            spark,
            [message("m3", "no JSON")],
            source=JsonSource(SCHEMA),
            sink=sink,
            rejects=sink_of(f"{name}_rejects", ledger),
            workspace=tmp_path / "batches",
        )
    assert load(spark, tmp_path, sink, good([1, 2])).ingested == 1

    spark.sql(f"DROP TABLE {sink.table}")
    with pytest.raises(TableError, match="is of another table"):
        load(spark, tmp_path, sink, good([1, 2]))
    assert load(spark, tmp_path, sink_of(name, tmp_path / "new-ledger"), good([1, 2])).ingested == 2


@pytest.mark.parametrize("upsert_by", [(), ("id",)], ids=["append", "upsert"])
def test_rules_of_a_native_delta_table_reject_messages_and_stop_no_batch(
    spark: SparkSession, tmp_path: Path, upsert_by: tuple[str, ...]
) -> None:
    path = tmp_path / "orders"
    name = f"delta.`{path}`"
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT NOT NULL, name STRING, twice BIGINT GENERATED ALWAYS AS (id * 2), {OURS}) "
        "USING delta"
    )
    spark.sql(f"ALTER TABLE {name} ADD CONSTRAINT positive CHECK (id > 0)")
    spark.sql(f"ALTER TABLE {name} ADD CONSTRAINT traced CHECK (_batch_id <> '' AND _message_id <> '')")
    sink = NativeDeltaSink(path, (), upsert_by)
    schema = f"{SCHEMA}, twice BIGINT"
    batch = [
        message("m1", body(id=1, name="a", twice=2)),
        message("m2", body(id=-5, name="a secret", twice=-10)),
        message("m3", body(id=3, twice=99)),
        message("m4", body(id=4, twice=8)),
    ]

    result = load(spark, tmp_path, sink, batch, schema)
    later = load(spark, tmp_path, sink, [message("m5", body(id=5, twice=10))], schema)

    assert result.rejected == {
        "m2": "refused by the table: CHECK constraint positive",
        "m3": "refused by the table: generated column twice",
    }
    assert (result.ingested, later.ingested) == (2, 1)
    assert sorted(row["id"] for row in spark.table(name).collect()) == [1, 4, 5]


def test_an_invariant_of_a_native_delta_table_rejects_its_message(spark: SparkSession, tmp_path: Path) -> None:
    schema = json.loads(delta_schema(table_columns(struct_type(SCHEMA))).to_json())
    schema["fields"][0]["metadata"] = {"delta.invariants": json.dumps({"expression": {"expression": "id > 0"}})}
    DeltaTable.create(tmp_path / "orders", Schema.from_json(json.dumps(schema)))
    sink = NativeDeltaSink(tmp_path / "orders")

    result = load(spark, tmp_path, sink, [*good([1]), message("m2", body(id=-5, name="a secret"))])

    assert result.rejected == {"m2": "refused by the table: invariant of column id"}
    assert load(spark, tmp_path, sink, good([7])).ingested == 1
    stored = spark.read.format("delta").load(str(tmp_path / "orders")).collect()
    assert sorted(row["id"] for row in stored) == [1, 7]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_message_without_a_value_that_the_table_requires_is_rejected(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.tests")
    path, table = tmp_path / "orders", f"{CATALOG}.tests.t{uuid4().hex}"
    name = f"delta.`{path}`" if kind == "delta" else table
    sink = NativeDeltaSink(path) if kind == "delta" else IcebergSink(table, tmp_path / "ledger")
    spark.sql(f"CREATE TABLE {name} (id BIGINT NOT NULL, name STRING NOT NULL, {OURS}) USING {kind}")

    with pytest.raises(SchemaError, match="column name is NOT NULL in the table, and may be null in the schema"):
        load(spark, tmp_path, sink, good([1]))
    result = load(
        spark, tmp_path, sink, [*good([1]), message("m2", body(id=2))], "id BIGINT NOT NULL, name STRING NOT NULL"
    )

    assert result.rejected == {"m2": "required, but missing or null: name"}
    assert [row["id"] for row in spark.table(name).collect()] == [1]


@pytest.mark.parametrize("kind", ["VARCHAR", "CHAR"])
def test_a_text_that_is_too_long_for_its_column_rejects_its_message(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "orders"
    name = f"delta.`{path}`"
    spark.sql(f"CREATE TABLE {name} (id BIGINT NOT NULL, name {kind}(3), {OURS}) USING delta")
    sink = NativeDeltaSink(path)
    values = ["abc", "abcd", None]

    result = load(spark, tmp_path, sink, [message(f"m{n}", body(id=n, name=value)) for n, value in enumerate(values)])

    assert result.rejected == {"m1": f"refused by the table: {kind}(3) of column name"}
    assert load(spark, tmp_path, sink, [message("m7", body(id=7))]).ingested == 1
    assert {row["id"]: row["name"] for row in spark.table(name).collect()} == {0: "abc", 2: None, 7: None}


def test_partition_values_that_cannot_be_a_directory_reject_messages_of_native_delta(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = NativeDeltaSink(tmp_path / "orders", ("name",))
    fits = "/" * 83
    values = [fits, fits + "/", "a\0b", "__HIVE_DEFAULT_PARTITION__", "\u00e9" * 126, None, ""]
    result = load(spark, tmp_path, sink, [message(f"m{n}", body(id=n, name=value)) for n, value in enumerate(values)])

    assert result.rejected.keys() == {"m1", "m2", "m3", "m4"}
    assert load(spark, tmp_path, sink, good([7])).ingested == 1
    stored = {row["id"]: row["name"] for row in spark.read.format("delta").load(str(tmp_path / "orders")).collect()}
    assert stored == {0: fits, 5: None, 6: None, 7: "n7"}


def test_an_empty_partition_value_that_must_not_be_null_rejects_its_message_of_native_delta(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema, sink = "id BIGINT NOT NULL, name STRING NOT NULL", NativeDeltaSink(tmp_path / "orders", ("name",))
    batch = [message(f"m{n}", body(id=n, name=value)) for n, value in enumerate(["a", ""])]

    result = load(spark, tmp_path, sink, batch, schema)

    assert result.rejected == {
        "m1": "refused by the table: the partition value of name is empty, which is a null there"
    }
    assert load(spark, tmp_path, sink, good([7]), schema).ingested == 1
    stored = spark.read.format("delta").load(str(tmp_path / "orders")).collect()
    assert {row["id"]: row["name"] for row in stored} == {0: "a", 7: "n7"}


def test_partition_values_that_cannot_be_a_directory_reject_messages_of_iceberg(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.tests")
    table = f"{CATALOG}.tests.t{uuid4().hex}"
    sink = IcebergSink(table, tmp_path / "ledger", ("name",))
    values = ["x" * 250, "x" * 251, "\u00e9" * 42, "a\0b"]
    result = load(spark, tmp_path, sink, [message(f"m{n}", body(id=n, name=value)) for n, value in enumerate(values)])

    assert result.rejected == {
        "m1": "refused by the table: the partition value of name is too long for a directory"
    } | {"m2": result.rejected["m1"]}
    assert load(spark, tmp_path, sink, good([7])).ingested == 1
    spark.sql(f"REFRESH TABLE {table}")
    assert {row["id"] for row in spark.table(table).collect()} == {0, 3, 7}


@pytest.mark.parametrize(
    ("partition_by", "change", "rejected"),
    [
        ("truncate(50, name)", "", {"m1": "name_trunc"}),
        ("id", "ADD PARTITION FIELD name AS shard", {"m1": "shard", "m2": "shard"}),
        ("name", "DROP PARTITION FIELD name", {}),
    ],
    ids=["the start of a text", "under another name", "not any more"],
)
def test_partitions_of_iceberg_that_are_not_columns_under_their_own_names(
    spark: SparkSession, tmp_path: Path, partition_by: str, change: str, rejected: dict[str, str]
) -> None:
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.tests")
    table = f"{CATALOG}.tests.t{uuid4().hex}"
    sink = IcebergSink(table, tmp_path / "ledger", (partition_by,))
    sink.open(spark, table_columns(struct_type(SCHEMA)), widen=False)
    if change:
        spark.sql(f"ALTER TABLE {table} {change}")
    values = ["a", "\u3042" * 51, "x" * 300]

    result = load(spark, tmp_path, sink, [message(f"m{n}", body(id=n, name=value)) for n, value in enumerate(values)])

    assert result.rejected == {
        message_id: f"refused by the table: the partition value of {name} is too long for a directory"
        for message_id, name in rejected.items()
    }
    assert load(spark, tmp_path, sink, good([7])).ingested == 1
    spark.sql(f"REFRESH TABLE {table}")
    assert {row["id"] for row in spark.table(table).collect()} == {0, 1, 2, 7} - {int(one[1:]) for one in rejected}


@pytest.mark.parametrize("setting", ["spark.wap.id", "spark.wap.branch"])
def test_a_session_that_publishes_later_is_refused(spark: SparkSession, tmp_path: Path, setting: str) -> None:
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.tests")
    table = f"{CATALOG}.tests.t{uuid4().hex}"
    # By values, of which Iceberg writes the rows itself.
    sink = IcebergSink(table, tmp_path / "ledger", ("name",))
    load(spark, tmp_path, sink, good([1]))
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.wap.enabled' = 'true')")

    unpublished = f"the session has {setting}, so ingested rows are not in the table"
    with session_settings(spark, {setting: "audit"}), pytest.raises(TableError, match=unpublished):
        load(spark, tmp_path, sink, good([2]))

    assert load(spark, tmp_path, sink, good([2])).ingested == 1
    spark.sql(f"REFRESH TABLE {table}")
    assert {row["id"] for row in spark.table(table).collect()} == {1, 2}


@pytest.mark.parametrize("name", ["_file", "_partition", "_row_id"])
def test_names_that_iceberg_keeps_for_itself_are_refused(spark: SparkSession, tmp_path: Path, name: str) -> None:
    sink = IcebergSink(f"{CATALOG}.tests.t{uuid4().hex}", tmp_path / "ledger")
    with pytest.raises(SchemaError, match=name):
        sink.open(spark, table_columns(StructType([StructField(name, StringType())])), widen=False)
