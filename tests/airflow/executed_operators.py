"""Shared by tests of operators on a worker: a task instance, and the way to execute an operator there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from sqs_lease.airflow.airflow_api.requests import RunOfTask
from sqs_lease.airflow.handover import LEASE_KEY

RECEIVING = RunOfTask("shop", "run", "orders")


class TaskInstance(SimpleNamespace):
    """A task instance as an operator sees it, with XComs of its own."""

    def __init__(self, map_index: int = -1, *, lease: dict[str, Any] | None = None) -> None:
        super().__init__(map_index=map_index, try_number=1, dag_id="shop", run_id="run", task_id="orders")
        self.states: dict[str, str | None] = {}
        self.pulled = {LEASE_KEY: lease}
        self.pushed: dict[str, Any] = {}

    def xcom_pull(self, *, task_ids: str, key: str) -> Any:
        return self.pulled.get(key)

    def get_task_states(self, *, dag_id: str, task_ids: list[str], run_ids: list[str]) -> dict[str, Any]:
        assert (dag_id, run_ids) == (self.dag_id, [self.run_id])
        return {self.run_id: {key: state for key, state in self.states.items() if key.startswith(tuple(task_ids))}}

    def xcom_push(self, *, key: str, value: Any) -> None:
        self.pushed[key] = value


def execute_body(operator: Any, task_instance: TaskInstance) -> None:
    """Execute an operator as a worker does, to its end."""
    body = type(operator).execute
    getattr(body, "__wrapped__", body)(operator, {"ti": task_instance})


def execute(operator: Any, task_instance: TaskInstance) -> TaskDeferred:
    """Execute an operator as a worker does, and return how it deferred."""
    with pytest.raises(TaskDeferred) as deferred:
        execute_body(operator, task_instance)
    return deferred.value
