"""A user changes a Delta table while a batch is on its way into it: no row is bent, and no batch stops the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import Field, write_deltalake
from deltalake.schema import PrimitiveType

from sqs_lease.spark import Ledger, SchemaError, Staged, TableError
from sqs_lease.spark.delta_places import load_table
from sqs_lease.spark.sinks.delta.sink import OpenDelta
from sqs_lease.spark.sinks.sink import Admission
from sqs_lease.spark.sinks.write_ahead import WriteAheadTable
from sqs_lease.testing.sink_contract import InterruptionError, interrupted
from sqs_lease.testing.sink_subject import asked, entries
from tests.spark.sinks.delta.tables import open_table, row, stage, stored

Change = Callable[[OpenDelta], None]


def overwritten(table: OpenDelta, change: Callable[[pa.Table], pa.Table], **options: Any) -> None:
    loaded = load_table(table.storage)
    assert loaded is not None
    rows = change(loaded.to_pyarrow_table())
    write_deltalake(table.storage.uri, rows, mode="overwrite", schema_mode="overwrite", **options)


def retyped(table: OpenDelta) -> None:
    overwritten(table, lambda rows: rows.set_column(0, "id", rows["id"].cast(pa.string())))


def dropped(table: OpenDelta) -> None:
    overwritten(table, lambda rows: rows.drop_columns(["name"]))


def partitioned(table: OpenDelta) -> None:
    overwritten(table, lambda rows: rows, partition_by=["name"])


def constrained(table: OpenDelta) -> None:
    loaded = load_table(table.storage)
    assert loaded is not None
    loaded.alter.add_constraint({"small": "id < 1"})


CHANGES = [
    pytest.param(retyped, "column id is string in the table", id="a column of another type"),
    pytest.param(dropped, "the table has no column name", id="a column less"),
    pytest.param(partitioned, "partitioned by name", id="partitions"),
    pytest.param(constrained, "it has the constraint small", id="a constraint"),
]


@dataclass(frozen=True)
class Place:
    """A table with its ledger, in which a first batch is."""

    root: Path
    upsert_by: tuple[str, ...]

    def open(self) -> WriteAheadTable:
        table = open_table(self.root / "table", upsert_by=self.upsert_by)
        return WriteAheadTable(table, Ledger(self.root / "ledger").open())

    def staged(self, table: WriteAheadTable, number: int) -> Admission:
        assert isinstance(table.target, OpenDelta)
        message_id = f"m{number}"
        location = stage(table.target, [row(number, message_id)], batch=f"b{number}")
        return Admission(f"b{number}", entries([message_id]), Staged(location, pa.chunked_array([[message_id]])))

    def store(self, number: int) -> None:
        table = self.open()
        table.commit(table.look_up(asked(f"m{number}")), self.staged(table, number))


@pytest.fixture(params=[(), ("id",)], ids=["append", "upsert"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    found = Place(tmp_path, request.param)
    found.store(0)
    return found


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_a_batch_that_the_table_does_not_fit_any_more_is_not_admitted(place: Place, change: Change, said: str) -> None:
    table = place.open()
    looked_up, admission = table.look_up(asked("m1")), place.staged(table, 1)
    assert isinstance(table.target, OpenDelta)
    change(table.target)

    with pytest.raises((SchemaError, TableError), match=said):
        table.commit(looked_up, admission)

    again = table.look_up(asked("m1"))
    assert again.known.num_rows == 0
    assert [message_id for _, message_id in stored(table.target)] == ["m0"]


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_a_batch_that_was_admitted_before_the_change_waits_and_can_be_given_up(
    place: Place, change: Change, said: str
) -> None:
    table = place.open()
    assert isinstance(table.target, OpenDelta)
    looked_up, admission = table.look_up(asked("m1")), place.staged(table, 1)
    with interrupted(OpenDelta, "apply", "before"), pytest.raises(InterruptionError):
        table.commit(looked_up, admission)
    change(table.target)

    with pytest.raises(TableError, match=rf"{said}.*waits for the table.*abandon\('b1'\)"):
        table.look_up(asked("m2"))
    assert [message_id for _, message_id in stored(table.target)] == ["m0"]

    Ledger(place.root / "ledger").abandon("b1")
    assert table.look_up(asked("m1", "m2")).known.num_rows == 0


def test_a_column_that_was_added_meanwhile_is_null(place: Place) -> None:
    table = place.open()
    looked_up, admission = table.look_up(asked("m1")), place.staged(table, 1)
    assert isinstance(table.target, OpenDelta)
    loaded = load_table(table.target.storage)
    assert loaded is not None
    loaded.alter.add_columns([Field("more", PrimitiveType("string"))])

    table.commit(looked_up, admission)

    assert stored(table.target) == [(0, "m0"), (1, "m1")]
