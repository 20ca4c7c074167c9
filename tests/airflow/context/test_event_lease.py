"""The lease of a run that messages started: its sensor, whose queue is that of the asset's watcher."""

from __future__ import annotations

import runpy
import time
from typing import Any

import pytest
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import DAG, Asset, AssetWatcher, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from demo.processes import ROOT
from sqs_lease.airflow import SqsLeaseKeeperOperator, SqsLeaseSensor, SqsLeaseTrigger, sqs_lease
from sqs_lease.airflow.handover import LEASE_KEY
from sqs_lease.airflow.triggers.watch import watchers_of
from sqs_lease.testing import LeasedQueue, LeasedQueues
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.test_worker import TaskInstance, execute

QUEUE_URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders"


@task
def load(messages: Any) -> None: ...


def asset_of(*queues: str, **arguments: Any) -> Asset:
    watchers = [AssetWatcher(queue, trigger=SqsLeaseTrigger(queue, **arguments)) for queue in queues]
    return Asset("orders asset", watchers=watchers)


def sensor_of(asset: Asset, *, default_args: dict[str, Any] | None = None, **arguments: Any) -> SqsLeaseSensor:
    with (
        DAG("shop", schedule=asset, default_args=default_args or {}) as dag,
        sqs_lease("orders", event=asset, **arguments) as orders,
    ):
        load(orders)
    made = dag.task_dict["orders"]
    assert isinstance(made, SqsLeaseSensor)
    keeper = dag.task_dict["orders_keeper"]
    assert isinstance(keeper, SqsLeaseKeeperOperator)
    assert keeper.receive_task_id == "orders"
    assert keeper.is_teardown
    return made


@pytest.fixture
def queue(leased_queues: LeasedQueues, supervisor: ScriptedComms) -> LeasedQueue:
    return leased_queues.create("orders")


def test_the_sensor_is_an_ordinary_one_with_the_queue_and_the_connection_of_the_watcher() -> None:
    asset = asset_of(
        QUEUE_URL, aws_conn_id="shop", region_name="eu-west-1", verify=False, botocore_config={"read_timeout": 5}
    )
    made = sensor_of(asset, max_messages=100, linger=2)
    assert (made.queue_url, made.aws_conn_id, made.region_name, made.verify) == (QUEUE_URL, "shop", "eu-west-1", False)
    assert made.botocore_config == {"read_timeout": 5}
    assert (made.max_messages, made.linger_seconds) == (100, 2)
    (watcher,) = watchers_of(asset)
    assert made._aws_connection() == watcher.connection


def test_arguments_go_before_those_of_the_watcher_and_these_before_default_args() -> None:
    made = sensor_of(
        asset_of("orders", aws_conn_id="watching"),
        aws_conn_id="receiving",
        default_args={"queue_url": "others", "region_name": "us-east-1"},
    )
    assert (made.queue_url, made.aws_conn_id, made.region_name) == ("orders", "receiving", None)


def test_the_watcher_may_be_a_message_queue_trigger() -> None:
    trigger = MessageQueueTrigger(scheme="sqs+lease", queue_url="orders")
    asset = Asset("orders asset", watchers=[AssetWatcher("orders watcher", trigger=trigger)])
    assert sensor_of(asset).queue_url == "orders"


def test_with_a_mere_reference_to_an_asset_the_lease_says_the_queue() -> None:
    assert sensor_of(Asset("orders asset"), queue_url="orders").queue_url == "orders"
    assert sensor_of(Asset("orders asset"), default_args={"queue_url": "orders"}).queue_url == "orders"
    with pytest.raises(ValueError, match=r"'orders asset' has no watcher with an SqsLeaseTrigger.*queue_url="):
        sensor_of(Asset("orders asset"))


def test_of_several_watched_queues_the_lease_says_which() -> None:
    asset = asset_of("orders", "returns")
    assert sensor_of(asset, queue_url="returns").queue_url == "returns"
    with pytest.raises(ValueError, match="watched for orders, returns, so 'orders' needs queue_url="):
        sensor_of(asset)


def test_a_queue_that_the_asset_is_not_watched_for_is_refused() -> None:
    with pytest.raises(ValueError, match="watched for orders"):
        sensor_of(asset_of("orders"), queue_url="others")
    # By its name here and its URL there, and by a template, it may be the same.
    assert sensor_of(asset_of("orders"), queue_url=QUEUE_URL).queue_url == QUEUE_URL
    assert sensor_of(asset_of("orders"), queue_url="{{ var.value.queue }}").queue_url == "{{ var.value.queue }}"


def test_something_else_than_an_asset_is_refused() -> None:
    with (
        pytest.raises(TypeError, match="must be the Asset"),
        DAG("shop", schedule=None),
        sqs_lease("orders", event="orders") as orders,  # type: ignore[arg-type]
    ):
        load(orders)


def test_waiting_messages_are_taken_in_the_worker_and_handed_to_the_keeper(queue: LeasedQueue) -> None:
    queue.send("a", "b")
    task_instance = TaskInstance()
    messages = execute(sensor_of(asset_of("orders"), linger=0, visibility=300), task_instance)
    assert sorted(message["Body"] for message in messages) == ["a", "b"]
    assert task_instance.pushed[LEASE_KEY]["messages"] == 2
    assert queue.invisible == ["a", "b"]


def test_a_run_that_finds_nothing_is_skipped_after_seconds_and_waits_in_no_triggerer(queue: LeasedQueue) -> None:
    began_at = time.monotonic()
    with pytest.raises(AirflowSkipException):
        execute(sensor_of(asset_of("orders")), TaskInstance())
    assert time.monotonic() - began_at < 60


def test_a_queue_that_is_gone_fails_the_run_and_is_not_skipped(leased_queues: LeasedQueues) -> None:
    with pytest.raises(AirflowFailException, match="Check its name"):
        execute(sensor_of(asset_of("no-such-queue")), TaskInstance())


def test_the_example_is_a_dag_that_messages_start() -> None:
    names = runpy.run_path(str(ROOT / "dags" / "event_driven.py"))
    asset = names["arriving_orders"]
    dag = names["orders_that_start_runs"]()
    assert set(dag.task_dict) == {"orders", "total", "orders_keeper"}
    (trigger,) = watchers_of(asset)
    assert trigger.queue_url == dag.task_dict["orders"].queue_url == "orders-that-start-runs"
