"""What becomes of a received batch until its keeper's trigger takes it, or does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from airflow.sdk.execution_time.comms import GetXCom

from sqs_lease.airflow.airflow_api.polling import LONGEST_POLL_SECONDS
from sqs_lease.airflow.transfer.handoff import ADOPTION_SECONDS, LONGEST_PAUSE_SECONDS, TAKEOVER_SECONDS
from sqs_lease.airflow.transfer.lease import LEASE_KEY, HandedLease
from sqs_lease.airflow.transfer.progress import PROGRESS_KEY, TAKEOVER_KEY, Progress, Takeover, read_progress
from sqs_lease.core.policies import Growing
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
        self.states.update({RECEIVE.task_id: "deferred", KEEP.task_id: None})

    def run(
        self, scenario: Callable[[VirtualTriggerer], Coroutine[Any, Any, None]], *, visibility_seconds: float = 30.0
    ) -> None:
        async def main() -> None:
            triggerer = VirtualTriggerer(self.sqs, self.clock)
            policy = Growing(visibility=visibility_seconds)
            trigger = receive_trigger("orders", self.clock, policy=policy, handoff_timeout_seconds=TIMEOUT_SECONDS)
            await triggerer.start(trigger, RECEIVE).ended()
            self.states[RECEIVE.task_id] = "success"
            await scenario(triggerer)

        run_virtual(main, clock=self.clock)

    def taken_over(self, batch_id: str = "batch") -> None:
        """The keeper's trigger began in another triggerer, and says so."""
        takeover = Takeover([batch_id], holder="another triggerer's trigger")
        for task in (RECEIVE, KEEP):
            self.supervisor.xcoms[RUN_ID, task.task_id, -1, TAKEOVER_KEY] = takeover.encode()

    def state(self) -> MessageState:
        (state,) = self.sqs.contents(self.url).values()
        return state

    def extensions(self) -> int:
        return sum(entry.kind is AuditKind.CHANGED for entry in self.sqs.trail().entries())

    def expired(self) -> bool:
        return any(entry.kind is AuditKind.EXPIRED for entry in self.sqs.trail().entries())

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


def test_the_message_is_released_at_once_when_its_run_was_deleted(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        # Airflow leaves a run that it does not know out of its answer.
        del world.supervisor.states[RUN_ID]
        await asyncio.sleep(3)
        assert world.state() is MessageState.VISIBLE

    world.run(scenario)
    assert world.releases() == 1


@pytest.mark.parametrize("state", ["failed", "upstream_failed", "skipped", "removed", "success"])
def test_the_message_is_released_at_once_when_the_keeper_will_never_come(world: World, state: str) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        world.states[KEEP.task_id] = state
        await asyncio.sleep(3)
        assert world.state() is MessageState.VISIBLE

    world.run(scenario)
    assert world.releases() == 1


def test_a_batch_that_a_trigger_elsewhere_took_over_is_left_to_it(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        world.states[KEEP.task_id] = "deferred"
        world.taken_over()
        await asyncio.sleep(ADOPTION_SECONDS + 3)
        assert triggerer.keepers.batches == {}
        extensions = world.extensions()
        # Even a failed keeper is no reason to release what another process may have given to somebody else.
        world.states[KEEP.task_id] = "failed"
        await asyncio.sleep(TIMEOUT_SECONDS)
        assert world.extensions() == extensions

    world.run(scenario)
    assert world.releases() == 0


@pytest.mark.parametrize("hours", [0.05, 2])
def test_the_message_is_held_until_a_trigger_takes_it_over_however_long_its_keeper_is_deferred(
    world: World, hours: float
) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        # All triggerers are full, or none serves the queue of the keeper's task.
        world.states[KEEP.task_id] = "deferred"
        await asyncio.sleep(hours * 3600)
        assert world.state() is MessageState.IN_FLIGHT
        assert not world.expired()
        world.taken_over()
        await asyncio.sleep(LONGEST_PAUSE_SECONDS + 3)
        assert triggerer.keepers.batches == {}

    world.run(scenario)
    assert world.releases() == 0


def test_a_keeper_that_was_deferred_without_a_trigger_finds_how_long_the_leases_last(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        world.states[KEEP.task_id] = "deferred"
        await asyncio.sleep(600)
        progress = await read_progress(RECEIVE, "batch")
        assert progress is not None
        assert progress.certain_until is not None
        assert progress.certain_until > world.clock.wall()
        assert progress.counts["extensions"] > 1

    world.run(scenario)


@pytest.mark.parametrize("visibility_seconds", [12.0, 30.0, 45.0])
def test_a_trigger_that_begins_at_any_time_finds_leases_that_last(world: World, visibility_seconds: float) -> None:
    """What it takes for lapsed it could neither release at once nor count as surely deleted."""

    async def scenario(triggerer: VirtualTriggerer) -> None:
        world.states[KEEP.task_id] = "deferred"
        await asyncio.sleep(10)
        for _ in range(300):
            await asyncio.sleep(1)
            progress = await read_progress(RECEIVE, "batch") or Progress()
            handed = HandedLease.decode(world.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, LEASE_KEY])
            (lease,) = progress.with_known_deadlines(handed.leases)
            assert lease.deadline > world.clock.wall()

    world.run(scenario, visibility_seconds=visibility_seconds)


def test_the_page_of_leases_shows_a_batch_that_waits_for_a_triggerer(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        world.states[KEEP.task_id] = "deferred"
        await asyncio.sleep(600)
        status = world.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, PROGRESS_KEY]["status"]
        assert status["queue_url"] == world.url
        assert (status["counts"]["received"], status["counts"]["held"]) == (1, 1)
        assert status["deadline"] > world.clock.wall()

    world.run(scenario)


def test_waiting_for_a_triggerer_asks_airflow_less_and_less_often(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        world.states[KEEP.task_id] = "deferred"
        await asyncio.sleep(600)

    world.run(scenario)
    assert 10 < world.supervisor.count(GetXCom) < 80


def test_the_takeover_of_another_batch_says_nothing_of_this_one(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        world.states[KEEP.task_id] = "deferred"
        world.taken_over("another batch")
        await asyncio.sleep(120)
        assert world.state() is MessageState.IN_FLIGHT

    world.run(scenario)


@pytest.mark.parametrize("state", ["failed", "success", "skipped"])
def test_the_message_is_released_when_a_deferred_keeper_is_marked_that_no_trigger_took_over(
    world: World, state: str
) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        world.states[KEEP.task_id] = "deferred"
        await asyncio.sleep(60)
        world.states[KEEP.task_id] = state
        await asyncio.sleep(LONGEST_POLL_SECONDS + TAKEOVER_SECONDS + 3)
        assert world.state() is MessageState.VISIBLE

    world.run(scenario)
    assert world.releases() == 1


def test_a_batch_is_not_released_when_its_keeper_failed_right_after_a_trigger_elsewhere_began(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        world.states[KEEP.task_id] = "deferred"
        await asyncio.sleep(ADOPTION_SECONDS / 2)
        world.states[KEEP.task_id] = "failed"
        await asyncio.sleep(2)
        world.taken_over()
        await asyncio.sleep(TAKEOVER_SECONDS)
        assert triggerer.keepers.batches == {}

    world.run(scenario)
    assert world.releases() == 0


def test_a_batch_is_left_to_a_keeper_that_is_about_to_take_it_when_the_time_ends(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        world.states[KEEP.task_id] = "running"
        await asyncio.sleep(TIMEOUT_SECONDS + 60)
        assert triggerer.keepers.batches == {}

    world.run(scenario)
    assert world.releases() == 0


def test_a_batch_that_was_settled_elsewhere_is_left_alone(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        world.taken_over()
        world.states[KEEP.task_id] = "success"
        await asyncio.sleep(5)
        assert triggerer.keepers.batches == {}

    world.run(scenario)
    assert world.releases() == 0


@pytest.mark.parametrize("state", [None, "scheduled", "queued", "running"])
def test_the_message_is_released_at_once_when_the_run_is_cleared_before_its_keeper_began(
    world: World, state: str | None
) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        await asyncio.sleep(30)
        world.states.update({RECEIVE.task_id: state, KEEP.task_id: None})
        await asyncio.sleep(3)
        assert world.state() is MessageState.VISIBLE

    world.run(scenario)
    assert world.releases() == 1


def test_the_message_is_released_when_the_cleared_sensor_already_waits_for_messages_again(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        await asyncio.sleep(30)
        world.states.update({RECEIVE.task_id: "deferred", KEEP.task_id: None})
        await asyncio.sleep(3)
        assert world.state() is MessageState.VISIBLE

    world.run(scenario)


def test_the_message_is_held_while_the_success_of_its_sensor_is_not_written_down_yet(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        world.states[RECEIVE.task_id] = "deferred"
        await asyncio.sleep(60)
        assert world.state() is MessageState.IN_FLIGHT

    world.run(scenario)


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
