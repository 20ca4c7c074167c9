"""Airflow does less for a task that a trigger ends, as docs/airflow.md says: it does the rest in the worker's process.

If one of these fails with a later Airflow, that does more by itself, and the page is out of date.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import structlog
from airflow.callbacks.callback_requests import TaskCallbackRequest
from airflow.callbacks.database_callback_sink import DatabaseCallbackSink
from airflow.dag_processing.processor import _execute_task_callbacks
from airflow.listeners.listener import get_listener_manager
from airflow.models.trigger import handle_event_submit
from airflow.sdk import DAG, Asset
from airflow.triggers.base import TaskSuccessEvent
from airflow.utils.state import TaskInstanceState

from sqs_lease.airflow import SqsLeaseSensor


def test_a_success_that_a_trigger_reports_sets_the_state_and_updates_no_asset(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = MagicMock()
    monkeypatch.setattr(DatabaseCallbackSink, "send", sent)
    monkeypatch.setattr("airflow.callbacks.callback_requests.TaskCallbackRequest", SimpleNamespace)
    hooks = MagicMock()
    monkeypatch.setattr(type(get_listener_manager()), "hook", hooks)
    instance = MagicMock(task_id="orders", trigger_id=7)
    instance.dag_model = SimpleNamespace(relative_fileloc="orders.py", bundle_name="dags-folder")
    instance.dag_run = SimpleNamespace(bundle_version=None)
    handle_event_submit(TaskSuccessEvent(), task_instance=instance, session=MagicMock())
    instance.set_state.assert_called_once()
    assert instance.set_state.call_args.args == (TaskInstanceState.SUCCESS,)
    instance.register_asset_changes_in_db.assert_not_called()
    # Asked for, but the DAG processor does not call it: see below.
    assert sent.call_args.kwargs["callback"].task_callback_type is TaskInstanceState.SUCCESS
    assert hooks.mock_calls == []


def test_the_dag_processor_calls_no_success_callbacks() -> None:
    called: list[Any] = []
    with DAG("shop", schedule=None) as made:
        SqsLeaseSensor(
            task_id="orders", queue_url="orders", on_success_callback=called.append, outlets=[Asset("orders")]
        )
    request: Any = MagicMock(
        is_failure_callback=False,
        ti=SimpleNamespace(dag_id="shop", task_id="orders", run_id="run", id="1"),
    )
    _execute_task_callbacks(SimpleNamespace(dags={"shop": made}), request, structlog.get_logger())  # type: ignore[arg-type]
    assert called == []
    assert (
        TaskCallbackRequest.is_failure_callback.fget(  # type: ignore[attr-defined]
            SimpleNamespace(task_callback_type=TaskInstanceState.SUCCESS)
        )
        is False
    )
