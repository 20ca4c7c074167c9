"""The keeper's trigger: extends while the work runs, settles as it ends, leaves alone what another triggerer has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from airflow.sdk.execution_time.comms import GetTaskStates
from airflow.triggers.base import TaskSuccessEvent
from sqs_lease.airflow.handoff import TAKEOVER_SECONDS
from sqs_lease.airflow.keeper_trigger import REPORT_KEY
from sqs_lease.airflow.settling import WorkTask
from sqs_lease.core.policies import Never, RenewalPolicy
from sqs_lease.core.settlements import dead_letter, release
from sqs_lease.testing import AuditEntry, AuditKind, MemorySqs, MessageState, VirtualClock, run_virtual

from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import (
    CHECK,
    KEEP,
    LOAD,
    RECEIVE,
    RUN_ID,
    USER_ACTION,
    RunningTrigger,
    VirtualTriggerer,
    keeper_trigger,
    receive_trigger,
)

LOAD_WITHOUT_RETURN = WorkTask("load", returns=False)


class World:
    """Three messages that a sensor's trigger received, and the triggerers that may keep them."""

    def __init__(self, supervisor: ScriptedComms, *, fifo: bool = False) -> None:
        self.clock = VirtualClock()
        self.sqs = MemorySqs(self.clock)
        kind = ".fifo" if fifo else ""
        self.dead_letter_url = self.sqs.create_queue(f"dead{kind}")
        self.url = self.sqs.create_queue(
            f"orders{kind}", dead_letter_queue_url=self.dead_letter_url, max_receive_count=10
        )
        group = "group" if fifo else None
        self.ids = [
            self.sqs.send(self.url, body, message_group_id=group, deduplication_id=body if fifo else None)
            for body in ("a", "b", "c")
        ]
        self.supervisor = supervisor
        self.states = supervisor.states.setdefault(RUN_ID, {})
        self.states.update({RECEIVE.task_id: "deferred", KEEP.task_id: None, LOAD.task_id: None})

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        run_virtual(scenario, clock=self.clock)

    def triggerer(self, name: str = "triggerer") -> VirtualTriggerer:
        return VirtualTriggerer(self.sqs, self.clock, name)

    async def receive(self, triggerer: VirtualTriggerer, policy: RenewalPolicy | None = None) -> None:
        queue = self.url.rpartition("/")[2]
        await triggerer.start(receive_trigger(queue, self.clock, policy=policy), RECEIVE).ended()
        self.states.update({RECEIVE.task_id: "success", KEEP.task_id: "running", LOAD.task_id: "running"})

    def keep(self, triggerer: VirtualTriggerer, *work: WorkTask, **options: Any) -> RunningTrigger:
        self.states[KEEP.task_id] = "deferred"
        return triggerer.start(keeper_trigger(self.supervisor, work or [LOAD], **options), KEEP)

    async def receive_and_keep(self, *work: WorkTask, **options: Any) -> RunningTrigger:
        triggerer = self.triggerer()
        await self.receive(triggerer, options.pop("policy", None))
        return self.keep(triggerer, *work, **options)

    def message_states(self) -> dict[str, MessageState]:
        names = dict(zip(self.ids, "abc", strict=True))
        return {names[message_id]: state for message_id, state in self.sqs.contents(self.url).items()}

    def events(self, *kinds: AuditKind) -> list[AuditEntry]:
        return [entry for entry in self.sqs.trail().entries() if entry.kind in kinds]

    def report(self) -> Any:
        return self.supervisor.xcoms[RUN_ID, KEEP.task_id, -1, REPORT_KEY]


@pytest.fixture
def world(supervisor: ScriptedComms) -> World:
    return World(supervisor)


ALL_HELD = dict.fromkeys("abc", MessageState.IN_FLIGHT)
ALL_VISIBLE = dict.fromkeys("abc", MessageState.VISIBLE)


# Settling


def test_messages_stay_invisible_for_an_hour_of_work_and_are_deleted_when_it_succeeded(world: World) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(3600)
        assert world.message_states() == ALL_HELD
        world.states["load"] = "success"
        assert [type(event) for event in await running.ended()] == [TaskSuccessEvent]
        assert world.message_states() == {}

    world.run(scenario)
    assert not world.events(AuditKind.EXPIRED, AuditKind.RELEASED)
    assert world.report()["deleted"] == 3
    assert world.report()["messages"] == {"deleted": world.ids}
    assert world.report()["extensions"] >= 3


def test_messages_are_visible_again_within_two_seconds_when_the_work_failed(world: World) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(600)
        world.states["load"] = "failed"
        await asyncio.sleep(2)
        assert world.message_states() == ALL_VISIBLE
        await running.ended()

    world.run(scenario)
    assert world.report()["released"] == 3
    assert not world.events(AuditKind.DELETED)


def test_messages_are_held_while_the_work_waits_for_its_next_try(world: World) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        world.states["load"] = "up_for_retry"
        await asyncio.sleep(900)
        assert world.message_states() == ALL_HELD
        world.states["load"] = "success"
        await running.ended()

    world.run(scenario)
    assert world.report()["deleted"] == 3


def test_one_failed_instance_gives_back_its_message_while_the_others_work_on(world: World) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(CHECK)
        world.states["check"] = None
        await asyncio.sleep(60)
        del world.states["check"]
        world.states.update({"check_0": "running", "check_1": "failed", "check_2": "success"})
        await asyncio.sleep(3)
        assert world.message_states() == {"a": MessageState.IN_FLIGHT, "b": MessageState.VISIBLE}
        world.states["check_0"] = "success"
        await running.ended()
        assert world.message_states() == {"b": MessageState.VISIBLE}

    world.run(scenario)
    assert world.report()["messages"] == {"released": [world.ids[1]], "deleted": [world.ids[2], world.ids[0]]}


def test_messages_that_the_work_names_in_its_return_value_are_given_back(world: World) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        returned = {"batchItemFailures": [{"itemIdentifier": world.ids[1]}]}
        world.supervisor.xcoms[RUN_ID, "load", -1, "return_value"] = returned
        world.states["load"] = "success"
        await running.ended()
        assert world.message_states() == {"b": MessageState.VISIBLE}

    world.run(scenario)
    assert (world.report()["deleted"], world.report()["released"]) == (2, 1)


def test_messages_whose_work_was_skipped_are_given_back_whatever_the_failure_rule(world: World) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(on_failure=dead_letter())
        world.states["load"] = "skipped"
        await running.ended()
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)
    assert not world.sqs.contents(world.dead_letter_url)


def test_failed_messages_come_back_after_the_delay_of_the_failure_rule(world: World) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(on_failure=release(300))
        world.states["load"] = "failed"
        await running.ended()
        await asyncio.sleep(295)
        assert world.message_states() == ALL_HELD
        await asyncio.sleep(10)
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)


def test_failed_messages_are_dead_lettered_with_their_bodies_by_a_triggerer_that_never_saw_them(world: World) -> None:
    async def scenario() -> None:
        await world.receive(world.triggerer("first"))
        running = world.keep(world.triggerer("second"), on_failure=dead_letter())
        world.states["load"] = "failed"
        await running.ended()
        assert world.message_states() == {}

    world.run(scenario)
    (message,) = world.sqs.receive(world.dead_letter_url, max_messages=1)
    assert len(world.sqs.contents(world.dead_letter_url)) == 3
    assert message.body in ("a", "b", "c")
    reason = message.message_attributes["sqs_lease_reason"]["StringValue"]
    assert reason == "task load ended as failed in run run of DAG dag"


def test_behind_a_failed_message_of_a_fifo_group_nothing_is_deleted(supervisor: ScriptedComms) -> None:
    world = World(supervisor, fifo=True)

    async def scenario() -> None:
        running = await world.receive_and_keep(CHECK)
        del world.states["load"]
        world.states.update({"check_0": "success", "check_1": "failed", "check_2": "success"})
        await running.ended()
        assert world.message_states() == {"b": MessageState.VISIBLE, "c": MessageState.VISIBLE}

    world.run(scenario)


def test_a_lost_message_is_reported_and_neither_deleted_nor_released(world: World) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(policy=Never(visibility=30))
        await asyncio.sleep(31)
        world.sqs.receive(world.url, max_messages=10, visibility_seconds=3600, caller="other")
        world.states["load"] = "success"
        await running.ended()
        assert world.message_states() == ALL_HELD

    world.run(scenario)
    assert not world.events(AuditKind.DELETED, AuditKind.RELEASED)
    assert world.report()["late"] == 3


# Not depending on Airflow's answers


def test_leases_are_extended_although_airflow_answers_nothing(world: World) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(10)
        world.supervisor.silent = True
        await asyncio.sleep(2 * 3600)
        assert world.message_states() == ALL_HELD
        world.supervisor.silent = False
        world.states["load"] = "success"
        await running.ended()

    world.run(scenario)
    assert not world.events(AuditKind.EXPIRED)
    assert world.report()["deleted"] == 3


def test_everything_is_settled_although_the_report_is_refused(world: World) -> None:
    def refuse_reports(request: Any) -> None:
        world.supervisor.refusing = getattr(request, "key", None) == REPORT_KEY

    async def scenario() -> None:
        running = await world.receive_and_keep(LOAD_WITHOUT_RETURN)
        world.supervisor.on_request = refuse_reports
        world.states["load"] = "success"
        assert [type(event) for event in await running.ended()] == [TaskSuccessEvent]
        assert world.message_states() == {}

    world.run(scenario)


def test_forty_keepers_of_a_dag_ask_once_a_second_for_all_of_them(supervisor: ScriptedComms) -> None:
    world = World(supervisor)

    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer)
        watches = [
            triggerer.keepers.poller.watch("dag", f"run{number}", ["load", KEEP.task_id]) for number in range(40)
        ]
        for watch in watches:
            watch.__enter__()
        world.keep(triggerer)
        await asyncio.sleep(5)
        supervisor.asked.clear()
        await asyncio.sleep(30)
        assert supervisor.count(GetTaskStates) <= 30
        for watch in watches:
            watch.__exit__(None, None, None)

    world.run(scenario)


# From one triggerer to another


def test_a_keeper_in_the_same_triggerer_takes_the_batch_without_a_call(world: World) -> None:
    async def scenario() -> None:
        await world.receive_and_keep()
        await asyncio.sleep(5)
        assert not world.events(AuditKind.CHANGED)

    world.run(scenario)


def test_a_keeper_in_another_triggerer_extends_the_leases_at_once(world: World) -> None:
    async def scenario() -> None:
        await world.receive(world.triggerer("first"))
        await asyncio.sleep(2)
        world.keep(world.triggerer("second"))
        await asyncio.sleep(0.5)
        assert [entry.caller for entry in world.events(AuditKind.CHANGED)] == ["second"] * 3

    world.run(scenario)


def test_the_triggerer_that_received_stops_extending_before_the_other_one_releases(world: World) -> None:
    async def scenario() -> None:
        await world.receive(world.triggerer("first"))
        await asyncio.sleep(15)
        world.states["load"] = "failed"
        running = world.keep(world.triggerer("second"))
        started_at = world.clock.now()
        await running.ended()
        assert world.clock.now() - started_at >= TAKEOVER_SECONDS
        await asyncio.sleep(600)
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)
    released_at = min(entry.at for entry in world.events(AuditKind.RELEASED))
    assert not [entry for entry in world.events(AuditKind.CHANGED) if entry.at > released_at]


def test_a_keeper_resumed_after_its_triggerer_was_killed_touches_nothing_that_was_settled(world: World) -> None:
    async def scenario() -> None:
        first = world.triggerer("first")
        await world.receive(first)
        world.keep(first, CHECK)
        del world.states["load"]
        world.states.update({"check_0": "success", "check_1": "failed", "check_2": "running"})
        await asyncio.sleep(5)
        assert world.message_states() == {"b": MessageState.VISIBLE, "c": MessageState.IN_FLIGHT}
        await first.kill()
        await asyncio.sleep(21)
        resumed = world.keep(world.triggerer("second"), CHECK)
        await asyncio.sleep(60)
        world.states["check_2"] = "success"
        await resumed.ended()
        assert world.message_states() == {"b": MessageState.VISIBLE}

    world.run(scenario)
    assert {entry.message_id for entry in world.events(AuditKind.CHANGED)} == {world.ids[2]}
    assert not world.events(AuditKind.EXPIRED)
    assert {name: world.report()[name] for name in ("received", "deleted", "released")} == {
        "received": 3,
        "deleted": 2,
        "released": 1,
    }


def test_a_resumed_keeper_deletes_nothing_behind_a_message_that_was_given_back_before(
    supervisor: ScriptedComms,
) -> None:
    world = World(supervisor, fifo=True)

    async def scenario() -> None:
        first = world.triggerer("first")
        await world.receive(first)
        world.keep(first, CHECK)
        del world.states["load"]
        world.states.update({"check_0": "running", "check_1": "failed", "check_2": "running"})
        await asyncio.sleep(5)
        await first.kill()
        resumed = world.keep(world.triggerer("second"), CHECK)
        world.states.update({"check_0": "success", "check_2": "success"})
        await resumed.ended()
        assert world.message_states() == {"b": MessageState.VISIBLE, "c": MessageState.VISIBLE}

    world.run(scenario)


def test_a_triggerer_that_stops_gives_one_last_extension_and_releases_nothing(world: World) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(10)
        await running.cancel()

    world.run(scenario)
    assert [entry.at for entry in world.events(AuditKind.CHANGED)] == pytest.approx([world.clock.now()] * 3, abs=0.1)
    assert not world.events(AuditKind.RELEASED)


def test_a_triggerer_whose_event_loop_ends_gives_one_last_extension_without_delay(world: World) -> None:
    async def scenario() -> None:
        await world.receive_and_keep()
        await asyncio.sleep(10)
        # Everything that still runs is cancelled now, all at once, as asyncio.run() does at its end.

    world.run(scenario)
    assert len(world.events(AuditKind.CHANGED)) == 3
    assert not world.events(AuditKind.RELEASED)
    assert world.clock.now() < 15


def test_nothing_is_settled_right_after_the_process_stood_still(world: World) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(10)
        # While this process stands still, another triggerer may take over, and release.
        world.states["load"] = "failed"
        world.clock.advance(15)
        await asyncio.sleep(TAKEOVER_SECONDS - 2)
        assert world.message_states() == ALL_HELD
        await running.ended()
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)


# A user acts


@pytest.mark.parametrize("state", ["failed", "success", "skipped"])
def test_messages_are_released_when_a_user_marks_the_keeper(world: World, state: str) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(5)
        world.states[KEEP.task_id] = state
        await running.cancel(USER_ACTION)
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)


def test_messages_are_held_for_the_next_try_when_a_user_clears_the_keeper(world: World) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer)
        running = world.keep(triggerer)
        await asyncio.sleep(5)
        world.states[KEEP.task_id] = "queued"
        await running.cancel(USER_ACTION)
        await asyncio.sleep(120)
        assert world.message_states() == ALL_HELD
        again = world.keep(triggerer)
        await asyncio.sleep(120)
        world.states["load"] = "success"
        await again.ended()
        assert world.message_states() == {}

    world.run(scenario)
    assert not world.events(AuditKind.RELEASED, AuditKind.EXPIRED)


def test_the_next_try_may_begin_before_the_old_one_is_told(world: World) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer)
        old = world.keep(triggerer)
        await asyncio.sleep(5)
        new = world.keep(triggerer)
        await asyncio.sleep(0.4)
        await old.cancel(USER_ACTION)
        await asyncio.sleep(600)
        assert world.message_states() == ALL_HELD
        world.states["load"] = "success"
        await new.ended()
        assert world.message_states() == {}

    world.run(scenario)


def test_a_stalled_triggerer_that_comes_back_leaves_the_leases_to_the_one_that_took_over(world: World) -> None:
    async def scenario() -> None:
        stalled = await world.receive_and_keep()
        await asyncio.sleep(5)
        other = world.keep(world.triggerer("second"))
        await asyncio.sleep(1)
        await stalled.cancel(USER_ACTION)
        calls_before = len(world.events(AuditKind.CHANGED))
        await asyncio.sleep(3)
        assert len(world.events(AuditKind.CHANGED)) == calls_before
        assert world.message_states() == ALL_HELD
        world.states["load"] = "success"
        await other.ended()

    world.run(scenario)
    assert not world.events(AuditKind.RELEASED)


def test_messages_are_left_alone_when_a_user_acts_and_airflow_does_not_say_how(world: World) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(5)
        world.supervisor.silent = True
        await running.cancel(USER_ACTION)

    world.run(scenario)
    assert not world.events(AuditKind.RELEASED, AuditKind.CHANGED)


def test_nothing_is_settled_by_a_keeper_whose_task_is_no_longer_deferred(world: World) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(5)
        # Cleared: the triggerer has not told the trigger yet, and the next try will settle.
        world.states.update({KEEP.task_id: "queued", "load": "failed"})
        await asyncio.sleep(3)
        assert world.message_states() == ALL_HELD
        await running.cancel(USER_ACTION)

    world.run(scenario)
    assert not world.events(AuditKind.RELEASED)


def test_messages_are_left_to_the_next_try_when_it_begins_while_airflow_is_asked(world: World) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer)
        old = world.keep(triggerer)
        await asyncio.sleep(5)
        claimed_by = object()

        def claim(request: Any) -> None:
            triggerer.keepers.claim("batch", claimed_by, lambda event: None)

        world.states[KEEP.task_id] = "failed"
        world.supervisor.on_request = claim
        await old.cancel(USER_ACTION)
        assert world.message_states() == ALL_HELD
        assert triggerer.keepers.batches["batch"].owner is claimed_by

    world.run(scenario)
    assert not world.events(AuditKind.RELEASED)
