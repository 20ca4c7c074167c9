"""A place that cannot be a table is refused with what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from sqs_lease.spark import DeltaSink, InferredSchema, Ledger, Staged, TableError
from sqs_lease.spark.delta_places import require_empty
from sqs_lease.spark.places import Place
from sqs_lease.spark.sinks.iceberg_sink import IcebergSink
from sqs_lease.spark.sinks.native_delta_sink import NativeDeltaSink
from sqs_lease.spark.sinks.parquet_sink import ParquetSink
from sqs_lease.spark.sinks.sink import Admission
from sqs_lease.spark.sinks.write_ahead import WriteAheadTable
from sqs_lease.testing.sink_subject import asked, entries, known
from tests.spark.sinks.delta.conftest import Bucket
from tests.spark.sinks.delta.tables import COLUMNS, TABLE_SCHEMA, open_table, row, stage, stored


@pytest.mark.parametrize("address", ["gs://bucket/table", "hdfs://host/table", "file:///table"])
def test_an_address_of_another_kind_is_refused(address: str) -> None:
    with pytest.raises(TableError, match=f"{address} is neither a directory nor an address on S3: give"):
        DeltaSink(address)


def test_storage_options_of_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="is a directory, and storage_options are for tables on S3"):
        DeltaSink(tmp_path, storage_options={"AWS_REGION": "eu-west-1"})


@pytest.mark.parametrize(
    "option",
    [
        {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"},
        {"allow_unsafe_rename": "1"},
        {"aws_conditional_put": "disabled"},
        {"conditional_put": "dynamo:table"},
    ],
)
def test_options_by_which_drivers_overwrite_each_other_are_refused(option: dict[str, str]) -> None:
    (name,) = option

    with pytest.raises(TableError, match=f"{name} is set"):
        DeltaSink("s3://bucket/table", storage_options=option)


def test_the_environment_must_not_let_drivers_overwrite_each_other_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(TableError, match="AWS_S3_ALLOW_UNSAFE_RENAME is set"):
        DeltaSink("s3://bucket/table")
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "false")
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "etag")
    DeltaSink("s3://bucket/table")


@pytest.mark.parametrize("option", ["partition_by", "upsert_by"])
def test_one_column_is_given_in_brackets_too(tmp_path: Path, option: str) -> None:
    columns: Any = {option: "id"}

    with pytest.raises(TypeError, match="put brackets around the one"):
        DeltaSink(tmp_path, **columns)


@pytest.mark.parametrize("option", ["partition_by", "upsert_by"])
@pytest.mark.parametrize("columns", [iter(["id"]), {"id"}, [1]])
def test_columns_are_a_list_of_names(tmp_path: Path, option: str, columns: Any) -> None:
    given: Any = {option: columns}

    with pytest.raises(TypeError, match=f"{option} is a list of columns"):
        DeltaSink(tmp_path, **given)


@pytest.mark.parametrize(
    "sink",
    [
        DeltaSink,
        ParquetSink,
        NativeDeltaSink,
        lambda path: NativeDeltaSink("sales.orders", ledger="" if path is None else path),
        lambda path: IcebergSink("lake.sales.orders", path),
        InferredSchema,
    ],
)
def test_a_variable_that_is_not_set_is_no_path(sink: Callable[[Any], object]) -> None:
    for path in ("", " ", None):
        with pytest.raises((TypeError, ValueError), match=r"must be a path, not|is empty"):
            sink(path)


@pytest.mark.parametrize("option", ["partition_by", "upsert_by"])
@pytest.mark.parametrize("columns", ["id", iter(["id"])])
def test_the_columns_of_tables_with_jars_are_a_list_too(option: str, columns: Any) -> None:
    given: Any = {option: columns}

    with pytest.raises(TypeError, match=f"{option} is a list of columns"):
        NativeDeltaSink("sales.orders", ledger="/ledger", **given)
    with pytest.raises(TypeError, match=f"{option} is a list of columns"):
        IcebergSink("lake.sales.orders", "/ledger", **given)


def test_a_schema_is_inferred_into_a_file() -> None:
    with pytest.raises(ValueError, match="give a file in a directory that all drivers share"):
        InferredSchema("s3://bucket/schema.json")


def test_credentials_are_not_shown() -> None:
    sink = DeltaSink("s3://bucket/table", storage_options={"AWS_SECRET_ACCESS_KEY": "hidden"})

    assert "hidden" not in repr(sink)
    assert "hidden" not in repr(sink._storage)
    assert "hidden" not in repr(sink._ledger)


def test_a_file_at_the_tables_path_is_named(tmp_path: Path) -> None:
    (tmp_path / "table").write_text("in the way")

    with pytest.raises(TableError, match=f"{tmp_path}/table is a file: give the path of a directory"):
        open_table(tmp_path / "table")


def test_a_directory_with_other_files_is_not_made_a_table(tmp_path: Path) -> None:
    (tmp_path / "report.csv").write_text("another user's work")

    with pytest.raises(TableError, match=f"{tmp_path} has files in it, but is not a Delta table"):
        open_table(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.csv"]


def test_files_of_a_table_that_was_created_a_moment_ago_are_its_own(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    stage(table, [row(1, "m1")])

    # A driver that did not find the table yet does this.
    require_empty(table.storage)


@pytest.mark.processes
def test_a_prefix_with_other_objects_is_not_made_a_table(bucket: Bucket) -> None:
    storage = bucket.sink("taken")._storage
    with storage.file_system().open_output_stream("report.csv") as stream:
        stream.write(b"another user's work")

    with pytest.raises(TableError, match=f"s3://{bucket.name}/taken has files in it, but is not a Delta table"):
        open_table(storage)


@pytest.mark.processes
def test_a_bucket_that_does_not_exist_is_named_without_any_key(bucket: Bucket) -> None:
    secret = {"AWS_SECRET_ACCESS_KEY": "hidden", "AWS_ACCESS_KEY_ID": "hidden"}
    sink = DeltaSink("s3://no-such-bucket/table", storage_options=bucket.storage_options | secret)

    with pytest.raises(TableError, match=r"s3://no-such-bucket/table .* check that the bucket exists") as caught:
        open_table(sink._storage)
    assert "hidden" not in str(caught.value)


def test_a_path_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(TableError, match=f"table {tmp_path}/file/table cannot be"):
        open_table(tmp_path / "file" / "table")


def test_a_path_that_delta_rs_misreads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="has a % in it"):
        DeltaSink(tmp_path / "100%")


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    open_table(tmp_path)
    (tmp_path / "_delta_log" / "00000000000000000000.json").write_text("{")

    with pytest.raises(TableError, match=f"table {tmp_path} cannot be read"):
        open_table(tmp_path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        pytest.param({"partition_by": "id"}, "it is partitioned by id, and partition_by says none", id="partitions"),
        pytest.param(
            {"configuration": {"delta.constraints.positive": "id > 0"}},
            "it has the constraint positive",
            id="constraint",
        ),
        pytest.param(
            {"configuration": {"delta.appendOnly": "true"}}, "its rows must not be changed", id="nothing replaced"
        ),
    ],
)
def test_a_table_that_asks_for_something_else_is_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    DeltaTable.create(tmp_path, TABLE_SCHEMA, raise_if_key_not_exists=False, **options)

    with pytest.raises(TableError, match=f"{tmp_path} cannot be written: .*{says}"):
        open_table(tmp_path, upsert_by=["id"])


def test_a_table_that_maps_its_columns_is_refused(tmp_path: Path) -> None:
    schema = json.loads(TABLE_SCHEMA.to_json())
    for number, field in enumerate(schema["fields"], 1):
        field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"column-{number}"}
    DeltaTable.create(tmp_path, TABLE_SCHEMA)
    # As Spark creates it; delta-rs does so in newer releases only.
    log = tmp_path / "_delta_log" / "00000000000000000000.json"
    actions: dict[str, Any] = {}
    for line in log.read_text().splitlines():
        actions |= json.loads(line)
    actions["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
    actions["metaData"] |= {
        "schemaString": json.dumps(schema),
        "configuration": {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": str(number)},
    }
    log.write_text("".join(json.dumps({kind: action}) + "\n" for kind, action in actions.items()))

    with pytest.raises(TableError, match=f"{tmp_path} cannot be written: .*it maps its columns"):
        open_table(tmp_path, upsert_by=["id"])


INVARIANT = json.dumps({"expression": {"expression": "name <> ''"}})


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        pytest.param({"delta.invariants": INVARIANT}, "has an invariant", id="invariant"),
        pytest.param({"delta.generationExpression": "id * 2"}, "is generated by the table", id="generated"),
        pytest.param({"delta.identity.start": 1, "delta.identity.step": 1}, "is numbered by the table", id="identity"),
        pytest.param({"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}, "has strings of a limited length", id="length"),
    ],
)
@pytest.mark.parametrize("upsert_by", [(), ("id",)], ids=["append", "upsert"])
def test_a_table_with_rules_of_its_own_is_refused_before_anything_is_written(
    tmp_path: Path, upsert_by: tuple[str, ...], metadata: dict[str, Any], says: str
) -> None:
    schema = json.loads(TABLE_SCHEMA.to_json())
    schema["fields"][1]["metadata"] = metadata
    DeltaTable.create(tmp_path, Schema.from_json(json.dumps(schema)))

    with pytest.raises(TableError, match=f"{tmp_path} cannot be written: .*column name {says}.* NativeDeltaSink"):
        open_table(tmp_path, upsert_by=upsert_by)


def test_a_rule_of_a_field_within_a_column_is_seen_too(tmp_path: Path) -> None:
    schema = json.loads(TABLE_SCHEMA.to_json())
    field = {"name": "first", "type": "string", "nullable": True, "metadata": {"delta.invariants": INVARIANT}}
    schema["fields"][1]["type"] = {"type": "struct", "fields": [field]}
    DeltaTable.create(tmp_path, Schema.from_json(json.dumps(schema)))

    with pytest.raises(TableError, match=r"column name\.first has an invariant.* NativeDeltaSink"):
        open_table(tmp_path)


def test_a_table_that_is_not_partitioned_is_refused_when_it_should_be(tmp_path: Path) -> None:
    open_table(tmp_path)

    with pytest.raises(TableError, match="it is partitioned by no column, and partition_by says name"):
        open_table(tmp_path, partition_by=["name"])


def test_a_directory_that_another_driver_makes_while_it_is_listed_was_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class MadeMeanwhile:
        def get_file_info(self, selector: Any) -> Any:
            assert selector.allow_not_found
            raise FileNotFoundError(selector.base_dir)

    storage = Place(str(tmp_path / "table"))
    monkeypatch.setattr(Place, "file_system", lambda _: MadeMeanwhile())
    require_empty(storage)


def test_drivers_that_create_a_table_at_the_same_moment_create_one(tmp_path: Path) -> None:
    together = Barrier(4)

    def open_together(path: Path) -> int | None:
        together.wait(60)
        return open_table(path).version()

    with ThreadPoolExecutor(4) as threads:
        for attempt in range(20):
            path = tmp_path / str(attempt)
            assert list(threads.map(open_together, [path] * 4)) == [0, 0, 0, 0]
            assert [log.name for log in (path / "_delta_log").glob("*.json")] == ["00000000000000000000.json"]


def opened(path: Path) -> WriteAheadTable:
    session: Any = None
    return DeltaSink(path).open(session, COLUMNS, widen=False)


def store_one(path: Path) -> None:
    table = opened(path)
    staged = Staged(stage(open_table(path), [row(1, "m1")]), pa.chunked_array([["m1"]]))
    table.commit(table.look_up(asked("m1")), Admission("b", entries(["m1"]), staged))


def test_a_table_that_was_made_again_is_not_taken_to_have_what_the_earlier_one_had(tmp_path: Path) -> None:
    path = tmp_path / "table"
    store_one(path)
    DeltaTable.create(path, TABLE_SCHEMA, mode="overwrite")

    with pytest.raises(TableError, match="is of another table"):
        opened(path)

    Ledger(path / "_sqs_lease" / "ledger").unbind()
    assert known(opened(path), "m1") == {"m1": ("b", "ingested", None)}


def test_vacuum_adds_no_batch_of_an_earlier_table_to_one_that_was_made_again(tmp_path: Path) -> None:
    path = tmp_path / "table"
    ledger = opened(path).ledger
    ledger.admit(ledger.snapshot(), "b", entries(["m1"]), stage(open_table(path), [row(1, "m1")]))
    DeltaTable.create(path, TABLE_SCHEMA, mode="overwrite")

    with pytest.raises(TableError, match="is of another table"):
        DeltaSink(path).vacuum()

    assert stored(open_table(path)) == []


def test_a_table_that_was_moved_knows_its_messages(tmp_path: Path) -> None:
    store_one(tmp_path / "table")
    (tmp_path / "table").rename(tmp_path / "moved")

    assert known(opened(tmp_path / "moved"), "m1") == {"m1": ("b", "ingested", None)}


def test_a_batch_that_can_never_be_added_is_given_up_and_its_messages_come_again(tmp_path: Path) -> None:
    def open_both() -> WriteAheadTable:
        return WriteAheadTable(open_table(tmp_path / "table"), Ledger(tmp_path / "ledger").open())

    def store(number: int) -> None:
        table = open_both()
        looked_up = table.look_up(asked(f"m{number}"))
        location = stage(open_table(tmp_path / "table"), [row(number, f"m{number}")], batch=f"b{number}")
        if number == 1:
            (tmp_path / "table" / location).unlink()
        staged = Staged(location, pa.chunked_array([[f"m{number}"]]))
        table.commit(looked_up, Admission(f"b{number}", entries([f"m{number}"]), staged))

    with pytest.raises(TableError, match=r"Batch b1 was admitted and waits .*Ledger\('.*'\)\.abandon\('b1'\)"):
        store(1)
    with pytest.raises(TableError, match="Batch b1 was admitted and waits"):
        store(2)

    assert Ledger(tmp_path / "ledger").abandon("b1").message_ids == ("m1",)

    store(2)
    assert known(open_both(), "m1", "m2").keys() == {"m2"}
    assert stored(open_table(tmp_path / "table")) == [(2, "m2")]


OF_READERS = {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck"}
FEATURES = [
    *("allowColumnDefaults", "appendOnly", "changeDataFeed", "checkConstraints", "clustering", "domainMetadata"),
    *("generatedColumns", "icebergCompatV1", "icebergCompatV2", "identityColumns", "inCommitTimestamp", "invariants"),
    *("rowTracking", "of the future", *sorted(OF_READERS)),
]
"""Of writers: "Valid Feature Names in Table Features" in the Delta protocol."""


def features(*names: str) -> dict[str, Any]:
    of_readers = [name for name in names if name in OF_READERS]
    reader = {"minReaderVersion": 3, "readerFeatures": of_readers} if of_readers else {"minReaderVersion": 1}
    return {**reader, "minWriterVersion": 7, "writerFeatures": names}


@pytest.mark.parametrize(
    "protocol",
    [
        *(pytest.param(features(name), id=name) for name in FEATURES),
        *(pytest.param({"minReaderVersion": 2, "minWriterVersion": n}, id=f"version {n}") for n in range(2, 7)),
    ],
)
def test_a_table_is_refused_when_it_is_opened_if_deltalake_does_not_write_one_of_its_features(
    tmp_path: Path, protocol: dict[str, Any]
) -> None:
    DeltaTable.create(tmp_path, TABLE_SCHEMA)
    log = tmp_path / "_delta_log" / "00000000000000000000.json"
    actions: dict[str, Any] = {}
    for line in log.read_text().splitlines():
        actions |= json.loads(line)
    actions["protocol"] = protocol
    log.write_text("".join(json.dumps({kind: action}) + "\n" for kind, action in actions.items()))
    try:
        table = DeltaTable(tmp_path)
        table.create_write_transaction([], "append", table.schema())
    except DeltaError:
        with pytest.raises(TableError, match=r"cannot be read|has features of Delta that are not written here"):
            open_table(tmp_path)
    else:
        open_table(tmp_path)
