"""Rows that wait beside a ledger for a table that Spark writes, in a directory as on S3: their marks, and their end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow.fs as pafs  # type: ignore[import-untyped]
import pytest
from pyspark.sql.types import StructType

from sqs_lease.spark import Ledger
from sqs_lease.spark.sinks import write_ahead
from sqs_lease.spark.sinks.row_rules import RowRequirements, Rule
from sqs_lease.spark.sinks.spark_table import SparkTable, StagedRows
from sqs_lease.spark.sinks.write_ahead import Application
from sqs_lease.testing.sink_subject import COLUMNS


@pytest.fixture(params=["in a directory", "on S3"])
def rows(request: pytest.FixtureRequest) -> StagedRows:
    # No session: nothing here runs on Spark.
    session: Any = None
    if request.param == "on S3":
        bucket = request.getfixturevalue("bucket")
        return StagedRows(session, Ledger(f"s3://{bucket.name}/ledger", bucket.storage_options).place)
    return StagedRows(session, Ledger(request.getfixturevalue("tmp_path")).place)


def write(rows: StagedRows, name: str) -> str:
    """Stage a file, as a try of a batch; where it is."""
    files = rows.place.file_system()
    if rows.place.is_local:
        files.create_dir(f"_staged/{name}")
    with files.open_output_stream(f"_staged/{name}/part-0.parquet") as stream:
        stream.write(b"rows")
    return f"{rows.directory}/{name}"


def staged(rows: StagedRows) -> list[Any]:
    """All files that are there, marks among them."""
    there = rows.place.file_system().get_file_info(pafs.FileSelector("_staged", recursive=True))
    return [file for file in there if file.is_file]


def test_a_marked_batch_is_known_and_those_before_it(rows: StagedRows) -> None:
    assert not rows.marks.has(Application("one", 1, "b"))

    for number in (1, 2, 12):
        rows.marks.add(Application("one", number, f"b{number}"))

    assert rows.marks.has(Application("one", 12, "b12"))
    assert rows.marks.has(Application("one", 2, "b2"))
    assert not rows.marks.has(Application("one", 13, "b13"))
    assert not rows.marks.has(Application("another", 1, "b"))


def test_rows_are_removed_and_those_of_others_stay(rows: StagedRows) -> None:
    for name in ("a", "b"):
        write(rows, f"batch/{name}")

    rows.remove(f"{rows.directory}/batch/a#1")
    rows.remove(f"{rows.directory}/batch/never#1")

    assert [file.path for file in staged(rows)] == ["_staged/batch/b/part-0.parquet"]


@dataclass(frozen=True, slots=True)
class AnyTable(SparkTable):
    """A table that takes whatever it is told to, without Spark."""

    def _as_stored(self, columns: StructType) -> StructType:
        return columns

    def _read_requirements(self) -> RowRequirements:
        return RowRequirements()

    def _directory_rules(self, stored: StructType, names: Sequence[str]) -> Iterator[Rule]:
        return iter(())

    def _take(self, location: str, application: Application) -> None:
        pass

    def _version(self) -> int | None:
        return None

    def _newest_commit(self) -> str:
        return "nobody"


@pytest.mark.parametrize("is_old", [False, True])
def test_rows_of_a_killed_try_go_with_a_later_batch_once_they_are_old(
    rows: StagedRows, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    # No file in a bucket can be made older than it is.
    monkeypatch.setattr(write_ahead, "STAGED_KEPT", timedelta(days=-1 if is_old else 1))
    own, _ = (write(rows, f"{batch}/a") for batch in ("batch", "killed"))

    AnyTable(rows.spark, "orders", (), rows, COLUMNS).apply(f"{own}#1", Application("one", 1, "b"))

    assert [file.path for file in staged(rows) if "applied" not in file.path] == (
        [] if is_old else ["_staged/killed/a/part-0.parquet"]
    )
    assert rows.marks.has(Application("one", 1, "b"))
