"""The page about migrating from `SqsSensor`: its DAGs parse, and it leaves out no option of the installed version."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.amazon.aws.sensors.sqs import SqsSensor
from airflow.providers.amazon.aws.triggers.sqs import SqsSensorTrigger
from airflow.sdk import DAG

from sqs_lease.airflow import SqsLeaseKeeperOperator, SqsLeaseSensor

PAGE = (Path(__file__).parents[3] / "docs" / "migration.md").read_text()
BEFORE, AFTER = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def dag_of(code: str) -> DAG:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "migration.md", "exec"), names)
    made = names["orders"]()
    assert isinstance(made, DAG)
    return made


def test_the_dag_from_which_one_migrates_is_one() -> None:
    assert isinstance(dag_of(BEFORE).task_dict["wait"], SqsSensor)


def test_the_migrated_dag_has_the_same_tasks_and_a_keeper() -> None:
    dag = dag_of(AFTER)
    assert set(dag.task_dict) == {*dag_of(BEFORE).task_dict, "wait_keeper"}
    assert isinstance(dag.task_dict["wait"], SqsLeaseSensor)
    assert isinstance(dag.task_dict["wait_keeper"], SqsLeaseKeeperOperator)
    assert dag.task_dict["load"].upstream_task_ids == {"wait"}


def test_five_lines_are_changed() -> None:
    assert re.findall(r"# (\d): ", AFTER) == ["1", "2", "3", "4", "5"]


def options(kind: type) -> set[str]:
    return set(inspect.signature(kind.__init__).parameters) - {"self", "args", "kwargs"}  # type: ignore[misc]


@pytest.mark.parametrize("option", sorted(options(SqsSensor) | options(SqsSensorTrigger) - {"waiter_delay"}))
def test_every_option_of_the_stock_sensor_and_trigger_has_its_place(option: str) -> None:
    table = PAGE[PAGE.index("## Options") : PAGE.index("## Changes")]
    assert f"`{option}`" in table or f"`{option}=" in table


def test_fields_that_are_templated_there_are_templated_here() -> None:
    renamed = {"sqs_queue": "queue_url"}
    assert {renamed.get(name, name) for name in SqsSensor.template_fields} <= set(SqsLeaseSensor.template_fields)
