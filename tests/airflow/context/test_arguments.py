"""The arguments of `sqs_lease`: type checkers know them, and both tasks get those that concern both."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.amazon.aws.sensors.base_aws import AwsBaseSensor
from airflow.sdk import DAG, Asset, AssetWatcher, BaseOperator, BaseSensorOperator, TaskGroup, task

from sqs_lease.airflow import SqsLeaseSensor, SqsLeaseTrigger, sqs_lease
from sqs_lease.airflow.context import ReceiveArguments, TaskArguments
from sqs_lease.airflow.operators import KEEPER_PRIORITY
from sqs_lease.core.failure_rules import dead_letter, expire
from sqs_lease.core.specs import encode_failure_rule

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"


@pytest.fixture
def dag() -> Iterator[DAG]:
    with DAG("shop", schedule=None) as opened:
        yield opened


@task
def load(messages: list[Any]) -> None: ...


def parameters_of(kind: type) -> set[str]:
    return {name for name in inspect.signature(vars(kind)["__init__"]).parameters if name not in ("self", "kwargs")}


def test_the_types_name_every_argument_of_the_tasks_and_no_other() -> None:
    of_the_lease = {"task_id", "dag", "task_group", "handoff_timeout"}
    outdated = {"sla", "region"}
    of_tasks = parameters_of(BaseOperator) - of_the_lease - outdated
    assert set(TaskArguments.__annotations__) == of_tasks
    of_sensors = parameters_of(SqsLeaseSensor) | parameters_of(AwsBaseSensor) | parameters_of(BaseSensorOperator)
    assert set(ReceiveArguments.__annotations__) == of_tasks | of_sensors - of_the_lease - outdated


if TYPE_CHECKING:
    # `make lint` reads these lines. Where mypy accepts what it must refuse, it says that the ignored error is missing.
    sqs_lease("a", queue_url=QUEUE, max_messages=3, linger=2.5, pool="small", keeper_arguments={"pool": "large"})
    sqs_lease("a", queue_url=QUEUE, max_mesages=3)  # type: ignore[call-arg]
    sqs_lease("a", queue_url=QUEUE, soft_fail="yes")  # type: ignore[arg-type]
    sqs_lease("a", queue_url=QUEUE, keeper_arguments={"max_messages": 3})  # type: ignore[arg-type]


def test_where_and_how_tasks_run_concerns_both_tasks_of_a_lease(dag: DAG) -> None:
    both: Any = {"queue": "team_a", "pool": "small", "executor": "LocalExecutor", "retries": 3, "priority_weight": 7}
    with sqs_lease("orders", queue_url=QUEUE, owner="shop", doc_md="Takes orders.", **both) as orders:
        load(orders)
    for task_id in ("orders", "orders_keeper"):
        made: Any = dag.task_dict[task_id]
        assert {name: getattr(made, name) for name in both} == both
        assert made.owner == "shop"
    assert dag.task_dict["orders_keeper"].doc_md is None


def test_the_keeper_may_have_other_arguments_than_the_sensor(dag: DAG) -> None:
    with sqs_lease(
        "orders", queue_url=QUEUE, pool="small", retries=3, keeper_arguments={"pool": "large", "doc_md": "Keeps."}
    ) as orders:
        load(orders)
    sensor, keeper = dag.task_dict["orders"], dag.task_dict["orders_keeper"]
    assert (sensor.pool, keeper.pool) == ("small", "large")
    assert (sensor.retries, keeper.retries) == (3, 3)
    assert keeper.doc_md == "Keeps."


def test_without_any_the_keeper_keeps_its_own_defaults(dag: DAG) -> None:
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        load(orders)
    assert dag.task_dict["orders_keeper"].priority_weight == KEEPER_PRIORITY
    assert dag.task_dict["orders"].priority_weight == 1


def test_arguments_of_a_lease_come_from_default_args_as_those_of_operators_do() -> None:
    of_dag: Any = {"on_failure": dead_letter(), "on_lost": "raise", "ordered": False, "handoff_timeout": 900}
    of_group: Any = {"handoff_timeout": 600}
    of_lease: Any = {"on_failure": expire()}
    with DAG("shop", schedule=None, default_args=of_dag) as dag:
        with sqs_lease("orders", queue_url=QUEUE) as orders:
            load(orders)
        with (
            TaskGroup("eu", default_args=of_group),
            sqs_lease("orders", queue_url=QUEUE, ordered=True, on_lost="warn", default_args=of_lease) as orders,
        ):
            load(orders)
    assert settings_of(dag, "orders") == (encode_failure_rule(dead_letter()), "raise", False, 900.0, 900.0)
    assert settings_of(dag, "eu.orders") == (encode_failure_rule(expire()), "warn", True, 600.0, 600.0)


def settings_of(dag: DAG, task_id: str) -> Any:
    sensor: Any = dag.task_dict[task_id]
    keeper: Any = dag.task_dict[f"{task_id}_keeper"]
    handoffs = sensor.handoff_timeout_seconds, keeper.handoff_timeout_seconds
    return keeper.on_failure, keeper.on_lost, keeper.ordered, *handoffs


def test_they_concern_both_tasks_of_a_run_that_messages_start_too() -> None:
    asset = Asset("orders", watchers=[AssetWatcher(name="orders", trigger=SqsLeaseTrigger("orders"))])
    with DAG("shop", schedule=[asset]) as dag, sqs_lease("orders", event=asset, queue="team_a") as orders:
        load(orders)
    assert [dag.task_dict[task_id].queue for task_id in ("orders", "orders_keeper")] == ["team_a", "team_a"]


@pytest.mark.parametrize("own", [{}, {"max_active_tis_per_dag": 5}], ids=["default_args", "keeper_arguments"])
def test_a_keeper_never_waits_for_that_of_another_run_unless_it_is_told_so_itself(own: Any) -> None:
    of_all = {"depends_on_past": True, "wait_for_downstream": True, "max_active_tis_per_dag": 1}
    with (
        DAG("shop", schedule=None, default_args={**of_all, "max_active_tis_per_dagrun": 1}) as dag,
        sqs_lease("orders", queue_url=QUEUE, keeper_arguments=own) as orders,
    ):
        load(orders)
    keeper = dag.task_dict["orders_keeper"]
    waits = (keeper.depends_on_past, keeper.wait_for_downstream, keeper.max_active_tis_per_dag)
    assert waits == (False, False, own.get("max_active_tis_per_dag"))
    assert keeper.max_active_tis_per_dagrun is None
    # The other tasks keep to what the DAG says.
    for task_id in ("orders", "load"):
        assert {name: getattr(dag.task_dict[task_id], name) for name in of_all} == of_all


def test_the_next_try_of_a_keeper_begins_while_its_messages_are_still_held_for_it() -> None:
    of_all: Any = {"retries": 3, "retry_delay": timedelta(minutes=10), "retry_exponential_backoff": 2}
    with (
        DAG("shop", schedule=None, default_args=of_all) as dag,
        sqs_lease("orders", queue_url=QUEUE, handoff_timeout=60) as orders,
    ):
        load(orders)
    sensor, keeper = dag.task_dict["orders"], dag.task_dict["orders_keeper"]
    assert keeper.retries == 3
    assert keeper.retry_delay < timedelta(seconds=30)
    assert not keeper.retry_exponential_backoff
    assert sensor.retry_delay == timedelta(minutes=10)
    with DAG("slow", schedule=None) as dag, sqs_lease("orders", queue_url=QUEUE, keeper_arguments=of_all) as orders:
        load(orders)
    assert dag.task_dict["orders_keeper"].retry_delay == timedelta(minutes=10)
