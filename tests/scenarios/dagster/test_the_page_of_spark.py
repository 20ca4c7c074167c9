"""The YAML and the code of docs/dagster-spark.md; jobs and clusters have a program in their place."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import Any

import dagster as dg
import pytest
import yaml  # type: ignore[import-untyped]
from dagster._core.pipes.client import PipesClientCompletedInvocation
from deltalake import DeltaTable
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from demo.processes import ROOT
from sqs_lease.dagster import SqsIngestionComponent, ingest_with_spark
from sqs_lease.testing import LeasedQueue, LeasedQueues
from tests.dagster.spark.test_job import BY_PIPES, reporting
from tests.ingestion.job_program import JobProgram

PAGE = (ROOT / "docs" / "dagster-spark.md").read_text()
(YAML,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
GOOD = ['{"order_id": 1, "total": 9.5}', '{"order_id": 2, "total": 1.5}']
BAD = '{"order_id": "none"}'


def code(containing: str) -> str:
    """The one block of the page that has some text in it."""
    (block,) = (block for block in BLOCKS if containing in block)
    return str(block)


def in_directory(text: str, directory: Path) -> str:
    """Adapt the page's text to a directory of the test's, without waiting for messages that do not come."""
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


def test_the_yaml_says_what_the_page_says_of_it(orders: LeasedQueue, tmp_path: Path) -> None:
    attributes = yaml.safe_load(YAML)["attributes"]
    assert not list(Draft202012Validator(SqsIngestionComponent.model().model_json_schema()).iter_errors(attributes))
    made = declared(tmp_path, {})
    sensor = made.get_sensor_def("orders_backlog")
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    keys = {key.name for key in made.resolve_asset_graph().asset_check_keys}
    assert keys == {"sqs_lease", "sqs_backlog"}


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
    monkeypatch.setitem(ingest_with_spark.__kwdefaults__ or {}, "python", str(program.path))
    names = run_block("ingest_with_spark(\n", tmp_path)
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
        return PipesClientCompletedInvocation(session)


def test_a_pipes_client_gets_the_batch_as_a_file_and_its_report_settles_it(
    orders: LeasedQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = JobProgram(tmp_path)
    reporting(orders, program, leaves=BY_PIPES)
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
    assert not list((tmp_path / "shared").iterdir())
