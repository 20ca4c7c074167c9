"""What becomes of a received batch until its keeper's trigger takes it, or does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sqs_lease.airflow.handover.handoff import ADOPTION_SECONDS
from sqs_lease.testing import AuditKind, MemorySqs, MessageState, VirtualClock, run_virtual
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import KEEP, RECEIVE, RUN_ID, VirtualTriggerer, receive_trigger

TIMEOUT_SECONDS = 300.0


class World:
    """A triggerer that received a message and holds it for a keeper that is not there yet."""

    def __init__(self, supervisor: ScriptedComms) -> None:
        self.clock = VirtualClock()
        self.sqs = MemorySqs(self.clock)
        self.url = self.sqs.create_queue("orders")
        self.sqs.send(self.url, "a")
        self.supervisor = supervisor
        self.states = supervisor.states.setdefault(RUN_ID, {})
        self.states[KEEP.task_id] = None

    def run(self, scenario: Callable[[VirtualTriggerer], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            triggerer = VirtualTriggerer(self.sqs, self.clock)
            trigger = receive_trigger("orders", self.clock, handoff_timeout_seconds=TIMEOUT_SECONDS)
            await triggerer.start(trigger, RECEIVE).ended()
            await scenario(triggerer)

        run_virtual(main, clock=self.clock)

    def state(self) -> MessageState:
        (state,) = self.sqs.contents(self.url).values()
        return state

    def extensions(self) -> int:
        return sum(entry.kind is AuditKind.CHANGED for entry in self.sqs.trail().entries())

    def releases(self) -> int:
        return sum(entry.kind is AuditKind.RELEASED for entry in self.sqs.trail().entries())


@pytest.fixture
def world(supervisor: ScriptedComms) -> World:
    return World(supervisor)


def test_the_message_is_held_while_no_worker_is_free_for_the_keeper(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        world.states[KEEP.task_id] = "queued"
        await asyncio.sleep(TIMEOUT_SECONDS - 10)
        assert world.state() is MessageState.IN_FLIGHT
        assert world.extensions() > 0

    world.run(scenario)


@pytest.mark.parametrize("state", [None, "scheduled", "queued", "up_for_retry"])
def test_the_message_is_released_when_the_keeper_did_not_start_in_time(world: World, state: str | None) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        world.states[KEEP.task_id] = state
        await asyncio.sleep(TIMEOUT_SECONDS + 5)
        assert world.state() is MessageState.VISIBLE

    world.run(scenario)
    assert world.releases() == 1


def test_the_message_is_released_when_its_run_was_deleted(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        # Airflow leaves a run that it does not know out of its answer.
        del world.supervisor.states[RUN_ID]
        await asyncio.sleep(TIMEOUT_SECONDS + 5)
        assert world.state() is MessageState.VISIBLE

    world.run(scenario)
    assert world.releases() == 1


@pytest.mark.parametrize("state", ["failed", "upstream_failed", "skipped", "removed"])
def test_the_message_is_released_at_once_when_the_keeper_will_never_come(world: World, state: str) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        world.states[KEEP.task_id] = state
        await asyncio.sleep(3)
        assert world.state() is MessageState.VISIBLE

    world.run(scenario)
    assert world.releases() == 1


def test_a_batch_whose_keeper_was_deferred_elsewhere_is_left_to_it(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        world.states[KEEP.task_id] = "deferred"
        await asyncio.sleep(ADOPTION_SECONDS + 3)
        assert triggerer.keepers.batches == {}
        extensions = world.extensions()
        # Even a failed keeper is no reason to release what another process may have given to somebody else.
        world.states[KEEP.task_id] = "failed"
        await asyncio.sleep(TIMEOUT_SECONDS)
        assert world.extensions() == extensions

    world.run(scenario)
    assert world.releases() == 0


def test_a_batch_whose_keeper_failed_right_after_it_was_deferred_elsewhere_is_not_released(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        world.states[KEEP.task_id] = "deferred"
        await asyncio.sleep(ADOPTION_SECONDS / 2)
        world.states[KEEP.task_id] = "failed"
        await asyncio.sleep(3)
        assert triggerer.keepers.batches == {}

    world.run(scenario)
    assert world.releases() == 0


@pytest.mark.parametrize("state", ["running", "success"])
def test_a_batch_is_not_released_while_its_keeper_is_about_to_take_it_or_has_settled_it(
    world: World, state: str
) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        world.states[KEEP.task_id] = state
        await asyncio.sleep(TIMEOUT_SECONDS + 60)
        assert triggerer.keepers.batches == {}

    world.run(scenario)
    assert world.releases() == 0


@pytest.mark.parametrize("trouble", ["silent", "refusing"])
def test_a_batch_is_not_released_when_nothing_is_known_of_its_keeper(world: World, trouble: str) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        setattr(world.supervisor, trouble, True)
        await asyncio.sleep(TIMEOUT_SECONDS - 20)
        assert world.state() is MessageState.IN_FLIGHT
        await asyncio.sleep(60)
        assert triggerer.keepers.batches == {}

    world.run(scenario)
    assert world.releases() == 0


@pytest.mark.parametrize("trouble", ["silent", "refusing"])
def test_the_message_is_released_by_the_first_answer_when_airflow_gave_none_as_the_time_ended(
    world: World, trouble: str
) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        world.states[KEEP.task_id] = "scheduled"
        await asyncio.sleep(TIMEOUT_SECONDS - 10)
        setattr(world.supervisor, trouble, True)
        await asyncio.sleep(25)
        assert world.state() is MessageState.IN_FLIGHT
        setattr(world.supervisor, trouble, False)
        await asyncio.sleep(12)
        assert world.state() is MessageState.VISIBLE

    world.run(scenario)
    assert world.releases() == 1


def test_a_triggerer_that_stops_gives_a_batch_on_its_way_one_last_extension(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        await asyncio.sleep(5)
        # The event loop ends here, and cancels everything.

    world.run(scenario)
    assert world.extensions() == 1
    assert world.releases() == 0


def test_the_client_is_closed_when_the_batch_is_gone(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        world.states[KEEP.task_id] = "failed"
        assert triggerer.open_transports == 1
        await asyncio.sleep(10)
        assert triggerer.open_transports == 0

    world.run(scenario)
