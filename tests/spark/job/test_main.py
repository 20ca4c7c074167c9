"""A job makes the parts that its spec names, reads one manifest or several, and reaches files by path and on S3."""

from __future__ import annotations

import inspect
import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import pytest
from botocore.httpsession import URLLib3Session
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import sqs_lease
from demo.processes import ROOT
from demo.sqs_server import SqsServer
from sqs_lease import spark
from sqs_lease.batch_files.manifest import write_manifest
from sqs_lease.ingestion.result import StoredResult
from sqs_lease.ingestion.spec import SINKS, SOURCES, Kind, Part, SpecError
from sqs_lease.spark import DeltaSink, InferredSchema, JsonSource, WorkspaceError
from sqs_lease.spark.job import main as job
from sqs_lease.spark.job.main import SINK_CLASSES, SOURCE_CLASSES, local_copy, make_sink, make_source, write_text
from sqs_lease.spark.job.termination import Termination
from sqs_lease.spark.sources.functions import ParserSource
from sqs_lease.spark.sources.s3_events import S3EventsSource
from sqs_lease.spark.sources.sns import SnsEnvelope
from tests.spark.job.waiting_parser import wait_for_ever
from tests.spark.samples import SCHEMA, good, message

PAGE = ROOT / "docs" / "spark-airflow.md"


def parameters_of(name: str) -> tuple[set[str], set[str]]:
    """The required and the optional arguments of a class."""
    given = inspect.signature(getattr(spark, name)).parameters.values()
    required = {one.name for one in given if one.default is one.empty}
    return required, {one.name for one in given} - required


@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_takes_what_its_class_takes(kind: str) -> None:
    required, optional = parameters_of(SOURCE_CLASSES[kind])
    if kind == "json":
        required, optional = set(), {*required, *optional, "inferred_schema"}
    assert (set(SOURCES[kind].required), set(SOURCES[kind].optional)) == (required, optional)


@pytest.mark.parametrize("kind", SINKS)
def test_a_sink_takes_what_its_class_takes(kind: str) -> None:
    required, optional = parameters_of(SINK_CLASSES[kind])
    assert (set(SINKS[kind].required), set(SINKS[kind].optional)) == (required, optional)


@pytest.mark.parametrize(
    ("part", "made"),
    [
        (Part("json", {"schema": "id INT", "new_fields": "reject"}), JsonSource("id INT", new_fields="reject")),
        (
            Part("json", {"schema": "t TIMESTAMP", "dedupe_by": ["t"], "timestamp_units": {"t": "ms"}}),
            JsonSource("t TIMESTAMP", dedupe_by=["t"], timestamp_units={"t": "ms"}),
        ),
        (Part("json", {"inferred_schema": {"env": "PIN"}}), JsonSource(InferredSchema("/data/schema.json"))),
        (Part("sns", {"source": {"kind": "json", "schema": "id INT"}}), SnsEnvelope(JsonSource("id INT"))),
        (
            Part("s3-events", {"format": "csv", "schema": "id INT", "read": {"delimiter": ";"}}),
            S3EventsSource("csv", "id INT", read={"delimiter": ";"}),
        ),
        (
            Part("s3-events", {"format": "csv", "schema": "id INT", "clean_source": {"stored": {"env": "PIN"}}}),
            S3EventsSource("csv", "id INT", clean_source={"stored": "/data/schema.json"}),
        ),
        (
            Part("parser", {"function": "tests.spark.job.waiting_parser:wait_for_ever", "schema": "id INT"}),
            ParserSource(wait_for_ever, "id INT"),
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Part) else "",
)
def test_a_source_is_made_with_its_parameters(part: Part, made: Any) -> None:
    assert make_source(part, {"PIN": "/data/schema.json"}) == made


def test_a_sink_is_made_with_its_parameters() -> None:
    part = Part("delta", {"path": "/data", "partition_by": ["day"], "upsert_by": ["id"]})
    assert make_sink(part, {}) == DeltaSink("/data", partition_by=("day",), upsert_by=("id",))


@pytest.mark.parametrize("function", ["no_such_module:parse", "tests.spark.samples:no_such_function"])
def test_a_function_that_cannot_be_found_is_said(function: str) -> None:
    with pytest.raises(SpecError, match="add its directory to PYTHONPATH there"):
        make_source(Part("parser", {"function": function, "schema": "id INT"}), {})


def documented(page: Path) -> dict[str, set[str]]:
    """The parameters in the page's two tables, by kind."""
    found: dict[str, set[str]] = {}
    for kinds, parameters in re.findall(r"^\| (`[^|]*) \| (`[^|]*) \|$", page.read_text(), re.MULTILINE):
        for kind in re.findall(r"`([\w-]+)`", kinds):
            found[kind] = set(re.findall(r"`(\w+)`", parameters))
    return found


def test_the_page_names_the_parameters_of_each_kind() -> None:
    def names(kind: Kind) -> set[str]:
        return {*kind.required, *kind.optional}

    assert documented(PAGE) == {name: names(kind) for name, kind in {**SOURCES, **SINKS}.items()}


@pytest.fixture
def bucket(server: SqsServer, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    s3: Any = boto3.client("s3")
    s3.create_bucket(Bucket=(name := f"jobs-{uuid4().hex}"))
    return name


def test_a_local_file_is_read_where_it_is_and_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "new directory" / "result.json"
    write_text(str(path), "one")
    write_text(f"file://{tmp_path}/new%20directory/result.json", "two")
    assert local_copy(str(path), tmp_path) == path
    assert local_copy(f"file://{tmp_path}/new%20directory/result.json", tmp_path) == path
    assert path.read_text() == "two"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("/nowhere/a.jsonl", "is not there"),
        ("gs://a/b", "neither a path nor"),
        ("s3://bucket", "must be s3://bucket/key"),
    ],
)
def test_input_that_cannot_be_read_is_named(tmp_path: Path, uri: str, said: str) -> None:
    with pytest.raises(WorkspaceError, match=said):
        local_copy(uri, tmp_path)


def test_a_file_in_place_of_a_directory_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkspaceError, match="cannot be written"):
        write_text(str(tmp_path / "file" / "result.json"), "")


@pytest.mark.processes
def test_an_object_is_written_and_read_with_or_without_airflows_connection(bucket: str, tmp_path: Path) -> None:
    write_text(f"s3://aws_default@{bucket}/results/a b.json", "on S3")
    assert local_copy(f"s3://{bucket}/results/a b.json", tmp_path).read_text() == "on S3"


@pytest.mark.processes
def test_calls_to_s3_name_the_package_and_its_version(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    send = URLLib3Session.send

    def record(session: URLLib3Session, request: Any) -> Any:
        seen.append(request.headers["User-Agent"].decode())
        return send(session, request)

    monkeypatch.setattr(URLLib3Session, "send", record)
    write_text(f"s3://{bucket}/result.json", "on S3")
    local_copy(f"s3://{bucket}/result.json", tmp_path)
    assert len(seen) >= 2
    assert {f"sqs-lease/{sqs_lease.__version__}" in header.split(" ") for header in seen} == {True}


@pytest.mark.processes
def test_an_object_that_is_not_there_is_said(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match=f"s3://{bucket}/a cannot be read: .*404"):
        local_copy(f"s3://{bucket}/a", tmp_path)


def test_a_batch_of_several_manifests_is_stored_as_one_and_rejects_what_one_manifest_would(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "driver_session", lambda **_: nullcontext(spark))
    monkeypatch.setattr(Termination, "install", lambda self: None)
    batches = [
        [*good([1]), message("half", '{"id": 2, "name": "\ud800"}'), *good([3])],
        [*good([4]), message("no JSON", "{'id': 5}"), *good([1], receive_count=2)],
    ]
    arguments = []
    for number, batch in enumerate(batches):
        manifest = tmp_path / f"{number}.parquet"
        write_manifest(manifest, batch_id=str(number), queue_url="orders", messages=batch)
        arguments += ["--manifest", str(manifest)]
    spec = {
        "version": 1,
        "source": {"kind": "json", "schema": SCHEMA},
        "sink": {"kind": "delta", "path": str(tmp_path / "table")},
        "workspace": str(tmp_path / "workspace"),
    }
    assert job.main([*arguments, "--result", str(tmp_path / "result.json"), "--spec", json.dumps(spec)]) == 0

    assert sorted(DeltaTable(tmp_path / "table").to_pyarrow_table()["id"].to_pylist()) == [1, 3, 4]
    result = StoredResult.decode((tmp_path / "result.json").read_text())
    assert (result.received, result.duplicates, result.ingested, result.rejected) == (6, 1, 3, 2)
    reasons = {failure["itemIdentifier"]: failure["reason"] for failure in result.batchItemFailures}
    assert reasons["half"] == "not text: half a surrogate pair"
    assert reasons["no JSON"].startswith("not valid JSON")
