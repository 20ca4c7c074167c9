"""The keeper on a worker: it defers with everything that its trigger needs, or fails clearly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException

from sqs_lease.airflow import SqsLeaseKeeperOperator, SqsLeaseSensor, sqs_lease
from sqs_lease.airflow.settlement.settler import KEEPS_KEY
from sqs_lease.airflow.triggers.keep import SqsLeaseKeeperTrigger
from sqs_lease.core.failure_rules import backoff
from sqs_lease.core.messages import Lease, Receipt
from tests.airflow.executed_operators import RECEIVING, TaskInstance, execute, execute_body
from tests.airflow.handed import handed_lease
from tests.airflow.scripted_comms import ScriptedComms

HANDLE = "AQEB" + "x" * 300


@task
def check(message: Any) -> None: ...


@pytest.fixture
def dag() -> Iterator[DAG]:
    with DAG("shop", schedule=None) as opened:
        with sqs_lease("orders", queue_url="orders", on_failure=backoff(5)) as orders:
            check.expand(message=orders)
        yield opened


def keeper_of(dag: DAG) -> SqsLeaseKeeperOperator:
    keeper = dag.task_dict["orders_keeper"]
    assert isinstance(keeper, SqsLeaseKeeperOperator)
    return keeper


def _lease() -> dict[str, Any]:
    lease = Lease(Receipt("m0", HANDLE), 0.0, 30.0)
    return handed_lease([lease], queue_url="https://sqs/1/orders").encode(RECEIVING)


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
        execute_body(keeper_of(dag), TaskInstance())


def test_a_keeper_without_work_is_an_error() -> None:
    with DAG("shop", schedule=None), pytest.raises(ValueError, match="'keep': work_task_ids is empty"):
        SqsLeaseKeeperOperator(task_id="keep", receive_task_id="orders", work_task_ids=[])


@pytest.mark.parametrize("work_task_id", ["orders", "keep", "prepare", "typo"])
def test_work_that_cannot_have_seen_the_messages_is_refused_when_the_dag_was_parsed(work_task_id: str) -> None:
    with DAG("shop", schedule=None) as dag:
        sensor = SqsLeaseSensor(task_id="orders", queue_url="orders")
        EmptyOperator(task_id="prepare") >> sensor
        keeper = SqsLeaseKeeperOperator(task_id="keep", receive_task_id="orders", work_task_ids=[work_task_id])
        keeper.as_teardown(setups=sensor)
    with pytest.raises(ValueError, match=f"work task '{work_task_id}' of the lease 'orders'"):
        dag.resolve_template_files()  # type: ignore[no-untyped-call]


def test_a_keeper_that_waits_for_the_work_is_refused_when_the_dag_was_parsed(dag: DAG) -> None:
    dag.task_dict["check"] >> dag.task_dict["orders_keeper"]
    with pytest.raises(ValueError, match="'orders_keeper' waits for check, so the messages of 'orders' would not be"):
        dag.resolve_template_files()  # type: ignore[no-untyped-call]
