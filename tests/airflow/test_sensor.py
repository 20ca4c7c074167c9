"""The sensor on a worker: it defers with everything that its trigger needs, or fails clearly."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
)

from sqs_lease.airflow import SqsLeaseSensor, sqs_lease
from sqs_lease.airflow.triggers.receive import FAILED, FAILED_FOR_GOOD, TIMED_OUT, SqsLeaseReceiveTrigger
from sqs_lease.clock import SystemClock
from sqs_lease.core.failure_rules import backoff
from sqs_lease.testing import LeasedQueue
from tests.airflow.contexts import context_of
from tests.airflow.executed_operators import TaskInstance, execute, execute_body
from tests.airflow.scripted_comms import ScriptedComms


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


def test_the_sensor_defers_with_plain_values(dag: DAG, supervisor: ScriptedComms) -> None:
    deferred = execute(sensor_of(dag), TaskInstance())
    assert isinstance(deferred.trigger, SqsLeaseReceiveTrigger)
    _, arguments = deferred.trigger.serialize()
    assert json.loads(json.dumps(arguments)) == arguments
    options = deferred.trigger.options
    assert (options.queue, options.max_messages, options.keeper_task_id) == ("orders", 10, "orders_keeper")
    assert options.mapped_over is True
    assert 30 < options.expires_at - SystemClock().wall() <= 60, "the first look is part of the wait"


def test_the_messages_are_the_return_value_whatever_the_default_args_of_other_tasks_are(
    empty_queue: LeasedQueue,
) -> None:
    of_all: Any = {"do_xcom_push": False, "multiple_outputs": True}
    with DAG("shop", schedule=None, default_args=of_all) as dag, sqs_lease("orders", queue_url="orders") as orders:
        check.expand(message=orders)
    sensor = sensor_of(dag)
    # Airflow reads these two when the task has ended.
    assert (sensor.do_xcom_push, sensor.multiple_outputs) == (True, False)


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
        execute_body(sensor, TaskInstance())


def test_a_sensor_without_a_keeper_fails_before_it_receives(supervisor: ScriptedComms) -> None:
    with DAG("shop", schedule=None):
        sensor = SqsLeaseSensor(task_id="orders", queue_url="orders")
    with pytest.raises(AirflowFailException, match="'orders' has no SqsLeaseKeeperOperator behind it"):
        execute_body(sensor, TaskInstance())
