"""A task writes its rows as files that are read the same as those that Spark writes itself."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql.types import BooleanType, DateType, DecimalType, ShortType, TimestampType

from sqs_lease.spark.delta_places import load_table
from sqs_lease.spark.places import Place
from sqs_lease.spark.sinks import staging
from sqs_lease.spark.sinks.delta.files import Listing, read_rows
from sqs_lease.spark.sinks.delta.statistics import statistics_of
from sqs_lease.spark.sinks.staging import Staging, TaskWriter
from tests.spark.sinks.delta.tables import NOON, application, arrow_schema, columns_of, open_table, row, stage

SPECIAL = ["plain", "a b", "x/y", "é=ü%2F", "it's", 'double "', "back\\slash", "a:b*?", "long " * 100]


def test_a_partitioned_table_has_each_value_in_its_own_files(tmp_path: Path) -> None:
    table = open_table(tmp_path, partition_by=["name"])
    names = sorted([*SPECIAL, "plain", "a b"])
    rows = [row(n, f"m{n}", name=name) for n, name in enumerate(names)]

    table.apply(stage(table, [*rows, row(98, "m98", name=""), row(99, "m99", name=None)]), application(1))

    loaded = load_table(table.storage)
    assert loaded is not None
    read = {one["id"]: one["name"] for one in loaded.to_pyarrow_table().to_pylist()}
    assert read == {**dict(enumerate(names)), 98: None, 99: None}, "an empty text is a null in Delta"
    partitions = pa.table(loaded.get_add_actions(flatten=True))
    assert sorted(partitions["partition.name"].to_pylist(), key=str) == sorted([*SPECIAL, None], key=str)
    assert pq.read_schema(tmp_path / partitions["path"][0].as_py()).names == [
        "id",
        "_message_id",
        "_sent_at",
        "_batch_id",
    ]


def test_partitions_of_several_types_come_back_as_they_were(tmp_path: Path) -> None:
    columns = columns_of(day=DateType(), good=BooleanType(), size=ShortType())
    table = open_table(tmp_path, columns=columns, partition_by=["day", "good", "size"])
    values: list[dict[str, Any]] = [
        {"day": date(2026, 3, 1), "good": True, "size": -1},
        {"day": date(1066, 10, 14), "good": False, "size": 32767},
        {"day": None, "good": None, "size": None},
    ]
    rows = [{**row(n, f"m{n}"), **value} for n, value in enumerate(values)]
    for one in rows:
        del one["name"]

    location = stage(table, rows, one_by_one=True)
    table.apply(location, application(1))

    loaded = load_table(table.storage)
    assert loaded is not None
    assert sorted(loaded.to_pyarrow_table().to_pylist(), key=lambda one: int(one["id"])) == rows


def test_rows_of_a_staged_file_have_the_columns_of_their_partition_again(tmp_path: Path) -> None:
    table = open_table(tmp_path, partition_by=["name"])
    (file,) = Listing.read(table.storage, stage(table, [row(1, "m1", name="x")])).files

    read = read_rows(table.storage, file, arrow_schema(), arrow_schema().names)
    assert read.to_pylist() == [row(1, "m1", name="x")]
    assert read.schema.equals(arrow_schema())


def test_a_repeated_task_writes_files_of_other_names(tmp_path: Path) -> None:
    storage = Place.of(tmp_path)
    rows = pa.Table.from_pylist([row(1, "m1")], schema=arrow_schema())

    paths = set()
    for _ in range(2):
        writer = TaskWriter(Staging(storage, "batches/b/t", arrow_schema()))
        (file,) = [*writer.write(rows), *writer.finish()]
        paths.add(file.path)

    assert len(paths) == 2
    assert {f"{tmp_path}/{path}" for path in paths} == {str(file) for file in tmp_path.rglob("*.parquet")}


def test_a_task_without_rows_writes_no_file(tmp_path: Path) -> None:
    writer = TaskWriter(Staging(Place.of(tmp_path), "batches/b/t", arrow_schema(), ("name",)))

    assert [*writer.write(arrow_schema().empty_table()), *writer.finish()] == []
    assert list(tmp_path.iterdir()) == []


def test_a_task_tells_the_sizes_of_what_it_wrote(tmp_path: Path) -> None:
    to = Staging(Place.of(tmp_path), "batches/b/t", arrow_schema(), (), statistics_of)
    writer = TaskWriter(to)
    for n in range(3):
        rows = pa.Table.from_pylist([row(n, f"m{n}"), row(n, f"m{n}")], schema=arrow_schema())
        assert list(writer.write(rows)) == []
    (file,) = writer.finish()

    assert (file.rows, file.size) == (6, (tmp_path / file.path).stat().st_size)
    written = to.read_back([file])
    assert written.message_ids.to_pylist() == ["m0", "m0", "m1", "m1", "m2", "m2"]
    assert written.files[0].statistics["maxValues"]["id"] == 2


def test_a_task_holds_no_more_than_a_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_ROW_GROUP_BYTES", 500)
    writer = TaskWriter(Staging(Place.of(tmp_path), "batches/b/t", arrow_schema()))
    for n in range(30):
        assert list(writer.write(pa.Table.from_pylist([row(n, f"m{n}")], schema=arrow_schema()))) == []
    (file,) = writer.finish()

    metadata = pq.read_metadata(tmp_path / file.path)
    assert metadata.num_rows == 30
    assert metadata.num_row_groups > 1


def test_times_are_stored_in_utc_and_decimals_by_the_letter(tmp_path: Path) -> None:
    columns = columns_of(price=DecimalType(20, 4), at=TimestampType())
    schema = arrow_schema(columns)
    # As Spark hands rows to a task of a session whose time zone is another one.
    elsewhere = pa.schema(
        [pa.field(one.name, pa.timestamp("us", "+02:00")) if one.name == "at" else one for one in schema]
    )
    at = datetime(2026, 3, 1, 14, 0, 0, 1, tzinfo=timezone(timedelta(hours=2)))
    given = {"id": 1, "price": Decimal("1234567890123456.7891"), "at": at, "_message_id": "m1", "_sent_at": NOON}
    writer = TaskWriter(Staging(Place.of(tmp_path), "batches/b/t", schema))
    rows = pa.Table.from_pylist([{**given, "_batch_id": "b"}], schema=elsewhere)
    (file,) = [*writer.write(rows), *writer.finish()]

    read = pq.read_table(tmp_path / file.path)
    assert read.schema.field("at").type == pa.timestamp("us", "UTC")
    assert read["at"].to_pylist() == [at.astimezone(UTC)]
    assert read["price"].to_pylist() == [given["price"]]
