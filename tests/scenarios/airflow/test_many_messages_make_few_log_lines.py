"""However many messages something happens to, a triggerer logs a few lines: it stands still while it logs thousands."""

from __future__ import annotations

import asyncio

import pytest

from sqs_lease.testing import Fault, Operation, TransportCall
from sqs_lease.testing.service_errors import ACCESS_DENIED
from tests.airflow.leased_messages import LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import CHECK, LOAD, RunningTrigger

MESSAGES = 300
FEW_LINES = 20


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor, bodies=[f"m{number}" for number in range(MESSAGES)])


def deletes_are_denied(call: TransportCall) -> Fault:
    return Fault(error=ACCESS_DENIED) if call.operation is Operation.DELETE else Fault()


async def receive_and_keep_all(world: LeasedMessages, *, faulty: bool = False, mapped: bool = False) -> RunningTrigger:
    triggerer = world.triggerer()
    await world.receive(triggerer, max_messages=MESSAGES)
    if faulty:
        triggerer.faults = deletes_are_denied
    if mapped:
        del world.states["load"]
        world.states.update({f"check_{number}": "running" for number in range(MESSAGES)})
    return world.keep(triggerer, CHECK if mapped else LOAD)


def test_messages_make_few_lines_when_their_settlement_is_refused(
    world: LeasedMessages, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        running = await receive_and_keep_all(world, faulty=True)
        world.states["load"] = "success"
        await running.ended()

    world.run(scenario)
    assert world.report()["failed"] == MESSAGES
    assert len(caplog.records) < FEW_LINES
    assert f"SQS did not settle each of {MESSAGES} messages" in caplog.text


@pytest.mark.parametrize("state", ["failed", "success"])
def test_messages_that_are_settled_one_by_one_make_few_lines(
    world: LeasedMessages, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    async def scenario() -> None:
        running = await receive_and_keep_all(world, mapped=True)
        for number in range(MESSAGES):
            world.states[f"check_{number}"] = state
            await asyncio.sleep(0.5)
        await running.ended()

    world.run(scenario)
    assert world.report()["deleted" if state == "success" else "released"] == MESSAGES
    assert len(caplog.records) < FEW_LINES + 8


def test_instances_that_fail_together_make_one_line(world: LeasedMessages, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        running = await receive_and_keep_all(world, mapped=True)
        world.states.update({f"check_{number}": "failed" for number in range(MESSAGES)})
        await running.ended()

    world.run(scenario)
    assert caplog.text.count("messages failed") == 1
    assert f"{MESSAGES} messages failed: task check[0] ended as failed" in caplog.text
