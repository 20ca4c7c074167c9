"""Workers' reports of failures reach the keeper at once, and decide which messages fail and by which rule."""

from __future__ import annotations

import asyncio

import pytest
from airflow.sdk.execution_time.comms import DeleteVariable, GetVariableKeys, GetXCom

from sqs_lease.airflow.airflow_api.polling import ORPHANED_SECONDS, FailureSignals
from sqs_lease.airflow.failures import FAILURE_KEY, FailureReport
from sqs_lease.airflow.settlement.rules import WorkTask
from sqs_lease.core.failure_rules import MessageFailed, by_exception, dead_letter, expire
from sqs_lease.testing import MessageState
from tests.airflow.leased_messages import ALL_HELD, ALL_VISIBLE, LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import CHECK, DAG_ID, KEEP, LOAD, RUN_ID


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor)


def report(world: LeasedMessages, error: Exception | None, task: WorkTask = LOAD, map_index: int = -1) -> None:
    """Leave the report of a failure, as a worker does."""
    world.supervisor.xcoms[RUN_ID, task.task_id, map_index, FAILURE_KEY] = FailureReport.of(error).encode()


def signal(world: LeasedMessages, task: WorkTask = LOAD, map_index: int = -1) -> None:
    """Signal a failure, as a worker does after that."""
    signals = FailureSignals.to(DAG_ID, RUN_ID, KEEP.task_id, [task.task_id])
    world.supervisor.variables.add(signals.key(task.task_id, map_index))


def test_a_signalled_failure_counts_before_the_tasks_state_says_so(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(60)
        report(world, ValueError())
        signal(world)
        await asyncio.sleep(1)
        assert world.states["load"] == "running"
        assert world.message_states() == ALL_VISIBLE
        await running.ended()

    world.run(scenario)


def test_signals_are_asked_for_half_as_often_while_nothing_fails(world: LeasedMessages) -> None:
    async def questions_in_a_minute() -> int:
        before = world.supervisor.count(GetVariableKeys)
        await asyncio.sleep(60)
        return world.supervisor.count(GetVariableKeys) - before

    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(60)
        assert await questions_in_a_minute() <= 76
        world.supervisor.variables.add(FailureSignals.to(DAG_ID, RUN_ID, "another_keeper", ["check"]).key("check", 1))
        await asyncio.sleep(1)
        assert await questions_in_a_minute() >= 140
        assert await questions_in_a_minute() <= 76
        await running.cancel()

    world.run(scenario)


def test_the_signal_is_deleted_when_it_was_acted_upon(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(60)
        report(world, ValueError())
        signal(world)
        await running.ended()
        await asyncio.sleep(1)

    world.run(scenario)
    assert world.supervisor.variables == set()


def test_the_signal_is_deleted_too_when_the_state_was_seen_first(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(60)
        report(world, ValueError())
        world.states["load"] = "failed"
        await running.ended()
        signal(world)
        await asyncio.sleep(1)

    world.run(scenario)
    assert world.supervisor.variables == set()


def test_a_keeper_that_is_handed_on_leaves_its_signals_to_the_next_one(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(60)
        await running.cancel()
        report(world, ValueError())
        signal(world)
        await asyncio.sleep(5)
        assert len(world.supervisor.variables) == 1
        await world.keep(world.triggerer("next")).ended()
        await asyncio.sleep(1)
        assert world.supervisor.variables == set()

    world.run(scenario)
    assert world.report()["released"] == 3


def test_a_signalled_instance_gives_back_its_own_message_and_no_other(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(CHECK)
        del world.states["load"]
        world.states.update({f"check_{index}": "running" for index in range(3)})
        await asyncio.sleep(60)
        report(world, ValueError(), CHECK, 1)
        signal(world, CHECK, 1)
        await asyncio.sleep(1)
        assert world.message_states() == {**ALL_HELD, "b": MessageState.VISIBLE}
        world.states.update({f"check_{index}": "success" for index in (0, 2)})
        await running.ended()

    world.run(scenario)


def test_a_signal_of_an_earlier_try_is_dropped_when_airflow_removed_its_report(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        signal(world)
        await asyncio.sleep(60)
        assert world.message_states() == ALL_HELD
        assert world.supervisor.variables == set()
        world.states["load"] = "success"
        await running.ended()

    world.run(scenario)
    assert world.report()["deleted"] == 3


def test_a_signal_without_a_keeper_is_deleted_after_an_hour_and_not_before(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        orphan = FailureSignals.to(DAG_ID, "another run", KEEP.task_id, ["load"]).key("load", -1)
        world.supervisor.variables.add(orphan)
        await asyncio.sleep(ORPHANED_SECONDS - 10)
        assert world.supervisor.variables == {orphan}
        await asyncio.sleep(20)
        assert world.supervisor.variables == set()
        await running.cancel()

    world.run(scenario)


def test_a_signal_that_airflow_does_not_delete_is_tried_again_each_minute_while_a_keeper_listens(
    world: LeasedMessages,
) -> None:
    world.supervisor.deletes_variables = False

    async def scenario() -> None:
        running = await world.receive_and_keep()
        orphan = FailureSignals.to(DAG_ID, "another run", KEEP.task_id, ["load"]).key("load", -1)
        world.supervisor.variables.add(orphan)
        await asyncio.sleep(ORPHANED_SECONDS + 1800)
        assert 25 <= world.supervisor.count(DeleteVariable) <= 30
        await running.cancel()
        world.supervisor.asked.clear()
        await asyncio.sleep(60)
        # No task waits for it, so nothing is asked for its sake.
        assert world.supervisor.count(GetVariableKeys) <= 1

    world.run(scenario)


def test_a_signal_that_could_not_be_deleted_at_first_is_deleted_later(world: LeasedMessages) -> None:
    world.supervisor.deletes_variables = False

    async def scenario() -> None:
        running = await world.receive_and_keep(CHECK)
        del world.states["load"]
        world.states.update({f"check_{index}": "running" for index in range(3)})
        report(world, ValueError(), CHECK, 0)
        signal(world, CHECK, 0)
        await asyncio.sleep(30)
        assert world.message_states() == {**ALL_HELD, "a": MessageState.VISIBLE}
        assert len(world.supervisor.variables) == 1
        world.supervisor.deletes_variables = True
        await asyncio.sleep(120)
        assert world.supervisor.variables == set()
        await running.cancel()

    world.run(scenario)


def test_with_several_teams_no_signals_are_looked_for_and_states_decide(
    world: LeasedMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")

    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(5)
        report(world, MessageFailed([world.ids[1]]))
        world.states["load"] = "failed"
        await running.ended()
        assert world.message_states() == {"b": MessageState.VISIBLE}

    world.run(scenario)
    assert world.supervisor.count(GetVariableKeys) == 0


def test_signals_of_all_keepers_are_asked_for_together_and_only_while_there_are_keepers(
    world: LeasedMessages,
) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(10)
        world.supervisor.asked.clear()
        await asyncio.sleep(10)
        assert 10 <= world.supervisor.count(GetVariableKeys) <= 13
        world.states["load"] = "success"
        await running.ended()
        await asyncio.sleep(1)
        world.supervisor.asked.clear()
        await asyncio.sleep(10)
        assert world.supervisor.asked == []

    world.run(scenario)


def test_with_reports_switched_off_only_states_are_looked_at(
    world: LeasedMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__SQS_LEASE__REPORT_FAILURES", "False")

    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(5)
        asked = world.supervisor.count(GetXCom)
        world.states["load"] = "failed"
        await running.ended()
        assert world.message_states() == ALL_VISIBLE
        assert world.supervisor.count(GetXCom) == asked

    world.run(scenario)
    assert world.supervisor.count(GetVariableKeys) == 0


def test_only_the_messages_that_the_exception_names_are_given_back(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        report(world, MessageFailed([world.ids[1]]))
        world.states["load"] = "failed"
        await running.ended()
        assert world.message_states() == {"b": MessageState.VISIBLE}

    world.run(scenario)
    assert (world.report()["deleted"], world.report()["released"]) == (2, 1)


def test_while_a_try_is_left_such_an_exception_changes_nothing(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        world.states["load"] = "up_for_retry"
        await asyncio.sleep(60)
        assert world.message_states() == ALL_HELD
        world.states["load"] = "success"
        await running.ended()

    world.run(scenario)
    assert world.report()["deleted"] == 3


RULE = by_exception({LookupError: dead_letter()}, otherwise=expire())


@pytest.mark.parametrize(
    ("error", "outcome"), [(KeyError(), "dead_lettered"), (ValueError(), "expired")], ids=["of a rule", "of none"]
)
def test_the_rule_is_chosen_by_the_exception(world: LeasedMessages, error: Exception, outcome: str) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(CHECK, on_failure=RULE)
        del world.states["load"]
        report(world, error, CHECK, 1)
        world.states.update({"check_0": "success", "check_1": "failed", "check_2": "success"})
        await running.ended()

    world.run(scenario)
    assert world.report()["messages"] == {"deleted": [world.ids[0], world.ids[2]], outcome: [world.ids[1]]}


def test_a_process_that_could_report_nothing_fails_all_messages_by_the_other_rule(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(on_failure=RULE)
        world.states["load"] = "failed"
        await running.ended()

    world.run(scenario)
    assert world.report()["expired"] == 3


def test_a_dead_letter_says_by_which_exception_its_work_failed(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(on_failure=dead_letter())
        report(world, KeyError("a secret of the message"))
        world.states["load"] = "failed"
        await running.ended()

    world.run(scenario)
    (message,) = world.sqs.receive(world.dead_letter_url, max_messages=1)
    reason = message.message_attributes["sqs_lease_reason"]["StringValue"]
    assert reason == "task load failed with builtins.KeyError in run run of DAG dag"
