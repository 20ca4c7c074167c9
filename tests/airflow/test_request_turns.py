"""Many triggers that ask Airflow at the same moment wait for their turn, and their time does not run meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

from airflow.sdk.execution_time.comms import GetTaskStates

from sqs_lease.airflow.comms.supervisor import ANSWER_SECONDS, RunOfTask, publish, task_states
from sqs_lease.airflow.comms.turns import REQUESTS_AT_ONCE
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
