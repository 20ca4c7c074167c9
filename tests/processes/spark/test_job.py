"""The job as a process on a real local Spark: what it leaves, how it ends, and that it stops when it is told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from deltalake import DeltaTable

from demo.processes import ROOT
from sqs_lease.batch_files.manifest import write_manifest
from sqs_lease.ingestion.result import StoredResult
from tests.spark.samples import good, message

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

JOB = ROOT / "providers" / "sqs_lease" / "spark" / "job" / "__main__.py"
START_SECONDS = 300.0


class Place:
    """A directory with a manifest, a table and results."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifest = root / "messages.parquet"
        self.waiting = root / "waiting"
        messages = [*good(range(3)), message("bad", '{"id": "no number"}')]
        write_manifest(self.manifest, batch_id="b", queue_url="orders", messages=messages)
        self.spec: dict[str, Any] = {
            "version": 1,
            "source": {"kind": "json", "schema": "id BIGINT NOT NULL, name STRING"},
            "sink": {"kind": "delta", "path": {"env": "ORDERS_TABLE"}},
            "workspace": str(root / "workspace"),
            "spark_conf": {"spark.sql.shuffle.partitions": 1},
        }

    @property
    def environment(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            "PYTHONPATH": os.pathsep.join([str(ROOT / "providers"), str(ROOT)]),
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
            "ORDERS_TABLE": str(self.root / "table"),
            "WAITING_PARSER": str(self.waiting),
        }

    def arguments(self, result: str = "result.json", **changes: Any) -> list[str]:
        spec = json.dumps({**self.spec, **changes})
        return ["--manifest", str(self.manifest), "--result", str(self.root / result), "--spec", spec]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "sqs_lease.spark.job", "--master", "local[1]", *arguments],
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(self, name: str = "result.json") -> StoredResult:
        return StoredResult.decode((self.root / name).read_text())

    def stored(self) -> list[int]:
        return sorted(DeltaTable(self.root / "table").to_pyarrow_table()["id"].to_pylist())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def waiting(place: Place) -> Iterator[subprocess.Popen[str]]:
    """A job whose Spark task waits for ever."""
    source = {"kind": "parser", "function": "tests.spark.job.waiting_parser:wait_for_ever", "schema": "id BIGINT"}
    process = place.start(*place.arguments(source=source))
    try:
        until(lambda: place.waiting.exists() and bool(place.waiting.read_text()), process)
        yield process
    finally:
        process.kill()
        process.communicate()


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not condition():
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(process.communicate()[1])


def test_a_batch_is_stored_and_submitted_again_it_is_found(place: Place) -> None:
    process = place.start(*place.arguments())
    _, said = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 0, said
    assert place.stored() == [0, 1, 2]
    first = place.result()
    assert (first.received, first.ingested, first.rejected, first.rows) == (4, 3, 1, 3)
    (failure,) = first.batchItemFailures
    assert failure["itemIdentifier"] == "bad"
    assert "id" in failure["reason"]

    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    again = subprocess.run(
        [submit, "--master", "local[1]", JOB, *place.arguments("again.json")],
        env={**place.environment, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    assert place.stored() == [0, 1, 2]
    second = place.result("again.json")
    assert (second.batch_id, second.ingested, second.rows) == (first.batch_id, 3, 0)
    assert second.batchItemFailures == first.batchItemFailures


def test_a_job_that_is_to_end_cancels_its_spark_jobs_and_stores_nothing(
    place: Place, waiting: subprocess.Popen[str]
) -> None:
    worker = psutil.Process(int(place.waiting.read_text()))
    waiting.send_signal(signal.SIGTERM)
    _, said = waiting.communicate(timeout=60)
    assert waiting.returncode == 143, said
    assert "the Spark jobs of this ingestion are cancelled" in said
    assert DeltaTable(place.root / "table").to_pyarrow_table().num_rows == 0
    assert not list((place.root / "workspace").rglob("*.parquet"))
    assert not (place.root / "result.json").exists()
    worker.wait(60)


def test_the_text_of_a_parsers_error_is_not_repeated(place: Place) -> None:
    write_manifest(place.manifest, batch_id="b", queue_url="orders", messages=[message("m1", "a secret")])
    source = {"kind": "parser", "function": "tests.spark.job.careless_parser:quote", "schema": "id BIGINT"}
    # Spark's own log has the whole text.
    process = place.start(*place.arguments(source=source, spark_conf={"spark.log.level": "OFF"}))
    _, said = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 1, said
    raised = "ValueError at careless_parser.py:9, in quote: what is this: … … (raised in a Python worker of Spark)"
    assert said.splitlines()[-1] == f"error: {raised}"
    assert "ERROR the job failed: PythonException at" in said
    assert "in ingest" in said
    assert "a secret" not in said


def test_an_error_is_one_line_and_comes_before_spark_is_started(place: Place) -> None:
    place.manifest.write_bytes(b"no manifest")
    process = place.start(*place.arguments(sink={"kind": "delta", "path": {"env": "NOT_SET"}}))
    _, said = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 1
    assert said.splitlines() == [
        "error: the spec needs the environment variable NOT_SET, and it is not set where the job runs"
    ]
