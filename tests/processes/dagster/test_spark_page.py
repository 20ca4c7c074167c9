"""The YAML and the code of docs/dagster-spark.md, on a real Spark."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import psutil
import pytest
from dagster._core.errors import DagsterExecutionInterruptedError

from demo.processes import ROOT
from demo.sqs_server import SqsServer
from sqs_lease.testing import LeasedQueue
from tests.processes.dagster.queues import create_queue
from tests.scenarios.dagster.test_the_page_of_spark import (
    BAD,
    GOOD,
    code,
    declared,
    in_directory,
    materialize,
    orders,
    stored,
)

__all__ = ["orders"]

# A busy machine takes minutes to start Spark.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

WAITING_SOURCE = {
    "kind": "parser",
    "function": "tests.spark.job.waiting_parser:wait_for_ever",
    "schema": "order_id BIGINT NOT NULL, total DOUBLE",
}


def test_an_interrupted_materialization_stores_nothing_and_the_next_one_all_of_it_once(
    orders: LeasedQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = tmp_path / "waiting"
    monkeypatch.setenv("WAITING_PARSER", str(waiting))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "providers"), str(ROOT)]))
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    lease = {"max_messages": 2000, "wait_seconds": 0, "linger_seconds": 0}
    over = Event()
    held: list[str] = []

    def interrupt() -> None:
        while not (waiting.exists() and waiting.read_text()):
            if over.wait(0.05):
                return
        held.extend(orders.invisible)
        os.kill(os.getpid(), signal.SIGINT)

    thread = Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises((KeyboardInterrupt, DagsterExecutionInterruptedError)):
            materialize(declared(tmp_path, {"source": WAITING_SOURCE, "lease": lease, "retries": None}))
    finally:
        over.set()
        thread.join()
    assert len(held) == 3
    psutil.wait_procs([psutil.Process(pid) for pid in [int(waiting.read_text())] if psutil.pid_exists(pid)], 30)
    assert not psutil.pid_exists(int(waiting.read_text())), "the worker of Spark is gone"
    assert len(orders.visible) == 3
    assert stored(tmp_path) == []

    result = materialize(declared(tmp_path, {"lease": {**lease, "on_failure": "dead_letter"}}))
    assert stored(tmp_path) == [1, 2]
    assert orders.dead_letters == [BAD]
    assert not orders.visible
    (materialization,) = result.asset_materializations_for_node("orders")
    numbers = {name: value.value for name, value in materialization.metadata.items()}
    assert (numbers["ingestion/rows"], numbers["ingestion/rejected"], numbers["sqs/received"]) == (2, 1, 3)
    assert isinstance(numbers["ingestion/table_version"], int)


def queue_with_orders(server: SqsServer, visibility_seconds: int) -> str:
    sqs = server.sqs_client()
    queue = create_queue(sqs, visibility_seconds)
    for body in [*GOOD, BAD]:
        sqs.send_message(QueueUrl=queue, MessageBody=body)
    return queue


def environment_of_a_step(server: SqsServer, queue: str, directory: Path) -> dict[str, str]:
    return {
        **os.environ,
        **server.environment,
        "ORDERS_QUEUE": queue,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "providers"), str(ROOT)]),
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
        "WAITING_PARSER": str(directory / "waiting"),
    }


def test_the_job_of_a_step_that_is_killed_ends_by_itself_and_stores_nothing(server: SqsServer, tmp_path: Path) -> None:
    queue = queue_with_orders(server, visibility_seconds=12)
    block = in_directory(code("ingest_with_spark(\n"), tmp_path)
    json_source = '{"kind": "json", "schema": "order_id BIGINT NOT NULL, total DOUBLE"}'
    assert json_source in block
    script = block.replace(json_source, json.dumps(WAITING_SOURCE))
    file = tmp_path / "definitions.py"
    file.write_text(f"{script}\ndefs.resolve_implicit_global_asset_job_def().execute_in_process()\n")
    waiting = tmp_path / "waiting"
    with (tmp_path / "log").open("wb") as log:
        step = subprocess.Popen(
            [sys.executable, file], env=environment_of_a_step(server, queue, tmp_path), stdout=log, stderr=log
        )
        try:
            while not (waiting.exists() and waiting.read_text()):
                with suppress(subprocess.TimeoutExpired):
                    step.wait(0.05)
                    pytest.fail((tmp_path / "log").read_text())
            below = psutil.Process(step.pid).children(recursive=True)
        finally:
            step.kill()
            step.wait()
    assert len(below) >= 3, "the job, Java, and a worker of Spark"
    assert psutil.wait_procs(below, timeout=180)[1] == []
    assert stored(tmp_path) == []
    assert not [path for path in (tmp_path / "batches").rglob("*") if path.is_file()]
    back: set[str] = set()
    sqs = server.sqs_client()
    while len(back) < 3:
        # They come back when the last extension of the killed step ends.
        answer = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=20, VisibilityTimeout=600)
        back |= {message["Body"] for message in answer.get("Messages", [])}
    assert back == {*GOOD, BAD}


def test_an_asset_ingests_in_its_own_process(server: SqsServer, tmp_path: Path) -> None:
    queue = queue_with_orders(server, visibility_seconds=600)
    block = in_directory(code("import DeltaSink, JsonSource, ingest, local_session"), tmp_path)
    script = (
        f"{block}\nimport json\nresult = defs.resolve_implicit_global_asset_job_def().execute_in_process()\n"
        "(made,) = result.asset_materializations_for_node('orders')\n"
        "print(json.dumps({name: value.value for name, value in made.metadata.items()}))"
    )
    # In a process of its own, as it starts a Spark session and a process can have only one.
    file = tmp_path / "definitions.py"
    file.write_text(script)
    ended = subprocess.run(
        [sys.executable, file],
        env=environment_of_a_step(server, queue, tmp_path),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    numbers = json.loads(ended.stdout.splitlines()[-1])
    assert (numbers["ingestion/ingested"], numbers["ingestion/rejected"], numbers["sqs/failed"]) == (2, 1, 1)
    assert stored(tmp_path) == [1, 2]
    (back,) = server.sqs_client().receive_message(QueueUrl=queue, WaitTimeSeconds=5)["Messages"]
    assert back["Body"] == BAD
