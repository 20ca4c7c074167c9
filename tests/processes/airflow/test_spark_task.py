"""Whatever ends an ingestion on real Airflow, its Spark ends with it, nothing is stored, and the messages come back."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from deltalake import DeltaTable

from demo.airflow_stack import AirflowStack, airflow_stack
from demo.processes import ROOT, wait_until
from demo.sqs_server import sqs_server

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

DAGS_FOLDER = Path(__file__).parent / "failover" / "dags_spark"
ENDS = ("worker_killed", "work_marked", "keeper_marked")
SECONDS = 180.0


class Ingestions:
    """Airflow with the ingestions that wait, and their queues."""

    def __init__(self, stack: AirflowStack, sqs: SQSClient, directory: Path) -> None:
        self.stack = stack
        self.sqs = sqs
        self.directory = directory
        self.waiting = directory / "waiting"

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        wait_until(ready, processes=[self.stack.processes["scheduler"]], what=what, deadline_seconds=SECONDS)

    def end(self, how: str, run_id: str, job: psutil.Process) -> None:
        if how == "worker_killed":
            # The task's process; so it can tell neither Airflow nor its job.
            psutil.Process(job.ppid()).kill()
        else:
            task_id = "load" if how == "work_marked" else "orders_keeper"
            self.stack.api.mark_task(how, run_id, task_id, "failed")

    def visible(self, url: str) -> int:
        attributes = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        return int(attributes["ApproximateNumberOfMessages"])


@pytest.fixture(scope="module")
def ingestions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ingestions]:
    home, directory = tmp_path_factory.mktemp("airflow"), tmp_path_factory.mktemp("ingestions")
    with ExitStack() as exits:
        server = exits.enter_context(sqs_server(home))
        environment = {
            "AIRFLOW_CONN_AWS_DEFAULT": server.airflow_connection,
            "INGESTIONS": str(directory),
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "providers"), str(ROOT)]),
            "WAITING_PARSER": str(directory / "waiting"),
        }
        stack = exits.enter_context(airflow_stack(home, DAGS_FOLDER, environment))
        yield Ingestions(stack, server.sqs_client(), directory)


@pytest.mark.parametrize("how", ENDS)
def test_spark_ends_with_its_task_and_the_message_comes_back(ingestions: Ingestions, how: str) -> None:
    stack = ingestions.stack
    ingestions.waiting.unlink(missing_ok=True)
    url = ingestions.sqs.create_queue(QueueName=how)["QueueUrl"]
    ingestions.sqs.send_message(QueueUrl=url, MessageBody="{}")
    stack.wait_for_dag(how)
    run_id = stack.api.trigger(how)
    ingestions.wait(lambda: ingestions.waiting.exists() and bool(ingestions.waiting.read_text()), "parsing by Spark")
    worker = psutil.Process(int(ingestions.waiting.read_text()))
    started = re.search(r"by process (\d+)", stack.api.log(how, run_id, "load"))
    assert started is not None
    job = psutil.Process(int(started[1]))

    ingestions.end(how, run_id, job)

    ingestions.wait(lambda: not job.is_running() and not worker.is_running(), "rid of the job's processes")
    ingestions.wait(lambda: ingestions.visible(url) == 1, "giving the message back")
    assert stack.wait_for_run(how, run_id, SECONDS) == "failed"
    assert {one.task_id: one.state for one in stack.api.task_states(how, run_id)}["load"] == "failed"
    assert DeltaTable(ingestions.directory / how).to_pyarrow_table().num_rows == 0
    assert not list((ingestions.directory / "workspace").rglob("*.parquet"))
