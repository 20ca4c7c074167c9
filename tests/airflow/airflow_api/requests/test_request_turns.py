"""Many triggers that ask Airflow at the same moment wait for their turn, and for each other to start.

Their time does not run meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from airflow.sdk.execution_time.comms import GetTaskStates

from sqs_lease.airflow.airflow_api.requests import (
    ANSWER_SECONDS,
    LONGEST_START_SECONDS,
    MANY_STARTS,
    REQUESTS_AT_ONCE,
    STARTING_SECONDS,
    RunOfTask,
    publish,
    request_limiter,
    task_states,
)
from sqs_lease.testing import run_virtual
from tests.airflow.scripted_comms import ScriptedComms, supervised_by

SECONDS_A_REQUEST = 0.5
TRIGGERS = 100


class SlowSupervisor(ScriptedComms):
    """A supervisor that serves one request after the other, and takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = 0
        self.most_under_way = 0
        self._serving = asyncio.Lock()

    async def asend(self, request: Any) -> Any:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            async with self._serving:
                await asyncio.sleep(SECONDS_A_REQUEST)
                return await super().asend(request)
        finally:
            self.under_way -= 1


async def publish_all() -> None:
    await asyncio.gather(
        *(publish(RunOfTask("dag", f"run {number}", "keeper"), "key", number) for number in range(TRIGGERS))
    )


def test_many_triggers_publish_without_a_request_that_is_made_twice() -> None:
    assert TRIGGERS * SECONDS_A_REQUEST > 4 * ANSWER_SECONDS

    async def scenario() -> None:
        with supervised_by(supervisor := SlowSupervisor()):
            await publish_all()
        assert len(supervisor.asked) == TRIGGERS
        assert supervisor.most_under_way == REQUESTS_AT_ONCE

    run_virtual(scenario)


def test_the_states_of_tasks_are_read_before_what_waits_for_its_turn() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        with supervised_by(supervisor := SlowSupervisor()):
            publishing = asyncio.create_task(publish_all())
            await asyncio.sleep(1)
            began = loop.time()
            await task_states("dag", ["run"], ["work"])
            assert loop.time() - began <= (REQUESTS_AT_ONCE + 1) * (SECONDS_A_REQUEST + 0.1)
            assert supervisor.count(GetTaskStates) == 1
            await publishing

    run_virtual(scenario)


async def start_triggers(number: int, seconds: float) -> None:
    """Have triggers start for so long, evenly."""
    for _ in range(number):
        request_limiter().trigger_started()
        await asyncio.sleep(seconds / number)


async def seconds_until_asked(request: Awaitable[object]) -> float:
    """How long a request takes from now on."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await request
    return loop.time() - began


@pytest.mark.parametrize(
    "request_for",
    [
        pytest.param(lambda: publish(RunOfTask("dag", "run", "keeper"), "key", 1), id="one trigger's"),
        pytest.param(lambda: task_states("dag", ["run"], ["work"]), id="made for all triggers"),
    ],
)
def test_nothing_is_asked_while_many_triggers_start(request_for: Callable[[], Awaitable[object]]) -> None:
    async def scenario() -> None:
        with supervised_by(supervisor := ScriptedComms()):
            await start_triggers(MANY_STARTS, 1.0)
            # The next round of as many triggers begins before these would be taken for all.
            starting = asyncio.create_task(start_triggers(9 * MANY_STARTS, 3.0))
            asking = asyncio.create_task(seconds_until_asked(request_for()))
            await starting
            assert not supervisor.asked
            assert 3.0 < await asking < 3.0 + STARTING_SECONDS + 0.1

    run_virtual(scenario)


def test_few_triggers_that_start_keep_no_request_waiting() -> None:
    async def scenario() -> None:
        with supervised_by(ScriptedComms()):
            await start_triggers(MANY_STARTS - 1, 0.5)
            assert await seconds_until_asked(task_states("dag", ["run"], ["work"])) < 0.1

    run_virtual(scenario)


def test_triggers_that_start_without_end_keep_requests_waiting_for_a_while_only() -> None:
    async def scenario() -> None:
        with supervised_by(ScriptedComms()):
            starting = asyncio.create_task(start_triggers(100 * MANY_STARTS, 100.0))
            await asyncio.sleep(STARTING_SECONDS)
            assert await seconds_until_asked(task_states("dag", ["run"], ["work"])) < LONGEST_START_SECONDS
            assert await seconds_until_asked(task_states("dag", ["run"], ["work"])) < 0.1
            starting.cancel()

    run_virtual(scenario)
