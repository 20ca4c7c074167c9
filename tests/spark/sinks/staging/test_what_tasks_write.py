"""The rows that tasks write, and those that they leave to Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from sqs_lease.spark import message_ids as of_messages
from sqs_lease.spark.columns import MESSAGE_ID
from sqs_lease.spark.errors import TableError
from sqs_lease.spark.places import Place
from sqs_lease.spark.schemas import arrow_schema
from sqs_lease.spark.sinks import staging
from sqs_lease.spark.sinks.row_rules import DoubtfulDirectories, EmptyTexts
from sqs_lease.spark.sinks.staging import StagedFile, Staging, TaskWriter, Written, stage_directory

COLUMNS = StructType([StructField("id", LongType()), StructField("town", StringType())])


def test_only_columns_with_repeated_values_have_a_dictionary(tmp_path: Path) -> None:
    count = 2_000
    rows = pa.table(
        {
            "id": range(count),
            "town": ["Bern", "Basel"] * (count // 2),
            "tags": [["late", str(number)] for number in range(count)],
            "plane": [{"model": "A320", "number": number} for number in range(count)],
            "notes": pa.array([[("k", str(number))] for number in range(count)], pa.map_(pa.string(), pa.string())),
            "nothing": pa.nulls(count, pa.string()),
            "_message_id": [f"m{number}" for number in range(count)],
        }
    )
    writer = TaskWriter(Staging(Place(str(tmp_path)), "try", rows.schema))

    # A part of a larger table, as rows of one partition are.
    list(writer.write(rows.slice(1)))
    list(writer.finish())

    (file,) = (tmp_path / "try").iterdir()
    group = pq.read_metadata(file).row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    assert {chunk.path_in_schema for chunk in chunks if "RLE_DICTIONARY" in chunk.encodings} == {
        "town",
        "plane.model",
        "notes.key_value.key",
        "nothing",
    }
    assert pq.read_table(file).equals(rows.slice(1))


def test_files_that_are_read_once_have_nothing_for_other_readers(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2], "town": ["Bern", None], "_message_id": ["m1", "m2"]})
    for name, is_read_once in (("kept", False), ("once", True)):
        writer = TaskWriter(Staging(Place(str(tmp_path)), name, rows.schema, is_read_once=is_read_once))
        list(writer.write(rows))
        list(writer.finish())

    found = {}
    for name in ("kept", "once"):
        (file,) = (tmp_path / name).iterdir()
        assert pq.read_table(file).equals(rows)
        chunk = pq.read_metadata(file).row_group(0).column(0)
        found[name] = (chunk.compression, chunk.is_stats_set)
    assert found == {"kept": ("SNAPPY", True), "once": ("LZ4", False)}


@pytest.mark.parametrize(
    ("town", "is_doubtful"),
    [
        ("Bern", False),
        (None, False),
        ("", True),
        ("a\0b", True),
        ("__HIVE_DEFAULT_PARTITION__", True),
        ("/" * 83, False),
        ("/" * 84, True),
        ("ü" * 41, False),
        ("ü" * 42, True),
    ],
)
def test_spark_says_whether_an_unusual_text_can_be_the_name_of_a_directory(town: str | None, is_doubtful: bool) -> None:
    rows = pa.table({"id": [1, 2], "town": pa.array(["Basel", town], pa.string())})

    doubtful = DoubtfulDirectories.of(COLUMNS, ["town", "id", "days"])

    assert doubtful.names == ["town"]
    assert doubtful(rows).to_pylist() == [False, is_doubtful]


def test_spark_says_why_an_empty_text_is_refused() -> None:
    rows = pa.table({"id": [1, 2, 3], "town": ["Basel", "", None]})

    assert EmptyTexts(["town"])(rows).to_pylist() == [False, True, False]
    assert EmptyTexts([])(rows).to_pylist() == [False, False, False]


@pytest.mark.parametrize("step", ["while it writes", "while its files are put together"])
def test_a_try_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    rows = pa.table({"id": [1, 2], "town": ["Bern", "Basel"], "_message_id": ["m1", "m2"]})
    rename = Path.rename
    renamed: list[Path] = []

    def write(staging: Staging) -> Written:
        files: list[StagedFile] = []
        for number in range(2):
            writer = TaskWriter(staging)
            files += [*writer.write(rows.slice(number, 1)), *writer.finish()]
        if step == "while it writes":
            raise OSError("no space left on device")
        return Written(files, rows["_message_id"])

    def rename_one(path: Path, target: Path) -> Path:
        if renamed:
            raise OSError("no space left on device")
        renamed.append(path)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", rename_one)
    with pytest.raises(OSError, match="no space left on device"):
        stage_directory(tmp_path, "b", rows.schema, write)

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_ids_of_the_rows_of_many_files_take_no_memory(tmp_path: Path) -> None:
    schema = pa.schema([(MESSAGE_ID, pa.string()), ("town", pa.string())])
    of_table = Staging(Place(str(tmp_path)), "try", schema, ["town"])
    message_ids = [[f"{file:018}{number:018}" for number in range(5_000)] for file in range(20)]
    writer = TaskWriter(of_table)
    files = [
        file
        for number, ids in enumerate(message_ids)
        for file in writer.write(pa.table({MESSAGE_ID: ids, "town": [f"{number:02}"] * len(ids)}))
    ]
    files += writer.finish()

    before = pa.total_allocated_bytes()
    with patch.object(of_messages, "_IN_MEMORY", 5_000):
        written = of_table.read_back(files)
    taken = pa.total_allocated_bytes() - before

    assert written.message_ids.to_pylist() == [one for ids in message_ids for one in ids]
    assert taken < written.message_ids.nbytes // 10


def test_files_of_executors_that_the_driver_does_not_see_are_an_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = StructType([*COLUMNS.fields, StructField("_message_id", StringType())])
    rows = spark.createDataFrame([(1, "Bern", "m1")], columns)
    partitioned = Staging(Place.of(tmp_path), "try", arrow_schema(columns), partition_by=["town"])
    written = partitioned.write(rows)
    assert (written.message_ids.to_pylist(), len(written.files)) == (["m1"], 1)

    elsewhere = replace(written.files[0], path="try/part-elsewhere.parquet")
    monkeypatch.setattr(staging, "_files_of", lambda _: [elsewhere])

    with pytest.raises(TableError, match=r"try/part-elsewhere\.parquet.* the driver and all executors must reach"):
        partitioned.write(rows)
