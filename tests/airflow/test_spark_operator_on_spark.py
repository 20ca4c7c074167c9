"""The task that ends takes a real job on a real local Spark with it, and the page about it has DAGs that are whole."""

from __future__ import annotations

import re
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException
from deltalake import DeltaTable

from demo.processes import ROOT
from sqs_lease.airflow import SqsLeaseKeeperOperator, SqsToSparkOperator, sqs_lease
from tests.airflow.test_spark_operator import TaskInstance

BLOCKS = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs" / "spark-airflow.md").read_text(), re.MULTILINE | re.DOTALL
)
MESSAGE = {"MessageId": "m1", "Body": "{}", "Attributes": {}, "MessageAttributes": {}}


@pytest.mark.processes
def test_a_task_that_is_ended_takes_its_spark_with_it_and_stores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = tmp_path / "waiting"
    monkeypatch.setenv("WAITING_PARSER", str(waiting))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'providers'}:{ROOT}")
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    function = "tests.spark.job.waiting_parser:wait_for_ever"
    with DAG("shop", schedule=None), sqs_lease("orders", queue_url="orders") as orders:
        load = SqsToSparkOperator(
            task_id="load",
            messages=orders,
            spark="local[1]",
            spec={
                "version": 1,
                "source": {"kind": "parser", "function": function, "schema": "id BIGINT"},
                "sink": {"kind": "delta", "path": str(tmp_path / "table")},
                "workspace": str(tmp_path / "workspace"),
            },
        )
    errors: list[AirflowException] = []

    def run() -> None:
        try:
            load.execute({"ti": TaskInstance([MESSAGE])})
        except AirflowException as error:
            errors.append(error)

    task = Thread(target=run)
    task.start()
    while not (waiting.exists() and waiting.read_text()):
        assert task.is_alive()
        task.join(0.05)
    worker = psutil.Process(int(waiting.read_text()))
    load.on_kill()
    task.join(30)
    worker.wait(30)
    assert [re.sub(r"\d+", "N", str(error)) for error in errors] == [
        "the ingestion ended with exit code N: see the log above"
    ]
    assert DeltaTable(tmp_path / "table").to_pyarrow_table().num_rows == 0
    assert not list((tmp_path / "workspace").rglob("*.parquet"))


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: re.findall(r"def (\w+)\(\)", block)[0])
def test_each_dag_of_the_page_is_whole(block: str) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(block, "spark-airflow.md", "exec"), names)
    (function,) = re.findall(r"^def (\w+)\(\)", block, re.MULTILINE)
    dag = names[function]()
    keeper = dag.task_dict["orders_keeper"]
    assert isinstance(keeper, SqsLeaseKeeperOperator)
    assert keeper.work_task_ids == ["store"]
    assert dag.task_dict["store"].upstream_task_ids == {"orders"}
