"""Ingestions into directories of Parquet files whose tasks read the messages and write the files themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.dataset as pds  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sqs_lease.spark import JsonSource
from sqs_lease.spark.sinks.parquet_sink import NUMBER_COLUMN, ParquetSink
from sqs_lease.spark.sinks.staging import Staging, TaskWriter, Written, stage_directory
from tests.spark.samples import Place, good, message


def stored(path: Path) -> dict[str, tuple[int, str | None]]:
    read: list[dict[str, Any]] = pds.dataset(path, format="parquet", partitioning="hive").to_table().to_pylist()
    assert len({row["_message_id"] for row in read}) == len(read)
    return {row["_message_id"]: (row["id"], row["name"]) for row in read}


@pytest.mark.processes
def test_spark_plans_nothing_for_what_is_converted_or_rejected(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[DataFrame] = []
    parse = JsonSource.parse

    def noted(source: JsonSource, messages: DataFrame, columns: StructType) -> DataFrame:
        planned.append(messages)
        return parse(source, messages, columns)

    monkeypatch.setattr(JsonSource, "parse", noted)
    sink = ParquetSink(place.table)

    assert place.ingest(good(range(1, 50)), sink=sink).ingested == 49
    assert planned == []

    mixed = [message("a", '{"id": 50, "name": "x"}'), message("b", '{"id": 51, "name": 7}'), message("c", "{}")]
    result = place.ingest(mixed, sink=sink)

    assert (result.ingested, list(result.rejected), planned) == (2, ["c"], [])
    assert stored(place.table) == {
        **{f"m{number}": (number, f"n{number}") for number in range(1, 50)},
        "a": (50, "x"),
        "b": (51, "7"),
    }
    # Whether Spark or this package wrote them, the files of a batch lie in its directory, where readers find them.
    assert len(list(place.table.glob(f"{NUMBER_COLUMN}=*/*.parquet"))) == len(list(place.table.rglob("part-*.parquet")))
    assert list((place.table / "_sqs_lease/staged").rglob("*.parquet")) == []


def test_files_of_a_task_that_did_not_count_are_not_taken(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("_message_id", pa.string())])

    def write(staging: Staging) -> Written:
        files = []
        for number in (1, 2):
            writer = TaskWriter(staging)
            rows = pa.table({"id": [number], "_message_id": [f"m{number}"]})
            files += [*writer.write(rows), *writer.finish()]
        # The second task was one that Spark repeated.
        return Written(files[:1], pa.chunked_array([["m1"]]))

    directory, message_ids = stage_directory(tmp_path, "b", schema, write)

    assert message_ids.to_pylist() == ["m1"]
    (file,) = directory.iterdir()
    assert pq.read_table(file)["id"].to_pylist() == [1]
    assert list(tmp_path.rglob("*.parquet")) == [file]


def test_a_try_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def write(staging: Staging) -> Written:
        directory = Path(staging.place.uri, staging.directory)
        directory.mkdir(parents=True)
        (directory / "part-1.parquet").touch()
        raise OSError("the disk is on fire")

    with pytest.raises(OSError, match="on fire"):
        stage_directory(tmp_path, "b", pa.schema([]), write)

    assert list(tmp_path.iterdir()) == []
