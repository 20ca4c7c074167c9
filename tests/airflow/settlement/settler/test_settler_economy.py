"""A keeper with nothing new to do does next to nothing, and takes its turn in asking Airflow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from airflow.sdk.execution_time.comms import GetXCom, SetXCom

from sqs_lease.airflow.airflow_api.polling import READERS_AT_ONCE
from sqs_lease.airflow.settlement.rules import Judgement, WorkTask
from sqs_lease.airflow.settlement.settler import Work
from sqs_lease.core.policies import Growing
from sqs_lease.core.verdict import Decision
from sqs_lease.keeper.batch import Batch
from sqs_lease.keeper.event_loop_rounds import LEASES_IN_A_ROUND
from sqs_lease.testing import MessageState
from tests.airflow.leased_messages import LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import CHECK, KEEP, RUN_ID, RunningTrigger


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor)


def count_decisions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """On how many messages each step decides; between two steps the event loop gets to do other things."""
    decided_on: list[int] = []

    class Counting(Judgement):
        def on(self, held: Iterable[int]) -> dict[int, Decision]:
            positions = list(held)
            decided_on.append(len(positions))
            return super().on(positions)

    monkeypatch.setattr("sqs_lease.airflow.settlement.settler.Judgement", Counting)
    return decided_on


def test_an_hour_without_news_takes_one_decision(world: LeasedMessages, monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = count_decisions(monkeypatch)

    async def scenario() -> None:
        running = await world.receive_and_keep(CHECK)
        world.states["check"] = None
        await asyncio.sleep(3600)
        assert decisions == [3]
        del world.states["check"]
        world.states.update({f"check_{position}": "skipped" for position in range(3)})
        await running.ended()

    world.run(scenario)


def test_states_that_cannot_be_read_now_are_decided_on_again_without_news(world: LeasedMessages) -> None:
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


@pytest.mark.parametrize("read_first", [1, 2])
def test_states_that_were_read_before_one_that_cannot_be_read_are_settled_too(
    world: LeasedMessages, read_first: int
) -> None:
    reads = 0

    def refuse_one_return_value(request: Any) -> None:
        nonlocal reads
        if getattr(request, "key", None) == "return_value":
            reads += 1
            world.supervisor.refusing = reads == read_first + 1
        else:
            world.supervisor.refusing = False

    async def scenario() -> None:
        running = await world.receive_and_keep(CHECK)
        world.supervisor.on_request = refuse_one_return_value
        del world.states["load"]
        # All at once, and then no news.
        world.states.update({f"check_{position}": "success" for position in range(3)})
        await asyncio.sleep(30)
        assert world.message_states() == {}
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
            work = Work(KEEP, [WorkTask("load")], world.ids)

            async def read() -> None:
                async with watch.turn:
                    await work.read(("load", -1), {"load": "success"})

            await asyncio.gather(*(read() for _ in range(50)))

    world.run(scenario)
    assert most == READERS_AT_ONCE


MANY = 2 * LEASES_IN_A_ROUND + 500


async def receive_and_keep_many(world: LeasedMessages, *work: WorkTask, **states: str) -> RunningTrigger:
    triggerer = world.triggerer()
    # Longer than the tests take: extensions have notes of their own.
    await world.receive(triggerer, Growing(visibility=180), max_messages=MANY, linger_seconds=300.0)
    del world.states["load"]
    world.states.update(states)
    return world.keep(triggerer, *work)


@pytest.fixture
def many(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor, bodies=[f"m{number}" for number in range(MANY)])


def test_one_instance_that_ends_among_thousands_is_decided_on_alone(
    many: LeasedMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions = count_decisions(monkeypatch)

    async def scenario() -> None:
        checks = {f"check_{number}": "running" for number in range(MANY)}
        running = await receive_and_keep_many(many, CHECK, **checks)
        await asyncio.sleep(30)
        decisions.clear()
        many.states["check_7"] = "failed"
        await asyncio.sleep(30)
        # By its state, and once its report was read.
        assert decisions in ([1], [1, 1])
        assert many.message_states()["m7"] is MessageState.VISIBLE
        await running.cancel()

    many.run(scenario)


def test_reading_the_reports_of_thousands_costs_no_more_decisions_than_messages(
    many: LeasedMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions = count_decisions(monkeypatch)

    async def scenario() -> None:
        checks = {f"check_{number}": "success" for number in range(MANY)}
        await (await receive_and_keep_many(many, CHECK, **checks)).ended()

    many.run(scenario)
    assert many.report()["deleted"] == MANY
    assert sum(decisions) == 2 * MANY  # by the states, and by the reports


@pytest.mark.parametrize("state", ["success", "failed"])
def test_a_large_batch_is_decided_on_and_settled_in_steps(
    many: LeasedMessages, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    decisions = count_decisions(monkeypatch)
    settled: list[int] = []
    settle = Batch.settle

    async def counting(batch: Batch, settlements: Any, **options: Any) -> Any:
        settled.append(len(settlements))
        return await settle(batch, settlements, **options)

    monkeypatch.setattr(Batch, "settle", counting)

    async def scenario() -> None:
        running = await receive_and_keep_many(many, WorkTask("load", returns=False), load="running")
        await asyncio.sleep(10)
        assert sum(decisions) == 0  # nothing can be said while the one task runs
        many.states["load"] = state
        await running.ended()

    many.run(scenario)
    assert many.report()["deleted" if state == "success" else "released"] == MANY
    assert sum(decisions) == sum(settled) == MANY
    assert max(decisions) == max(settled) == LEASES_IN_A_ROUND


def test_progress_is_written_once_for_what_is_settled_together(many: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await receive_and_keep_many(many, WorkTask("load", returns=False), load="running")
        await asyncio.sleep(10)
        many.supervisor.asked.clear()
        many.states["load"] = "success"
        await running.ended()

    many.run(scenario)
    assert many.supervisor.count(SetXCom) == 3  # and the report, and that the batch ended
