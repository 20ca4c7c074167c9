"""The YAML and the code of docs/dagster-spark.md, on a real Spark; the clusters have a client in their place."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from types import ModuleType
from typing import Any
from uuid import uuid4

import dagster as dg
import psutil
import pytest
import yaml  # type: ignore[import-untyped]
from dagster._core.errors import DagsterExecutionInterruptedError
from deltalake import DeltaTable
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from demo.processes import ROOT
from demo.sqs_server import SqsServer
from sqs_lease.dagster import SqsIngestionComponent, ingest_by_job
from sqs_lease.testing import LeasedQueue, LeasedQueues
from tests.dagster.test_spark_ingestion import reporting
from tests.form import in_full_form
from tests.ingesting.job_program import JobProgram

# Some start Spark, which a busy machine takes minutes for.
pytestmark = pytest.mark.timeout(600)

PAGE = (ROOT / "docs" / "dagster-spark.md").read_text()
(YAML,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
GOOD = ['{"order_id": 1, "total": 9.5}', '{"order_id": 2, "total": 1.5}']
WAITING_SOURCE = {
    "kind": "parser",
    "function": "tests.spark.job.waiting_parser:wait_for_ever",
    "schema": "order_id BIGINT NOT NULL, total DOUBLE",
}
BAD = '{"order_id": "none"}'


def code(containing: str) -> str:
    """The one block of the page that has some text in it."""
    (block,) = (block for block in BLOCKS if containing in block)
    return str(block)


def in_directory(text: str, directory: Path) -> str:
    """What the page says for a directory of the test's, and without waiting for messages that do not come."""
    return re.sub(r"\blinger=\d+", "linger=1", text.replace("/data/", f"{directory}/"))


def stored(directory: Path) -> list[int]:
    return sorted(DeltaTable(directory / "orders").to_pyarrow_table()["order_id"].to_pylist())


def declared(directory: Path, changes: Mapping[str, Any]) -> dg.Definitions:
    """The definitions of the page's YAML."""
    attributes = {**yaml.safe_load(in_directory(YAML, directory))["attributes"], **changes}
    component = SqsIngestionComponent.resolve_from_dict(attributes)
    made: dg.Definitions = component.build_defs(dg.ComponentTree.for_test().load_context)
    return made


def materialize(definitions: dg.Definitions) -> dg.ExecuteInProcessResult:
    return definitions.resolve_implicit_global_asset_job_def().execute_in_process()


@pytest.fixture
def orders(leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch) -> LeasedQueue:
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    return leased_queues.create("orders", *GOOD, BAD)


@pytest.mark.processes
@in_full_form
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
    assert (numbers["ingestion/rows"], numbers["ingestion/rejected"], numbers["sqs/deleted"]) == (2, 1, 2)
    assert isinstance(numbers["ingestion/table_version"], int)


def test_the_yaml_says_what_the_page_says_of_it(orders: LeasedQueue, tmp_path: Path) -> None:
    attributes = yaml.safe_load(YAML)["attributes"]
    assert not list(Draft202012Validator(SqsIngestionComponent.model().model_json_schema()).iter_errors(attributes))
    made = declared(tmp_path, {})
    sensor = made.get_sensor_def("orders_backlog")
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    keys = {key.name for key in made.resolve_asset_graph().asset_check_keys}
    assert keys == {"sqs_lease", "sqs_backlog"}


def queue_with_orders(server: SqsServer, visibility_seconds: int) -> str:
    sqs = server.sqs_client()
    queue = sqs.create_queue(QueueName=f"orders-{uuid4()}", Attributes={"VisibilityTimeout": str(visibility_seconds)})[
        "QueueUrl"
    ]
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


@pytest.mark.processes
@in_full_form
def test_the_job_of_a_step_that_is_killed_ends_by_itself_and_stores_nothing(server: SqsServer, tmp_path: Path) -> None:
    queue = queue_with_orders(server, visibility_seconds=12)
    block = in_directory(code("ingest_by_job(\n"), tmp_path)
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


@pytest.mark.processes
@in_full_form
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
    assert (numbers["ingestion/ingested"], numbers["ingestion/rejected"], numbers["sqs/released"]) == (2, 1, 1)
    assert stored(tmp_path) == [1, 2]
    (back,) = server.sqs_client().receive_message(QueueUrl=queue, WaitTimeSeconds=5)["Messages"]
    assert back["Body"] == BAD


def run_block(containing: str, directory: Path, **changes: str) -> dict[str, Any]:
    block = in_directory(code(containing), directory)
    for before, after in changes.items():
        block = block.replace(before, after)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(block, "dagster-spark.md", "exec"), names)
    return names


def test_an_asset_ingests_by_a_job(orders: LeasedQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = JobProgram(tmp_path)
    reporting(orders, program)
    monkeypatch.setitem(ingest_by_job.__kwdefaults__ or {}, "python", str(program.path))
    names = run_block("ingest_by_job(\n", tmp_path)
    assert names["defs"].resolve_implicit_global_asset_job_def().execute_in_process().success
    assert program.spec()["workspace"] == f"{tmp_path}/batches"
    assert orders.dead_letters == [BAD]
    assert orders.deleted == 3


class PipesEMRContainersClient(dg.ConfigurableResource):  # type: ignore[type-arg]
    """In place of the client: runs the job's program here, as the cluster would."""

    program_path: str

    def run(self, *, context: Any, start_job_run_params: dict[str, Any]) -> Any:
        driver = start_job_run_params["jobDriver"]["sparkSubmitJobDriver"]
        with dg.open_pipes_session(
            context, dg.PipesTempFileContextInjector(), dg.PipesTempFileMessageReader()
        ) as session:
            subprocess.run(
                [self.program_path, *driver["entryPointArguments"]],
                env={**os.environ, **session.get_bootstrap_env_vars()},
                check=True,
            )
            waited = Event()
            while not session.message_handler.received_closed_message:
                waited.wait(0.02)
        return dg.PipesClientCompletedInvocation(session)


def test_a_pipes_client_gets_the_batch_as_a_file_and_its_report_settles_it(
    orders: LeasedQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = JobProgram(tmp_path)
    reporting(orders, program)
    module: Any = ModuleType("dagster_aws.pipes")
    module.PipesEMRContainersClient = PipesEMRContainersClient
    monkeypatch.setitem(sys.modules, "dagster_aws.pipes", module)
    names = run_block("PipesEMRContainersClient", tmp_path, **{"s3://my-bucket/batches": str(tmp_path / "shared")})
    queue = names["SqsQueueResource"](queue="orders")
    emr = PipesEMRContainersClient(program_path=str(program.path))
    result = dg.materialize([names["orders"]], resources={"orders_queue": queue, "emr": emr})
    assert program.bodies() == [[*GOOD, BAD]]
    assert program.spec() == names["SPEC"]
    assert orders.visible == [BAD]
    assert orders.deleted == 2
    (materialization,) = result.asset_materializations_for_node("orders")
    assert materialization.metadata["ingestion/rejected"].value == 1
    assert materialization.metadata["sqs/deleted"].value == 2
    assert not list((tmp_path / "shared").iterdir())
