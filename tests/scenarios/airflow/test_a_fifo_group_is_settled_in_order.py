"""On a FIFO queue the keeper settles the messages of a group in their order, unless the user says otherwise."""

from __future__ import annotations

import asyncio

import pytest

from sqs_lease.airflow.settlement.rules import WorkTask
from sqs_lease.core.calls import VisibilityChange
from sqs_lease.core.failure_rules import dead_letter
from sqs_lease.testing import AuditKind, MessageState
from tests.airflow.leased_messages import ALL_HELD, ALL_VISIBLE, LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms

CHECK = WorkTask("check", mapped=True, per_message=True, returns=False)


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    made = LeasedMessages(supervisor, fifo=True)
    del made.states["load"]
    made.states.update({f"check_{index}": "running" for index in range(3)})
    return made


def ended(world: LeasedMessages, *states: str) -> None:
    world.states.update({f"check_{index}": state for index, state in enumerate(states)})


def test_a_message_that_is_done_waits_for_those_before_it(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(CHECK)
        ended(world, "running", "success", "success")
        await asyncio.sleep(3600)
        assert world.message_states() == ALL_HELD
        ended(world, "success")
        await running.ended()
        assert world.message_states() == {}

    world.run(scenario)
    assert not world.events(AuditKind.EXPIRED)


def test_messages_behind_one_that_failed_are_given_back_in_order(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(CHECK)
        ended(world, "running", "success", "success")
        await asyncio.sleep(60)
        ended(world, "failed")
        await running.ended()
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)
    released = [entry.message_id for entry in world.events(AuditKind.RELEASED)]
    assert released == world.ids
    assert not world.events(AuditKind.DELETED)


def test_messages_behind_a_failed_one_need_not_wait_for_those_before_it(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(CHECK)
        ended(world, "running", "failed", "success")
        await asyncio.sleep(3)
        assert world.message_states() == {**ALL_VISIBLE, "a": MessageState.IN_FLIGHT}
        # SQS does not give them out before the first one of the group is settled, though.
        assert world.sqs.receive(world.url, max_messages=10, caller="other") == []
        ended(world, "success")
        await running.ended()

    world.run(scenario)
    assert (world.report()["deleted"], world.report()["released"]) == (1, 2)


def test_a_later_try_of_settling_knows_what_was_given_back_before(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(CHECK)
        ended(world, "failed", "running", "running")
        await asyncio.sleep(10)
        ended(world, "failed", "success", "success")
        await running.ended()
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)
    assert world.report()["released"] == 3


def test_behind_a_dead_lettered_message_the_group_goes_on(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(CHECK, on_failure=dead_letter())
        ended(world, "failed", "success", "success")
        await running.ended()
        assert world.message_states() == {}

    world.run(scenario)
    assert (world.report()["dead_lettered"], world.report()["deleted"]) == (1, 2)


def test_a_user_to_whom_the_order_does_not_matter_has_each_message_settled_for_itself(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(CHECK, ordered=False)
        ended(world, "running", "failed", "success")
        await asyncio.sleep(3)
        assert world.message_states() == {"a": MessageState.IN_FLIGHT, "b": MessageState.VISIBLE}
        ended(world, "success")
        await running.ended()

    world.run(scenario)
    assert (world.report()["deleted"], world.report()["released"]) == (2, 1)


def test_a_poison_message_at_the_head_of_a_group_comes_back_later_and_later(world: LeasedMessages) -> None:
    async def scenario() -> None:
        for _ in range(3):
            received = world.sqs.receive(world.url, max_messages=10)
            world.sqs.change_visibility(world.url, [VisibilityChange(message.receipt, 0) for message in received])
        running = await world.receive_and_keep(CHECK)
        ended(world, "failed", "success", "success")
        await running.ended()
        assert world.sqs.receive(world.url, max_messages=10) == []
        await asyncio.sleep(6)
        assert [message.body for message in world.sqs.receive(world.url, max_messages=10)] == ["a", "b", "c"]

    world.run(scenario)
