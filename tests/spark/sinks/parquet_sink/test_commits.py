"""A batch appears in a directory of Parquet files at once, and what is left of others is tidied up."""

from __future__ import annotations

import os
import shutil
import time
from functools import partial
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from sqs_lease.spark import Ledger
from sqs_lease.spark.errors import SchemaError, TableError
from sqs_lease.spark.sinks.parquet_sink import NUMBER_COLUMN, ParquetSink, ParquetTable, _Columns
from sqs_lease.spark.sinks.sink import STAGED_KEPT, Admission, Staged
from sqs_lease.spark.sinks.write_ahead import Application, WriteAheadTable
from sqs_lease.testing.sink_contract import COLUMNS
from sqs_lease.testing.sink_subject import asked, columns_of, entries, known
from tests.spark.sinks.parquet_driver import STEPS, commit, killed, open_table

APPLICATION = Application("3f9a2c1e-0000", 12, "b")


def staged_directories(path: Path) -> list[str]:
    return [str(directory) for directory in (path / "_sqs_lease" / "staged").glob("*/*")]


def staged_by_hand(table: ParquetTable, name: str = "try") -> Path:
    directory = table.root / "_sqs_lease" / "staged" / "batch" / name
    directory.mkdir(parents=True)
    (directory / "part-0.parquet").write_bytes(b"rows")
    return directory


@pytest.fixture
def table(tmp_path: Path) -> ParquetTable:
    return ParquetTable.opened(tmp_path / "table", COLUMNS, widen=False)


def test_a_batch_that_was_applied_may_be_removed_by_its_owner(table: ParquetTable) -> None:
    location = staged_by_hand(table)
    table.apply(str(location), APPLICATION)
    (directory,) = table.root.glob(f"{NUMBER_COLUMN}=*")
    (directory / "part-0.parquet").unlink()
    directory.rmdir()

    table.apply(str(location), APPLICATION)

    assert list(table.root.glob(f"{NUMBER_COLUMN}=*")) == []


def test_a_batch_may_be_moved_away_at_the_moment_it_appears(
    table: ParquetTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver that looks for the batch then takes it for taken, and not for lost."""
    location = staged_by_hand(table)
    rename = Path.rename

    def appeared(source: Path, target: Path) -> None:
        rename(source, target)
        monkeypatch.setattr(Path, "rename", rename)
        shutil.move(target, tmp_path / "archive")
        table.apply(str(location), APPLICATION)

    monkeypatch.setattr(Path, "rename", appeared)
    table.apply(str(location), APPLICATION)

    assert list(table.root.glob(f"{NUMBER_COLUMN}=*")) == []
    assert [file.name for file in (tmp_path / "archive").iterdir()] == ["part-0.parquet"]


def test_a_batch_is_not_missed_after_a_later_one_was_applied(table: ParquetTable) -> None:
    first = staged_by_hand(table)
    table.apply(str(first), APPLICATION)
    later = Application(APPLICATION.ledger_id, APPLICATION.number + 1, "c")
    table.apply(str(staged_by_hand(table)), later)
    for directory in table.root.glob(f"{NUMBER_COLUMN}=*"):
        shutil.rmtree(directory)

    table.apply(str(first), APPLICATION)


def test_rows_that_are_gone_before_they_were_applied_are_an_error(table: ParquetTable) -> None:
    with pytest.raises(TableError, match="batch b, which the ledger has admitted, are gone"):
        table.apply(str(table.root / "nowhere"), APPLICATION)


@pytest.mark.processes
@pytest.mark.parametrize("step", STEPS)
def test_a_driver_killed_during_its_commit_leaves_all_or_nothing(table: ParquetTable, step: str) -> None:
    location = staged_by_hand(table)

    killed(table.root, str(location), step)

    was_admitted = step != "before the admission"
    found = open_table(table.root)
    assert set(known(found, "m1")) == ({"m1"} if was_admitted else set())
    if not was_admitted:
        commit(found, str(location))
    assert [file.name for file in table.root.glob(f"{NUMBER_COLUMN}=*/*")] == ["part-0.parquet"]
    assert staged_directories(table.root) == []


def test_files_of_a_killed_try_go_with_a_later_batch(table: ParquetTable) -> None:
    old, young = staged_by_hand(table, "old"), staged_by_hand(table, "young")
    long_ago = young.stat().st_mtime - STAGED_KEPT.total_seconds() - 60
    os.utime(old, (long_ago, long_ago))

    table.apply(str(staged_by_hand(table)), APPLICATION)

    assert staged_directories(table.root) == [str(young)]


def test_two_that_widen_a_table_at_once_both_do(table: ParquetTable, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = partial(ParquetTable.opened, table.root)
    link = os.link

    def overtaken(source: Path, destination: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        opened(columns_of(name=StringType(), theirs=StringType()), widen=True)
        link(source, destination)

    monkeypatch.setattr(os, "link", overtaken)
    opened(columns_of(name=StringType(), ours=StringType()), widen=True)

    opened(columns_of(name=StringType(), ours=StringType(), theirs=StringType()), widen=False)


def test_a_directory_with_other_files_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(TableError, match="not ingested"):
        ParquetTable.opened(tmp_path, COLUMNS, widen=False)


def test_a_column_called_as_the_directories_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="Ingested_Batch"):
        ParquetTable.opened(tmp_path, columns_of(Ingested_Batch=StringType()), widen=False)


def test_addresses_and_keys_are_refused_early() -> None:
    with pytest.raises(TableError, match="s3://bucket/orders is not a directory"):
        ParquetSink("s3://bucket/orders")
    with pytest.raises(TypeError, match="upsert_by"):
        ParquetSink("orders", upsert_by=["id"])  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("made_again", "said"),
    [
        (None, "is gone: it was removed"),
        (columns_of(name=LongType()), "column name is bigint in the table and string in the schema"),
    ],
    ids=["removed", "made again with other columns"],
)
def test_a_batch_is_not_admitted_into_a_directory_that_is_another_by_now(
    table: ParquetTable, tmp_path: Path, made_again: StructType | None, said: str
) -> None:
    whole = WriteAheadTable(table, Ledger(tmp_path / "ledger").open())
    looked_up, staged = whole.look_up(asked("m1")), Staged(str(staged_by_hand(table)), pa.chunked_array([["m1"]]))
    shutil.rmtree(table.root)
    if made_again is not None:
        ParquetTable.opened(table.root, made_again, widen=False)

    with pytest.raises((SchemaError, TableError), match=said):
        whole.commit(looked_up, Admission("b", entries(["m1"]), staged))

    assert known(whole, "m1") == {}


def test_a_driver_with_a_clock_days_ahead_removes_nothing_of_others(
    table: ParquetTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_another = staged_by_hand(table, "of another")
    own = staged_by_hand(table)
    ahead = time.time() + 2 * STAGED_KEPT.total_seconds()
    monkeypatch.setattr(time, "time", lambda: ahead)

    table.apply(str(own), APPLICATION)

    assert staged_directories(table.root) == [str(of_another)]


def test_a_directory_of_which_another_driver_makes_a_table_at_this_moment_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = _Columns.newest

    def overtaken(columns: _Columns) -> tuple[int, StructType | None]:
        monkeypatch.setattr(_Columns, "newest", look)
        found = look(columns)
        other = ParquetTable.opened(columns.root, COLUMNS, widen=False)
        other.apply(str(staged_by_hand(other)), APPLICATION)
        return found

    monkeypatch.setattr(_Columns, "newest", overtaken)
    table = ParquetTable.opened(tmp_path / "table", COLUMNS, widen=False)

    assert len(list(table.root.glob(f"{NUMBER_COLUMN}=*"))) == 1
