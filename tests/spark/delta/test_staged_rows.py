"""What waits beside a ledger for a table that Spark writes, in a directory as on S3: its marks, and its end."""

from __future__ import annotations

from typing import Any

import pyarrow.fs as pafs  # type: ignore[import-untyped]
import pytest

from sqs_lease.spark import Ledger
from sqs_lease.spark.sinks.spark_table import StagedRows
from sqs_lease.spark.sinks.write_ahead import Application


@pytest.fixture(params=["in a directory", "on S3"])
def rows(request: pytest.FixtureRequest) -> StagedRows:
    # No session: nothing here runs on Spark.
    session: Any = None
    if request.param == "on S3":
        bucket = request.getfixturevalue("bucket")
        return StagedRows(session, Ledger(f"s3://{bucket.name}/ledger", bucket.storage_options).place)
    return StagedRows(session, Ledger(request.getfixturevalue("tmp_path")).place)


def test_what_was_marked_is_known_and_what_is_before_it(rows: StagedRows) -> None:
    assert not rows.is_applied(Application("one", 1, "b"))

    for number in (1, 2, 12):
        rows.mark_applied(Application("one", number, f"b{number}"))

    assert rows.is_applied(Application("one", 12, "b12"))
    assert rows.is_applied(Application("one", 2, "b2"))
    assert not rows.is_applied(Application("one", 13, "b13"))
    assert not rows.is_applied(Application("another", 1, "b"))


def test_rows_are_removed_and_those_of_others_stay(rows: StagedRows) -> None:
    files = rows.place.file_system()
    for name in ("a", "b"):
        if rows.place.is_local:
            files.create_dir(f"_staged/batch/{name}")
        with files.open_output_stream(f"_staged/batch/{name}/part-0.parquet") as stream:
            stream.write(b"rows")

    rows.remove(f"{rows.directory}/batch/a#1")
    rows.remove(f"{rows.directory}/batch/never#1")

    there = files.get_file_info(pafs.FileSelector("_staged", recursive=True))
    assert [file.path for file in there if file.is_file] == ["_staged/batch/b/part-0.parquet"]
