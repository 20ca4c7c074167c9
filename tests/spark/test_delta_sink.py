"""A table that cannot be used is refused with what is wrong with it; one that can is kept tidy."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from deltalake import DeltaTable, Schema
from pyspark.sql.types import LongType, StructField, StructType

from sqs_lease.spark import DeltaSink, JsonSource, SchemaError, TableError
from sqs_lease.spark.columns import table_columns
from tests.spark.samples import Place, good, message, named_files, rows, staged_files, stored_ids

ID = table_columns(StructType([StructField("id", LongType(), nullable=False)]))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("schema", "says"),
    [
        pytest.param("id INT NOT NULL, name STRING", "column id is bigint in the table and int in", id="type"),
        pytest.param("id BIGINT NOT NULL", "the schema has no column name string", id="one too few"),
        pytest.param("id BIGINT NOT NULL, name STRING, at DATE", "the table has no column at date", id="one too many"),
        pytest.param("id BIGINT, name STRING", "column id is NOT NULL in the table, and may", id="null"),
    ],
)
def test_a_schema_that_differs_from_the_tables_is_refused_with_the_difference(
    place: Place, schema: str, says: str
) -> None:
    place.ingest(good([1]))

    with pytest.raises(SchemaError, match=f"does not fit table {place.table}: .*{says}"):
        place.ingest(good([2]), source=JsonSource(schema))
    assert stored_ids(place.table) == ["m1"]


@pytest.mark.processes
@pytest.mark.parametrize(
    "schema",
    ["name STRING, id BIGINT NOT NULL", "id BIGINT NOT NULL, name STRING NOT NULL"],
    ids=["other order", "stricter"],
)
def test_a_schema_that_fits_although_it_is_not_the_same_is_taken(place: Place, schema: str) -> None:
    place.ingest(good([1]))

    assert place.ingest(good([2]), source=JsonSource(schema)).ingested == 1
    assert [(row["id"], row["name"]) for row in rows(place.table)] == [(1, "n1"), (2, "n2")]


@pytest.mark.processes
def test_requirements_inside_of_columns_do_not_keep_readers_from_reading(place: Place) -> None:
    source = JsonSource("id INT NOT NULL, trip STRUCT<miles: INT NOT NULL, legs: ARRAY<STRUCT<a: INT NOT NULL>>>")
    place.ingest([message("m1", '{"id": 1}'), message("m2", '{"id": 2, "trip": {"miles": 3}}')], source=source)

    assert [row["trip"] for row in rows(place.table)] == [None, {"miles": 3, "legs": None}]
    assert place.ingest([message("m3", '{"id": 3}')], source=source).ingested == 1


def test_an_address_is_no_directory() -> None:
    with pytest.raises(TableError, match="s3://bucket/table is not a directory: give the path of one"):
        DeltaSink("s3://bucket/table")


def test_a_file_at_the_tables_path_is_named(tmp_path: Path) -> None:
    (tmp_path / "table").write_text("in the way")

    with pytest.raises(TableError, match=f"{tmp_path}/table is a file: give the path of a directory"):
        DeltaSink(tmp_path / "table").open(ID)


def test_a_directory_with_other_files_is_not_made_a_table(tmp_path: Path) -> None:
    (tmp_path / "report.csv").write_text("somebody's work")

    with pytest.raises(TableError, match=f"{tmp_path} has files in it, but is no Delta table"):
        DeltaSink(tmp_path).open(ID)
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.csv"]


def test_a_path_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(TableError, match=f"table {tmp_path}/file/table cannot be created"):
        DeltaSink(tmp_path / "file" / "table").open(ID)


def test_a_path_that_delta_rs_misreads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="has a % in it"):
        DeltaSink(tmp_path / "100%").open(ID)


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    DeltaSink(tmp_path).open(ID)
    (tmp_path / "_delta_log" / "00000000000000000000.json").write_text("{")

    with pytest.raises(TableError, match=f"table {tmp_path} cannot be read"):
        DeltaSink(tmp_path).open(ID)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        pytest.param({"partition_by": "id"}, "it is partitioned by id", id="partitions"),
        pytest.param(
            {"configuration": {"delta.columnMapping.mode": "name"}}, "it maps its columns", id="column mapping"
        ),
        pytest.param(
            {"configuration": {"delta.constraints.positive": "id > 0"}},
            "it has the constraint positive",
            id="constraint",
        ),
    ],
)
def test_a_table_that_asks_for_more_than_plain_files_is_refused(
    tmp_path: Path, options: dict[str, dict[str, str | None]], says: str
) -> None:
    DeltaTable.create(
        tmp_path,
        Schema.from_json(ID.json()),
        raise_if_key_not_exists=False,
        **options,  # type: ignore[arg-type]
    )

    with pytest.raises(TableError, match=f"{tmp_path} cannot be written: .*{says}"):
        DeltaSink(tmp_path).open(ID)


def test_drivers_that_create_a_table_at_the_same_moment_create_one(tmp_path: Path) -> None:
    together = Barrier(4)

    def open_table(path: Path) -> int:
        together.wait()
        return DeltaSink(path).open(ID).version

    with ThreadPoolExecutor(4) as threads:
        for attempt in range(20):
            path = tmp_path / str(attempt)
            assert list(threads.map(open_table, [path] * 4)) == [0, 0, 0, 0]
            assert [log.name for log in (path / "_delta_log").glob("*.json")] == ["00000000000000000000.json"]


@pytest.mark.processes
def test_only_the_tables_own_files_are_left_after_vacuum(place: Place) -> None:
    place.ingest(good([1, 2]))
    orphan = place.table / "batches" / "a-batch-that-never-came-back" / "try" / "part-0.parquet"
    orphan.parent.mkdir(parents=True)
    shutil.copy(next(iter(staged_files(place.table))), orphan)
    assert stored_ids(place.table) == ["m1", "m2"]

    DeltaTable(str(place.table)).vacuum(retention_hours=0, enforce_retention_duration=False, full=True, dry_run=False)

    assert staged_files(place.table) == named_files(place.table)
    assert stored_ids(place.table) == ["m1", "m2"]
