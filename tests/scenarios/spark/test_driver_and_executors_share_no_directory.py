"""Where driver and executors share no directory, the driver sends the messages, and the same becomes of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sqs_lease.batch_files.manifest import write_manifest
from sqs_lease.spark import AttributeColumns, DeltaSink, JsonSource, ingest, ingestion, local_session
from sqs_lease.spark.batch_file import BatchFile, written_batch
from sqs_lease.spark.session import session_settings
from sqs_lease.spark.sources.whole_bodies import TextChecker
from tests.spark.samples import SCHEMA, good, message, rows

pytestmark = pytest.mark.processes

MESSAGES = [
    *good(range(3)),
    message("m2", '{"id": 22}', receive_count=2),
    message("no JSON", "{"),
    message("no number", '{"id": "x"}'),
    message("repeat", '{"id": 1}'),
]


@pytest.fixture
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process has its temporary files."""
    directory = tmp_path / "own"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


@pytest.fixture
def tasks_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks of a session are taken to run on other machines."""
    monkeypatch.setattr(ingestion, "runs_tasks_here", lambda _: False)


def files_in(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


@pytest.mark.usefixtures("tasks_elsewhere")
@pytest.mark.parametrize("by_manifest", [False, True], ids=["messages", "a manifest"])
def test_the_same_is_stored_and_the_same_rejected(
    spark: SparkSession, tmp_path: Path, own_directory: Path, by_manifest: bool
) -> None:
    given: Any = MESSAGES
    if by_manifest:
        given = tmp_path / "manifest.parquet"
        write_manifest(given, batch_id="b", queue_url="q", messages=MESSAGES)
    source = AttributeColumns(JsonSource(SCHEMA, dedupe_by=["id"]), "ApproximateReceiveCount INT")

    def stored(name: str, workspace: Path | None) -> tuple[Any, ...]:
        table, rejects = tmp_path / name, tmp_path / f"{name}-rejects"
        # Times do not depend on the zone of the session.
        with session_settings(spark, {"spark.sql.session.timeZone": "Asia/Tokyo"}):
            result = ingest(
                spark, given, source=source, sink=DeltaSink(table), rejects=DeltaSink(rejects), workspace=workspace
            )
        return result, rows(table), rows(rejects)

    of_driver = stored("of-driver", None)
    result, of_table, of_rejects = of_driver

    assert (result.ingested, result.duplicates, set(result.rejected)) == (3, 2, {"no JSON", "no number"})
    assert [row["id"] for row in of_table] == [0, 1, 22]
    assert {row["body"] for row in of_rejects} == {"{", '{"id": "x"}'}
    assert of_driver == stored("shared", tmp_path / "work")
    assert files_in(own_directory) == []


def test_spark_reads_no_file(spark: SparkSession, own_directory: Path) -> None:
    with written_batch(good(range(3)), workspace=None, checker=TextChecker()) as batch:
        assert batch is not None
        messages = batch.accepted(spark)
        kept = batch.only(messages, batch.messages["message_id"].slice(0, 2))
        assert (messages.inputFiles(), kept.inputFiles()) == ([], [])
        assert (messages.count(), kept.count()) == (3, 2)


def test_a_first_ingestion_needs_only_messages_source_and_sink(
    spark: SparkSession, tmp_path: Path, own_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    @contextmanager
    def observed(*arguments: Any, **options: Any) -> Iterator[BatchFile | None]:
        with written_batch(*arguments, **options) as batch:
            assert batch is not None
            # The tasks of a local session read the file, which only this user can.
            seen.append((batch.is_shared, batch.path.parent.parent, batch.path.parent.stat().st_mode & 0o777))
            yield batch

    monkeypatch.setattr(ingestion, "written_batch", observed)

    result = ingest(spark, good(range(3)), source=JsonSource(SCHEMA), sink=DeltaSink(tmp_path / "orders"))

    assert result.ingested == 3
    assert seen == [(True, own_directory, 0o700)]
    assert files_in(own_directory) == []


def test_a_session_that_was_not_entered_is_named(tmp_path: Path) -> None:
    session: Any = local_session()
    with pytest.raises(TypeError, match=r"spark is not a session.*with local_session\(\) as spark: ingest\(spark"):
        ingest(session, good([1]), source=JsonSource(SCHEMA), sink=DeltaSink(tmp_path / "orders"))
