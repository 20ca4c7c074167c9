"""A schema that differs from the table's is refused with the difference, or widens the table."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from sqs_lease.spark.errors import SchemaError, TableError
from sqs_lease.spark.sinks.delta.schema import added_columns, check_partitions, delta_schema, spark_columns
from sqs_lease.spark.sinks.differences import differences
from tests.spark.sinks.delta.tables import COLUMNS, application, columns_of, open_table, row, stage, stored

TABLE = delta_schema(COLUMNS)
STORED = spark_columns(TABLE)


def without(name: str) -> StructType:
    return StructType([field for field in COLUMNS.fields if field.name != name])


def required(name: str, kind: DataType) -> StructType:
    return StructType([*without(name).fields, StructField(name, kind, nullable=False)])


def optional(name: str, kind: DataType) -> StructType:
    return StructType([*without(name).fields, StructField(name, kind)])


@pytest.mark.parametrize("widen", [False, True], ids=["as it is", "widen"])
@pytest.mark.parametrize(
    ("columns", "says"),
    [
        pytest.param(optional("name", DateType()), "column name is string in the table and date in the", id="type"),
        pytest.param(optional("id", LongType()), "column id is NOT NULL in the table, and may be null", id="null"),
        pytest.param(without("id"), "the schema has no column id bigint", id="a required one too few"),
        pytest.param(required("at", DateType()), "the table has no column at date", id="a required one too many"),
        pytest.param(optional("Name", StringType()), "column Name is called name in the table", id="upper case"),
    ],
)
def test_columns_that_cannot_be_stored_are_refused_whether_or_not_the_table_may_be_widened(
    columns: StructType, says: str, widen: bool
) -> None:
    said = differences(STORED, columns, widen=widen)

    assert len([one for one in said if one.startswith(says)]) == 1, said


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        pytest.param(columns_of(name=StringType(), at=DateType()), ["the table has no column at date"], id="one more"),
        pytest.param(without("name"), ["the schema has no column name string"], id="one less"),
        pytest.param(
            columns_of(at=DateType()),
            ["the schema has no column name string", "the table has no column at date"],
            id="both",
        ),
    ],
)
def test_columns_that_one_side_lacks_are_refused_unless_the_table_may_be_widened(
    columns: StructType, says: list[str]
) -> None:
    assert differences(STORED, columns) == says
    assert differences(STORED, columns, widen=True) == []


def test_the_order_of_columns_and_stricter_ones_do_not_matter() -> None:
    assert differences(STORED, StructType([*reversed(COLUMNS.fields)])) == []
    assert differences(STORED, required("name", StringType())) == []


def test_only_columns_that_are_missing_are_added_and_nothing_inside_of_them_is_required() -> None:
    trip = StructType([StructField("miles", IntegerType(), nullable=False)])
    columns = columns_of(name=StringType(), trips=ArrayType(trip, containsNull=False), at=DateType())

    added = added_columns(TABLE, columns)

    assert [one.name for one in added] == ["trips", "at"]
    assert '"nullable":false' not in added[0].to_json().replace(" ", "")


@pytest.mark.parametrize("name", ["with space", "a,b", "a=b", "(a)", "{a}", "a;b", "tab\t"])
def test_names_that_delta_refuses_are_refused_early(name: str) -> None:
    with pytest.raises(SchemaError, match="names in a Delta table have no spaces and none of"):
        delta_schema(columns_of(**{name: StringType()}))


@pytest.mark.parametrize(
    "kind",
    [
        DayTimeIntervalType(),
        ArrayType(DayTimeIntervalType()),
        MapType(StringType(), DayTimeIntervalType()),
        StructType([StructField("a", DayTimeIntervalType())]),
    ],
    ids=str,
)
def test_types_that_delta_does_not_have_are_refused_early(kind: DataType) -> None:
    with pytest.raises(SchemaError, match=r"column odd.*: a Delta table cannot store the type interval"):
        delta_schema(columns_of(odd=kind))


@pytest.mark.parametrize(
    ("partition_by", "says"),
    [
        (["missing"], "partition_by: the schema has no column missing; it has id, name, "),
        (["ratio"], "partition_by: column ratio is double; take columns of strings, integers"),
        (["_sent_at"], "partition_by: column _sent_at is timestamp; take"),
        (["name", "name"], "partition_by names a column twice: name, name"),
        (["_message_id"], "partition_by: _message_id differs in every message"),
    ],
)
def test_wrong_partitions_are_refused(partition_by: list[str], says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        check_partitions(columns_of(name=StringType(), ratio=DoubleType()), partition_by)


@pytest.mark.parametrize(("name", "merges"), [("dc:type", False), ("dc:type", True), ("a\x01b", True), ("a'%/b", True)])
def test_a_column_with_a_name_that_no_directory_can_have_is_refused_where_rows_are_merged(
    tmp_path: Path, name: str, merges: bool
) -> None:
    columns, upsert_by = columns_of(**{name: StringType()}), ["id"] if merges else []
    table = open_table(tmp_path / "table", columns=columns, partition_by=[name], upsert_by=upsert_by)
    try:
        for number in (1, 2):
            table.apply(stage(table, [row(1, f"m{number}") | {name: "a"}], batch=f"b{number}"), application(number))
    except TableError:
        with pytest.raises(SchemaError, match=r"with upsert_by, column .* names directories"):
            check_partitions(columns, [name], merges=merges)
    else:
        check_partitions(columns, [name], merges=merges)


def test_a_widened_table_has_nulls_where_rows_had_no_such_column(tmp_path: Path) -> None:
    narrow = open_table(tmp_path)
    narrow.apply(stage(narrow, [row(1, "m1")]), application(1))
    late = stage(narrow, [row(3, "m3")], batch="late")

    wide = open_table(tmp_path, columns=columns_of(name=StringType(), tags=ArrayType(StringType())), widen=True)
    wide.apply(stage(wide, [row(2, "m2", tags=["a", None])]), application(2))
    narrow.apply(late, application(3))

    tags = {one["id"]: one["tags"] for one in DeltaTable(tmp_path).to_pyarrow_table().to_pylist()}
    assert tags == {1: None, 2: ["a", None], 3: None}


def test_drivers_that_widen_a_table_at_the_same_moment_add_every_column_once(tmp_path: Path) -> None:
    open_table(tmp_path)
    together = Barrier(4)
    more = [{"a": StringType()}, {"b": LongType()}, {"a": StringType(), "b": LongType()}, {"c": DateType()}]

    def widen(columns: dict[str, DataType]) -> None:
        together.wait(60)
        open_table(tmp_path, columns=columns_of(name=StringType(), **columns), widen=True)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(widen, more))

    names = [field.name for field in DeltaTable(tmp_path).schema().fields]
    assert sorted(names) == sorted([*COLUMNS.names, "a", "b", "c"])
    table = open_table(tmp_path, widen=True)
    table.apply(stage(table, [row(1, "m1")]), application(1))
    assert stored(table) == [(1, "m1")]
