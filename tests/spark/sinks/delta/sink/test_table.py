"""Staged rows get into the table once, whatever driver dies, hurries or tidies up meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier, local
from typing import Any
from unittest.mock import patch

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sqs_lease.spark import DeltaSink, TableError
from sqs_lease.spark.delta_places import existing_table
from sqs_lease.spark.ledger import Ledger
from sqs_lease.spark.places import Place
from sqs_lease.spark.sinks.delta import sink as delta_sink
from sqs_lease.spark.sinks.delta.sink import OpenDelta
from sqs_lease.spark.sinks.sink import Admission, Staged
from sqs_lease.spark.sinks.staging import directory_name
from sqs_lease.spark.sinks.write_ahead import Application, AppliedMarks, WriteAheadTable
from sqs_lease.testing.sink_contract import InterruptionError, interrupted
from sqs_lease.testing.sink_subject import asked, entries
from tests.spark.sinks.delta.conftest import Bucket
from tests.spark.sinks.delta.subjects import below
from tests.spark.sinks.delta.tables import application, open_table, row, stage, stored

ROOT = Path(__file__).parents[5]


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.processes)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where a table may lie."""
    if request.param == "disk":
        return Place.of(tmp_path / "a table")
    bucket: Bucket = request.getfixturevalue("bucket")
    sink = bucket.sink()
    return Place.of(sink.path, sink.storage_options)


@pytest.fixture(params=[(), ("id",)], ids=["append", "upsert"])
def upsert_by(request: pytest.FixtureRequest) -> tuple[str, ...]:
    keys: tuple[str, ...] = request.param
    return keys


def meanwhile(method: str, act: Callable[[], object]) -> Any:
    """Have something happen right before the first call of a method of the table's, as if another process did it."""
    real = getattr(OpenDelta, method)
    happened: list[bool] = []

    def acting(self: OpenDelta, *arguments: Any) -> Any:
        if not happened:
            happened.append(True)
            act()
        return real(self, *arguments)

    return patch.object(OpenDelta, method, acting)


def test_the_same_rows_applied_again_are_there_once(place: Place, upsert_by: tuple[str, ...]) -> None:
    table = open_table(place, upsert_by=upsert_by)
    location = stage(table, [row(1, "m1")])

    versions = [table.apply(location, application(1)) for _ in range(2)]

    assert stored(table) == [(1, "m1")]
    assert versions == [1, 1]


def test_appliers_at_the_same_moment_add_the_rows_once(place: Place, upsert_by: tuple[str, ...]) -> None:
    table = open_table(place, upsert_by=upsert_by)
    location = stage(table, [row(1, "m1"), row(2, "m2")])
    together, first = Barrier(4), local()
    real = OpenDelta._commit

    def commit_together(self: OpenDelta, *arguments: Any) -> int:
        if not hasattr(first, "over"):
            first.over = True
            together.wait(60)
        return real(self, *arguments)

    with patch.object(OpenDelta, "_commit", commit_together), ThreadPoolExecutor(4) as threads:
        versions = list(threads.map(lambda _: table.apply(location, application(1)), range(4)))

    assert stored(table) == [(1, "m1"), (2, "m2")]
    assert versions == [1] * 4


def test_an_older_number_is_in_the_table_and_another_ledger_counts_for_itself(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    table.apply(stage(table, [row(2, "m2")]), application(2))
    table.apply(stage(table, [row(1, "m1")]), application(1))
    table.apply(stage(table, [row(3, "m3")]), application(1, ledger_id="another"))

    assert stored(table) == [(2, "m2"), (3, "m3")]


def test_applied_batches_are_known_after_the_log_was_cut_short(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    location = stage(table, [row(1, "m1")])
    table.apply(location, application(1))
    loaded = DeltaTable(tmp_path)
    loaded.create_checkpoint()
    for commit in (tmp_path / "_delta_log").glob("0*.json"):
        commit.unlink()

    table.apply(location, application(1))

    assert stored(table) == [(1, "m1")]


@pytest.mark.parametrize("dies_before_the_mark", [False, True])
def test_applied_batches_are_known_after_the_table_forgot_them(tmp_path: Path, *, dies_before_the_mark: bool) -> None:
    """Delta drops the numbers of applications when delta.setTransactionRetentionDuration has passed."""
    table = open_table(tmp_path)
    table.apply(stage(table, [row(1, "m1")]), application(1))
    location = stage(table, [row(2, "m2")])
    if dies_before_the_mark:
        with patch.object(AppliedMarks, "add", side_effect=TableError("the process was killed")):
            table.apply(location, application(2))
    else:
        table.apply(location, application(2))
    # The table names other files now, so that adding ours again would add its rows again.
    DeltaTable(tmp_path).optimize.compact()
    table.apply(location, application(2))  # the next look-up, while the table remembers

    with patch.object(DeltaTable, "transaction_version", lambda *_: None):
        table.apply(location, application(2))

    assert stored(table) == [(1, "m1"), (2, "m2")]


def test_rows_are_added_though_the_place_cannot_be_reached_any_more_for_the_mark(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As where new credentials for S3 are asked for."""
    table = open_table(tmp_path)
    location = stage(table, [row(1, "m1")])
    add = AppliedMarks.add

    def unreachable(marks: AppliedMarks, of: Application) -> None:
        with patch.object(Place, "file_system", side_effect=OSError("no credentials")):
            add(marks, of)

    with patch.object(AppliedMarks, "add", unreachable):
        table.apply(location, application(1))

    assert stored(table) == [(1, "m1")]
    assert f"table {tmp_path}: the mark that a batch was added could not be written: " in caplog.text


def test_rows_of_a_part_of_a_batch_stay_for_readers_of_earlier_versions(place: Place) -> None:
    table = open_table(place)
    for number in (1, 2):
        table.apply(stage(table, [row(number, f"m{number}")]), application(number))
    before = existing_table(table.storage)
    existing_table(table.storage).optimize.compact()

    table.apply(stage(table, [row(3, "m3")]), application(3))

    assert sorted(before.to_pyarrow_table(columns=["id"])["id"].to_pylist()) == [1, 2]
    assert stored(table) == [(1, "m1"), (2, "m2"), (3, "m3")]


def test_an_upsert_that_changes_nothing_is_remembered(tmp_path: Path) -> None:
    table = open_table(tmp_path, upsert_by=["id"])
    table.apply(stage(table, [row(1, "m1", later=1)]), application(1))
    location = stage(table, [row(1, "m2", later=0)])

    assert [table.apply(location, application(2)) for _ in range(2)] == [2, 2]
    assert stored(table) == [(1, "m1")]


def test_a_commit_of_which_the_answer_was_lost_is_found(place: Place, upsert_by: tuple[str, ...]) -> None:
    table = open_table(place, upsert_by=upsert_by)
    location = stage(table, [row(1, "m1")])
    real = OpenDelta._commit

    def unheard(self: OpenDelta, *arguments: Any) -> None:
        real(self, *arguments)
        raise DeltaError("connection reset")

    with patch.object(OpenDelta, "_commit", unheard):
        assert table.apply(location, application(1)) == 1
    assert stored(table) == [(1, "m1")]


def test_an_error_of_the_storage_says_what_to_look_at(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    location = stage(table, [row(1, "m1")])

    with (
        patch.object(OpenDelta, "_commit", side_effect=OSError("no space left on device")),
        pytest.raises(TableError, match=f"table {tmp_path} cannot be written .no space left on device.: check that"),
    ):
        table.apply(location, application(1))


def test_rows_that_have_gone_are_missed_unless_the_table_has_them(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    location = stage(table, [row(1, "m1")])
    table.discard(location)

    with pytest.raises(TableError, match=f"table {tmp_path}: {location} has gone, so an admitted batch cannot"):
        table.apply(location, application(1))
    table.apply(stage(table, [row(1, "m1")]), application(1))
    table.apply(location, application(1))
    assert stored(table) == [(1, "m1")]


def test_a_table_that_was_rewritten_meanwhile_takes_the_rows_all_the_same(
    place: Place, upsert_by: tuple[str, ...]
) -> None:
    table = open_table(place, upsert_by=upsert_by)
    table.apply(stage(table, [row(1, "m1"), row(2, "m2")], one_by_one=True), application(1))
    table.apply(stage(table, [row(3, "m3")]), application(2))
    sink = DeltaSink(place.uri, storage_options=place.options or None)
    rewritten: list[int] = []

    with meanwhile("_commit", lambda: rewritten.append(sink.optimize().files_removed)):
        table.apply(stage(table, [row(2, "m4", later=1)]), application(3))

    assert rewritten[0] > 1
    kept = [(2, "m4")] if upsert_by else [(2, "m2"), (2, "m4")]
    assert stored(table) == [(1, "m1"), *kept, (3, "m3")]


def test_the_version_that_is_told_has_the_rows_though_another_writer_commits_at_the_last_moment(
    tmp_path: Path, upsert_by: tuple[str, ...]
) -> None:
    table, other = (open_table(tmp_path, upsert_by=upsert_by) for _ in range(2))
    table.apply(stage(table, [row(1, "m1", later=1)]), application(1))
    theirs = stage(other, [row(2, "m2")], batch="of another")
    # With a key, it changes nothing; then there is only the commit that says so, which deltalake lets pass.
    location = stage(table, [row(1, "m3")])
    real, left = DeltaTable.create_write_transaction, [theirs]

    def overtaken(self: DeltaTable, *arguments: Any, **options: Any) -> None:
        if left:
            other.apply(left.pop(), application(1, ledger_id="another"))
        real(self, *arguments, **options)

    with patch.object(DeltaTable, "create_write_transaction", overtaken):
        version = table.apply(location, application(2))

    assert DeltaTable(tmp_path, version=2).transaction_version("sqs-lease:another") == 1
    assert version == 3
    assert DeltaTable(tmp_path, version=version).transaction_version("sqs-lease:ledger") == 2


@pytest.fixture
def two_small_files(tmp_path: Path) -> Path:
    """The directory of a table of two files, with a row each."""
    table = open_table(tmp_path)
    table.apply(stage(table, [row(1, "m1"), row(2, "m2")], one_by_one=True), application(1))
    return tmp_path


def optimize_overtaken_by(
    path: Path, upsert_by: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, **options: Any
) -> int:
    """Optimize a table into which a batch comes after it was loaded; how often it was tried."""
    real = delta_sink._rewrite
    tries: list[int] = []

    def overtaken(*arguments: Any) -> tuple[int, int]:
        tries.append(1)
        if len(tries) == 1:
            table = open_table(path, upsert_by=upsert_by)
            table.apply(stage(table, [row(2, "m3", later=1)]), application(2))
        return real(*arguments)

    monkeypatch.setattr(delta_sink, "_rewrite", overtaken)
    DeltaSink(path).optimize(**options)
    return len(tries)


@pytest.mark.parametrize("z_order_by", [(), ("id",)], ids=["compact", "z-order"])
def test_optimizing_keeps_rows_that_are_added_meanwhile(
    two_small_files: Path, monkeypatch: pytest.MonkeyPatch, z_order_by: tuple[str, ...]
) -> None:
    optimize_overtaken_by(two_small_files, (), monkeypatch, z_order_by=z_order_by)

    assert stored(open_table(two_small_files)) == [(1, "m1"), (2, "m2"), (2, "m3")]


def test_optimizing_starts_again_when_rows_are_replaced_meanwhile(
    two_small_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert optimize_overtaken_by(two_small_files, ("id",), monkeypatch) == 2

    assert stored(open_table(two_small_files)) == [(1, "m1"), (2, "m3")]


def test_files_of_the_size_that_was_asked_for_are_left_alone(two_small_files: Path) -> None:
    assert DeltaSink(two_small_files).optimize(target_file_bytes=1).files_removed == 0
    assert DeltaSink(two_small_files).optimize().files_removed == 2


def test_optimizing_by_a_missing_column_is_refused(tmp_path: Path) -> None:
    open_table(tmp_path, partition_by=["name"])

    for name in ("name", "missing"):
        with pytest.raises(Exception, match=f"z_order_by: table {tmp_path} has no column {name} within its partitions"):
            DeltaSink(tmp_path).optimize(z_order_by=[name])


def test_files_of_a_killed_try_go_when_its_batch_is_added(place: Place, upsert_by: tuple[str, ...]) -> None:
    table = open_table(place, upsert_by=upsert_by)
    killed = stage(table, [row(1, "m1")])
    of_another_batch = stage(table, [row(7, "m7")], batch="another")

    table.apply(stage(table, [row(1, "m1")]), application(1))

    left = below(place, "batches")
    assert killed not in left
    assert of_another_batch in left, "it may still be being written"
    assert stored(table) == [(1, "m1")]


def test_rows_of_an_earlier_part_of_a_batch_stay(place: Place) -> None:
    table = open_table(place)
    table.apply(stage(table, [row(1, "m1")]), application(1))
    table.apply(stage(table, [row(2, "m2")]), application(2))

    assert stored(table) == [(1, "m1"), (2, "m2")]


def test_an_applier_that_finds_the_rows_added_removes_nothing(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    location = stage(table, [row(1, "m1")])
    table.apply(location, application(1))
    later = stage(table, [row(2, "m2")])

    table.apply(location, application(1))

    table.apply(later, application(2))
    assert stored(table) == [(1, "m1"), (2, "m2")]


def test_rows_that_were_merged_leave_no_files_behind(place: Place) -> None:
    table = open_table(place, upsert_by=("id",))
    table.apply(stage(table, [row(1, "m1")]), application(1))

    assert below(place, "batches") == []


def half_done(storage: Place) -> WriteAheadTable:
    """A table and its ledger, with a batch of one message that was admitted and not yet added."""
    table = WriteAheadTable(
        open_table(storage), Ledger(f"{storage.uri}/_sqs_lease/ledger", storage.options or None).open()
    )
    staged = Staged(stage(open_table(storage), [row(1, "m1")]), pa.chunked_array([["m1"]]))
    with interrupted(OpenDelta, "_commit", "before"), pytest.raises(InterruptionError):
        table.commit(table.look_up(asked("m1")), Admission("batch", entries(["m1"]), staged))
    return table


@pytest.mark.processes
def test_a_batch_of_a_process_that_was_killed_after_its_admission_is_completed(place: Place) -> None:
    sink = DeltaSink(place.uri, storage_options=place.options or None)
    table = open_table(place)
    staged = stage(table, [row(1, "m1")])
    order = {"uri": place.uri, "options": dict(place.options), "location": staged, "message_ids": ["m1"]}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.spark.sinks.delta.doomed"],
        input=json.dumps(order),
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'providers'}{os.pathsep}{ROOT}"},
        text=True,
        capture_output=True,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert stored(table) == []

    ledger = Ledger(f"{place.uri}/_sqs_lease/ledger", place.options or None)
    found = WriteAheadTable(open_table(place), ledger.open()).look_up(asked("m1"))

    assert found.known["message_id"].to_pylist() == ["m1"]
    assert stored(table) == [(1, "m1")]
    assert sink.vacuum() == []


def age(path: Path, days: int) -> None:
    """Make all files of a directory so old."""
    then = time.time() - days * 86400
    for file in path.rglob("*"):
        os.utime(file, (then, then))


def test_vacuum_removes_old_files_that_the_table_does_not_have_and_completes_a_batch_first(tmp_path: Path) -> None:
    storage = Place.of(tmp_path)
    table = half_done(storage)
    orphan = stage(open_table(storage), [row(7, "m7")], batch="never came back")
    age(tmp_path, days=30)
    young = stage(open_table(storage), [row(8, "m8")], batch="being written")

    removed = DeltaSink(tmp_path).vacuum()

    assert {file.split("/")[1] for file in removed} >= {directory_name("never came back")}
    assert not any(file.startswith(orphan.rpartition("/")[0]) for file in below(storage, "batches"))
    assert young in below(storage, "batches")
    assert stored(open_table(storage)) == [(1, "m1")]
    assert table.look_up(asked("m1")).known["message_id"].to_pylist() == ["m1"]


def test_vacuum_refuses_to_remove_what_readers_may_still_need(tmp_path: Path) -> None:
    open_table(tmp_path)

    with pytest.raises(TableError, match=r"cannot be vacuumed .*retention"):
        DeltaSink(tmp_path).vacuum(older_than=timedelta(days=2))
    with pytest.raises(ValueError, match="a batch may take longer: give 1 day"):
        DeltaSink(tmp_path).vacuum(older_than=timedelta(hours=1))


@pytest.mark.parametrize("task", [DeltaSink.optimize, DeltaSink.vacuum])
def test_maintenance_creates_no_table(tmp_path: Path, task: Callable[[DeltaSink], object]) -> None:
    with pytest.raises(TableError, match=f"there is no table at {tmp_path}/missing"):
        task(DeltaSink(tmp_path / "missing"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("z_order_by", [(), ("id",)], ids=["compact", "z-order"])
def test_a_partition_that_can_name_no_directory_stays_as_it_is_when_the_others_are_optimized(
    place: Place, z_order_by: tuple[str, ...]
) -> None:
    # An append names no directories after values, deltalake's rewriting does: of the last one it made a null.
    names = ["x" * 250, "x" * 251, "é" * 41, "é" * 42, "a/b", "it's", None, "__HIVE_DEFAULT_PARTITION__"]
    table = open_table(place, partition_by=["name"])
    for number in range(2):
        rows = [row(2 * at + number, f"m{at}-{number}", name=name) for at, name in enumerate(names)]
        table.apply(stage(table, rows), application(number + 1))
    before = named(table)

    done = DeltaSink(place.uri, storage_options=place.options or None).optimize(z_order_by=z_order_by)

    assert (done.files_removed, done.files_added) == (10, 5)
    assert named(table) == before


def named(table: OpenDelta) -> dict[int, str | None]:
    """The names in a table, by the row's id."""
    found = existing_table(table.storage).to_pyarrow_table()
    return dict(zip(found["id"].to_pylist(), found["name"].to_pylist(), strict=True))
