"""What the sensor and the keeper do on a worker: they defer with everything their triggers need, or fail clearly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.bases.operator import TriggerFailureReason
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferralError,
    TaskDeferred,
)

from sqs_lease.airflow import SqsLeaseKeeperOperator, SqsLeaseSensor, sqs_lease
from sqs_lease.airflow.airflow_api.requests import RunOfTask
from sqs_lease.airflow.handover import LEASE_KEY
from sqs_lease.airflow.provider_info import get_provider_info
from sqs_lease.airflow.settlement.settler import KEEPS_KEY
from sqs_lease.airflow.triggers.keep import SqsLeaseKeeperTrigger
from sqs_lease.airflow.triggers.receive import FAILED, FAILED_FOR_GOOD, TIMED_OUT, SqsLeaseReceiveTrigger
from sqs_lease.clock import SystemClock
from sqs_lease.core.failure_rules import backoff
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.testing import LeasedQueue
from tests.airflow.contexts import context_of
from tests.airflow.handed import handed_lease
from tests.airflow.scripted_comms import ScriptedComms

HANDLE = "AQEB" + "x" * 300


@task
def check(message: Any) -> None: ...


@pytest.fixture
def dag(empty_queue: LeasedQueue) -> Iterator[DAG]:
    with DAG("shop", schedule=None) as opened:
        with sqs_lease("orders", queue_url="orders", on_failure=backoff(5), visibility=30, timeout=60) as orders:
            check.expand(message=orders)
        yield opened


def sensor_of(dag: DAG) -> SqsLeaseSensor:
    sensor = dag.task_dict["orders"]
    assert isinstance(sensor, SqsLeaseSensor)
    return sensor


def keeper_of(dag: DAG) -> SqsLeaseKeeperOperator:
    keeper = dag.task_dict["orders_keeper"]
    assert isinstance(keeper, SqsLeaseKeeperOperator)
    return keeper


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


def execute(operator: Any, task_instance: TaskInstance) -> TaskDeferred:
    """Execute an operator as a worker does, and return how it deferred."""
    body = type(operator).execute
    with pytest.raises(TaskDeferred) as deferred:
        getattr(body, "__wrapped__", body)(operator, {"ti": task_instance})
    return deferred.value


def test_the_sensor_defers_with_plain_values(dag: DAG, supervisor: ScriptedComms) -> None:
    deferred = execute(sensor_of(dag), TaskInstance())
    assert isinstance(deferred.trigger, SqsLeaseReceiveTrigger)
    _, arguments = deferred.trigger.serialize()
    assert json.loads(json.dumps(arguments)) == arguments
    options = deferred.trigger.options
    assert (options.queue, options.max_messages, options.keeper_task_id) == ("orders", 10, "orders_keeper")
    assert options.mapped_over is True
    assert 30 < options.expires_at - SystemClock().wall() <= 60, "the first look is part of the wait"


def test_airflow_ends_the_wait_itself_only_after_the_trigger_should_have(dag: DAG, supervisor: ScriptedComms) -> None:
    deferred = execute(sensor_of(dag), TaskInstance())
    assert deferred.timeout is not None
    assert 60 < deferred.timeout.total_seconds() <= 180


def test_each_try_of_the_sensor_has_a_batch_of_its_own(dag: DAG, supervisor: ScriptedComms) -> None:
    first, second = (execute(sensor_of(dag), TaskInstance()).trigger for _ in range(2))
    assert isinstance(first, SqsLeaseReceiveTrigger)
    assert isinstance(second, SqsLeaseReceiveTrigger)
    assert first.options.batch_id != second.options.batch_id


def cleared_sensor(**states: str | None) -> TaskInstance:
    """The sensor's task instance after it was cleared, with the states of the run's other tasks."""
    task_instance = TaskInstance()
    task_instance.try_number = 2
    task_instance.states = states
    return task_instance


@pytest.mark.parametrize("work", [None, "restarting", "up_for_retry", "upstream_failed", "skipped"])
def test_a_sensor_that_was_cleared_with_its_work_receives_again(
    dag: DAG, supervisor: ScriptedComms, work: str | None
) -> None:
    execute(sensor_of(dag), cleared_sensor(check_0=work, check_1=None, orders_keeper=None))


@pytest.mark.parametrize("work", ["success", "running", "queued", "scheduled", "deferred", "failed"])
def test_a_sensor_that_was_cleared_without_its_work_receives_nothing(
    dag: DAG, supervisor: ScriptedComms, work: str
) -> None:
    # The keeper would delete the new messages because of work that has never seen them.
    sensor = sensor_of(dag)
    with pytest.raises(AirflowFailException, match=f"'orders'.*check_1 is {work}.*clear .* with its downstream tasks"):
        sensor.execute(context_of(cleared_sensor(check_0=None, check_1=work, orders_keeper=None)))


def test_a_sensor_that_was_cleared_alone_receives_nothing_while_its_keeper_holds_a_batch(
    dag: DAG, supervisor: ScriptedComms
) -> None:
    with pytest.raises(AirflowFailException, match="orders_keeper is deferred"):
        sensor_of(dag).execute(context_of(cleared_sensor(check=None, orders_keeper="deferred")))


@pytest.mark.parametrize(
    ("status", "error"),
    [(TIMED_OUT, AirflowSensorTimeout), (FAILED_FOR_GOOD, AirflowFailException), (FAILED, AirflowException)],
)
def test_the_resumed_sensor_fails_with_queue_task_and_remedy(
    dag: DAG, status: str, error: type[AirflowException]
) -> None:
    with pytest.raises(error, match="task 'orders' of DAG 'shop': no such queue, check its name") as raised:
        sensor_of(dag).execute_complete({}, {"status": status, "error": "no such queue, check its name"})
    assert type(raised.value) is error


def test_with_soft_fail_the_resumed_sensor_is_skipped_as_airflows_own_sensors_are(dag: DAG) -> None:
    sensor = sensor_of(dag)
    sensor.soft_fail = True
    event = {"status": TIMED_OUT, "error": "no message"}
    with pytest.raises(AirflowSkipException):
        sensor.resume_execution("execute_complete", {"event": event}, {})


@pytest.mark.parametrize(("status", "error"), [(FAILED_FOR_GOOD, AirflowFailException), (FAILED, AirflowException)])
def test_with_soft_fail_what_is_really_wrong_fails_the_resumed_sensor(
    dag: DAG, status: str, error: type[AirflowException]
) -> None:
    sensor = sensor_of(dag)
    sensor.soft_fail = True
    event = {"status": status, "error": "no such queue"}
    with pytest.raises(error, match="no such queue") as raised:
        sensor.resume_execution("execute_complete", {"event": event}, {})
    assert type(raised.value) is error


def test_with_soft_fail_a_trigger_that_failed_fails_the_sensor_and_one_that_took_too_long_skips_it(dag: DAG) -> None:
    sensor = sensor_of(dag)
    sensor.soft_fail = True
    with pytest.raises(TaskDeferralError):
        sensor.resume_execution("__fail__", {"error": TriggerFailureReason.TRIGGER_FAILURE}, {})
    with pytest.raises(AirflowSkipException):
        sensor.resume_execution("__fail__", {"error": TriggerFailureReason.TRIGGER_TIMEOUT}, {})


def test_with_never_fail_the_resumed_sensor_is_skipped_whatever_is_wrong(dag: DAG) -> None:
    sensor = sensor_of(dag)
    sensor.never_fail = True
    with pytest.raises(AirflowSkipException):
        sensor.resume_execution("execute_complete", {"event": {"status": FAILED_FOR_GOOD, "error": "denied"}}, {})


@pytest.mark.parametrize("given", ["20", 20])
def test_a_templated_number_of_messages_is_a_number_when_the_sensor_runs(
    dag: DAG, supervisor: ScriptedComms, given: Any
) -> None:
    sensor = sensor_of(dag)
    sensor.max_messages = given
    trigger = execute(sensor, TaskInstance()).trigger
    assert isinstance(trigger, SqsLeaseReceiveTrigger)
    assert trigger.options.max_messages == 20


def test_a_template_that_gives_no_number_is_an_error_when_the_sensor_runs(dag: DAG, supervisor: ScriptedComms) -> None:
    sensor = sensor_of(dag)
    sensor.max_messages = "many"
    with pytest.raises(ValueError, match="must be an integer from 1"):
        _execute_body(sensor, TaskInstance())


def test_a_sensor_without_a_keeper_fails_before_it_receives(supervisor: ScriptedComms) -> None:
    with DAG("shop", schedule=None):
        sensor = SqsLeaseSensor(task_id="orders", queue_url="orders")
    with pytest.raises(AirflowFailException, match="'orders' has no SqsLeaseKeeperOperator behind it"):
        _execute_body(sensor, TaskInstance())


def test_the_keeper_defers_with_the_lease_the_work_and_the_failure_rule(dag: DAG, supervisor: ScriptedComms) -> None:
    task_instance = TaskInstance(lease=_lease())
    deferred = execute(keeper_of(dag), task_instance)
    assert isinstance(deferred.trigger, SqsLeaseKeeperTrigger)
    assert deferred.timeout is None
    classpath, arguments = deferred.trigger.serialize()
    assert classpath == "sqs_lease.airflow.triggers.keep.SqsLeaseKeeperTrigger"
    assert arguments["work"] == [
        {
            "task_id": "check",
            "mapped": True,
            "per_message": True,
            "chained": False,
            "returns": False,
            "skipped_behind": (),
            "skipped_behind_all": False,
        }
    ]
    assert arguments["on_failure"]["on_failure"] == "backoff"
    assert task_instance.pushed.keys() == {KEEPS_KEY}
    assert task_instance.pushed[KEEPS_KEY]["receive_task_id"] == "orders"
    assert task_instance.pushed[KEEPS_KEY]["status"]["counts"] == {"received": 1}, "before a triggerer has it"


def test_no_receipt_handle_can_be_read_in_the_keepers_arguments_or_fields(dag: DAG, supervisor: ScriptedComms) -> None:
    deferred = execute(keeper_of(dag), TaskInstance(lease=_lease()))
    assert HANDLE not in repr(deferred.trigger)
    assert not any("x" * 20 in repr(getattr(keeper_of(dag), name)) for name in keeper_of(dag).template_fields)


def test_a_keeper_without_a_lease_says_where_it_should_come_from(dag: DAG, supervisor: ScriptedComms) -> None:
    with pytest.raises(AirflowFailException, match="task 'orders' left no lease for 'orders_keeper'"):
        _execute_body(keeper_of(dag), TaskInstance())


def test_a_keeper_without_work_is_an_error() -> None:
    with DAG("shop", schedule=None), pytest.raises(ValueError, match="'keep': work_task_ids is empty"):
        SqsLeaseKeeperOperator(task_id="keep", receive_task_id="orders", work_task_ids=[])


def test_airflow_finds_the_provider_with_its_version_and_modules() -> None:
    from importlib import import_module
    from importlib.metadata import entry_points

    (entry_point,) = entry_points(group="apache_airflow_provider", name="provider_info").select(
        module="sqs_lease.airflow.provider_info"
    )
    assert entry_point.load() is get_provider_info
    information = get_provider_info()
    assert information["package-name"] == "sqs-lease"
    for kind in ("operators", "sensors", "triggers"):
        for entry in information[kind]:
            for module in entry["python-modules"]:
                import_module(module)


def _execute_body(operator: Any, task_instance: TaskInstance) -> None:
    body = type(operator).execute
    getattr(body, "__wrapped__", body)(operator, {"ti": task_instance})


def _lease() -> dict[str, Any]:
    lease = Lease(Receipt("m0", HANDLE), 0.0, 30.0)
    return handed_lease([lease], queue_url="https://sqs/1/orders").encode(RECEIVING)
