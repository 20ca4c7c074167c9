"""The Python code in README.md and docs/ does what the text around it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import pytest

from demo.sqs_server import SqsServer

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text())


def readme_code(containing: str) -> str:
    """The one block of the README that has some text in it."""
    (code,) = (block for block in blocks(ROOT / "README.md") if containing in block)
    return code


def readme_names(containing: str) -> dict[str, Any]:
    """Run that block, and return the names it defines."""
    names: dict[str, Any] = {"__name__": "readme"}
    # Without the postponed annotations of this module: Dagster reads them.
    exec(compile(readme_code(containing), "README.md", "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_every_block_compiles(page: Path) -> None:
    for block in blocks(page):
        compile(block, str(page), "exec")


def test_the_dag_has_the_sensor_the_work_and_the_keeper_as_its_teardown() -> None:
    from airflow.sdk import DAG

    names = readme_names("@dag(")
    made = names["orders"]()
    assert isinstance(made, DAG)
    assert set(made.task_dict) == {"orders", "check", "orders_keeper"}
    keeper = made.get_task("orders_keeper")
    assert keeper.is_teardown
    assert keeper.upstream_task_ids == {"orders"}


@pytest.mark.processes
def test_the_dagster_asset_deletes_what_it_worked_on_and_its_sensor_asks_for_a_run(
    server: SqsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dagster as dg

    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    sqs = boto3.client("sqs")
    queue = sqs.create_queue(QueueName=f"orders-{uuid4()}")["QueueUrl"]
    monkeypatch.setenv("ORDERS_QUEUE", queue)
    defs = readme_names("build_sqs_backlog_sensor(")["defs"]
    sqs.send_message(QueueUrl=queue, MessageBody="an order")
    with dg.instance_for_test() as instance:
        asked = defs.get_sensor_def("orders_backlog").evaluate_tick(dg.build_sensor_context(instance, definitions=defs))
        assert len(asked.run_requests) == 1
        result = defs.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)
    (materialization,) = result.asset_materializations_for_node("orders")
    assert materialization.metadata["sqs/received"].value == 1
    left = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert int(left["ApproximateNumberOfMessages"]) + int(left["ApproximateNumberOfMessagesNotVisible"]) == 0


@pytest.mark.processes
def test_the_block_without_an_orchestrator_deletes_what_it_handled(
    server: SqsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    sqs = boto3.client("sqs")
    queue = sqs.create_queue(QueueName=f"orders-{uuid4()}", Attributes={"VisibilityTimeout": "300"})["QueueUrl"]
    sqs.send_message(QueueUrl=queue, MessageBody="an order")
    handled: list[str] = []
    readme_names("with lease(")["work_through"](queue, handled.append)
    assert handled == ["an order"]
    # Neither visible nor in flight: it is gone.
    counts = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert (counts["ApproximateNumberOfMessages"], counts["ApproximateNumberOfMessagesNotVisible"]) == ("0", "0")
