"""A keeper with nothing new to do does next to nothing, and takes its turn in asking Airflow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from airflow.sdk.execution_time.comms import GetXCom

from sqs_lease.airflow.comms.state_poller import READERS_AT_ONCE
from sqs_lease.airflow.keeping import settling
from sqs_lease.airflow.keeping.settling import WorkTask
from sqs_lease.airflow.keeping.work_reports import WorkReports
from tests.airflow.leased_messages import LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import KEEP, RUN_ID


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor)


def count_decisions(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    decisions: list[object] = []
    decide = settling.decide

    def counting(*arguments: Any, **options: Any) -> Any:
        decisions.append(arguments)
        return decide(*arguments, **options)

    monkeypatch.setattr("sqs_lease.airflow.keeping.settler.decide", counting)
    return decisions


def test_an_hour_without_news_takes_one_decision(world: LeasedMessages, monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = count_decisions(monkeypatch)

    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(3600)
        assert len(decisions) == 1
        world.states["load"] = "success"
        await running.ended()

    world.run(scenario)


def test_what_cannot_be_read_now_is_decided_on_again_without_news(world: LeasedMessages) -> None:
    def refuse_return_values(request: Any) -> None:
        world.supervisor.refusing = getattr(request, "key", None) == "return_value"

    async def scenario() -> None:
        running = await world.receive_and_keep()
        world.supervisor.on_request = refuse_return_values
        world.states["load"] = "success"
        await asyncio.sleep(30)
        world.supervisor.on_request = None
        world.supervisor.refusing = False
        await running.ended()

    world.run(scenario)
    assert world.report()["deleted"] == 3


def test_many_reports_are_read_a_few_at_a_time(world: LeasedMessages) -> None:
    under_way = most = 0
    answer = world.supervisor.asend

    async def counting(request: Any) -> Any:
        nonlocal under_way, most
        if not isinstance(request, GetXCom) or request.task_id == "orders":
            return await answer(request)
        under_way += 1
        most = max(most, under_way)
        try:
            return await answer(request)
        finally:
            under_way -= 1

    world.supervisor.asend = counting  # type: ignore[method-assign]

    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer)
        poller = triggerer.keepers.poller
        with poller.watch("dag", RUN_ID, ["load"]) as watch:
            reports = WorkReports(KEEP, [WorkTask("load")], world.ids)

            async def read() -> None:
                async with watch.turn:
                    await reports.read(("load", -1), {"load": "success"})

            await asyncio.gather(*(read() for _ in range(50)))

    world.run(scenario)
    assert most == READERS_AT_ONCE
