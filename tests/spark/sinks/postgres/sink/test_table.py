"""PostgreSQL's additions to the contract: tables of the user, drivers that die or meet, and values it cannot store."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import ArrayType, StringType, StructField, StructType, VariantType

from sqs_lease.spark import InferredSchema, JsonSource, ingest
from sqs_lease.spark.columns import table_columns
from sqs_lease.spark.errors import SchemaError, TableError
from sqs_lease.spark.session import session_settings
from sqs_lease.spark.sinks.postgres.connection import parameters_of
from sqs_lease.spark.sinks.postgres.copy import COPIED_DDL, CopyRows
from sqs_lease.spark.sinks.postgres.sink import PostgresSink, PostgresTable
from sqs_lease.spark.sinks.sink import Admission, CommitConflict
from sqs_lease.testing.sink_contract import COLUMNS, Subject
from sqs_lease.testing.sink_subject import asked, columns_of, entries, known, record
from tests.spark.inferring import infers
from tests.spark.samples import SCHEMA, good, message
from tests.spark.sinks.conftest import Database
from tests.spark.sinks.postgres_driver import killed
from tests.spark.sinks.postgres_subject import subject_of

pytestmark = pytest.mark.processes


@pytest.fixture
def subject(spark: SparkSession, database: Database) -> Subject:
    return subject_of(spark, database)


def opened(database: Database, *, widen: bool = False, columns: StructType = COLUMNS, **options: Any) -> PostgresTable:
    # A table is looked at without Spark.
    session: Any = None
    return PostgresSink(database.url, options.pop("table", "orders"), **options).open(session, columns, widen=widen)


def admit(table: PostgresTable, batch_id: str, *message_ids: str) -> None:
    table.commit(table.look_up(asked(*message_ids)), Admission(batch_id, entries(message_ids), None))


# ---- whole batches


def test_a_batch_ends_in_the_table_in_the_rejects_table_or_nowhere_twice(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    def load(messages: list[Any]) -> Any:
        return ingest(
            spark,
            messages,
            source=JsonSource(SCHEMA),
            sink=PostgresSink(database.url, "shop.Orders"),
            rejects=PostgresSink(database.url, "shop.rejects"),
            workspace=tmp_path,
        )

    database.run("CREATE SCHEMA shop")
    bad = [message("bad", '{"name": "no id"}'), message("worse", "not JSON")]
    first = load([*good([1, 2]), *bad])
    again = load([*good([2, 3], receive_count=2), *bad])

    assert (first.ingested, first.rows, set(first.rejected)) == (2, 2, {"bad", "worse"})
    assert (again.ingested, again.received) == (1, 4)
    rows = database.read('SELECT * FROM shop."Orders" ORDER BY id')
    assert [(row["id"], row["name"], row["_message_id"]) for row in rows] == [
        (1, "n1", "m1"),
        (2, "n2", "m2"),
        (3, "n3", "m3"),
    ]
    stored = database.read("SELECT _message_id FROM shop.rejects ORDER BY 1")
    assert [row["_message_id"] for row in stored] == ["bad", "worse"]
    assert database.staging_tables() == []


def test_tasks_write_what_they_read_and_spark_the_texts_that_they_cannot_write(
    spark: SparkSession, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[DataFrame] = []
    parse = JsonSource.parse

    def noted(source: JsonSource, messages: DataFrame, columns: StructType) -> DataFrame:
        planned.append(messages)
        return parse(source, messages, columns)

    monkeypatch.setattr(JsonSource, "parse", noted)
    schema = (
        "id BIGINT NOT NULL, name STRING, at TIMESTAMP, tags ARRAY<STRING>, plane STRUCT<model: STRING, seats: INT>"
    )
    read = {"id": 1, "name": "a\0", "at": "2026-03-01T12:00:00Z", "tags": ['"', "\n", None], "plane": {"model": "é"}}
    bodies = {
        "read": json.dumps(read),
        "converted": '{"id": 2, "name": 7}',
        "special": json.dumps({"id": 3, "tags": ["\0"], "plane": None}),
        "wrong": '{"id": "4"}',
    }

    def load(names: list[str]) -> Any:
        return ingest(
            spark,
            [message(name, bodies[name]) for name in names],
            source=JsonSource(schema),
            sink=PostgresSink(database.url, "orders"),
            workspace=tmp_path,
        )

    assert load(["read", "wrong"]).ingested == 1
    assert planned == []
    result = load(list(bodies))

    assert (result.ingested, result.duplicates, set(result.rejected), len(planned)) == (2, 1, {"wrong"}, 1)
    stored = database.read("SELECT id, name, at::text, tags, plane FROM orders ORDER BY id")
    assert [tuple(row.values()) for row in stored] == [
        (1, "a\ufffd", "2026-03-01 12:00:00+00", ['"', "\n", None], {"model": "é", "seats": None}),
        (2, "7", None, None, None),
        (3, None, None, ["\ufffd"], None),
    ]
    assert database.staging_tables() == []


def test_nul_characters_are_replaced_wherever_they_stand(spark: SparkSession, database: Database) -> None:
    nested = StructType([StructField("s", StringType())])
    columns = columns_of(name=StringType(), nested=nested, texts=ArrayType(StringType()))
    subject = subject_of(spark, database)
    texts = ["a\0\0b", "\\\0", "\\u0000", "\0"]
    row = record("m1", 1, name="a\0b", nested={"s": "\0x"}, texts=texts)

    subject.store(subject.open(columns), "b", [row], columns=columns)

    (stored,) = subject.read_rows()
    assert (stored["name"], stored["nested"]) == ("a\ufffdb", {"s": "\ufffdx"})
    assert stored["texts"] == [text.replace("\0", "\ufffd") for text in texts]


def test_a_variant_becomes_jsonb(subject: Subject, database: Database) -> None:
    columns = columns_of(name=StringType(), document=VariantType())
    table = subject.open(columns)
    rows = subject.rows([record("m1", 1)]).withColumn("document", F.parse_json(F.lit('{"a": [1.5, "\\u0000", null]}')))
    staged = table.stage(rows.select(columns.names), "b")
    table.commit(table.look_up(asked("m1")), Admission("b", entries(["m1"]), staged))
    assert database.read("SELECT document, pg_typeof(document)::text AS kind FROM orders") == [
        {"document": {"a": [1.5, "\ufffd", None]}, "kind": "jsonb"}
    ]


# ---- messages that the table refuses


def load(spark: SparkSession, database: Database, workspace: Path | None, messages: list[Any], **options: Any) -> Any:
    source = JsonSource(options.pop("schema", SCHEMA))
    sink = PostgresSink(database.url, options.pop("table", "orders"), **options)
    return ingest(spark, messages, source=source, sink=sink, workspace=workspace)


def test_a_time_inside_of_json_is_in_utc_whatever_the_sessions_zone(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    body = '{"id": 1, "stop": {"at": "2026-01-31T12:00:00Z"}}'
    with session_settings(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        load(spark, database, tmp_path, [message("m1", body)], schema="id BIGINT NOT NULL, stop STRUCT<at: TIMESTAMP>")

    assert database.read("SELECT stop FROM orders") == [{"stop": {"at": "2026-01-31T12:00:00.000Z"}}]


def test_messages_that_a_constraint_refuses_are_rejected_and_stop_no_other(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    load(spark, database, tmp_path, good([1]))
    database.run("ALTER TABLE orders ADD CONSTRAINT short CHECK (length(name) < 5)")
    database.run("CREATE UNIQUE INDEX twice ON orders (name)")
    long, again = '{"id": 7, "name": "a secret"}', '{"id": 8, "name": "n1"}'
    result = load(spark, database, tmp_path, [*good([2, 3]), message("m7", long), message("m8", again), *good([4])])
    later = load(spark, database, tmp_path, good([5]))

    assert result.rejected == {
        "m7": 'refused by the table: new row for relation "orders" violates check constraint "short", '
        "CheckViolation (23514)",
        "m8": 'refused by the table: duplicate key value violates unique constraint "twice", UniqueViolation (23505)',
    }
    assert (result.ingested, result.rows, later.ingested) == (3, 3, 1)
    assert [row["id"] for row in database.read("SELECT id FROM orders ORDER BY id")] == [1, 2, 3, 4, 5]
    assert database.staging_tables() == []


def test_a_message_that_is_refused_alone_is_rejected_too(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    load(spark, database, tmp_path, good([1]))
    database.run("ALTER TABLE orders ADD CONSTRAINT small CHECK (id < 5)")
    assert set(load(spark, database, tmp_path, good([7])).rejected) == {"m7"}


def test_a_key_that_no_index_takes_rejects_its_message_alone(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    # Random, because the server compresses keys.
    key = "".join(hashlib.sha256(str(n).encode()).hexdigest() for n in range(150))
    batch = [message(f"m{n}", json.dumps({"id": text})) for n, text in enumerate(("a", key, "b"))]
    result = load(spark, database, tmp_path, batch, schema="id STRING NOT NULL", upsert_by=["id"])
    assert result.ingested == 2
    assert "index row" in result.rejected["m1"]


def test_a_trigger_that_refuses_everything_rejects_nothing(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    load(spark, database, tmp_path, good([1]))
    database.run(
        "CREATE FUNCTION closed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF NEW.id > 3 THEN RAISE EXCEPTION 'not now, %', NEW.name; END IF; RETURN NEW; END $$".replace("%", "%%")
    )
    database.run("CREATE TRIGGER closed BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION closed()")
    with pytest.raises(TableError, match=r"RaiseException \(P0001\)"):
        load(spark, database, tmp_path, good([4, 5]))
    result = load(spark, database, tmp_path, good([2, 3, 4]))
    assert result.rejected == {"m4": "refused by the table: RaiseException (P0001)"}


def test_a_sequence_that_has_no_number_left_rejects_nothing(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    load(spark, database, tmp_path, good([1]))
    database.run("ALTER TABLE orders ADD COLUMN number integer GENERATED BY DEFAULT AS IDENTITY (START 2 MAXVALUE 2)")
    with pytest.raises(TableError, match=r'maximum value of sequence "orders_number_seq".*\(2200H\)'):
        load(spark, database, tmp_path, good([2, 3]))
    assert database.read("SELECT id FROM orders") == [{"id": 1}]


def test_an_error_that_a_database_trigger_words_rejects_its_message_and_is_not_quoted(
    spark: SparkSession, database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load(spark, database, tmp_path, good([1]))
    database.run(
        "CREATE FUNCTION checked() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF NEW.id = 3 THEN RAISE EXCEPTION 'bad name %', NEW.name USING ERRCODE = 'check_violation'; END IF; "
        "IF NEW.id = 4 THEN RAISE EXCEPTION 'bad name %', NEW.name USING ERRCODE = 'SHOP1'; END IF; "
        "IF NEW.id = 5 THEN EXECUTE format('INSERT INTO %I VALUES (1)', NEW.name); END IF; "
        "RETURN NEW; END $$".replace("%", "%%")
    )
    database.run("CREATE TRIGGER checked BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION checked()")
    secret = [message(f"m{number}", json.dumps({"id": number, "name": "a secret"})) for number in (3, 4, 5)]

    result = load(spark, database, tmp_path, [*good([2]), *secret])

    assert result.rejected == {
        "m3": "refused by the table: CheckViolation (23514)",
        "m4": "refused by the table: DatabaseError (SHOP1)",
        "m5": "refused by the table: UndefinedTable (42P01)",
    }
    assert result.ingested == 1
    assert "a secret" not in caplog.text


def test_keys_that_a_trigger_makes_the_same_stop_no_batch(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"schema": "id STRING NOT NULL", "upsert_by": ["id"]}
    load(spark, database, tmp_path, [message("m1", '{"id": "a"}')], **options)
    database.run(
        "CREATE FUNCTION lowered() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN NEW.id = lower(NEW.id); RETURN NEW; END $$"
    )
    database.run("CREATE TRIGGER lowered BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION lowered()")
    batch = [message(f"n{key}", json.dumps({"id": key})) for key in ("A", "b", "B")]

    result = load(spark, database, tmp_path, batch, **options)

    assert (result.ingested, result.rejected) == (3, {})
    assert [row["id"] for row in database.read("SELECT id FROM orders ORDER BY id")] == ["a", "b"]


@pytest.mark.parametrize("upsert_by", [(), ("pct%",)], ids=["append", "upsert"])
@pytest.mark.parametrize("is_shared", [True, False], ids=["files", "a staging table"])
def test_a_percent_sign_in_a_name_is_a_character(
    spark: SparkSession, database: Database, tmp_path: Path, upsert_by: tuple[str, ...], is_shared: bool
) -> None:
    # Where the executors share no directory with the driver, rows wait in a staging table.
    workspace = tmp_path if is_shared else None
    options: dict[str, Any] = {"schema": "`pct%` BIGINT NOT NULL", "table": "100%s", "upsert_by": upsert_by}
    result = load(spark, database, workspace, [message("m1", '{"pct%": 5}')], **options)
    assert result.ingested == 1
    assert database.read('SELECT "pct%%" AS pct FROM "100%%s"') == [{"pct": 5}]


@infers
def test_a_new_field_that_the_table_cannot_have_rejects_its_message_and_is_not_pinned(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    source = JsonSource(InferredSchema(tmp_path / "schema.json"), new_fields="add")
    sink = PostgresSink(database.url, "orders")

    def add(*messages: Any) -> Any:
        return ingest(spark, messages, source=source, sink=sink, workspace=tmp_path)

    first = add(message("m1", '{"id": 1}'), message("m2", '{"id": 2, "xmin": 1}'))
    later = add(message("m3", '{"id": 3, "pct%": 1}'))

    assert (first.ingested, first.rejected.keys(), later.ingested) == (1, {"m2"}, 1)
    assert [row["id"] for row in database.read("SELECT id FROM orders ORDER BY id")] == [1, 3]


@pytest.mark.parametrize("name", ["xmin", "ctid", "tableoid", "_sqs_lease_attempt"])
def test_a_column_that_every_table_has_is_refused_by_its_name(database: Database, name: str) -> None:
    with pytest.raises(SchemaError, match=name):
        opened(database, columns=table_columns(StructType([StructField(name, StringType())])))


# ---- what the user's table may be


def test_a_table_of_the_user_may_have_more_columns_and_quoted_names(spark: SparkSession, database: Database) -> None:
    database.run('CREATE SCHEMA "My Shop"')
    database.run(
        'CREATE TABLE "My Shop"."Order;s" (number bigserial PRIMARY KEY, loaded_at timestamptz DEFAULT now(), '
        'note text, "Customer\'s ""Id""" bigint NOT NULL, _message_id varchar NOT NULL, _sent_at timestamptz, '
        "_batch_id text NOT NULL)"
    )
    columns = table_columns(StructType([StructField('Customer\'s "Id"', columns_of()["id"].dataType, nullable=False)]))
    table = opened(database, table="My Shop.Order;s", columns=columns)
    row = record("m1", 1) | {'Customer\'s "Id"': 7}

    subject_of(spark, database).store(table, "b", [row], columns=columns)

    (stored,) = database.read('SELECT * FROM "My Shop"."Order;s"')
    assert (stored["number"], stored["note"], stored['Customer\'s "Id"']) == (1, None, 7)
    assert stored["loaded_at"] is not None


ITS_COLUMNS = "_message_id text NOT NULL, _sent_at timestamptz, _batch_id text NOT NULL"


@pytest.mark.parametrize(
    ("definition", "wrong"),
    [
        (f"TABLE orders (id integer, name text, {ITS_COLUMNS})", "column id is integer in the table and bigint"),
        (f"TABLE orders (id bigint, name text NOT NULL, {ITS_COLUMNS})", "column name is NOT NULL in the table"),
        (f"TABLE orders (id bigint, name text, day date NOT NULL, {ITS_COLUMNS})", "the schema has no column day date"),
        ("TABLE orders (id bigint, name text)", "the table has no column _batch_id"),
        (
            f"TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, name text, {ITS_COLUMNS})",
            "column id is generated by the table",
        ),
    ],
    ids=["another type", "not null", "a required column more", "a column less", "generated"],
)
def test_a_table_that_the_records_do_not_fit_is_refused(database: Database, definition: str, wrong: str) -> None:
    database.run(f"CREATE {definition}")
    with pytest.raises(SchemaError, match=wrong):
        opened(database)


def test_a_view_is_refused(database: Database) -> None:
    database.run("CREATE VIEW orders AS SELECT 1 AS id")
    with pytest.raises(TableError, match="is not a table"):
        opened(database)


def test_upserts_into_a_table_of_the_user_need_its_unique_index(database: Database) -> None:
    database.run(f"CREATE TABLE orders (id bigint NOT NULL, name text, {ITS_COLUMNS})")
    database.run("CREATE UNIQUE INDEX ON orders (id) WHERE name IS NOT NULL")
    database.run("CREATE UNIQUE INDEX ON orders (id, _message_id)")
    with pytest.raises(SchemaError, match="no unique index of just these"):
        opened(database, upsert_by=["id"])
    database.run("CREATE UNIQUE INDEX ON orders (id) INCLUDE (name)")
    opened(database, upsert_by=["id"])


def test_a_row_that_the_tables_own_rules_refuse_is_an_error_without_its_values(
    subject: Subject, database: Database
) -> None:
    table = subject.open()
    database.run("ALTER TABLE orders ADD CONSTRAINT short CHECK (length(name) < 5)")
    with pytest.raises(TableError, match=r'check constraint "short"') as raised:
        subject.store(table, "b", [record("m1", 1) | {"name": "a secret"}])
    assert "a secret" not in str(raised.value)
    assert known(table, "m1") == {}


def test_a_table_that_was_dropped_and_made_again_knows_nothing(database: Database) -> None:
    admit(opened(database), "b", "m1")
    database.run("DROP TABLE orders")
    again = opened(database)
    assert known(again, "m1") == {}
    admit(again, "b", "m1", "m2")


# ---- drivers that meet


def test_of_two_commits_of_one_message_at_the_same_time_the_second_waits_and_gets_a_conflict(
    database: Database,
) -> None:
    table = opened(database)
    looked_up = table.look_up(asked("m1"))
    with ThreadPoolExecutor() as pool, psycopg.connect(database.url) as other:
        other.execute(
            "WITH theirs AS (INSERT INTO sqs_lease.batches (target, batch_id, messages) "
            f"VALUES ('{table.name}', 'theirs', 1) RETURNING number) "
            f"INSERT INTO {table.name.entries.as_string(other)} (message_id, batch, outcome) "
            "SELECT 'm1', number, 'empty' FROM theirs".encode()
        )
        ours = pool.submit(table.commit, looked_up, Admission("ours", entries(["m0", "m1"]), None))
        while not database.read("SELECT 1 FROM pg_locks WHERE NOT granted"):
            assert not ours.done()
        other.commit()
        with pytest.raises(CommitConflict):
            ours.result()
    assert known(table, "m0", "m1").keys() == {"m1"}


def test_drivers_meet_in_the_same_way_under_another_isolation_by_default(database: Database) -> None:
    table = opened(database)
    looked_up = table.look_up(asked("m1"))
    database.run("ALTER ROLE postgres SET default_transaction_isolation = 'serializable'")
    try:
        with psycopg.connect(database.url) as other:
            other.execute(f"SELECT count(*) FROM {table.name.entries.as_string(other)}".encode())
            admit(table, "theirs", "m1")
            with pytest.raises(CommitConflict):
                table.commit(looked_up, Admission("ours", entries(["m1"]), None))
    finally:
        database.run("ALTER ROLE postgres RESET default_transaction_isolation")
    assert known(table, "m1")["m1"][0] == "theirs"


def test_a_commit_that_the_server_gave_up_for_another_one_is_a_conflict(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = opened(database)
    looked_up = table.look_up(asked("m1"))

    def deadlocked(*_: object) -> None:
        raise psycopg.errors.DeadlockDetected

    with monkeypatch.context() as patched:
        patched.setattr(PostgresTable, "_admit", deadlocked)
        with pytest.raises(CommitConflict):
            table.commit(looked_up, Admission("b", entries(["m1"]), None))
    table.commit(looked_up, Admission("b", entries(["m1"]), None))


def test_drivers_that_make_a_table_at_once_all_have_it(database: Database) -> None:
    with ThreadPoolExecutor() as pool:
        made = [pool.submit(opened, database) for _ in range(4)]
    assert len({table.result().name for table in made}) == 1
    database.read("SELECT * FROM orders")


# ---- drivers and tasks that die


def test_a_driver_killed_during_its_commit_leaves_all_or_nothing(subject: Subject, database: Database) -> None:
    table = subject.open()
    staged = subject.stage(table, "b", [record("m1", 1), record("m1", 2)])

    killed(database.url, staged.location, "_take")
    assert (known(table, "m1"), subject.ids()) == ({}, [])
    killed(database.url, staged.location, "_tidy")
    assert (set(known(table, "m1")), subject.ids()) == ({"m1"}, [("m1", 1), ("m1", 2)])


def test_a_connection_cut_during_the_commit_is_an_error_and_commits_nothing(
    subject: Subject, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = subject.open()
    looked_up = table.look_up(asked("m1"))
    staged = subject.stage(table, "b", [record("m1", 1)])
    take = PostgresTable._take

    def cut(self: PostgresTable, cursor: psycopg.Cursor[Any], staged: Any) -> None:
        take(self, cursor, staged)
        database.run("SELECT pg_terminate_backend(%s)", cursor.connection.info.backend_pid)

    monkeypatch.setattr(PostgresTable, "_take", cut)
    with pytest.raises(TableError, match=r"orders in d[0-9a-f]+ on 127.0.0.1.* cannot be written"):
        table.commit(looked_up, Admission("b", entries(["m1"]), staged))
    assert (known(table, "m1"), subject.ids()) == ({}, [])


def test_rows_of_a_task_with_a_lost_answer_do_not_count(subject: Subject, database: Database) -> None:
    table = subject.open()
    staged = subject.stage(table, "b", [record("m1", 1)])
    # As when an executor dies after its COPY: the task was repeated, and both have written.
    database.run(
        f"INSERT INTO sqs_lease.{staged.location} SELECT id, name, _message_id, _sent_at, _batch_id, 1 "
        f"FROM sqs_lease.{staged.location}"
    )
    table.commit(table.look_up(asked("m1")), Admission("b", entries(["m1"]), staged))
    assert subject.ids() == [("m1", 1)]


@pytest.mark.parametrize("upsert_by", [(), ("id",)], ids=["append", "upsert"])
def test_staged_rows_that_a_crash_of_the_server_took_are_noticed(
    spark: SparkSession, database: Database, upsert_by: tuple[str, ...]
) -> None:
    subject = subject_of(spark, database, upsert_by=upsert_by)
    table = subject.open()
    staged = subject.stage(table, "b", [record("m1", 1)])
    database.run(f"TRUNCATE sqs_lease.{staged.location}")
    with pytest.raises(TableError, match=r"of 1 rows staged .* 0 were there"):
        table.commit(table.look_up(asked("m1")), Admission("b", entries(["m1"]), staged))
    assert known(table, "m1") == {}


def test_staging_tables_of_killed_tries_go_with_a_later_try(subject: Subject, database: Database) -> None:
    table = subject.open()
    first, second, third = (subject.stage(table, batch_id, [record("m1", 1)]) for batch_id in ("b", "c", "d"))
    subject.store(table, "b", [record("m1", 1)])
    assert set(database.staging_tables()) == {second.location, third.location}
    database.run("UPDATE sqs_lease.staging SET created_at = now() - interval '3 days' WHERE name = %s", second.location)
    subject.store(table, "e", [record("m2", 1)])
    assert database.staging_tables() == [third.location]
    assert database.read("SELECT name FROM sqs_lease.staging") == [{"name": third.location}]
    assert first.location not in database.staging_tables()


def test_a_staging_table_that_is_in_use_is_left_for_later(
    subject: Subject, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqs_lease.spark.sinks.postgres.sink._LOCK_MILLISECONDS", 1)
    table = subject.open()
    staged = subject.stage(table, "b", [record("m1", 1)])
    with psycopg.connect(database.url) as other:
        other.execute(f"LOCK TABLE sqs_lease.{staged.location} IN ROW EXCLUSIVE MODE".encode())
        table.commit(table.look_up(asked("m1")), Admission("b", entries(["m1"]), staged))
    assert subject.ids() == [("m1", 1)]
    assert database.staging_tables() == [staged.location]


def test_entries_are_forgotten_when_no_queue_can_have_their_messages_any_more(database: Database) -> None:
    table = opened(database)
    admit(table, "b", "m1")

    def pass_days(days: int) -> None:
        database.run(f"UPDATE sqs_lease.batches SET admitted_at = admitted_at - interval '{days} days 1 second'")

    pass_days(1)
    admit(table, "c", "m2")
    pass_days(28)
    admit(table, "d", "m3")
    assert known(table, "m1", "m2", "m3").keys() == {"m1", "m2", "m3"}, "looked for once a day only"
    pass_days(1)
    admit(table, "e", "m4")
    assert known(table, "m1", "m2", "m3", "m4").keys() == {"m3", "m4"}
    assert database.read(f"SELECT count(*)::int AS count FROM {table.name.entries.as_string(None)}") == [{"count": 2}]
    admit(table, "b", "m5")


# ---- secrets


def test_a_password_is_in_no_plan_and_no_error_of_spark(subject: Subject, database: Database) -> None:
    secret = "correct-horse"
    parameters = parameters_of(database.url.replace("postgres@", f"postgres:{secret}@"))
    copy = CopyRows(parameters, "COPY nowhere FROM STDIN (FORMAT binary)", [], "orders")
    rows = subject.rows([record("m1", 1)]).mapInArrow(copy, COPIED_DDL)

    with pytest.raises(PySparkException, match='relation "nowhere" does not exist') as raised:
        rows.toArrow()

    plan = rows._jdf.queryExecution().toString()
    assert "CopyRows" in plan
    assert secret not in f"{raised.value} {plan} {copy!r}"
