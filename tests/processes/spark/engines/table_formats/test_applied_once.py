"""A batch that several processes complete at the same time is in the table once.

The second process is a second session with a catalog of its own, in the same JVM.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it

from sqs_lease.spark.errors import TableError
from sqs_lease.spark.sinks.iceberg_sink import IcebergTable
from sqs_lease.spark.sinks.spark_table import StagedRows
from sqs_lease.spark.sinks.write_ahead import Application, AppliedMarks
from sqs_lease.testing.sink_subject import SENT, Subject, record
from tests.processes.spark.engines.table_formats.conftest import CATALOG
from tests.processes.spark.engines.table_formats.subjects import iceberg_subject, native_delta_subject, staged_files

MakeSubject = Callable[..., Subject]
BOTH = pytest.mark.parametrize("make_subject", [native_delta_subject, iceberg_subject], ids=["delta", "iceberg"])
LEDGER = "a ledger"
ARRIVED, DOOR, TAKEN = "arrived", "door", "taken"


def table_of(subject: Subject, spark: SparkSession | None = None) -> Any:
    """The open table without its ledger."""
    return (replace(subject, spark=spark) if spark else subject).open().target


def staged(subject: Subject, batch_id: str, *records: dict[str, Any]) -> str:
    return subject.stage(table_of(subject), batch_id, records).location


@dataclass(frozen=True)
class MeanwhileRows(StagedRows):
    """Has something happen after the rows were read, and before they are written."""

    meanwhile: Callable[[], object] = lambda: None

    def read(self, location: str) -> DataFrame | None:
        rows = super().read(location)
        self.meanwhile()
        return rows


@dataclass(frozen=True)
class GatedRows(StagedRows):
    """Rows of which the first task that computes them announces itself and waits at a door."""

    gate: Path = Path()

    def read(self, location: str) -> DataFrame | None:
        gate = self.gate

        def wait() -> bool:
            try:
                (gate / TAKEN).mkdir()
            except FileExistsError:
                return True
            (gate / ARRIVED).write_text("")
            (gate / DOOR).read_text()
            return True

        rows = super().read(location)
        return None if rows is None else rows.where(F.udf(wait, "boolean").asNondeterministic()())


@dataclass(frozen=True)
class MeanwhileTable(IcebergTable):
    """Has something happen after the branch was written, and before it becomes the table."""

    meanwhile: Callable[[], object] = lambda: None

    def _write(self, rows: DataFrame, branch: str, application: Application) -> None:
        super()._write(rows, branch, application)
        self.meanwhile()


def once(action: Callable[[], object]) -> Callable[[], None]:
    """An action that happens the first time only."""
    left = [action]
    return lambda: None if not left else (left.pop()(), None)[1]


def test_a_slow_writer_of_iceberg_is_refused_where_another_completed_the_batch(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    subject = iceberg_subject(spark, tmp_path)
    location = staged(subject, "b", record("m1", 1), record("m1", 2))
    application = Application(LEDGER, 1, "b")
    table, other = table_of(subject), table_of(subject, spark.newSession())
    # The rows stay, as if the other were killed before it could remove them, or say that it is done.
    stuck = replace(other, staged=_Forgetful(other.staged.spark, other.staged.place))
    slow = _meanwhile(table, once(lambda: stuck.apply(location, application)))
    slow.apply(location, application)
    assert subject.ids() == [("m1", 1), ("m1", 2)]
    assert "waiting for other writers" in caplog.text
    assert spark.table(f"{table.name}.refs").count() == 1, "no branch is left"


def test_a_slow_writer_of_iceberg_does_not_undo_a_later_batch(spark: SparkSession, tmp_path: Path) -> None:
    subject = iceberg_subject(spark, tmp_path, ("id",))
    first = staged(subject, "b", record("m1", 1))
    second = staged(subject, "c", record("m2", 1, batch_id="c"))
    table, other = table_of(subject), table_of(subject, spark.newSession())

    def overtake() -> None:
        other.apply(first, Application(LEDGER, 1, "b"))
        other.apply(second, Application(LEDGER, 2, "c"))

    _meanwhile(table, once(overtake)).apply(first, Application(LEDGER, 1, "b"))
    assert subject.ids() == [("m2", 1)]


@BOTH
def test_a_batch_that_was_completed_between_reading_and_writing_is_not_written_again(
    spark: SparkSession, tmp_path: Path, make_subject: MakeSubject
) -> None:
    subject = make_subject(spark, tmp_path)
    location = staged(subject, "b", record("m1", 1))
    application = Application(LEDGER, 1, "b")
    table, other = table_of(subject), table_of(subject, spark.newSession())
    stuck = replace(other, staged=_Forgetful(other.staged.spark, other.staged.place))
    rows = MeanwhileRows(spark, table.staged.place, once(lambda: stuck.apply(location, application)))
    replace(table, staged=rows).apply(location, application)
    assert subject.ids() == [("m1", 1)]
    assert subject.leftovers() == []


FORGETS_AT_ONCE = "'delta.setTransactionRetentionDuration' = 'interval 0 seconds'"


@pytest.mark.parametrize("is_own", [True, False], ids=["by who staged it", "by others"])
def test_a_delta_table_that_forgets_its_applications_at_once_takes_a_batch_once(
    spark: SparkSession, tmp_path: Path, is_own: bool
) -> None:
    subject = native_delta_subject(spark, tmp_path)
    table, other = table_of(subject), table_of(subject, spark.newSession())
    spark.sql(f"ALTER TABLE {table.name} SET TBLPROPERTIES ({FORGETS_AT_ONCE})")
    records = [record("m1", 1), record("m1", 2), record("m2", 3)]
    location = subject.stage(table, "b", records).location if is_own else staged(subject, "b", *records)
    application = Application(LEDGER, 1, "b")
    stuck = replace(other, staged=_Forgetful(other.staged.spark, other.staged.place))

    def overtake() -> None:
        stuck.apply(location, application)
        spark.sql(f"OPTIMIZE {table.name}").collect()

    rows = MeanwhileRows(spark, table.staged.place, once(overtake))
    replace(table, staged=rows).apply(location, application)

    assert subject.ids() == [("m1", 1), ("m1", 2), ("m2", 3)]
    assert subject.leftovers() == []


@BOTH
def test_processes_that_complete_a_batch_at_the_same_time_store_it_once(
    spark: SparkSession, tmp_path: Path, make_subject: MakeSubject
) -> None:
    subject = make_subject(spark, tmp_path)
    tables = [table_of(subject, spark.newSession()) for _ in range(2)]
    for number in range(1, 4):
        location = staged(subject, f"b{number}", record(f"m{number}", number))
        together = Barrier(len(tables))

        def complete(
            table: Any, location: str = location, number: int = number, together: Barrier = together
        ) -> int | None:
            together.wait()
            version: int | None = table.apply(location, Application(LEDGER, number, f"b{number}"))
            return version

        with ThreadPoolExecutor(len(tables)) as pool:
            assert all(version is not None for version in pool.map(complete, tables))
    assert subject.ids() == [("m1", 1), ("m2", 2), ("m3", 3)]
    assert subject.leftovers() == []


@pytest.mark.parametrize(
    ("make_subject", "upsert_by", "is_own"),
    [
        (native_delta_subject, (), False),
        (native_delta_subject, (), True),
        (native_delta_subject, ("id",), False),
        (iceberg_subject, (), False),
    ],
    ids=["delta append", "delta append by who staged it", "delta upsert", "iceberg append"],
)
def test_a_writer_that_another_overtakes_in_the_middle_of_its_job_is_refused(
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    make_subject: MakeSubject,
    upsert_by: tuple[str, ...],
    is_own: bool,
) -> None:
    caplog.set_level(logging.INFO)
    subject = make_subject(spark, tmp_path, upsert_by)
    application = Application(LEDGER, 1, "b")
    table, other = (table_of(subject, spark.newSession()) for _ in range(2))
    if is_own:
        # So the table cannot have the files as they are.
        spark.sql(f"ALTER TABLE {table.name} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    location = (
        subject.stage(table, "b", [record("m1", 1)]).location if is_own else staged(subject, "b", record("m1", 1))
    )
    stuck = replace(other, staged=_Forgetful(other.staged.spark, other.staged.place))
    gate = tmp_path / "gate"
    gate.mkdir()
    for name in (ARRIVED, DOOR):
        os.mkfifo(gate / name)
    slow = replace(table, staged=GatedRows(table.staged.spark, table.staged.place, gate))
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(slow.apply, location, application)
        (gate / ARRIVED).read_text()
        stuck.apply(location, application)
        (gate / DOOR).write_text("")
        assert done.result() == table.version()
    assert subject.ids() == [("m1", 1)]
    assert "waiting for other writers" in caplog.text
    assert subject.leftovers() == []


@BOTH
def test_admitted_rows_that_another_program_removed_are_an_error(
    spark: SparkSession, tmp_path: Path, make_subject: MakeSubject
) -> None:
    subject = make_subject(spark, tmp_path)
    location = staged(subject, "b", record("m1", 1), record("m2", 2))
    file = next(iter(subject.leftovers()))
    Path(file).unlink()
    with pytest.raises(TableError, match="batch b, which was admitted, have gone"):
        table_of(subject).apply(location, Application(LEDGER, 1, "b"))
    assert subject.read_rows() == []


@BOTH
def test_a_number_that_the_table_has_passed_is_not_applied(
    spark: SparkSession, tmp_path: Path, make_subject: MakeSubject
) -> None:
    subject = make_subject(spark, tmp_path, ("id",))
    first, again = (staged(subject, "b", record("m1", 1, sent_at=SENT + timedelta(days=1))) for _ in range(2))
    table = table_of(subject)
    table.apply(staged(subject, "a", record("m0", 0)), Application(LEDGER, 1, "a"))
    table.apply(first, Application(LEDGER, 2, "b"))
    table.apply(again, Application(LEDGER, 1, "b"))
    assert subject.ids() == [("m0", 0), ("m1", 1)]


def test_a_new_ledger_counts_from_one_again(spark: SparkSession, tmp_path: Path) -> None:
    subject = iceberg_subject(spark, tmp_path)
    table = table_of(subject)
    table.apply(staged(subject, "a", record("m1", 1)), Application(LEDGER, 1, "a"))
    table.apply(staged(subject, "b", record("m2", 2)), Application("another ledger", 1, "b"))
    assert subject.ids() == [("m1", 1), ("m2", 2)]
    assert staged_files(tmp_path / "ledger") == []


def test_a_batch_is_known_after_the_snapshot_that_says_so_has_expired(spark: SparkSession, tmp_path: Path) -> None:
    subject = iceberg_subject(spark, tmp_path)
    location = staged(subject, "b", record("m1", 1), record("m1", 2))
    table = table_of(subject)
    killed = replace(table, staged=_Forgetful(spark, table.staged.place))
    killed.apply(location, Application(LEDGER, 1, "b"))
    spark.table(table.name).where("false").writeTo(table.name).append()
    spark.sql(
        f"CALL {CATALOG}.system.expire_snapshots("
        f"table => '{table.name}', older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    )
    assert spark.table(f"{table.name}.snapshots").count() == 1

    table_of(subject).apply(location, Application(LEDGER, 1, "b"))
    assert subject.ids() == [("m1", 1), ("m1", 2)]
    assert subject.leftovers() == []


@dataclass(frozen=True)
class _NoMarks(AppliedMarks):
    """Are of a process that is killed before it writes one."""

    def add(self, application: Application) -> None:
        pass


@dataclass(frozen=True)
class _Forgetful(StagedRows):
    """Is killed right after the table was written."""

    @property
    def marks(self) -> AppliedMarks:
        return _NoMarks(self.place, "nowhere")

    def remove(self, location: str) -> None:
        pass


def _meanwhile(table: IcebergTable, action: Callable[[], object]) -> MeanwhileTable:
    return MeanwhileTable(
        table.spark, table.name, table.upsert_by, table.staged, table.columns, table.catalog, meanwhile=action
    )
