"""The keeper's trigger among other triggerers and users: it settles what is its own, and leaves the rest alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from airflow.triggers.base import TaskSuccessEvent

from sqs_lease.airflow.airflow_api.requests import ANSWER_SECONDS
from sqs_lease.airflow.settlement.rules import WorkTask
from sqs_lease.airflow.settlement.settler import AFTER_STALL_SECONDS
from sqs_lease.airflow.triggers.receive import with_visibility
from sqs_lease.core.policies import Fixed, Growing, Threshold
from sqs_lease.testing import AuditEntry, AuditKind, MemoryTransport, MessageState, Outages, ServiceChoices
from tests.airflow.leased_messages import ALL_HELD, ALL_VISIBLE, LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import CHECK, KEEP, USER_ACTION, RunningTrigger, VirtualTriggerer


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor)


async def keep_on_first(
    world: LeasedMessages, *checks: str, work: WorkTask | None = None, seconds: float
) -> tuple[VirtualTriggerer, RunningTrigger]:
    """Let the triggerer ``first`` receive the messages and keep them for some time.

    Args:
        world: The messages.
        checks: The states that the instances of the mapped task ``check`` then have; without them ``load`` runs.
        work: The mapped task; ``CHECK`` by default.
        seconds: For how long.

    Returns:
        The triggerer, and the keeper's trigger.
    """
    first = world.triggerer("first")
    await world.receive(first)
    running = world.keep(first, *([work or CHECK] if checks else []))
    if checks:
        del world.states["load"]
        world.states.update({f"check_{index}": state for index, state in enumerate(checks)})
    await asyncio.sleep(seconds)
    return first, running


def test_a_keeper_in_the_same_triggerer_takes_the_batch_without_a_call(world: LeasedMessages) -> None:
    async def scenario() -> None:
        await world.receive_and_keep()
        await asyncio.sleep(5)
        assert not world.events(AuditKind.CHANGED)

    world.run(scenario)


def test_a_keeper_in_another_triggerer_takes_the_leases_over_without_a_call_and_extends_them_in_time(
    world: LeasedMessages,
) -> None:
    async def scenario() -> None:
        await world.receive(world.triggerer("first"))
        await asyncio.sleep(2)
        world.keep(world.triggerer("second"))
        await asyncio.sleep(5)
        assert not world.events(AuditKind.CHANGED)
        await asyncio.sleep(5)
        assert [entry.caller for entry in world.events(AuditKind.CHANGED)] == ["second"] * 3
        await asyncio.sleep(600)
        assert world.message_states() == ALL_HELD

    world.run(scenario)
    assert {entry.caller for entry in world.events(AuditKind.CHANGED)} == {"second"}
    assert not world.events(AuditKind.EXPIRED)


@pytest.mark.parametrize("taken_over_after", [0.1, 59])
@pytest.mark.parametrize("held_seconds", [1, 59, 60, 119, 119.3, 121, 200, 299, 301, 900])
def test_a_triggerer_that_dies_right_after_it_took_the_leases_over_costs_nothing(
    world: LeasedMessages, held_seconds: float, taken_over_after: float
) -> None:
    """By the default visibility timeout, whatever was left of the leases, and also where both takeovers take long."""

    async def scenario() -> None:
        first, second, third = map(world.triggerer, ("first", "second", "third"))
        await world.receive(first, with_visibility(Growing()))
        world.keep(first)
        await asyncio.sleep(held_seconds)
        await first.kill()
        await asyncio.sleep(taken_over_after)
        world.keep(second)
        await asyncio.sleep(0.5)
        await second.kill()
        await asyncio.sleep(59)
        world.keep(third)
        await asyncio.sleep(600)
        assert world.message_states() == ALL_HELD

    world.run(scenario)
    assert not world.events(AuditKind.EXPIRED, AuditKind.RELEASED)


@asynccontextmanager
async def another_consumer(world: LeasedMessages) -> AsyncIterator[None]:
    """Another consumer, which takes for ten minutes all messages that are visible."""

    transport = MemoryTransport(world.sqs, name="another consumer")

    async def consume() -> None:
        while True:
            await transport.receive(world.url, max_messages=10, wait_seconds=20, visibility_seconds=600)

    async with asyncio.TaskGroup() as group:
        consuming = group.create_task(consume())
        yield
        consuming.cancel()


def extended_after_release(world: LeasedMessages) -> list[AuditEntry]:
    """The extensions of messages by their former holders."""
    released_at = min(entry.at for entry in world.events(AuditKind.RELEASED))
    return [entry for entry in world.events(AuditKind.CHANGED) if entry.at >= released_at]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_keeper_that_is_marked_and_then_cleared_leaves_alone_what_was_released(
    world: LeasedMessages, elsewhere: bool
) -> None:
    async def scenario() -> None:
        first = world.triggerer("first")
        await world.receive(first, Fixed(visibility=30, every=1))
        running = world.keep(first)
        await asyncio.sleep(10)
        async with another_consumer(world):
            world.states[KEEP.task_id] = "failed"
            await running.cancel(USER_ACTION)
            await asyncio.sleep(10)
            forget_tries(world)
            world.keep(world.triggerer("second") if elsewhere else first, tried_before=True)
            await asyncio.sleep(60)

    world.run(scenario)
    assert not extended_after_release(world)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_keeper_that_is_cleared_with_failed_work_leaves_alone_what_was_released(
    world: LeasedMessages, elsewhere: bool
) -> None:
    """To clear a failed task with what is downstream of it clears the keeper, too: it is the teardown."""

    async def scenario() -> None:
        first = world.triggerer("first")
        await world.receive(first, Fixed(visibility=30, every=1))
        running = world.keep(first)
        await asyncio.sleep(10)
        async with another_consumer(world):
            world.states["load"] = "failed"
            await running.ended()
            forget_tries(world)
            world.states["load"] = "running"
            running = world.keep(world.triggerer("second") if elsewhere else first, tried_before=True)
            await asyncio.sleep(60)
            world.states["load"] = "success"
            await running.ended()

    world.run(scenario)
    assert not extended_after_release(world)
    assert world.message_states() == ALL_HELD


def forget_tries(world: LeasedMessages) -> None:
    """As Airflow does when the keeper's next try begins."""
    for key in [key for key in world.supervisor.xcoms if key[1] == KEEP.task_id]:
        del world.supervisor.xcoms[key]


def test_a_keeper_resumed_after_its_triggerer_was_killed_touches_nothing_that_was_settled(
    world: LeasedMessages,
) -> None:
    async def scenario() -> None:
        first, _ = await keep_on_first(world, "success", "failed", "running", seconds=5)
        assert world.message_states() == {"b": MessageState.VISIBLE, "c": MessageState.IN_FLIGHT}
        await first.kill()
        await asyncio.sleep(15)
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


def test_a_triggerer_with_a_late_first_answer_knows_what_was_settled_and_how_long_the_leases_last(
    world: LeasedMessages,
) -> None:
    async def scenario() -> None:
        first, _ = await keep_on_first(world, "failed", "running", "running", seconds=300)
        await first.kill()
        world.supervisor.silent = True
        resumed = world.keep(world.triggerer("second"), CHECK)
        await asyncio.sleep(ANSWER_SECONDS - 1)
        # The questions so far are never answered.
        world.supervisor.silent = False
        await asyncio.sleep(60)
        world.states.update({"check_1": "success", "check_2": "success"})
        await resumed.ended()
        assert world.message_states() == {"a": MessageState.VISIBLE}

    world.run(scenario)
    assert not [entry for entry in world.events(AuditKind.CHANGED) if entry.message_id == world.ids[0]]
    assert world.report()["late"] == 0


def test_a_triggerer_that_hears_nothing_for_minutes_holds_all_and_then_counts_only_what_was_not_settled(
    world: LeasedMessages,
) -> None:
    async def scenario() -> None:
        first, _ = await keep_on_first(world, "success", "failed", "running", seconds=300)
        await first.kill()
        world.supervisor.silent = True
        resumed = world.keep(world.triggerer("second"), CHECK, on_lost="raise")
        await asyncio.sleep(120)
        assert world.message_states()["c"] is MessageState.IN_FLIGHT
        world.supervisor.silent = False
        await asyncio.sleep(60)
        world.states["check_2"] = "success"
        (event,) = await resumed.ended()
        assert isinstance(event, TaskSuccessEvent)
        assert world.message_states() == {"b": MessageState.VISIBLE}

    world.run(scenario)
    report = world.report()
    counts = {name: report[name] for name in ("received", "deleted", "released", "lost", "failed", "uncertain", "late")}
    assert counts == {"received": 3, "deleted": 2, "released": 1, "lost": 0, "failed": 0, "uncertain": 0, "late": 0}


def test_a_triggerer_that_hears_nothing_calls_nothing_while_the_leases_last_as_they_were_handed_over(
    world: LeasedMessages,
) -> None:
    async def scenario() -> None:
        first = world.triggerer("first")
        await world.receive(first, Threshold(visibility=300.0))
        world.keep(first, CHECK)
        del world.states["load"]
        world.states.update({"check_0": "success", "check_1": "failed", "check_2": "running"})
        await asyncio.sleep(5)
        await first.kill()
        world.supervisor.silent = True
        resumed = world.keep(world.triggerer("second"), CHECK)
        await asyncio.sleep(200)
        assert not [entry for entry in world.events(AuditKind.CHANGED) if entry.caller == "second"]
        await asyncio.sleep(200)
        assert world.message_states()["c"] is MessageState.IN_FLIGHT
        world.supervisor.silent = False
        await asyncio.sleep(60)
        world.states["check_2"] = "success"
        await resumed.ended()
        assert world.message_states() == {"b": MessageState.VISIBLE}

    world.run(scenario)


@pytest.mark.parametrize("state", ["failed", "success", "queued"])
def test_a_user_who_acts_before_it_is_known_what_was_settled_takes_no_message_from_another_consumer(
    world: LeasedMessages, state: str
) -> None:
    async def scenario() -> None:
        first, _ = await keep_on_first(world, "success", "failed", "running", seconds=5)
        await first.kill()
        world.supervisor.silent = True
        other = MemoryTransport(world.sqs, name="other")
        (theirs,) = await other.receive(world.url, max_messages=1, wait_seconds=0, visibility_seconds=600)
        assert theirs.body == "b"
        waiting = world.keep(world.triggerer("second"), CHECK)
        await asyncio.sleep(70)
        world.supervisor.silent = False
        world.states[KEEP.task_id] = state
        await waiting.cancel(USER_ACTION)
        await asyncio.sleep(5)
        assert world.message_states()["b"] is MessageState.IN_FLIGHT

    world.run(scenario)
    assert [entry.caller for entry in world.events(AuditKind.RELEASED)] == ["first"]


def test_a_triggerer_that_stops_before_it_heard_what_was_settled_leaves_the_leases_to_the_next(
    world: LeasedMessages,
) -> None:
    async def scenario() -> None:
        first, _ = await keep_on_first(world, seconds=300)
        await first.kill()
        world.supervisor.silent = True
        waiting = world.keep(world.triggerer("second"))
        await asyncio.sleep(60)
        await waiting.cancel()
        assert world.message_states() == ALL_HELD
        world.supervisor.silent = False
        resumed = world.keep(world.triggerer("third"))
        await asyncio.sleep(10)
        world.states["load"] = "success"
        await resumed.ended()

    world.run(scenario)
    assert world.report()["deleted"] == 3


def test_a_message_that_fails_long_after_the_first_extension_is_released_by_the_triggerer_that_took_over(
    world: LeasedMessages,
) -> None:
    async def scenario() -> None:
        first, _ = await keep_on_first(world, seconds=300)
        await first.kill()
        await asyncio.sleep(21)
        resumed = world.keep(world.triggerer("second"))
        world.states["load"] = "failed"
        await resumed.ended()
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)
    assert {entry.caller for entry in world.events(AuditKind.RELEASED)} == {"second"}
    assert world.report()["late"] == 0


def test_a_lease_that_lapsed_is_not_released_by_the_triggerer_that_took_over(world: LeasedMessages) -> None:
    async def scenario() -> None:
        first = world.triggerer("first")
        await world.receive(first, Threshold(visibility=30.0))
        running = world.keep(first)
        # Too long a stall: anybody may have received the messages since.
        world.clock.advance(45)
        await asyncio.sleep(60)
        await first.kill()
        await running.kill()
        resumed = world.keep(world.triggerer("second"))
        world.states["load"] = "failed"
        await resumed.ended()
        assert world.message_states() == ALL_HELD

    world.run(scenario)
    assert not world.events(AuditKind.RELEASED)


def test_a_resumed_keeper_deletes_nothing_behind_a_message_that_was_given_back_before(
    supervisor: ScriptedComms,
) -> None:
    world = LeasedMessages(supervisor, fifo=True)

    async def scenario() -> None:
        first, _ = await keep_on_first(world, "running", "failed", "running", seconds=5)
        await first.kill()
        resumed = world.keep(world.triggerer("second"), CHECK)
        world.states.update({"check_0": "success", "check_2": "success"})
        await resumed.ended()
        assert world.message_states() == {"b": MessageState.VISIBLE, "c": MessageState.VISIBLE}

    world.run(scenario)


def test_a_triggerer_that_stops_gives_one_last_extension_and_releases_nothing(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(5)
        await running.cancel()

    world.run(scenario)
    assert [entry.at for entry in world.events(AuditKind.CHANGED)] == pytest.approx([world.clock.now()] * 3, abs=0.1)
    assert not world.events(AuditKind.RELEASED)


def test_a_triggerer_gives_one_last_extension_without_delay_when_its_event_loop_ends(world: LeasedMessages) -> None:
    async def scenario() -> None:
        await world.receive_and_keep()
        await asyncio.sleep(5)
        # Everything that still runs is cancelled now, all at once, as asyncio.run() does at its end.

    world.run(scenario)
    assert len(world.events(AuditKind.CHANGED)) == 3
    assert not world.events(AuditKind.RELEASED)
    assert world.clock.now() < 10


def test_nothing_is_settled_right_after_the_process_stood_still(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(10)
        # While this process stands still, another triggerer may take over, and release.
        world.states["load"] = "failed"
        world.clock.advance(15)
        await asyncio.sleep(AFTER_STALL_SECONDS - 2)
        assert world.message_states() == ALL_HELD
        await running.ended()
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)


# A user acts


@pytest.mark.parametrize("state", ["failed", "success", "skipped"])
def test_messages_are_released_when_a_user_marks_the_keeper(world: LeasedMessages, state: str) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(5)
        world.states[KEEP.task_id] = state
        await running.cancel(USER_ACTION)
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)


def test_messages_are_released_when_a_user_marks_the_keeper_and_airflow_answers_slowly(world: LeasedMessages) -> None:
    """Airflow then lets go of ``on_kill()`` within two seconds, and calls ``cleanup()`` beside it."""

    async def scenario() -> None:
        running = await world.receive_and_keep(policy=Growing(visibility=180))
        await asyncio.sleep(5)
        world.supervisor.answer_seconds = 3.0
        world.states[KEEP.task_id] = "success"
        await running.cancel(USER_ACTION)
        await asyncio.sleep(20)
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)
    assert not world.events(AuditKind.CHANGED)


def test_messages_are_released_when_a_user_marks_the_keeper_and_airflow_answers_half_a_minute_later(
    world: LeasedMessages,
) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(policy=Growing(visibility=30))
        await asyncio.sleep(5)
        world.supervisor.silent = True
        world.states[KEEP.task_id] = "success"
        ending = asyncio.create_task(running.cancel(USER_ACTION))
        await asyncio.sleep(35)
        assert world.message_states() == ALL_HELD
        world.supervisor.silent = False
        await ending
        await asyncio.sleep(20)
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)


def test_messages_are_held_for_the_next_try_when_a_user_clears_the_keeper(world: LeasedMessages) -> None:
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


def test_a_keeper_that_is_cleared_while_sqs_is_out_settles_in_its_next_try_what_it_could_not_settle(
    world: LeasedMessages,
) -> None:
    """A note written ahead does not mean that another triggerer gave the batch back."""

    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer)
        running = world.keep(triggerer)
        await asyncio.sleep(10)
        now = world.clock.now()
        triggerer.faults = Outages([(now, now + 30)])
        world.states["load"] = "success"
        await asyncio.sleep(10)
        world.states[KEEP.task_id] = "queued"
        await running.cancel(USER_ACTION)
        forget_tries(world)
        again = world.keep(triggerer, tried_before=True)
        await again.ended()
        assert world.message_states() == {}

    world.run(scenario)


def test_a_cleared_keeper_that_begins_again_elsewhere_touches_nothing_that_was_settled(world: LeasedMessages) -> None:
    async def scenario() -> None:
        _, running = await keep_on_first(world, "success", "failed", "running", seconds=60)
        assert world.message_states() == {"b": MessageState.VISIBLE, "c": MessageState.IN_FLIGHT}
        world.states[KEEP.task_id] = "queued"
        await running.cancel(USER_ACTION)
        await asyncio.sleep(30)
        forget_tries(world)
        began_at = world.clock.now()
        again = world.keep(world.triggerer("second"), CHECK, tried_before=True)
        await asyncio.sleep(120)
        assert world.message_states() == {"b": MessageState.VISIBLE, "c": MessageState.IN_FLIGHT}
        changed = [entry for entry in world.events(AuditKind.CHANGED) if entry.at >= began_at]
        assert {entry.message_id for entry in changed} <= {world.ids[2]}
        world.states["check_2"] = "failed"
        await again.ended()
        assert world.message_states() == {"b": MessageState.VISIBLE, "c": MessageState.VISIBLE}

    world.run(scenario)
    assert {name: world.report()[name] for name in ("received", "deleted", "released", "lost")} == {
        "received": 3,
        "deleted": 1,
        "released": 2,
        "lost": 0,
    }


def test_a_cleared_keeper_of_a_triggerer_that_died_touches_nothing_that_was_given_back(world: LeasedMessages) -> None:
    """The failed work was cleared, too, so that its state does not say what became of its message."""

    async def scenario() -> None:
        first, _ = await keep_on_first(world, "success", "failed", "running", seconds=60)
        async with another_consumer(world):
            world.states.update({KEEP.task_id: "queued", "check_1": "running"})
            await first.kill()
            await asyncio.sleep(3)
            forget_tries(world)
            again = world.keep(world.triggerer("second"), CHECK, tried_before=True)
            await asyncio.sleep(60)
            world.states.update({"check_1": "success", "check_2": "success"})
            await again.ended()

    world.run(scenario)
    by_second = [entry for entry in world.events(AuditKind.CHANGED, AuditKind.DELETED) if entry.caller == "second"]
    assert {entry.message_id for entry in by_second} == {world.ids[2]}
    assert (world.report()["deleted"], world.report()["released"]) == (2, 1)


def test_a_keeper_that_is_cleared_again_as_it_begins_leaves_word_of_what_the_first_try_settled(
    world: LeasedMessages,
) -> None:
    async def scenario() -> None:
        first, running = await keep_on_first(world, "success", "failed", "running", seconds=60)
        async with another_consumer(world):
            for _ in range(2):
                world.states[KEEP.task_id] = "queued"
                await running.cancel(USER_ACTION)
                await asyncio.sleep(10)
                forget_tries(world)
                world.supervisor.answer_seconds = 1.0
                running = world.keep(first, CHECK, tried_before=True)
                await asyncio.sleep(1.5)
            world.states[KEEP.task_id] = "queued"
            await running.cancel(USER_ACTION)
            world.supervisor.answer_seconds = 0.0
            await asyncio.sleep(60)
            await first.kill()
            forget_tries(world)
            again = world.keep(world.triggerer("second"), CHECK, tried_before=True)
            await asyncio.sleep(30)
            world.states["check_2"] = "success"
            await again.ended()

    world.run(scenario)
    by_second = [entry for entry in world.events(AuditKind.CHANGED, AuditKind.DELETED) if entry.caller == "second"]
    assert {entry.message_id for entry in by_second} == {world.ids[2]}


def test_the_next_try_may_begin_before_the_old_one_is_told(world: LeasedMessages) -> None:
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


def test_a_stalled_triggerer_that_comes_back_leaves_the_leases_to_the_one_that_took_over(world: LeasedMessages) -> None:
    async def scenario() -> None:
        stalled = await world.receive_and_keep()
        await asyncio.sleep(5)
        other = world.keep(world.triggerer("second"))
        await asyncio.sleep(1)
        await stalled.cancel(USER_ACTION)
        await asyncio.sleep(60)
        assert world.message_states() == ALL_HELD
        world.states["load"] = "success"
        await other.ended()

    world.run(scenario)
    assert {entry.caller for entry in world.events(AuditKind.CHANGED)} == {"second"}
    assert not world.events(AuditKind.RELEASED, AuditKind.EXPIRED)


def test_messages_are_left_alone_when_a_user_acts_and_airflow_does_not_say_how(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(policy=Growing(visibility=600))
        await asyncio.sleep(5)
        world.supervisor.silent = True
        await running.cancel(USER_ACTION)

    world.run(scenario)
    assert not world.events(AuditKind.RELEASED, AuditKind.CHANGED)


def test_nothing_is_settled_by_a_keeper_after_its_task_is_no_longer_deferred(world: LeasedMessages) -> None:
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


def test_the_counts_of_the_report_go_on_after_a_takeover(world: LeasedMessages) -> None:
    async def scenario() -> None:
        first = world.triggerer("first")
        await world.receive(first, Threshold(visibility=30.0))
        world.keep(first)
        world.clock.advance(45)
        await asyncio.sleep(300)
        await first.kill()
        resumed = world.keep(world.triggerer("second"))
        await asyncio.sleep(60)
        world.states["load"] = "success"
        await resumed.ended()

    world.run(scenario)
    by_first = [entry for entry in world.events(AuditKind.CHANGED) if entry.caller == "first"]
    by_second = [entry for entry in world.events(AuditKind.CHANGED) if entry.caller == "second"]
    # The calls of a killed process after its last note are not known.
    assert len(by_first) + len(by_second) - world.report()["extensions"] in (0, 3)
    assert len(by_second) < world.report()["extensions"]
    assert world.report()["late"] == 3


# After the batch was given back


@pytest.mark.parametrize("end", ["success", "failed"])
@pytest.mark.parametrize("tried_before", [False, True])
def test_a_keeper_that_begins_too_late_takes_no_message_from_another_consumer(
    supervisor: ScriptedComms, end: str, tried_before: bool
) -> None:
    """Its work runs, so it asks SQS to extend the leases; SQS knows that another consumer has the messages."""
    world = LeasedMessages(supervisor, choices=ServiceChoices(superseded_handle_changes=False))

    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer, Growing(visibility=180.0), handoff_timeout_seconds=300.0)
        world.states[KEEP.task_id] = "queued"
        await asyncio.sleep(304)
        assert world.message_states() == ALL_VISIBLE
        other = MemoryTransport(world.sqs, name="other")
        assert len(await other.receive(world.url, max_messages=10, wait_seconds=0, visibility_seconds=600)) == 3
        running = world.keep(triggerer, tried_before=tried_before)
        await asyncio.sleep(60)
        world.states["load"] = end
        await running.ended()
        assert world.message_states() == ALL_HELD

    world.run(scenario)
    taken = world.events(AuditKind.CHANGED, AuditKind.RELEASED, AuditKind.DELETED)
    assert not [entry for entry in taken if entry.at > 304 and entry.caller != "other"]
    assert (world.report()["lost"], world.report()["deleted"]) == (3, 0)


def test_a_keeper_that_was_marked_and_then_cleared_touches_no_lease_of_others(world: LeasedMessages) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer, Growing(visibility=180.0))
        running = world.keep(triggerer, CHECK)
        world.states.update({"check_0": "success", "check_1": "running", "check_2": "running"})
        await asyncio.sleep(10)
        world.states[KEEP.task_id] = "failed"
        await running.cancel(USER_ACTION)
        other = MemoryTransport(world.sqs, name="other")
        assert len(await other.receive(world.url, max_messages=10, wait_seconds=0, visibility_seconds=600)) == 2
        forget_tries(world)
        running = world.keep(triggerer, CHECK, tried_before=True)
        await asyncio.sleep(20)
        world.states.update({"check_1": "failed", "check_2": "success"})
        await running.ended()
        assert set(world.message_states().values()) == {MessageState.IN_FLIGHT}

    world.run(scenario)
    assert not [entry for entry in world.sqs.trail().entries() if entry.at > 15 and entry.caller != "other"]
    assert (world.report()["lost"], world.report()["deleted"]) == (2, 1)


def test_a_cleared_keeper_that_begins_again_where_it_was_counts_what_an_earlier_triggerer_settled(
    world: LeasedMessages,
) -> None:
    async def scenario() -> None:
        first, _ = await keep_on_first(world, "success", "failed", "running", seconds=30)
        await first.kill()
        second = world.triggerer("second")
        running = world.keep(second, CHECK)
        await asyncio.sleep(30)
        world.states[KEEP.task_id] = "queued"
        await running.cancel(USER_ACTION)
        await asyncio.sleep(5)
        forget_tries(world)
        again = world.keep(second, CHECK, tried_before=True)
        await asyncio.sleep(10)
        world.states["check_2"] = "success"
        await again.ended()

    world.run(scenario)
    assert {name: world.report()[name] for name in ("deleted", "released", "lost")} == {
        "deleted": 2,
        "released": 1,
        "lost": 0,
    }
