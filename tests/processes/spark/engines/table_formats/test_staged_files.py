"""Files that Spark's tasks staged become the table's own, where it asks no more; otherwise Spark writes the rows."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from sqs_lease.spark import JsonSource, TableError, ingest
from sqs_lease.spark.ledger import OpenLedger
from sqs_lease.spark.session import session_settings
from sqs_lease.spark.sinks.iceberg_sink import IcebergSink, IcebergTable
from sqs_lease.spark.sinks.native_delta_sink import NativeDeltaSink, NativeDeltaTable
from sqs_lease.spark.sinks.spark_table import SparkTable, StagedParquet
from sqs_lease.spark.sinks.write_ahead import Application, AppliedMarks
from sqs_lease.testing.sink_contract import InterruptionError, interrupted
from tests.processes.spark.engines.table_formats.conftest import CATALOG
from tests.spark.samples import message

DELTA, ICEBERG = "delta", "iceberg"
SCHEMA = (
    "id BIGINT NOT NULL, name STRING, small SMALLINT, at TIMESTAMP, day DATE, price DECIMAL(12, 3), is_paid BOOLEAN, "
    "place STRUCT<x: DOUBLE, tags: ARRAY<STRUCT<tag: STRING>>>, Location STRING"
)
TIDYING_UP = {DELTA: "VACUUM {t}", ICEBERG: f"CALL {CATALOG}.system.remove_orphan_files(table => '{{t}}')"}
FORGETTING = {
    DELTA: [
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.setTransactionRetentionDuration' = 'interval 0 seconds')",
        "OPTIMIZE {t}",
    ],
    ICEBERG: [
        f"CALL {CATALOG}.system.expire_snapshots(table => '{{t}}', older_than => TIMESTAMP '2100-01-01 00:00:00', "
        "retain_last => 1)"
    ],
}
BY_TASKS = re.compile(r"part-[0-9a-f]{32}\.parquet")


@dataclass(frozen=True)
class Lake:
    """One table, and how to load batches into it.

    Attributes:
        spark: The session.
        name: The table's name in SQL.
        sink: Its sink.
        workspace: For ingestions.
        kind: Delta or Iceberg.
    """

    spark: SparkSession
    name: str
    sink: Any
    workspace: Path
    kind: str

    def load(self, *numbers: int, schema: str = SCHEMA) -> Any:
        messages = [message(f"m{number}", json.dumps(fields(number))) for number in numbers]
        return ingest(self.spark, messages, source=JsonSource(schema), sink=self.sink, workspace=self.workspace)

    def change(self, *statements: str) -> None:
        for statement in statements:
            self.spark.sql(statement.format(t=self.name)).collect()

    def rows(self) -> list[dict[str, Any]]:
        self.spark.sql(f"REFRESH TABLE {self.name}")
        found: list[dict[str, Any]] = self.spark.table(self.name).orderBy("id").toArrow().to_pylist()
        return found

    def ids(self) -> list[int]:
        return [row["id"] for row in self.rows()]

    def files(self) -> list[str]:
        """The names of the table's data files."""
        self.spark.sql(f"REFRESH TABLE {self.name}")
        if self.kind == DELTA:
            return [Path(file).name for file in self.spark.table(self.name).inputFiles()]
        return [Path(row["file_path"]).name for row in self.spark.table(f"{self.name}.files").collect()]


def fields(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": f"ünïcödé {number}" if number % 2 else None,
        "small": -number,
        "at": "2026-03-01T12:00:00.000001Z",
        "day": "1970-01-02",
        "price": 1.125,
        "is_paid": bool(number % 2),
        "place": {"x": number / 2, "tags": [{"tag": "a"}, {}]},
        "Location": "here",
    }


def lake_of(spark: SparkSession, root: Path, kind: str) -> Lake:
    if kind == ICEBERG:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.tests")
        name = f"{CATALOG}.tests.t{uuid4().hex}"
        return Lake(spark, name, IcebergSink(name, root / "ledger"), root / "workspace", kind)
    name = f"default.t{uuid4().hex}"
    return Lake(spark, name, NativeDeltaSink(name, ledger=root / "ledger"), root / "workspace", kind)


@pytest.fixture(params=[DELTA, ICEBERG])
def lake(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    found = lake_of(spark, tmp_path, request.param)
    yield found
    spark.sql(f"DROP TABLE IF EXISTS {found.name}")


def of_tasks(names: Sequence[str]) -> list[bool]:
    return [BY_TASKS.fullmatch(name) is not None for name in names]


def test_rows_are_written_once_and_read_as_they_were_sent(lake: Lake) -> None:
    lake.load(1, 2)
    result = lake.load(3)

    assert result.ingested == 1
    assert of_tasks(lake.files()) == [True, True]
    first = lake.rows()[0]
    assert {name: value for name, value in first.items() if not name.startswith("_")} == {
        "id": 1,
        "name": "ünïcödé 1",
        "small": -1,
        "at": datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC),
        "day": date(1970, 1, 2),
        "price": Decimal("1.125"),
        "is_paid": True,
        "place": {"x": 0.5, "tags": [{"tag": "a"}, {"tag": None}]},
        "Location": "here",
    }
    # By the statistics of the files, others are not opened.
    for condition in ("id = 3", "name = 'ünïcödé 3'", "day < '1971-01-01' AND small <= -3", "place.x = 1.5"):
        assert [row["id"] for row in lake.spark.table(lake.name).where(condition).collect()] == [3]


def test_the_rows_stay_when_what_was_staged_is_removed_and_the_table_is_tidied_up(lake: Lake, tmp_path: Path) -> None:
    lake.load(1)
    lake.load(2)
    assert list((tmp_path / "ledger" / "_staged").rglob("*.parquet")) == []
    lake.change(TIDYING_UP[lake.kind])
    if lake.kind == DELTA:
        lake.change("OPTIMIZE {t}")
    else:
        lake.change(
            f"CALL {CATALOG}.system.rewrite_data_files(table => '{{t}}', options => map('min-input-files', '2'))"
        )
    lake.load(3)
    assert lake.ids() == [1, 2, 3]


def test_rows_that_waited_for_long_are_not_tidied_up_before_the_table_names_them(lake: Lake) -> None:
    lake.load(1)
    with (
        # Otherwise VACUUM commits its own work, and the batch is written again after that.
        session_settings(lake.spark, {"spark.databricks.delta.vacuum.logging.enabled": "false"}),
        before_first(StagedParquet, "put_into", lambda file, _: os.utime(file.path, (0, 0))),
        after_first(StagedParquet, "put_into", lambda: lake.change(TIDYING_UP[lake.kind])),
    ):
        lake.load(2)
    assert of_tasks(lake.files()) == [True, True]
    assert lake.ids() == [1, 2]


def test_the_batch_is_named_in_the_history_of_the_table(lake: Lake) -> None:
    result = lake.load(1)
    if lake.kind == DELTA:
        newest = lake.spark.sql(f"DESCRIBE HISTORY {lake.name} LIMIT 1").collect()[0]
        assert json.loads(newest["userMetadata"]) == {"sqs_lease_batch": result.batch_id}
    else:
        newest = lake.spark.table(f"{lake.name}.snapshots").orderBy("committed_at").collect()[-1]
        assert newest["summary"]["sqs-lease.batch"] == result.batch_id
    assert result.table_version == (newest["version"] if lake.kind == DELTA else newest["snapshot_id"])


def test_a_file_system_without_links_gets_copies(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    lake.load(1)
    assert of_tasks(lake.files()) == [True]
    assert lake.ids() == [1]


@pytest.mark.parametrize(
    ("kind", "statement"),
    [
        (DELTA, "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"),
        (DELTA, "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"),
        (DELTA, "ALTER TABLE {t} SET TBLPROPERTIES ('delta.autoOptimize.autoCompact' = 'false')"),
        (DELTA, "ALTER TABLE {t} SET TBLPROPERTIES ('delta.setTransactionRetentionDuration' = 'interval 1 day')"),
        (DELTA, "ALTER TABLE {t} ADD CONSTRAINT positive CHECK (id > 0)"),
        (DELTA, "ALTER TABLE {t} CLUSTER BY (id)"),
        (ICEBERG, "ALTER TABLE {t} ADD PARTITION FIELD small"),
        (ICEBERG, "ALTER TABLE {t} ADD PARTITION FIELD bucket(4, id)"),
    ],
)
def test_tables_that_ask_for_more_than_files_are_written_by_spark(
    spark: SparkSession, tmp_path: Path, kind: str, statement: str
) -> None:
    lake = lake_of(spark, tmp_path, kind)
    lake.load(1)
    lake.change(statement)
    lake.load(2)
    assert sorted(of_tasks(lake.files())) == [False, True]
    assert lake.ids() == [1, 2]
    spark.sql(f"DROP TABLE {lake.name}")


def test_a_column_that_was_dropped_and_added_again_meanwhile_keeps_its_values(lake: Lake) -> None:
    if lake.kind == DELTA:
        lake.load(0)
        lake.change("ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    else:
        lake.load(0)

    def meanwhile() -> None:
        lake.change("ALTER TABLE {t} DROP COLUMN name")
        lake.change("ALTER TABLE {t} ADD COLUMN name STRING")

    with once_admitted(meanwhile):
        lake.load(1)
    assert [(row["id"], row["name"]) for row in lake.rows()] == [(0, None), (1, "ünïcödé 1")]


@pytest.mark.parametrize(
    ("kind", "statement", "said"),
    [
        (
            DELTA,
            f"CREATE OR REPLACE TABLE {{t}} ({SCHEMA.replace('name STRING', 'name BIGINT')}, "
            "_message_id STRING, _sent_at TIMESTAMP, _batch_id STRING) USING delta",
            "column name is bigint in the table and string in the schema",
        ),
        (
            ICEBERG,
            "ALTER TABLE {t} ALTER COLUMN price TYPE DECIMAL(14, 3)",
            "column price is decimal(14,3) in the table and decimal(12,3) in the schema",
        ),
    ],
    ids=[DELTA, ICEBERG],
)
def test_files_are_not_put_into_a_table_that_has_got_another_type_meanwhile(
    spark: SparkSession, tmp_path: Path, kind: str, statement: str, said: str
) -> None:
    lake = lake_of(spark, tmp_path, kind)
    lake.load(1)
    with once_admitted(partial(lake.change, statement)), pytest.raises(TableError, match=re.escape(said)):
        lake.load(2)
    assert 2 not in lake.ids()
    spark.sql(f"DROP TABLE {lake.name}")


def test_a_table_that_has_got_a_partition_meanwhile_gets_its_rows_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    lake = lake_of(spark, tmp_path, ICEBERG)
    lake.load(1)
    with once_admitted(lambda: lake.change("ALTER TABLE {t} ADD PARTITION FIELD bucket(4, id)")):
        lake.load(2)
    assert sorted(of_tasks(lake.files())) == [False, True]
    assert lake.ids() == [1, 2]


def test_files_that_lie_all_over_the_place_are_found(spark: SparkSession, tmp_path: Path) -> None:
    lake = lake_of(spark, tmp_path, ICEBERG)
    lake.load(1)
    lake.change("ALTER TABLE {t} SET TBLPROPERTIES ('write.object-storage.enabled' = 'true')")
    lake.load(2)
    assert of_tasks(lake.files()) == [True, True]
    assert lake.ids() == [1, 2]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_driver_that_is_killed_when_files_are_beside_the_tables_own_leaves_the_batch_to_the_next(
    lake: Lake, moment: Any
) -> None:
    lake.load(1)
    with interrupted(StagedParquet, "put_into", moment), pytest.raises(InterruptionError):
        lake.load(2)
    assert lake.ids() == [1]

    again = lake.load(2)

    assert (again.ingested, again.rows) == (1, 0), "it was admitted, and so the next look-up completed it"
    assert lake.ids() == [1, 2]


def test_a_driver_that_is_killed_after_the_commit_leaves_the_batch_there_once(lake: Lake) -> None:
    lake.load(1)
    with interrupted(AppliedMarks, "add", "before"), pytest.raises(InterruptionError):
        lake.load(2)
    again = lake.load(2)
    assert (again.ingested, again.rows) == (1, 0)
    assert lake.ids() == [1, 2]


def test_the_batch_of_a_killed_driver_that_the_table_has_forgotten_is_there_once(lake: Lake) -> None:
    lake.load(1)
    with interrupted(AppliedMarks, "add", "before"), pytest.raises(InterruptionError):
        lake.load(2)
    lake.change("DELETE FROM {t} WHERE id = 1", *FORGETTING[lake.kind])
    lake.load(2)
    assert lake.ids() == [2]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_rows_that_are_deleted_before_the_next_driver_looks_do_not_come_back(lake: Lake, moment: Any) -> None:
    lake.load(1)
    with interrupted(AppliedMarks, "add", moment), pytest.raises(InterruptionError):
        lake.load(2)
    lake.change("DELETE FROM {t} WHERE id = 2")
    if moment == "after":
        # By the mark, even if the table itself has forgotten the batch.
        lake.change(*FORGETTING[lake.kind])

    again = lake.load(2)

    assert (again.ingested, again.rows) == (1, 0)
    assert lake.ids() == [1]


def test_a_commit_of_which_the_answer_was_lost_is_found(lake: Lake) -> None:
    def lose() -> None:
        raise OSError("connection reset")

    lake.load(1)
    with after_first(kind_of_table(lake), "_take", lose):
        result = lake.load(2)
    assert (result.ingested, result.rows) == (1, 1)
    assert lake.ids() == [1, 2]


def test_a_batch_that_another_has_just_completed_is_there_once(lake: Lake) -> None:
    lake.load(1)
    with before_first(kind_of_table(lake), "_take", partial(overtake, lake)):
        lake.load(2)
    assert lake.ids() == [1, 2]


def test_a_batch_that_another_completes_at_the_last_moment_is_there_once(lake: Lake) -> None:
    lake.load(1)
    with overtaken(lake):
        lake.load(2)
    assert lake.ids() == [1, 2]


def test_a_batch_that_another_completes_and_the_table_forgets_at_the_last_moment_is_there_once(lake: Lake) -> None:
    lake.load(1)
    with overtaken(lake, partial(lake.change, "DELETE FROM {t} WHERE id = 1", *FORGETTING[lake.kind])):
        lake.load(2)
    assert lake.ids() == [2]


@pytest.mark.parametrize(
    ("statement", "ids"),
    [("DELETE FROM {t} WHERE id = 1", [2]), ("INSERT INTO {t} SELECT * FROM {t}", [1, 1, 2])],
    ids=["who removes rows", "who adds rows"],
)
def test_a_writer_that_commits_at_the_last_moment_is_waited_for(
    lake: Lake, caplog: pytest.LogCaptureFixture, statement: str, ids: list[int]
) -> None:
    caplog.set_level("INFO")
    lake.load(1)
    with meanwhile(partial(lake.change, statement)):
        lake.load(2)
    assert lake.ids() == ids
    assert "waiting for other writers" in caplog.text


@contextmanager
def before_first(owner: type, method: str, action: Callable[..., object]) -> Iterator[None]:
    """Have something happen right before a method is called, the first time."""
    real, left = getattr(owner, method), [action]

    def called(*arguments: Any, **named: Any) -> Any:
        if left:
            left.pop()(*arguments, **named)
        return real(*arguments, **named)

    with patch.object(owner, method, called):
        yield


@contextmanager
def after_first(owner: type, method: str, action: Callable[[], object]) -> Iterator[None]:
    """Have something happen right after a method was called, the first time."""
    real, left = getattr(owner, method), [action]

    def called(*arguments: Any, **named: Any) -> Any:
        answer = real(*arguments, **named)
        if left:
            left.pop()()
        return answer

    with patch.object(owner, method, called):
        yield


def once_admitted(action: Callable[[], object]) -> Any:
    """Have something happen after a batch was admitted, and before the table looks at its rows."""
    return after_first(OpenLedger, "admit", action)


def meanwhile(action: Callable[[], object]) -> Any:
    """Have something happen after the table was looked at, and before its commit names files."""
    return before_first(StagedParquet, "put_into", lambda *_: action())


def kind_of_table(lake: Lake) -> type[SparkTable]:
    return NativeDeltaTable if lake.kind == DELTA else IcebergTable


def overtake(lake: Lake, table: SparkTable, location: str, application: Application) -> None:
    """Have another driver complete a batch; it is killed before it can say so."""
    session = lake.spark.newSession()
    # It has staged nothing itself.
    other = replace(table, spark=session, staged=replace(table.staged, spark=session), own=set())
    other._take(location, application)


@contextmanager
def overtaken(lake: Lake, then: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Have another driver complete the batch after the table was looked at, and something happen then."""
    taken: list[tuple[Any, str, Application]] = []

    def act() -> None:
        overtake(lake, *taken[0])
        then()

    with before_first(kind_of_table(lake), "_take", lambda *given: taken.append(given)), meanwhile(act):
        yield
