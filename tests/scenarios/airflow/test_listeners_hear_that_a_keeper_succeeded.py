"""Listeners of successes, such as OpenLineage's: a worker ends the keeper for them; a triggerer tells them nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.listeners import hookimpl
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.listener import get_listener_manager
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from sqs_lease.airflow import SqsLeaseKeeperOperator, sqs_lease
from sqs_lease.airflow.airflow_api import requests
from sqs_lease.airflow.triggers.shared import DEFERRAL_SECONDS
from sqs_lease.core.messages import Lease, Receipt
from tests.airflow.executed_operators import RECEIVING, TaskInstance, execute
from tests.airflow.handed import handed_lease
from tests.airflow.leased_messages import LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms


class Lineage:
    """A listener as OpenLineage's."""

    @hookimpl
    def on_task_instance_success(self, previous_state: Any, task_instance: Any) -> None: ...


class FailuresOnly:
    @hookimpl
    def on_task_instance_failed(self, previous_state: Any, task_instance: Any, error: Any) -> None: ...


@pytest.fixture(params=[Lineage, FailuresOnly])
def listener(request: pytest.FixtureRequest) -> Iterator[type]:
    """A listener of a plugin, and no other."""
    manager = get_listener_manager().pm
    others = list(manager.get_plugins())
    one = request.param()
    for plugin in others:
        manager.unregister(plugin)
    manager.register(one)
    yield request.param
    manager.unregister(one)
    for plugin in others:
        manager.register(plugin)


@task
def load(messages: Any) -> None: ...


@pytest.fixture
def keeper() -> SqsLeaseKeeperOperator:
    with DAG("shop", schedule=None) as dag, sqs_lease("orders", queue_url="orders") as orders:
        load(orders)
    keeper = dag.task_dict["orders_keeper"]
    assert isinstance(keeper, SqsLeaseKeeperOperator)
    return keeper


def deferred(keeper: SqsLeaseKeeperOperator) -> TaskDeferred:
    return execute(keeper, TaskInstance(lease=handed_lease([Lease(Receipt("m", "h"), 0.0, 30.0)]).encode(RECEIVING)))


def test_a_worker_ends_the_keeper_only_where_a_listener_hears_of_its_success(
    keeper: SqsLeaseKeeperOperator, listener: type, supervisor: ScriptedComms
) -> None:
    _, arguments = deferred(keeper).trigger.serialize()
    assert arguments["ends_in_worker"] is (listener is Lineage)


def test_an_airflow_without_that_manager_ends_the_keeper_in_the_triggerer(
    keeper: SqsLeaseKeeperOperator, monkeypatch: pytest.MonkeyPatch, supervisor: ScriptedComms
) -> None:
    monkeypatch.setattr(requests, "get_listener_manager", None)
    _, arguments = deferred(keeper).trigger.serialize()
    assert arguments["ends_in_worker"] is False


@pytest.mark.parametrize("ends_in_worker", [True, False])
def test_the_end_comes_when_everything_was_settled(
    supervisor: ScriptedComms, keeper: SqsLeaseKeeperOperator, ends_in_worker: bool
) -> None:
    world = LeasedMessages(supervisor)

    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer)
        began = world.clock.now()
        running = world.keep(triggerer, ends_in_worker=ends_in_worker)
        await asyncio.sleep(1)
        world.states["load"] = "success"
        (event,) = await running.ended()
        assert world.message_states() == {}
        assert world.report()["deleted"] == 3
        if ends_in_worker:
            assert type(event) is TriggerEvent
            # A worker that were asked sooner might find the task's process still ending.
            assert world.clock.now() - began >= DEFERRAL_SECONDS
            keeper.execute_complete({}, event.payload)
        else:
            assert type(event) is TaskSuccessEvent

    world.run(scenario)
