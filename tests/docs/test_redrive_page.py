"""The DAG of docs/redrive.md is one that Airflow takes."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG

from sqs_lease.airflow import SqsMoveMessagesOperator, SqsQueueDepthSensor
from tests.docs.test_examples import ROOT, blocks


def names_of_block(containing: str) -> dict[str, Any]:
    (code,) = (block for block in blocks(ROOT / "docs" / "redrive.md") if containing in block)
    names: dict[str, Any] = {"__name__": "redrive_page"}
    exec(compile(code, "redrive.md", "exec", dont_inherit=True), names)
    return names


def test_the_dag_waits_for_room_and_then_moves_messages_twice() -> None:
    made = names_of_block("@dag(")["orders_redriven"]()
    assert isinstance(made, DAG)
    made.check_cycle()
    assert isinstance(made.get_task("room"), SqsQueueDepthSensor)
    for task_id, upstream in (("unreadable", "room"), ("others", "unreadable")):
        assert isinstance(made.get_task(task_id), SqsMoveMessagesOperator)
        assert made.get_task(task_id).upstream_task_ids == {upstream}


def test_the_sensor_of_a_drained_queue_counts_everything() -> None:
    with DAG("shop", schedule=None):
        drained = names_of_block("drained =")["drained"]
    assert sorted(drained.counts) == ["delayed", "in_flight", "visible"]
