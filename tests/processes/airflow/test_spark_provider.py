"""Airflow's Spark provider as it is: the hook by which the operator submits, and ``@task.pyspark``, both as documented.

The DAGs are those of docs/spark-airflow.md, run by ``dag.test()`` in one process with real leases, on a standalone
cluster; beside them a job fails, and another one is ended.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from airflow.sdk import DAG
from deltalake import DeltaTable

from demo.airflow_stack import migrated_database
from demo.processes import LOOPBACK, ROOT, ServerProcess, start_process
from demo.sqs_server import SqsServer
from sqs_lease.airflow import SqsToSparkOperator, sqs_lease
from tests.airflow.contexts import context_of
from tests.airflow.spark_operator.test_spark_operator import MESSAGES, SPEC, TaskInstance, in_the_background, wait_for
from tests.processes.airflow.test_dag_test import visible
from tests.processes.spark.engines.cluster import standalone_cluster
from tests.scenarios.airflow.test_the_page_of_spark import BLOCKS

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "run_dag_tests.py"
SPARK_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
END_SECONDS = 60
RUN_SECONDS = 400
SUBMITTED, BROKEN, DECORATED = "orders_submitted", "orders_broken", "orders_by_pyspark"
STORING = [SUBMITTED, DECORATED]
DAG_IDS = [*STORING, BROKEN]
BODIES = ('{"order_id": 1, "total": 9.5}', '{"order_id": 2}', '{"order_id": "none"}')
*_, NO_ORDER = BODIES


@dataclass(frozen=True)
class Outcome:
    """The results of the DAGs."""

    directory: Path
    runs: dict[str, dict[str, Any]]
    left: dict[str, list[str]]
    said: str

    def stored(self, dag_id: str) -> list[tuple[int, float | None]]:
        table = DeltaTable(self.directory / dag_id / "orders").to_pyarrow_table()
        return sorted(zip(table["order_id"].to_pylist(), table["total"].to_pylist(), strict=True))

    def files(self, dag_id: str) -> list[Path]:
        """The files in the workspace."""
        return [path for path in (self.directory / dag_id / "batches").rglob("*") if path.is_file()]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster.address


@pytest.fixture(scope="module")
def spark_environment(master: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By which the provider finds ``spark-submit`` and the master, and Spark listens on the loopback address only."""
    settings = tmp_path_factory.mktemp("settings")
    (settings / "spark-defaults.conf").write_text(
        f"spark.driver.host {LOOPBACK}\n"
        f"spark.driver.bindAddress {LOOPBACK}\n"
        "spark.executor.memory 512m\n"
        "spark.sql.shuffle.partitions 1\n"
        "spark.ui.enabled false\n"
    )
    return {
        # The executors of a cluster look for python3 on a PATH of their own.
        "PYSPARK_PYTHON": sys.executable,
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": master}),
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "providers"), str(ROOT)]),
        "SPARK_CONF_DIR": str(settings),
        "SPARK_LOCAL_IP": LOOPBACK,
    }


def as_dag(name: str, directory: Path) -> str:
    """A DAG of the page on a queue and in a directory of its own, without tries that wait for minutes."""
    block: str = BLOCKS[name].replace("/data/", f"{directory}/").replace("retries=2", "retries=0")
    for old, new in {'queue_url="orders"': f'queue_url="{directory.name}"', f"{name}()": f"{directory.name}()"}.items():
        assert old in block
        block = block.replace(old, new)
    return block


@dataclass(frozen=True)
class UnderWay:
    """The DAGs in a process of their own."""

    process: ServerProcess
    sqs: SQSClient
    urls: dict[str, str]

    def outcome(self) -> Outcome:
        self.process.popen.wait(RUN_SECONDS)
        said = self.process.log_path.read_text()
        results = re.findall(r'^{"orders_submitted".*}$', said, re.MULTILINE)
        if not results:
            raise self.process.failure("did not run all DAGs")
        left = {name: visible(self.sqs, url) for name, url in self.urls.items()}
        return Outcome(self.process.log_path.parent, json.loads(results[0]), left, said)


@pytest.fixture(scope="module")
def under_way(
    server: SqsServer, spark_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[UnderWay]:
    home = tmp_path_factory.mktemp("provider")
    shutil.copy(migrated_database(), home / "airflow.db")
    dags = [as_dag(dag_id, home / dag_id) for dag_id in STORING]
    if BROKEN in DAG_IDS:
        dags.append(as_dag(SUBMITTED, home / BROKEN).replace(f'"{home / BROKEN}/orders"', '{"env": "NOT_SET"}'))
    file = home / "dags" / "page.py"
    file.parent.mkdir()
    file.write_text("\n".join(dags))
    sqs = server.sqs_client()
    urls = {name: sqs.create_queue(QueueName=name)["QueueUrl"] for name in DAG_IDS}
    for url in urls.values():
        for body in BODIES:
            sqs.send_message(QueueUrl=url, MessageBody=body)
    process = start_process(
        "dag.test()",
        [sys.executable, SCRIPT, file, *urls],
        log_path=home / "said.log",
        environment={**airflow_environment(home, server), **spark_environment},
        directory=home,
    )
    try:
        yield UnderWay(process, sqs, urls)
    finally:
        process.kill()


@pytest.fixture(scope="module")
def outcome(under_way: UnderWay) -> Outcome:
    return under_way.outcome()


def airflow_environment(home: Path, server: SqsServer) -> dict[str, str]:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "AWS_", "PYSPARK"))
    }
    return {
        **inherited,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_AWS_DEFAULT": server.airflow_connection,
    }


# The first, because the DAGs run meanwhile.
@pytest.mark.usefixtures("under_way")
def test_a_task_that_is_ended_leaves_nothing_of_spark_submit(
    spark_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in spark_environment.items():
        monkeypatch.setenv(name, value)
    waiting = tmp_path / "waiting"
    monkeypatch.setenv("WAITING_PARSER", str(waiting))
    spec: dict[str, Any] = {
        **SPEC,
        "source": {
            "kind": "parser",
            "function": "tests.spark.job.waiting_parser:wait_for_ever",
            "schema": "id BIGINT",
        },
        "sink": {"kind": "delta", "path": str(tmp_path / "table")},
        "workspace": str(tmp_path / "workspace"),
    }
    with DAG("shop", schedule=None), sqs_lease("orders", queue_url="orders") as orders:
        load = SqsToSparkOperator(
            task_id="load",
            messages=orders,
            spec=spec,
            submit_conn_id="spark_default",
            submit_options={"conf": {"spark.executorEnv.WAITING_PARSER": str(waiting)}},
        )
    # Where other tests ran before, the session of theirs is a spark-submit as well.
    others = psutil.Process().children()
    thread, errors = in_the_background(lambda: load.execute(context_of(TaskInstance(MESSAGES))))
    try:
        worker = psutil.Process(wait_for(waiting, thread))
        new = [one for one in psutil.Process().children() if one not in others]
        (submit,) = (one for one in new if SPARK_SUBMIT in command(one))
        started = [submit, *submit.children(recursive=True)]
        assert [one for one in started[1:] if "--manifest" in command(one)], "the driver is among them"
    finally:
        load.on_kill()
    thread.join(END_SECONDS)
    _, alive = psutil.wait_procs([*started, worker], END_SECONDS)
    assert alive == []
    assert "Error code is: -9" in str(errors[0])
    assert DeltaTable(tmp_path / "table").to_pyarrow_table().num_rows == 0
    assert not [*(tmp_path / "workspace" / "manifests").iterdir(), *(tmp_path / "workspace" / "results").iterdir()]


@pytest.mark.parametrize("dag_id", STORING)
def test_a_batch_is_in_the_table_once_and_other_messages_come_again(outcome: Outcome, dag_id: str) -> None:
    assert outcome.runs[dag_id]["tasks"]["store"] == "success", outcome.said
    assert outcome.stored(dag_id) == [(1, 9.5), (2, None)]
    assert outcome.left[dag_id] == [NO_ORDER]
    assert outcome.files(dag_id) == []


def test_the_log_has_what_became_of_the_messages(outcome: Outcome) -> None:
    assert "3 messages: 2 ingested (2 rows), 0 empty, 0 duplicates, 1 rejected" in outcome.said


def test_the_tasks_of_spark_find_this_package(outcome: Outcome) -> None:
    assert "install sqs-lease[spark-cluster] on them" not in outcome.said


def test_a_submitted_job_that_fails_fails_its_task_by_its_own_error_and_gives_the_messages_back(
    outcome: Outcome,
) -> None:
    assert outcome.runs[BROKEN]["tasks"]["store"] == "failed"
    error = "the spec needs the environment variable NOT_SET, and it is not set where the job runs"
    assert re.search(rf"AirflowException.*{error}", outcome.said), outcome.said
    assert outcome.left[BROKEN] == sorted(BODIES)
    assert outcome.files(BROKEN) == []


def command(process: psutil.Process) -> list[str]:
    return [] if process.status() == psutil.STATUS_ZOMBIE else process.cmdline()
