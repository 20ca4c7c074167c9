"""With keys, a table has one row of each: that of the message that was sent last."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from sqs_lease.spark.delta_places import load_table
from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.schemas import check_keys
from tests.spark.sinks.delta.tables import COLUMNS, application, columns_of, open_table, row, stage, stored


def store(path: Path, *batches: list[dict[str, object]], one_by_one: bool = False) -> list[tuple[int, str]]:
    """Upsert batches by ``id``, and tell what is in the table."""
    table = open_table(path, upsert_by=["id"])
    for number, rows in enumerate(batches, start=1):
        table.apply(stage(table, rows, one_by_one=one_by_one), application(number))
    return stored(table)


@pytest.mark.parametrize("one_by_one", [False, True], ids=["in one file", "in several files"])
@pytest.mark.parametrize(
    ("rows", "winner"),
    [
        pytest.param([row(1, "m1", later=2), row(1, "m2", later=1)], "m1", id="later"),
        pytest.param([row(1, "m2"), row(1, "m1")], "m2", id="same time, greater id"),
        pytest.param([row(1, "m1", later=-99), row(1, "m2", later=None)], "m1", id="unknown time is oldest"),
        pytest.param([row(1, "m2", later=None), row(1, "m1", later=None)], "m2", id="unknown times, greater id"),
    ],
)
def test_within_a_batch_the_newest_wins(
    tmp_path: Path, rows: list[dict[str, object]], winner: str, one_by_one: bool
) -> None:
    assert store(tmp_path, [*rows, row(2, "m3")], one_by_one=one_by_one) == [(1, winner), (2, "m3")]


def test_of_two_batches_the_later_wins_within_a_millisecond(tmp_path: Path) -> None:
    # As of a FIFO queue, of which each batch counts the microseconds from 0.
    first = [row(1, "m1"), row(1, "m2", later=1e-6)]
    assert store(tmp_path, first, [row(1, "m3", _batch_id="c")]) == [(1, "m3")]


def test_of_two_parts_of_a_batch_the_newest_message_wins_by_the_microsecond(tmp_path: Path) -> None:
    assert store(tmp_path, [row(1, "m2", later=1e-6)], [row(1, "m1")]) == [(1, "m2")]


def test_of_the_rows_of_one_message_the_last_wins(tmp_path: Path) -> None:
    store(tmp_path, [row(1, "m1", name="first"), row(1, "m1", name="last")])

    loaded = load_table(open_table(tmp_path).storage)
    assert loaded is not None
    assert loaded.to_pyarrow_table()["name"].to_pylist() == ["last"]


@pytest.mark.parametrize(
    ("first", "second", "winner"),
    [
        pytest.param(0, 1, "m2", id="newer"),
        pytest.param(1, 0, "m1", id="older, late"),
        pytest.param(0, 0, "m2", id="same time"),
        pytest.param(None, 0, "m2", id="known after unknown"),
        pytest.param(0, None, "m1", id="unknown after known"),
        pytest.param(None, None, "m2", id="both unknown"),
    ],
)
def test_across_batches_the_newest_wins_and_the_later_of_equals(
    tmp_path: Path, first: int | None, second: int | None, winner: str
) -> None:
    assert store(tmp_path, [row(1, "m1", later=first)], [row(1, "m2", later=second)]) == [(1, winner)]


def test_the_winner_replaces_the_whole_row(tmp_path: Path) -> None:
    wide = columns_of(name=StringType(), more=StringType())
    table = open_table(tmp_path, columns=wide, upsert_by=["id"])
    table.apply(stage(table, [row(1, "m1", more="x"), row(2, "m1", more="y")]), application(1))

    narrow = open_table(tmp_path, upsert_by=["id"], widen=True)
    narrow.apply(stage(narrow, [row(1, "m2", later=1, name=None)]), application(2))

    loaded = load_table(table.storage)
    assert loaded is not None
    read = sorted((one["id"], one["name"], one["more"]) for one in loaded.to_pyarrow_table().to_pylist())
    assert read == [(1, None, None), (2, "n2", "y")]


def test_a_row_moves_to_another_partition(tmp_path: Path) -> None:
    table = open_table(tmp_path, upsert_by=["id"], partition_by=["name"])
    table.apply(stage(table, [row(1, "m1", name="a/b"), row(2, "m2", name="a/b")]), application(1))
    table.apply(stage(table, [row(1, "m3", later=1, name=None)]), application(2))

    assert stored(table) == [(1, "m3"), (2, "m2")]


def test_columns_may_have_any_name(tmp_path: Path) -> None:
    columns = columns_of(**{"a.b": StringType(), "select": StringType(), "it`s": StringType(), "Upper": StringType()})
    table = open_table(tmp_path, columns=columns, upsert_by=["id"])
    names = {"a.b": "1", "select": "2", "it`s": "3", "Upper": "4"}
    for number in (1, 2):
        rows = [{**row(1, f"m{number}", later=number), **names}]
        del rows[0]["name"]
        table.apply(stage(table, rows), application(number))

    loaded = load_table(table.storage)
    assert loaded is not None
    (read,) = loaded.to_pyarrow_table().to_pylist()
    assert read == rows[0]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        pytest.param("missing", "upsert_by: the schema has no column missing; it has id, name, ", id="unknown"),
        pytest.param("name", "upsert_by: column name may be null, .* make it NOT NULL", id="nullable"),
    ],
)
def test_keys_that_may_be_missing_are_refused(key: str, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        check_keys(COLUMNS, ["id", key])


def test_a_key_that_is_given_twice_is_refused_before_a_table_is_made() -> None:
    with pytest.raises(SchemaError, match="upsert_by names a column twice: id, id"):
        check_keys(COLUMNS, ["id", "id"])


@pytest.mark.parametrize(
    "kind", [DoubleType(), ArrayType(StringType()), MapType(StringType(), StringType()), StructType()]
)
def test_keys_that_do_not_tell_rows_apart_are_refused(kind: DataType) -> None:
    columns = StructType([StructField("key", kind, nullable=False), StructField("n", IntegerType())])

    with pytest.raises(SchemaError, match=r"upsert_by: column key is .*, by which rows cannot be told apart"):
        check_keys(columns, ["key"])
