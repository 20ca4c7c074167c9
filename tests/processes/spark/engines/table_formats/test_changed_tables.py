"""A user changes a table that Spark writes while a batch is on its way: no row is bent, no batch stops the table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType

from sqs_lease.spark import Ledger, SchemaError, TableError
from sqs_lease.spark.schemas import can_be_column
from sqs_lease.spark.sinks.iceberg_sink import IcebergSink
from sqs_lease.spark.sinks.native_delta_sink import NativeDeltaSink
from sqs_lease.spark.sinks.sink import Admission
from sqs_lease.spark.sinks.write_ahead import WriteAheadTable
from sqs_lease.testing.sink_contract import InterruptionError, interrupted
from sqs_lease.testing.sink_subject import Subject, asked, columns_of, entries, record
from tests.processes.spark.engines.table_formats.conftest import CATALOG

DELTA, ICEBERG = "delta", "iceberg"


@dataclass(frozen=True)
class Place:
    """A table, without rows yet."""

    subject: Subject
    name: str
    ledger: Ledger

    def change(self, *statements: str) -> None:
        for statement in statements:
            self.subject.spark.sql(statement.format(t=self.name)).collect()

    def admission(self, table: WriteAheadTable, number: int) -> Admission:
        message_id = f"m{number}"
        return Admission(
            f"b{number}", entries([message_id]), self.subject.stage(table, f"b{number}", [record(message_id, number)])
        )

    def store(self, number: int) -> None:
        self.subject.store(self.subject.open(), f"b{number}", [record(f"m{number}", number)])


def place_of(spark: SparkSession, root: Path, kind: str, upsert_by: Sequence[str] = ()) -> Place:
    ledger = Ledger(root / "ledger")
    if kind == ICEBERG:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.tests")
        name = f"{CATALOG}.tests.t{uuid4().hex}"
        sink: Any = IcebergSink(name, ledger, (), upsert_by)
    else:
        name = f"default.t{uuid4().hex}"
        sink = NativeDeltaSink(name, (), upsert_by, ledger)

    def read_rows() -> list[dict[str, Any]]:
        spark.sql(f"REFRESH TABLE {name}")
        rows: list[dict[str, Any]] = spark.table(name).toArrow().to_pylist()
        return rows

    return Place(
        Subject(spark=spark, new_sink=lambda: sink, read_rows=read_rows, leftovers=list, interruptions={}),
        name,
        ledger,
    )


@pytest.fixture
def place(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[Place]:
    """A table in which a first batch is, and whose columns can be dropped and renamed."""
    kind, upsert_by = request.param
    found = place_of(spark, tmp_path, kind, upsert_by)
    found.subject.open()
    if kind == DELTA:
        found.change("ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    found.store(0)
    yield found
    spark.sql(f"DROP TABLE IF EXISTS {found.name}")


def cases(*changes: tuple[str, Sequence[str], str, Sequence[tuple[str, Sequence[str]]]]) -> list[Any]:
    return [
        pytest.param((kind, upsert_by), statements, said, id=f"{kind} {'upsert' if upsert_by else 'append'} {name}")
        for name, statements, said, tables in changes
        for kind, upsert_by in tables
    ]


ALL = [(kind, upsert_by) for kind in (DELTA, ICEBERG) for upsert_by in ((), ("id",))]
BENDING = (
    ("a column less", ["ALTER TABLE {t} DROP COLUMN name"], "the table has no column name string", ALL),
    ("a column of another name", ["ALTER TABLE {t} RENAME COLUMN name TO title"], "the table has no column name", ALL),
    (
        "a column of another type",
        ["ALTER TABLE {t} DROP COLUMN name", "ALTER TABLE {t} ADD COLUMN name BIGINT"],
        "column name is bigint in the table and string in the schema",
        ALL,
    ),
)
REFUSING = (
    ("a constraint", ["ALTER TABLE {t} ADD CONSTRAINT small CHECK (id < 1)"], "CHECK constraint small", ALL[:2]),
    (
        "no more changes",
        ["ALTER TABLE {t} SET TBLPROPERTIES ('delta.appendOnly' = 'true')"],
        "delta.appendOnly",
        [ALL[1]],
    ),
)


@pytest.mark.parametrize(
    ("place", "statements", "said"),
    cases(
        *BENDING,
        *REFUSING,
        ("a partition", ["ALTER TABLE {t} ADD PARTITION FIELD name"], "partitions by name", ALL[2:]),
    ),
    indirect=["place"],
)
def test_a_batch_that_the_table_does_not_fit_any_more_is_not_admitted(
    place: Place, statements: Sequence[str], said: str
) -> None:
    table = place.subject.open()
    looked_up, admission = table.look_up(asked("m1")), place.admission(table, 1)
    place.change(*statements)

    with pytest.raises((SchemaError, TableError), match=re.escape(said)):
        table.commit(looked_up, admission)
    assert admission.staged is not None
    table.discard(admission.staged)

    assert table.look_up(asked("m1")).known.num_rows == 0
    assert place.subject.ids() == [("m0", 0)]


@pytest.mark.parametrize("place", ALL[2:], indirect=True, ids=["append", "upsert"])
def test_changes_of_another_process_to_an_iceberg_table_are_seen(place: Place) -> None:
    table = place.subject.open()
    looked_up, admission = table.look_up(asked("m1")), place.admission(table, 1)
    # A session has a catalog of its own, which remembers tables.
    place.subject.spark.newSession().sql(f"ALTER TABLE {place.name} DROP COLUMN name").collect()

    with pytest.raises(SchemaError, match="the table has no column name string"):
        table.commit(looked_up, admission)


@pytest.mark.parametrize(("place", "statements", "said"), cases(*BENDING, REFUSING[0]), indirect=["place"])
def test_a_batch_that_was_admitted_before_the_change_waits_and_can_be_given_up(
    place: Place, statements: Sequence[str], said: str
) -> None:
    table = place.subject.open()
    looked_up, admission = table.look_up(asked("m1")), place.admission(table, 1)
    with interrupted(type(table.target), "apply", "before"), pytest.raises(InterruptionError):
        table.commit(looked_up, admission)
    place.change(*statements)

    with pytest.raises(TableError, match=rf"{re.escape(said)}.*waits for the table.*abandon\('b1'\)"):
        table.look_up(asked("m2"))
    assert place.subject.ids() == [("m0", 0)]

    place.ledger.abandon("b1")
    assert table.look_up(asked("m1", "m2")).known.num_rows == 0


@pytest.mark.parametrize(
    "place", ALL, indirect=True, ids=lambda given: f"{given[0]} {'upsert' if given[1] else 'append'}"
)
def test_a_column_that_was_added_meanwhile_is_null(place: Place) -> None:
    table = place.subject.open()
    looked_up, admission = table.look_up(asked("m1")), place.admission(table, 1)
    place.change("ALTER TABLE {t} ADD COLUMN more STRING")

    table.commit(looked_up, admission)

    assert sorted((row["id"], row["more"]) for row in place.subject.read_rows()) == [(0, None), (1, None)]


@pytest.mark.parametrize(
    "place", ALL, indirect=True, ids=lambda given: f"{given[0]} {'upsert' if given[1] else 'append'}"
)
def test_columns_of_any_name_that_a_new_field_may_have_are_added(place: Place) -> None:
    names = ["it's", "pct%", "na\u00efve", "select", "a-b", "[x]", "a:b", "*", "back\\slash", "x/y", "\U0001f600", "s"]
    assert all(map(can_be_column, names))
    columns = columns_of(name=StringType(), **dict.fromkeys(names, StringType()))

    table = place.subject.open(columns, widen=True)
    values = {name: f"in {name}" for name in names}
    place.subject.store(table, "b1", [record("m1", 1, batch_id="b1") | values], columns=columns)

    rows = {row["id"]: {name: row[name] for name in names} for row in place.subject.read_rows()}
    assert rows == {0: dict.fromkeys(names), 1: values}


@pytest.mark.parametrize("kind", [DELTA, ICEBERG])
def test_a_batch_is_not_admitted_into_a_table_that_is_gone(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    place = place_of(spark, tmp_path, kind)
    table = place.subject.open()
    looked_up, admission = table.look_up(asked("m1")), place.admission(table, 1)
    place.change("DROP TABLE {t}")

    with pytest.raises(TableError, match="cannot be read"):
        table.commit(looked_up, admission)

    later = place.subject.open()
    assert later.look_up(asked("m1")).known.num_rows == 0
    spark.sql(f"DROP TABLE {place.name}")


def test_a_delta_table_that_only_takes_new_rows_is_not_upserted(spark: SparkSession, tmp_path: Path) -> None:
    place = place_of(spark, tmp_path, DELTA)
    place.store(0)
    place.change("ALTER TABLE {t} SET TBLPROPERTIES ('delta.appendOnly' = 'true')")
    place.store(1)

    with pytest.raises(TableError, match=r"delta\.appendOnly"):
        NativeDeltaSink(place.name, (), ("id",), place.ledger).open(spark, spark.table(place.name).schema, widen=False)
    spark.sql(f"DROP TABLE {place.name}")
