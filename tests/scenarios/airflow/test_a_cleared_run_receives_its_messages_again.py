"""A user clears tasks while the work runs: what was held comes back at once, and the new try has a batch of its own."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from airflow.triggers.base import TaskSuccessEvent

from sqs_lease.airflow.handover import LEASE_KEY
from sqs_lease.airflow.settlement.rules import WorkTask
from sqs_lease.airflow.settlement.settler import PROGRESS_KEY, Progress
from sqs_lease.airflow.triggers.keep import SqsLeaseKeeperTrigger, plain_work
from sqs_lease.core.events import Outcome
from sqs_lease.core.failure_rules import dead_letter, release
from sqs_lease.core.specs import encode_failure_rule
from sqs_lease.testing import AuditKind, MessageState
from tests.airflow.leased_messages import ALL_HELD, ALL_VISIBLE, LeasedMessages
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
    receive_trigger,
)

SECONDS = 10.0
"""Within seconds, also on the way through two triggerers."""


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor)


def clear_run(world: LeasedMessages) -> None:
    """The states that Airflow sets when a whole run is cleared while its work runs."""
    world.states.update({RECEIVE.task_id: None, KEEP.task_id: None, LOAD.task_id: "restarting"})


def begin_again(world: LeasedMessages, task_id: str) -> None:
    """The task's next try begins: Airflow deletes the XComs of the one before."""
    for place in [place for place in world.supervisor.xcoms if place[1] == task_id]:
        del world.supervisor.xcoms[place]


async def receive_again(
    world: LeasedMessages, triggerer: VirtualTriggerer, *, batch_id: str = "second batch", skip: bool = False
) -> RunningTrigger:
    """The cleared sensor runs again, and gets what it can within a minute."""
    begin_again(world, RECEIVE.task_id)
    world.states[RECEIVE.task_id] = "deferred"
    running = await world.receive(triggerer, batch_id=batch_id, skip_when_expired=skip, timeout_seconds=60.0)
    world.states[LOAD.task_id] = "running"
    begin_again(world, KEEP.task_id)
    return running


@pytest.mark.parametrize("skip_when_expired", [False, True], ids=["fails", "soft_fail"])
@pytest.mark.parametrize("triggerers", [1, 2])
def test_a_run_that_is_cleared_while_it_works_gets_its_messages_again_within_seconds_and_deletes_them(
    world: LeasedMessages, triggerers: int, skip_when_expired: bool
) -> None:
    async def scenario() -> None:
        first = world.triggerer("first")
        second = world.triggerer("second") if triggerers == 2 else first
        await world.receive(first)
        old = world.keep(first)
        # Long enough for leases of several minutes.
        await asyncio.sleep(600)
        clear_run(world)
        cleared_at = world.clock.now()
        await old.cancel(USER_ACTION)
        assert world.message_states() == ALL_VISIBLE
        received = await receive_again(world, second, skip=skip_when_expired)
        assert isinstance(received.events[0], TaskSuccessEvent)
        assert world.clock.now() - cleared_at < SECONDS
        new = world.keep(second, tried_before=True)
        await asyncio.sleep(120)
        assert world.message_states() == ALL_HELD
        world.states[LOAD.task_id] = "success"
        await new.ended()
        assert world.message_states() == {}

    world.run(scenario)
    assert world.report()["deleted"] == 3
    assert not world.events(AuditKind.EXPIRED)


def test_the_new_batch_of_a_cleared_run_is_deleted_by_a_triggerer_that_did_not_receive_it(
    world: LeasedMessages,
) -> None:
    async def scenario() -> None:
        first, second = world.triggerer("first"), world.triggerer("second")
        await world.receive(first)
        old = world.keep(first)
        await asyncio.sleep(60)
        clear_run(world)
        await old.cancel(USER_ACTION)
        await receive_again(world, first)
        # Its work is done before the keeper begins: the new batch was nevertheless never settled before.
        world.states[LOAD.task_id] = "success"
        await world.keep(second, tried_before=True).ended()
        assert world.message_states() == {}

    world.run(scenario)
    assert world.report()["deleted"] == 3


def test_notes_of_an_older_batch_are_not_taken_for_those_of_the_new_one(world: LeasedMessages) -> None:
    async def scenario() -> None:
        first, second = world.triggerer("first"), world.triggerer("second")
        await world.receive(first)
        # A process that knows nothing of the new batch yet writes of the old one, in which the first was settled.
        old = Progress({0: Outcome.DELETED}, batch_id="an older batch")
        world.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, PROGRESS_KEY] = old.encode()
        running = world.keep(second)
        await asyncio.sleep(120)
        assert world.message_states() == ALL_HELD
        world.states[LOAD.task_id] = "success"
        await running.ended()
        assert world.message_states() == {}

    world.run(scenario)
    assert world.report()["deleted"] == 3
    assert not world.events(AuditKind.EXPIRED)


def test_the_old_batch_of_a_cleared_run_is_released_although_its_trigger_is_told_late(world: LeasedMessages) -> None:
    async def scenario() -> None:
        first, second = world.triggerer("first"), world.triggerer("second")
        await world.receive(first)
        old = world.keep(first)
        await asyncio.sleep(60)
        world.sqs.send(world.url, "another")
        await receive_again(world, second)
        world.states[KEEP.task_id] = "queued"
        await old.cancel(USER_ACTION)
        contents = world.sqs.contents(world.url)
        assert [contents[message_id] for message_id in world.ids] == [MessageState.VISIBLE] * 3

    world.run(scenario)


@pytest.mark.parametrize("state", [None, "success"])
def test_a_triggerer_that_stood_still_calls_nothing_when_it_comes_back(
    world: LeasedMessages, state: str | None
) -> None:
    """Another triggerer had the batch meanwhile, and may have given it back."""

    async def scenario() -> None:
        stalled = await world.receive_and_keep()
        await asyncio.sleep(5)
        world.clock.advance(60)
        world.states.update({RECEIVE.task_id: state, KEEP.task_id: state})
        await stalled.cancel(USER_ACTION)

    world.run(scenario)
    assert not [entry for entry in world.events(AuditKind.RELEASED, AuditKind.CHANGED) if entry.at > 60]


def test_a_keeper_that_is_cleared_again_after_its_end_takes_nothing_from_the_cleared_run(world: LeasedMessages) -> None:
    """The run is cleared while the keeper's new trigger looks for what the try before wrote down."""

    async def scenario() -> None:
        first = world.triggerer("first")
        await world.receive(first)
        running = world.keep(first)
        world.states[LOAD.task_id] = "failed"
        await running.ended()
        assert world.message_states() == ALL_VISIBLE
        begin_again(world, KEEP.task_id)
        running = world.keep(world.triggerer("second"), tried_before=True)
        await asyncio.sleep(1)
        clear_run(world)
        await receive_again(world, first)
        await asyncio.sleep(5)
        await running.cancel(USER_ACTION)

    world.run(scenario)
    assert not [entry for entry in world.events(AuditKind.CHANGED, AuditKind.RELEASED) if entry.stale]


class OneRun:
    """One of several runs of the DAG, with a message each."""

    def __init__(self, world: LeasedMessages, triggerer: VirtualTriggerer, run_id: str) -> None:
        self.world = world
        self.triggerer = triggerer
        self.run_id = run_id
        self.states = world.supervisor.states.setdefault(run_id, {})

    async def receive_and_keep(self, batch_id: str) -> RunningTrigger:
        xcoms = self.world.supervisor.xcoms
        for place in [place for place in xcoms if place[0] == self.run_id]:
            del xcoms[place]
        self.states.update({RECEIVE.task_id: "deferred", KEEP.task_id: None, LOAD.task_id: None})
        receive = receive_trigger("orders", self.world.clock, max_messages=1, batch_id=batch_id)
        (event,) = await self.triggerer.start(receive, replace(RECEIVE, run_id=self.run_id)).ended()
        assert isinstance(event, TaskSuccessEvent)
        self.states.update({RECEIVE.task_id: "success", KEEP.task_id: "deferred", LOAD.task_id: "running"})
        keep = SqsLeaseKeeperTrigger(
            lease=xcoms[self.run_id, RECEIVE.task_id, -1, LEASE_KEY],
            receive_task_id=RECEIVE.task_id,
            work=plain_work([LOAD]),
            on_failure=encode_failure_rule(release()),
            handoff_timeout_seconds=600.0,
            tried_before=batch_id.startswith("second"),
        )
        return self.triggerer.start(keep, replace(KEEP, run_id=self.run_id))


def test_past_present_and_future_runs_that_are_cleared_together_each_begin_again(world: LeasedMessages) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        runs = [OneRun(world, triggerer, run_id) for run_id in ("past", "present", "future")]
        old = [await run.receive_and_keep(f"first of {run.run_id}") for run in runs]
        await asyncio.sleep(300)
        cleared_at = world.clock.now()
        for run in runs:
            run.states.update({RECEIVE.task_id: None, KEEP.task_id: None, LOAD.task_id: "restarting"})
        await asyncio.gather(*(keeper.cancel(USER_ACTION) for keeper in old))
        assert world.message_states() == ALL_VISIBLE
        new = [await run.receive_and_keep(f"second of {run.run_id}") for run in runs]
        assert world.clock.now() - cleared_at < SECONDS
        await asyncio.sleep(300)
        assert world.message_states() == ALL_HELD
        for run in runs:
            run.states[LOAD.task_id] = "success"
        for keeper in new:
            await keeper.ended()
        assert world.message_states() == {}

    world.run(scenario)
    assert not world.events(AuditKind.EXPIRED)


def test_a_keeper_gives_its_batch_back_when_the_run_is_cleared_although_airflow_does_not_end_its_trigger(
    supervisor: ScriptedComms,
) -> None:
    """Airflow 3.3 ends the trigger of a cleared task only when the task is scheduled again: after the sensor's end."""
    world = LeasedMessages(supervisor)

    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(60)
        assert world.message_states() == ALL_HELD
        world.states.update({RECEIVE.task_id: None, KEEP.task_id: None, LOAD.task_id: None})
        await asyncio.sleep(10)
        assert world.message_states() == ALL_VISIBLE
        # The new try's work is not about them.
        world.states.update({RECEIVE.task_id: "success", LOAD.task_id: "success"})
        await asyncio.sleep(10)
        assert world.message_states() == ALL_VISIBLE
        await running.cancel(USER_ACTION)

    world.run(scenario)
    assert not world.events(AuditKind.DELETED)


CHUNK = WorkTask("chunk", mapped=True)
"""Mapped over parts of the batch that another task makes."""

CLEAN = WorkTask("clean", mapped=True, per_message=True, chained=True)
"""Mapped over what ``check`` returned for each message."""


def test_messages_that_a_cleared_run_has_more_of_than_before_are_held_until_their_work_is_made(
    world: LeasedMessages,
) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer)
        # The batch before had one message. Airflow makes the other instances when all that is before them has ended.
        world.states["check_0"] = None
        running = world.keep(triggerer, CHECK)
        await asyncio.sleep(60)
        assert world.message_states() == ALL_HELD
        world.states.update({"check_0": "running", "check_1": "failed", "check_2": "success"})
        await asyncio.sleep(20)
        assert world.message_states() == {"a": MessageState.IN_FLIGHT, "b": MessageState.VISIBLE}
        world.states["check_0"] = "success"
        await running.ended()

    world.run(scenario)
    assert (world.report()["deleted"], world.report()["released"]) == (2, 1)


@pytest.mark.parametrize(
    ("ended", "outcome"), [("upstream_failed", "dead_lettered"), ("skipped", "released"), ("success", "dead_lettered")]
)
def test_messages_without_work_are_settled_when_the_others_have_ended(
    world: LeasedMessages, ended: str, outcome: str
) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer)
        world.states["check_0"] = None
        running = world.keep(triggerer, CHECK, on_failure=dead_letter())
        await asyncio.sleep(60)
        world.states["check_0"] = ended
        await running.ended()

    world.run(scenario)
    assert world.report()[outcome] >= 2


@pytest.mark.parametrize("work", [CHUNK, CHECK, CLEAN], ids=lambda work: work.task_id)
def test_instances_that_a_cleared_run_needs_no_more_give_no_message_back(world: LeasedMessages, work: WorkTask) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer)
        # The batch before had ten messages: Airflow keeps the instances that are left over, as removed.
        world.states.update({f"{work.task_id}_{index}": "removed" for index in range(3, 10)})
        world.states.update({f"{work.task_id}_{index}": "success" for index in range(3)})
        await world.keep(triggerer, work).ended()
        assert world.message_states() == {}

    world.run(scenario)
    assert world.report()["deleted"] == 3


def test_an_instance_that_is_left_over_of_a_longer_chain_stands_for_no_message(world: LeasedMessages) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer)
        # check returned nothing for "a", so clean_0 is about "b", clean_1 about "c", and clean_2 is of a batch before.
        world.states.update(dict.fromkeys(("check_0", "check_1", "check_2", "clean_1"), "success"))
        world.states.update({"clean_0": "failed", "clean_2": "removed"})
        await world.keep(triggerer, CHECK, CLEAN).ended()
        # The keeper cannot know which of them failed, so it deletes no message.
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)
    assert world.report()["released"] == 3


@pytest.mark.parametrize("work", [CHUNK, CLEAN], ids=lambda work: work.task_id)
def test_messages_of_a_cleared_run_that_maps_over_nothing_come_back_and_fail_no_more_than_in_a_new_run(
    world: LeasedMessages, work: WorkTask
) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer)
        # The batch before had two parts. Airflow says the same of a task that was taken out of the DAG.
        world.states.update({"load": "running", f"{work.task_id}_0": "removed", f"{work.task_id}_1": "removed"})
        running = world.keep(triggerer, LOAD, work, on_failure=dead_letter())
        await asyncio.sleep(20)
        assert world.message_states() == ALL_HELD
        world.states["load"] = "success"
        await running.ended()
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)
    assert world.report()["released"] == 3
