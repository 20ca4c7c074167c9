"""Rows that wait in files for a table in PostgreSQL: the driver copies them while it commits, all or nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqs_lease.spark import JsonSource, ingest
from sqs_lease.spark.errors import RowsRefusedError, TableError
from sqs_lease.spark.sinks.postgres.copy import staged_rows
from sqs_lease.spark.sinks.postgres.sink import PostgresSink, PostgresTable
from sqs_lease.spark.sinks.sink import Admission, Staged
from sqs_lease.spark.sinks.staging import Staging
from sqs_lease.testing.sink_subject import COLUMNS, asked, entries, known, record
from tests.spark.samples import SCHEMA, good
from tests.spark.sinks.conftest import Database
from tests.spark.sinks.postgres_driver import killed
from tests.spark.sinks.postgres_staging import in_files

pytestmark = pytest.mark.processes


def opened(database: Database, **options: Any) -> PostgresTable:
    session: Any = None
    return PostgresSink(database.url, "orders", **options).open(session, COLUMNS, widen=False)


def commit(table: PostgresTable, staged: Staged, *message_ids: str) -> None:
    table.commit(table.look_up(asked(*message_ids)), Admission("b", entries(message_ids), staged))


def stored(database: Database) -> list[tuple[str, int]]:
    rows = database.read("SELECT _message_id, id FROM orders ORDER BY 1, 2")
    return [(row["_message_id"], row["id"]) for row in rows]


TWO = [record("m1", 1), record("m2", 2)]


def test_all_files_are_taken_and_removed(database: Database, tmp_path: Path) -> None:
    table = opened(database)
    staged = in_files(tmp_path, table, TWO, "b")

    commit(table, staged, "m1", "m2")

    assert stored(database) == [("m1", 1), ("m2", 2)]
    assert not Path(staged.location).exists()


def test_a_driver_killed_during_its_commit_leaves_all_or_nothing(database: Database, tmp_path: Path) -> None:
    table = opened(database)
    staged = in_files(tmp_path, table, [record("m1", 1), record("m1", 2)], "b")

    killed(database.url, staged.location, "_admit")
    assert (known(table, "m1"), stored(database)) == ({}, [])
    killed(database.url, staged.location, "_take")
    assert (known(table, "m1"), stored(database)) == ({}, [])
    killed(database.url, staged.location, "_tidy")
    assert (set(known(table, "m1")), stored(database)) == ({"m1"}, [("m1", 1), ("m1", 2)])


def test_a_connection_cut_while_rows_are_copied_commits_nothing(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = opened(database)
    staged = in_files(tmp_path, table, TWO, "b")
    module = sys.modules[PostgresTable.__module__]
    read = vars(module)["staged_rows"]

    def cut(directory: Path) -> Any:
        rows = read(directory)
        yield next(rows)
        database.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'COPY%%orders%%'")
        yield from rows

    with monkeypatch.context() as patched:
        patched.setattr(module, "staged_rows", cut)
        with pytest.raises(TableError, match=r"orders in d[0-9a-f]+ on 127.0.0.1.* cannot be written"):
            commit(table, staged, "m1", "m2")
    assert (known(table, "m1", "m2"), stored(database)) == ({}, [])

    commit(table, staged, "m1", "m2")
    assert stored(database) == [("m1", 1), ("m2", 2)]


@pytest.mark.parametrize("gone", ["one", "all"])
def test_files_that_were_removed_are_an_error_and_nothing_is_committed(
    database: Database, tmp_path: Path, gone: str
) -> None:
    table = opened(database)
    staged = in_files(tmp_path, table, TWO, "b")
    files = sorted(Path(staged.location).iterdir())
    for file in files[: 1 if gone == "one" else None]:
        file.unlink()
    if gone == "all":
        Path(staged.location).rmdir()

    with pytest.raises(TableError, match="run the batch again"):
        commit(table, staged, "m1", "m2")

    assert (known(table, "m1", "m2"), stored(database)) == ({}, [])


def test_large_rows_are_read_few_at_a_time(tmp_path: Path) -> None:
    texts = [f"{number} " * 100_000 for number in range(64)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "part-0.parquet", use_dictionary=False)

    sizes = [rows.nbytes for rows in staged_rows(tmp_path)]

    assert sum(sizes) > 16_000_000
    assert max(sizes) < 5_000_000


def test_a_file_that_is_damaged_is_an_error_and_nothing_is_committed(database: Database, tmp_path: Path) -> None:
    table = opened(database)
    staged = in_files(tmp_path, table, TWO, "b")
    damaged = sorted(Path(staged.location).iterdir())[-1]
    damaged.write_bytes(damaged.read_bytes()[:-20])

    with pytest.raises(TableError, match=r"cannot be read .* run the batch again"):
        commit(table, staged, "m1", "m2")

    assert (known(table, "m1", "m2"), stored(database)) == ({}, [])


def test_staged_rows_are_gone_when_they_are_discarded(database: Database, tmp_path: Path) -> None:
    table = opened(database)
    staged = in_files(tmp_path, table, TWO, "b")
    table.discard(staged)
    table.discard(staged)
    assert list(tmp_path.rglob("*.parquet")) == []


def test_upserts_keep_the_later_row_of_a_key(database: Database, tmp_path: Path) -> None:
    table = opened(database, upsert_by=["id"])
    rows = [record("m1", 1, name="old"), record("m2", 1, name="new"), record("m3", 2, name="other")]

    commit(table, in_files(tmp_path, table, rows, "b"), "m1", "m2", "m3")

    read = database.read("SELECT id, name FROM orders ORDER BY id")
    assert read == [{"id": 1, "name": "new"}, {"id": 2, "name": "other"}]


def test_a_table_of_the_user_that_has_the_name_of_ours_is_left_alone(database: Database, tmp_path: Path) -> None:
    # The role looks for temporary tables last.
    url = f"{database.url}?options=-c%20search_path%3Dpublic%2Cpg_temp"
    table = opened(Database(url), upsert_by=["id"])
    database.run("CREATE TABLE sqs_lease_waiting (LIKE orders)")

    commit(table, in_files(tmp_path, table, TWO, "b"), "m1", "m2")

    assert stored(database) == [("m1", 1), ("m2", 2)]
    assert database.read("SELECT * FROM sqs_lease_waiting") == []


def test_a_rule_of_the_table_is_followed(database: Database, tmp_path: Path) -> None:
    table = opened(database)
    database.run("CREATE TABLE seen (id bigint)")
    database.run("CREATE RULE noted AS ON INSERT TO orders DO ALSO INSERT INTO seen VALUES (NEW.id)")

    commit(table, in_files(tmp_path, table, TWO, "b"), "m1", "m2")

    assert stored(database) == [("m1", 1), ("m2", 2)]
    assert database.read("SELECT id FROM seen ORDER BY 1") == [{"id": 1}, {"id": 2}]


def test_a_rule_that_keeps_rows_out_commits_nothing(database: Database, tmp_path: Path) -> None:
    table = opened(database)
    database.run("CREATE RULE closed AS ON INSERT TO orders WHERE NEW.id = 2 DO INSTEAD NOTHING")

    with pytest.raises(TableError, match="trigger or rule that keeps rows out"):
        commit(table, in_files(tmp_path, table, TWO, "b"), "m1", "m2")

    assert (known(table, "m1", "m2"), stored(database)) == ({}, [])


def test_a_trigger_that_keeps_rows_out_commits_nothing(database: Database, tmp_path: Path) -> None:
    table = opened(database)
    database.run(
        "CREATE FUNCTION kept_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF NEW.id = 2 THEN RETURN NULL; END IF; RETURN NEW; END $$"
    )
    database.run("CREATE TRIGGER kept_out BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION kept_out()")

    with pytest.raises(TableError, match="trigger or rule that keeps rows out"):
        commit(table, in_files(tmp_path, table, TWO, "b"), "m1", "m2")

    assert (known(table, "m1", "m2"), stored(database)) == ({}, [])


def test_policies_are_asked_of_each_row(database: Database, tmp_path: Path) -> None:
    opened(database)
    role = f"loader_{database.url.rpartition('/')[2]}"
    database.run(f"CREATE ROLE {role} LOGIN")
    for statement in (
        "GRANT SELECT, INSERT ON orders TO {}",
        "GRANT ALL ON SCHEMA sqs_lease TO {}",
        "GRANT ALL ON ALL TABLES IN SCHEMA sqs_lease TO {}",
        "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY small ON orders FOR INSERT TO {} WITH CHECK (id < 2)",
        "CREATE POLICY all_seen ON orders FOR SELECT TO {} USING (true)",
    ):
        database.run(statement.format(role))
    table = opened(Database(database.url.replace("postgres@", f"{role}@")))

    commit(table, in_files(tmp_path, table, TWO[:1], "b"), "m1")
    with pytest.raises(RowsRefusedError, match="row-level security policy"):
        table.commit(
            table.look_up(asked("m2")), Admission("c", entries(["m2"]), in_files(tmp_path, table, TWO[1:], "c"))
        )

    assert stored(database) == [("m1", 1)]


def test_rows_go_into_the_partitions_of_a_table(database: Database, tmp_path: Path) -> None:
    database.run(
        "CREATE TABLE orders (id bigint NOT NULL, name text, _message_id text NOT NULL, _sent_at timestamptz, "
        "_batch_id text NOT NULL) PARTITION BY RANGE (id)"
    )
    database.run("CREATE TABLE first PARTITION OF orders FOR VALUES FROM (0) TO (2)")
    table = opened(database)

    with pytest.raises(RowsRefusedError, match="no partition of relation"):
        commit(table, in_files(tmp_path, table, TWO, "b"), "m1", "m2")
    assert stored(database) == []
    database.run("CREATE TABLE second PARTITION OF orders FOR VALUES FROM (2) TO (9)")
    commit(table, in_files(tmp_path, table, TWO, "b"), "m1", "m2")

    assert database.read("SELECT id FROM second") == [{"id": 2}]


def test_rows_come_by_a_staging_table_where_executors_cannot_write_in_the_workspace(
    spark: SparkSession,
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refused(*_: object) -> None:
        # The error of a task with another user; the tasks of the tests have the same user.
        raise PySparkException("PermissionError: [Errno 13] Failed to create local directory 'x'. Detail: ...")

    monkeypatch.setattr(Staging, "write_parts", refused)
    sink = PostgresSink(database.url, "orders")

    result = ingest(spark, good(range(1, 5)), source=JsonSource(SCHEMA), sink=sink, workspace=tmp_path)

    assert result.ingested == 4
    assert len(stored(database)) == 4
    assert f"its executors cannot write in {tmp_path}" in caplog.text


def test_tasks_write_no_staging_table(
    spark: SparkSession, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise psycopg.OperationalError("no task may connect")

    monkeypatch.setattr(PostgresTable, "_staged", refused)
    sink = PostgresSink(database.url, "orders")

    result = ingest(spark, good(range(1, 5)), source=JsonSource(SCHEMA), sink=sink, workspace=tmp_path)

    assert result.ingested == 4
    assert list(tmp_path.rglob("*.parquet")) == []
