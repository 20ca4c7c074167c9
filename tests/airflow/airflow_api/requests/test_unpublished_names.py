"""Names that Airflow does not publish: that this version has them, and what is done by a version that has not."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import greenback
import pytest
from airflow.jobs import triggerer_job_runner
from airflow.jobs.triggerer_job_runner import TriggerCommsDecoder
from airflow.observability import stats as stats_of_a_triggerer
from airflow.sdk import DAG, BaseXCom, TaskGroup, task, task_group
from airflow.sdk.definitions import xcom_arg
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.exceptions import AirflowException, TaskDeferred
from airflow.sdk.execution_time import task_runner
from airflow.sdk.observability import stats as stats_of_a_task

from sqs_lease.airflow import SqsLeaseSensor, sqs_lease
from sqs_lease.airflow.airflow_api import requests
from sqs_lease.airflow.airflow_api.requests import (
    end_was_reported,
    seal,
    triggers_are_supported,
    triggers_publish_for_mapping,
    unseal,
)
from sqs_lease.airflow.settlement import lost_leases
from sqs_lease.airflow.settlement.lost_leases import encode_on_lost
from sqs_lease.airflow.settlement.rules import work_tasks
from sqs_lease.testing import LeasedQueue, LeasedQueues
from tests.airflow.contexts import context_of
from tests.airflow.scripted_comms import ScriptedComms


@pytest.fixture
def dag() -> DAG:
    """Work of each kind: over all messages, mapped, and in a mapped group."""

    @task
    def load(message: Any) -> None: ...

    @task_group
    def chain(message: Any) -> None:
        load.override(task_id="first")(message)

    with DAG("shop", schedule=None) as opened, sqs_lease("orders", queue_url="orders") as orders:
        load.override(task_id="check").expand(message=orders)
        chain.expand(message=orders)
    return opened


def per_message(dag: DAG) -> dict[str, bool]:
    """Tell which work tasks have an instance for each message."""
    work = work_tasks(dag, ["check", "chain.first"], "orders", "orders_keeper")
    assert all(one.mapped for one in work)
    return {one.task_id: one.per_message for one in work}


def received(dag: DAG, task_id: str) -> Any:
    """Return the value of a sensor that received in its worker."""
    sensor = dag.task_dict[task_id]
    assert isinstance(sensor, SqsLeaseSensor)
    instance = SimpleNamespace(
        dag_id="shop", run_id="run", task_id="orders", map_index=-1, try_number=1, xcom_push=lambda **_: None
    )
    return sensor.execute(context_of(instance))


def no_key() -> None:
    """Fail as the SDK does before the configuration file with the key is written."""
    raise AirflowException("Could not create Fernet object: Fernet key must be 32 url-safe base64-encoded bytes.")


def load_again(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module as a process would load it whose Airflow lacks what was taken from ``sys.modules``."""
    spec = importlib.util.spec_from_file_location("requests_again", requests.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


# The names of this version


def test_the_triggerers_connection_takes_blocking_calls_from_its_event_loop() -> None:
    assert vars(requests)["greenback"] is greenback
    assert "greenback.await_" in inspect.getsource(TriggerCommsDecoder.send)


def test_a_worker_and_a_triggerer_are_told_from_dag_test(supervisor: ScriptedComms) -> None:
    assert "SUPERVISOR_COMMS" in task_runner.__annotations__
    assert hasattr(TriggerCommsDecoder, "asend")
    assert triggers_are_supported()


def test_a_trigger_can_publish_a_value_that_tasks_are_mapped_over() -> None:
    assert triggers_publish_for_mapping()


def test_the_metrics_are_those_that_a_triggerer_sets_up() -> None:
    assert requests.stats is stats_of_a_triggerer
    assert stats_of_a_triggerer.initialize is vars(triggerer_job_runner)["stats"].initialize


def test_the_first_process_of_a_new_airflow_home_seals_with_the_key_that_it_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "get_fernet", no_key)
    sealed = seal("a receipt handle")
    monkeypatch.undo()
    assert "receipt" not in sealed
    assert unseal(sealed) == "a receipt handle"


def test_instances_of_mapped_tasks_concern_a_message_each(dag: DAG) -> None:
    assert per_message(dag) == {"check": True, "chain.first": True}


def test_a_task_process_says_whether_its_end_was_reported() -> None:
    assert "_terminal_state_send_failed" in inspect.getsource(task_runner.run)
    assert not end_was_reported(SimpleNamespace(_terminal_state_send_failed=True))  # type: ignore[arg-type]


# Versions without these names


def test_the_open_dag_is_known() -> None:
    assert requests.default_args_of_open_dag() == {}
    of_group: Any = {"retries": 3}
    with DAG("shop", schedule=None, default_args={"owner": "sales"}):
        assert requests.default_args_of_open_dag() == {"owner": "sales"}
        with TaskGroup("eu", default_args=of_group):
            assert requests.default_args_of_open_dag() == {"owner": "sales", "retries": 3}


def test_without_greenback_threads_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    # tests/airflow/airflow_api/requests/test_comms_of_a_triggerer.py asks in threads.
    monkeypatch.setitem(sys.modules, "greenback", None)
    assert load_again(monkeypatch).greenback is None


def test_without_the_mark_of_dag_test_a_sensor_defers(
    dag: DAG, empty_queue: LeasedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(task_runner, "SUPERVISOR_COMMS", raising=False)
    with pytest.raises(TaskDeferred):
        received(dag, "orders")


def test_without_a_way_to_publish_for_mapping_a_sensor_that_tasks_are_mapped_over_receives_in_its_worker(
    leased_queues: LeasedQueues, supervisor: ScriptedComms, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_(key: str, value: Any, *, dag_id: str, task_id: str, run_id: str, map_index: int = -1) -> None: ...

    @task
    def load(message: Any) -> None: ...

    queue = leased_queues.create("orders")
    queue.send("a")
    options: dict[str, Any] = {"queue_url": queue.url, "visibility": 300, "timeout": 3600, "linger": 0}
    with DAG("shop", schedule=None) as dag:
        with sqs_lease("mapped", **options) as messages:
            load.override(task_id="check").expand(message=messages)
        with sqs_lease("whole", **options) as messages:
            load(messages)

    monkeypatch.setattr(BaseXCom, "set", set_)

    assert [message["Body"] for message in received(dag, "mapped")] == ["a"]
    with pytest.raises(TaskDeferred):
        received(dag, "whole")


def test_without_the_metrics_of_a_triggerer_those_of_the_sdk_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("airflow.observability.stats")
    monkeypatch.setitem(sys.modules, "airflow.observability.stats", None)
    assert load_again(monkeypatch).stats is stats_of_a_task


def test_a_first_process_that_cannot_find_its_key_fails_with_the_error_of_the_sdk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "get_fernet", no_key)
    monkeypatch.setitem(sys.modules, "airflow.models.crypto", None)
    with pytest.raises(AirflowException, match="Could not create Fernet object"):
        seal("a receipt handle")


@pytest.mark.parametrize("name", ["_get_specified_expand_input", "_expand_input", "MapXComArg", "PlainXComArg"])
def test_messages_are_settled_together_where_airflow_does_not_tell_what_tasks_are_mapped_over(
    dag: DAG, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    owners: dict[str, Any] = {
        "_get_specified_expand_input": MappedOperator,
        "_expand_input": dag.task_dict["chain.first"].task_group,
    }
    monkeypatch.delattr(owners.get(name, xcom_arg), name)
    concerned = per_message(dag)
    assert concerned == {"check": name == "_expand_input", "chain.first": name == "_get_specified_expand_input"}
    assert "are settled together: this Airflow does not say what it is mapped over" in caplog.text


def test_a_task_process_that_does_not_say_whether_its_end_was_reported_is_believed() -> None:
    assert end_was_reported(SimpleNamespace())  # type: ignore[arg-type]


def test_a_callback_in_a_dag_file_that_is_named_otherwise_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_leases, "DAG_FILE_MODULE", "another_prefix_")
    dag_file = ModuleType("unusual_prefix_1_shop")
    exec("async def tell(context): ...", vars(dag_file))  # as Airflow makes a module of a DAG file
    monkeypatch.setitem(sys.modules, dag_file.__name__, dag_file)
    encoded = encode_on_lost(AsyncCallback("unusual_prefix_1_shop.tell"))
    assert encoded == {"path": "unusual_prefix_1_shop.tell", "kwargs": {}}


def test_without_the_open_dag_the_error_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "DagContext", None)
    with (
        DAG("shop", schedule=None, default_args={"sqs_queue": "orders"}),
        pytest.raises(ValueError, match="queue_url"),
        sqs_lease("orders"),
    ):
        pass
