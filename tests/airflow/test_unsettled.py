"""Messages that could not be settled fail their keeper, and with it the run, for good; so do losses where users say so.

The events of triggers go through Airflow's own code: the triggerer's, and the task runner's in the worker.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
import structlog
from airflow.models.trigger import handle_event_submit
from airflow.sdk import DAG
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import TaskState
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from sqs_lease.airflow import SqsLeaseKeeperOperator, SqsLeaseSensor
from sqs_lease.airflow.runtime import DEFERRAL_SECONDS
from sqs_lease.airflow.transfer.progress import PROGRESS_KEY, Progress
from sqs_lease.core.events import Outcome
from sqs_lease.core.policies import Never
from sqs_lease.testing import Fault, FaultRule, Operation, TransportCall
from sqs_lease.testing.service_errors import ACCESS_DENIED, NO_SUCH_QUEUE
from tests.airflow.leased_messages import LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import CHECK, RECEIVE, RUN_ID, RunningTrigger


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor)


def deletes_are_denied(call: TransportCall) -> Fault:
    return Fault(error=ACCESS_DENIED) if call.operation is Operation.DELETE else Fault()


def the_queue_is_gone(call: TransportCall) -> Fault:
    return Fault(error=NO_SUCH_QUEUE)


async def receive_and_keep(world: LeasedMessages, faults: FaultRule) -> RunningTrigger:
    triggerer = world.triggerer()
    await world.receive(triggerer)
    triggerer.faults = faults
    return world.keep(triggerer)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a worker ended the keeper."""

    state: str
    told: object
    error: BaseException | None


def end_by(event: TriggerEvent, *, retries: int) -> Ended:
    """End the keeper by its trigger's event: Airflow's triggerer takes it in, and a worker runs the task again."""
    row: Any = SimpleNamespace(next_method="execute_complete", next_kwargs={}, trigger_id=1, state="deferred")
    handle_event_submit(event, task_instance=row, session=MagicMock())
    assert row.state == "scheduled"
    with DAG("shop", schedule=None, default_args={"retries": retries}) as dag:
        sensor = SqsLeaseSensor(task_id="orders", queue_url="orders")
        keeper = SqsLeaseKeeperOperator(task_id="orders_keeper", receive_task_id="orders", work_task_ids=["load"])
        keeper.as_teardown(setups=sensor)
    assert dag.task_dict["orders_keeper"].retries == retries
    from_server = SimpleNamespace(
        next_method=row.next_method,
        next_kwargs=row.next_kwargs,
        xcom_keys_to_clear=[],
        should_retry=retries > 0,
        dag_run=SimpleNamespace(team_name=None),
    )
    instance: Any = task_runner.RuntimeTaskInstance.model_construct(
        dag_id="shop", run_id=RUN_ID, task_id=keeper.task_id, map_index=-1, try_number=1, task=keeper
    )
    instance._ti_context_from_server = from_server
    context: Any = {"ti": instance, "outlet_events": {}}
    before = signal.getsignal(signal.SIGTERM)
    supervisor = MagicMock()
    try:
        with (
            patch.object(task_runner, "_prepare", return_value=None),
            patch.object(task_runner, "SUPERVISOR_COMMS", supervisor, create=True),
        ):
            state, told, error = task_runner.run(instance, context, structlog.get_logger())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert supervisor.send.call_args.kwargs == {"msg": told}
    return Ended(state.value, told, error)


def keep_until_its_event(world: LeasedMessages, keep: Callable[[], Awaitable[RunningTrigger]]) -> TriggerEvent:
    """Let the work succeed, and return the event that ends the keeper."""
    events: list[TriggerEvent] = []

    async def scenario() -> None:
        running = await keep()
        world.states["load"] = "success"
        events.extend(await running.ended())

    world.run(scenario)
    (event,) = events
    return event


@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.parametrize("faults", [deletes_are_denied, the_queue_is_gone])
def test_messages_that_cannot_be_settled_fail_the_task_for_good_with_queue_counts_and_remedy(
    world: LeasedMessages, faults: FaultRule, retries: int
) -> None:
    ended = end_by(keep_until_its_event(world, lambda: receive_and_keep(world, faults)), retries=retries)
    assert ended.state == "failed"
    assert isinstance(ended.told, TaskState)  # and no RetryTask
    assert f"3 of 3 messages of {world.url} could not be settled" in str(ended.error)
    assert "'orders_keeper'" in str(ended.error)
    assert "sqs:DeleteMessage" in str(ended.error)
    assert world.report()["failed"] == 3
    assert sum(world.report()["refusals"].values()) == 3


def test_a_loss_that_fails_the_keeper_outlives_its_retries_too(world: LeasedMessages) -> None:
    async def keep_until_all_lapsed() -> RunningTrigger:
        triggerer = world.triggerer()
        await world.receive(triggerer, Never(visibility=30))
        running = world.keep(triggerer, on_lost="fail")
        await asyncio.sleep(40)
        return running

    ended = end_by(keep_until_its_event(world, keep_until_all_lapsed), retries=3)
    assert ended.state == "failed"
    assert "3 lapsed" in str(ended.error)


@pytest.mark.parametrize("on_lost", ["warn", "fail"])
def test_a_delete_after_a_lapse_fails_the_keeper_where_losses_do(world: LeasedMessages, on_lost: str) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer, Never(visibility=30))
        first = world.keep(triggerer, CHECK)
        del world.states["load"]
        world.states.update({"check_0": "running", "check_1": "running", "check_2": "running"})
        await asyncio.sleep(40)
        world.states.update({"check_0": "success", "check_1": "success"})
        await asyncio.sleep(5)
        # Another triggerer does not see the lapses, but what came of them.
        await triggerer.kill()
        await first.kill()
        running = world.keep(world.triggerer("second"), CHECK, on_lost=on_lost)
        world.states["check_2"] = "success"
        (event,) = await running.ended()
        assert isinstance(event, TaskSuccessEvent) == (on_lost == "warn")

    world.run(scenario)
    assert world.report()["uncertain"] >= 2
    assert world.report()["late"] >= 3


def test_a_takeover_counts_what_the_process_before_could_not_settle(world: LeasedMessages) -> None:
    async def scenario() -> None:
        del world.states["load"]
        world.states.update({"check_0": "success", "check_1": "running", "check_2": "running"})
        first = world.triggerer()
        await world.receive(first)
        del world.states["load"]
        first.faults = deletes_are_denied
        running = world.keep(first, CHECK)
        await asyncio.sleep(30)
        noted = Progress.decode(world.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, PROGRESS_KEY])
        assert noted.settled == {0: Outcome.FAILED}
        await first.kill()
        await running.kill()
        resumed_elsewhere = world.keep(world.triggerer("second"), CHECK)
        world.states.update({"check_1": "success", "check_2": "success"})
        (event,) = await resumed_elsewhere.ended()
        assert f"1 of 3 messages of {world.url} could not be settled" in event.payload["error"]

    world.run(scenario)
    assert (world.report()["failed"], world.report()["deleted"]) == (1, 2)


def test_a_takeover_goes_on_counting_extensions(world: LeasedMessages) -> None:
    async def scenario() -> None:
        first = world.triggerer()
        await world.receive(first)
        running = world.keep(first)
        await asyncio.sleep(600)
        noted = Progress.decode(world.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, PROGRESS_KEY])
        assert noted.counts["extensions"] > 3
        await first.kill()
        await running.kill()
        again = world.keep(world.triggerer("second"))
        world.states["load"] = "success"
        await again.ended()
        assert world.report()["extensions"] > noted.counts["extensions"]

    world.run(scenario)


def test_a_batch_that_fails_at_once_is_resumed_only_after_its_deferral_was_noticed(world: LeasedMessages) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer)
        triggerer.faults = deletes_are_denied
        world.states["load"] = "success"
        began_at = world.clock.now()
        running = world.keep(triggerer)
        world.states["load"] = "success"
        await running.ended()
        assert world.clock.now() - began_at >= DEFERRAL_SECONDS

    world.run(scenario)


def test_a_keeper_that_is_made_a_teardown_by_hand_fails_its_run() -> None:
    with DAG("shop", schedule=None):
        sensor = SqsLeaseSensor(task_id="orders", queue_url="orders")
        keeper = SqsLeaseKeeperOperator(task_id="keep", receive_task_id="orders", work_task_ids=["load"])
        keeper.as_teardown(setups=sensor)
        other = SqsLeaseKeeperOperator(task_id="other", receive_task_id="orders", work_task_ids=["load"])
        other.as_teardown(setups=sensor, on_failure_fail_dagrun=False)
    assert keeper.on_failure_fail_dagrun
    assert not other.on_failure_fail_dagrun
