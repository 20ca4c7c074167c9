"""A task of Spark's imports what it needs: Spark starts Python workers for each new session, and a part is small."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.cloudpickle import dumps
from pyspark.sql.classic.dataframe import DataFrame

from sqs_lease.spark import DeltaSink, JsonSource, ParquetSink, Sink
from tests.spark.samples import Place, message

pytestmark = pytest.mark.processes

TYPES = JsonSource(
    "id BIGINT NOT NULL, name STRING, at TIMESTAMP, day DATE, price DECIMAL(9,2), tags ARRAY<STRING>, "
    "plane STRUCT<model: STRING, seats: INT, weight: DOUBLE>"
)
GOOD = json.dumps(
    {
        "id": 1,
        "name": "one",
        "at": "2026-01-01T00:00:00",
        "day": "2026-01-01",
        "price": 1.5,
        "tags": ["a", "b"],
        "plane": {"model": "A320", "seats": 100, "weight": 1.5},
    }
)

# Says how many files the task wrote, and what it imported beside what Spark's worker has and pyarrow itself.
WORKER = """
import json, pickle, sys
import pyspark.worker
import pyarrow as pa

before = set(sys.modules)
with open(sys.argv[1], "rb") as file:
    function = pickle.load(file)
answers = list(function(pa.ipc.open_stream(sys.argv[2])))
print(json.dumps([sum(answer.num_rows for answer in answers), sorted(set(sys.modules) - before)]))
"""


def delta(place: Place) -> Sink:
    return DeltaSink(place.table)


def partitioned_delta(place: Place) -> Sink:
    return DeltaSink(place.table, partition_by=["name"])


def parquet(place: Place) -> Sink:
    return ParquetSink(place.table)


@pytest.mark.parametrize(
    ("sink", "bodies"),
    [(delta, [GOOD]), (partitioned_delta, [GOOD]), (parquet, [GOOD]), (delta, [GOOD, "no JSON"])],
    ids=["Delta", "Delta in partitions", "Parquet", "a bad message"],
)
def test_a_task_imports_arrow_and_the_parser_and_no_more(
    place: Place, monkeypatch: pytest.MonkeyPatch, sink: Callable[[Place], Sink], bodies: list[str]
) -> None:
    imported = imported_by_tasks(place, monkeypatch, sink(place), bodies)

    assert "sqs_lease.spark.sources.arrow_json" in imported
    packages = {name.partition(".")[0] for name in imported}
    assert not packages & {"pandas", "deltalake", "asyncio", "botocore", "boto3", "urllib3", "psycopg"}
    assert "sqs_lease.keeper" not in imported
    sinks = {name for name in imported if name.startswith("sqs_lease.spark.sinks.") and name.endswith("sink")}
    assert sinks <= {"sqs_lease.spark.sinks.sink"}, "what sinks have in common"


def imported_by_tasks(place: Place, monkeypatch: pytest.MonkeyPatch, sink: Sink, bodies: list[str]) -> list[str]:
    """Ingest messages, and run what Spark ships to its workers in a fresh one: the modules that it imports there."""
    ran: list[list[str]] = []
    ship = DataFrame.mapInArrow

    def run_once_more(rows: DataFrame, function: Any, schema: Any, **options: Any) -> Any:
        ran.append(imported_by(function, rows.toArrow(), place.root))
        return ship(rows, function, schema, **options)

    monkeypatch.setattr(DataFrame, "mapInArrow", run_once_more)
    messages = [message(f"m{number}", body) for number, body in enumerate(bodies)]
    result = place.ingest(messages, source=TYPES, sink=sink)
    assert (result.ingested, len(result.rejected)) == (1, len(bodies) - 1)
    (imported,) = ran
    return imported


def imported_by(function: Any, given: pa.Table, directory: Path) -> list[str]:
    shipped, rows = directory / "shipped", directory / "rows"
    shipped.write_bytes(dumps(function))  # type: ignore[no-untyped-call]
    with pa.ipc.new_stream(str(rows), given.schema) as stream:
        stream.write_table(given)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WORKER, str(shipped), str(rows)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answers, imported = json.loads(done.stdout)
    assert answers >= 1
    return list(imported)
