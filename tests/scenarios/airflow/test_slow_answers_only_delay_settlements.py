"""Slow answers of Airflow's delay settlements and never prevent them; only a gap of the event loop is a stall."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest
from airflow.sdk.execution_time.comms import GetTaskStates

from sqs_lease.airflow.airflow_api.polling import MAX_RUNS_IN_REQUEST, QUESTIONS_AT_ONCE
from sqs_lease.airflow.airflow_api.requests import ANSWER_SECONDS
from sqs_lease.airflow.settlement.rules import WorkTask
from sqs_lease.airflow.settlement.settler import AFTER_STALL_SECONDS
from tests.airflow.leased_messages import ALL_HELD, ALL_VISIBLE, LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import KEEP, RECEIVE, RunningTrigger, VirtualTriggerer

SILENT_WORK = WorkTask("load", returns=False)


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor)


class SlowStates:
    """Makes a supervisor answer questions for states slowly, one after the other."""

    def __init__(self, supervisor: ScriptedComms, seconds: float, *, seconds_a_run: float = 0.0) -> None:
        self.under_way = 0
        self.most_under_way = 0
        self._answer = supervisor.asend
        self._seconds = seconds
        self._seconds_a_run = seconds_a_run
        self._serving = asyncio.Lock()
        supervisor.asend = self.asend  # type: ignore[method-assign]

    async def asend(self, request: Any) -> Any:
        if not isinstance(request, GetTaskStates):
            return await self._answer(request)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            async with self._serving:
                await asyncio.sleep(self._seconds + self._seconds_a_run * len(request.run_ids or ()))
                return await self._answer(request)
        finally:
            self.under_way -= 1


async def receive_and_keep_in(triggerer: VirtualTriggerer, world: LeasedMessages) -> RunningTrigger:
    await world.receive(triggerer)
    return world.keep(triggerer, SILENT_WORK)


def test_messages_are_settled_although_a_round_of_questions_takes_longer_than_a_stall(world: LeasedMessages) -> None:
    async def scenario() -> None:
        slow = SlowStates(world.supervisor, 0.5)
        triggerer = world.triggerer()
        with ExitStack() as others:
            for number in range(22):
                others.enter_context(triggerer.keepers.poller.watch(f"dag {number}", "run", ["work"]))
            running = await receive_and_keep_in(triggerer, world)
            await asyncio.sleep(30)
            world.states["load"] = "success"
            async with asyncio.timeout(60):
                await running.ended()
        assert slow.most_under_way <= QUESTIONS_AT_ONCE

    world.run(scenario)
    assert world.report()["deleted"] == 3


def test_messages_are_settled_although_each_answer_takes_nearly_as_long_as_it_may(world: LeasedMessages) -> None:
    async def scenario() -> None:
        SlowStates(world.supervisor, ANSWER_SECONDS - 0.1)
        running = await receive_and_keep_in(world.triggerer(), world)
        await asyncio.sleep(60)
        world.states["load"] = "failed"
        async with asyncio.timeout(60):
            await running.ended()
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)


def test_runs_are_asked_for_in_smaller_groups_when_their_states_take_too_long_together(world: LeasedMessages) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        running = await receive_and_keep_in(triggerer, world)
        with ExitStack() as others:
            for number in range(MAX_RUNS_IN_REQUEST - 1):
                tasks = ["load", RECEIVE.task_id, KEEP.task_id]
                others.enter_context(triggerer.keepers.poller.watch("dag", f"run {number}", tasks))
            SlowStates(world.supervisor, 0.0, seconds_a_run=3 * ANSWER_SECONDS / MAX_RUNS_IN_REQUEST)
            world.states["load"] = "success"
            async with asyncio.timeout(300):
                await running.ended()

    world.run(scenario)
    assert world.report()["deleted"] == 3


def test_an_answer_that_was_asked_for_before_a_stall_settles_nothing(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await receive_and_keep_in(world.triggerer(), world)
        await asyncio.sleep(10)
        SlowStates(world.supervisor, 8.0)
        await asyncio.sleep(12)  # a question is under way
        world.states["load"] = "failed"
        world.clock.advance(15)
        await asyncio.sleep(AFTER_STALL_SECONDS - 1)
        assert world.message_states() == ALL_HELD
        await running.ended()
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)


def test_a_slow_dag_does_not_delay_the_messages_of_another(world: LeasedMessages) -> None:
    async def scenario() -> None:
        answer = world.supervisor.asend

        async def slow_for_one(request: Any) -> Any:
            if isinstance(request, GetTaskStates) and request.dag_id == "slow":
                await asyncio.sleep(ANSWER_SECONDS - 1)
            return await answer(request)

        world.supervisor.asend = slow_for_one  # type: ignore[method-assign]
        triggerer = world.triggerer()
        with triggerer.keepers.poller.watch("slow", "run", ["work"]):
            running = await receive_and_keep_in(triggerer, world)
            await asyncio.sleep(5)
            world.states["load"] = "success"
            async with asyncio.timeout(3):
                await running.ended()

    world.run(scenario)
