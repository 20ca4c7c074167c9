"""Triggers end as they should although Airflow cancels them again with every round of the triggerer."""

from __future__ import annotations

import asyncio

import pytest

from sqs_lease.airflow.triggers.shared import shielded
from sqs_lease.keeper.endings import cancelled_once
from sqs_lease.testing import AuditKind, run_virtual
from tests.airflow.leased_messages import ALL_HELD, ALL_VISIBLE, LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import KEEP, RECEIVE, USER_ACTION, receive_trigger


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor)


def test_a_sensor_that_is_ended_while_it_waits_for_more_leaves_no_poll_open_that_takes_what_it_releases(
    world: LeasedMessages,
) -> None:
    async def scenario() -> None:
        waiting = receive_trigger("orders", world.clock, max_messages=100, linger_seconds=300.0)
        running = world.triggerer().start(waiting, RECEIVE)
        await asyncio.sleep(12)
        assert world.message_states() == ALL_HELD
        began = world.clock.now()
        await running.cancel(USER_ACTION)
        # The poll under way came back first: if cut off, it could have received the released messages after all.
        assert world.clock.now() - began > 3
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)


def test_messages_of_a_marked_keeper_are_released_however_long_airflow_takes_to_tell_its_state(
    world: LeasedMessages,
) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(5)
        world.states[KEEP.task_id] = "failed"
        world.supervisor.answer_seconds = 5.0
        await running.cancel(USER_ACTION)
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)
    assert len(world.events(AuditKind.RELEASED)) == 3


def test_an_error_of_a_method_is_raised_where_it_is_awaited() -> None:
    class Failing:
        @shielded
        async def cleanup(self) -> None:
            raise OSError("no connection")

    async def scenario() -> None:
        with pytest.raises(OSError, match="no connection"):
            await Failing().cleanup()

    run_virtual(scenario)


def test_work_that_an_ending_event_loop_cancelled_is_not_cancelled_again() -> None:
    async def scenario() -> None:
        ended = []

        async def end_slowly() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(5)
                ended.append("slowly")

        work = asyncio.create_task(end_slowly())
        await asyncio.sleep(1)
        work.cancel()
        await cancelled_once(work)
        assert ended == ["slowly"]

    run_virtual(scenario)
