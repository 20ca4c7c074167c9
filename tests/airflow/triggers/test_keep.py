"""The keeper's trigger extends while the work runs, and settles each message as its work ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from airflow.sdk import BaseXCom
from airflow.sdk.execution_time.comms import GetTaskStates
from airflow.sdk.serde import serialize
from airflow.triggers.base import TaskSuccessEvent
from botocore.exceptions import NoCredentialsError

from sqs_lease.airflow.airflow_api.polling import LONGEST_POLL_SECONDS, LONGEST_UNSIGNALLED_SECONDS
from sqs_lease.airflow.airflow_api.requests import RETURN_VALUE_KEY
from sqs_lease.airflow.settlement.rules import WorkTask
from sqs_lease.airflow.triggers.keep import REPORT_KEY
from sqs_lease.core.calls import VisibilityChange
from sqs_lease.core.failure_rules import dead_letter, release
from sqs_lease.core.limits import MAX_VISIBILITY_SECONDS
from sqs_lease.core.policies import Growing, Never
from sqs_lease.sqs.errors import CredentialsError, SqsError
from sqs_lease.testing import AuditKind, MessageState
from tests.airflow.leased_messages import ALL_HELD, ALL_VISIBLE, LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import CHECK, KEEP, RECEIVE, RUN_ID

LOAD_WITHOUT_RETURN = WorkTask("load", returns=False)


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor)


def test_messages_stay_invisible_for_an_hour_of_work_and_are_deleted_when_it_succeeded(world: LeasedMessages) -> None:
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


@pytest.mark.parametrize(
    ("signalled", "seconds"), [("False", LONGEST_UNSIGNALLED_SECONDS), ("True", LONGEST_POLL_SECONDS)]
)
def test_messages_are_visible_again_when_the_work_failed_and_could_not_signal_it(
    world: LeasedMessages, monkeypatch: pytest.MonkeyPatch, signalled: str, seconds: float
) -> None:
    monkeypatch.setenv("AIRFLOW__SQS_LEASE__REPORT_FAILURES", signalled)

    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(600)
        world.states["load"] = "failed"
        await asyncio.sleep(seconds)
        assert world.message_states() == ALL_VISIBLE
        await running.ended()

    world.run(scenario)
    assert world.report()["released"] == 3
    assert not world.events(AuditKind.DELETED)


def test_messages_are_kept_by_a_triggerer_that_gets_its_connection_to_aws_only_after_a_while(
    world: LeasedMessages,
) -> None:
    # On a busy machine the first answer of a new triggerer takes half a minute, and all its keepers wait for it.
    async def scenario() -> None:
        await world.receive(world.triggerer(), Growing(visibility=180))
        triggerer = world.triggerer("next")
        triggerer.open_error = TimeoutError("Airflow gave no answer about the connection")
        running = world.keep(triggerer)
        await asyncio.sleep(90)
        triggerer.open_error = None
        await asyncio.sleep(600)
        assert world.message_states() == ALL_HELD
        world.states["load"] = "success"
        await running.ended()
        assert world.message_states() == {}

    world.run(scenario)
    assert not world.events(AuditKind.EXPIRED)


def test_a_keeper_that_gets_no_connection_until_no_lease_can_last_fails(world: LeasedMessages) -> None:
    async def scenario() -> None:
        await world.receive(world.triggerer(), Growing(visibility=180))
        triggerer = world.triggerer("next")
        triggerer.open_error = PermissionError("the secrets backend denies access")
        running = world.keep(triggerer)
        await asyncio.sleep(MAX_VISIBILITY_SECONDS - 60)
        assert not running.task.done()
        await asyncio.sleep(120)
        assert running.task.done()
        with pytest.raises(SqsError, match="denies access"):
            await running.ended()

    world.run(scenario)


def test_a_keeper_without_credentials_fails_at_once(world: LeasedMessages) -> None:
    async def scenario() -> None:
        await world.receive(world.triggerer())
        triggerer = world.triggerer("next")
        triggerer.open_error = NoCredentialsError()
        with pytest.raises(CredentialsError, match="orders"):
            await world.keep(triggerer).ended()

    world.run(scenario)


class FailingBackend(BaseXCom):
    """An XCom backend of the user's, whose service is away until it is said to be there."""

    is_away = True

    @staticmethod
    def serialize_value(value: Any, **place: Any) -> Any:
        if FailingBackend.is_away:
            raise OSError("the object store is away")
        return BaseXCom.serialize_value(value, **place)

    @staticmethod
    def deserialize_value(result: Any) -> Any:
        if FailingBackend.is_away:
            raise OSError("the object store is away")
        return BaseXCom.deserialize_value(result)


def test_an_xcom_backend_that_cannot_write_stops_no_keeper(
    world: LeasedMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(LOAD_WITHOUT_RETURN)
        await asyncio.sleep(60)
        monkeypatch.setattr("sqs_lease.airflow.airflow_api.requests.XCom", FailingBackend)
        await asyncio.sleep(600)
        assert world.message_states() == ALL_HELD
        world.states["load"] = "success"
        (event,) = await running.ended()
        assert isinstance(event, TaskSuccessEvent)
        assert world.message_states() == {}

    world.run(scenario)


class UnreadableResults(BaseXCom):
    """An XCom backend of the user's, which needs a package that triggerers do not have."""

    @staticmethod
    def deserialize_value(result: Any) -> Any:
        if result.key == RETURN_VALUE_KEY:
            raise ModuleNotFoundError("pandas")
        return BaseXCom.deserialize_value(result)


def test_work_whose_result_can_never_be_read_here_does_not_hold_its_message_and_the_keeper_for_ever(
    world: LeasedMessages, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(CHECK)
        monkeypatch.setattr("sqs_lease.airflow.airflow_api.requests.XCom", UnreadableResults)
        world.supervisor.xcoms[RUN_ID, "check", 1, RETURN_VALUE_KEY] = "a reference"
        world.states.update({"check_0": "success", "check_1": "success", "check_2": "running"})
        await asyncio.sleep(300)
        assert world.message_states() == {"b": MessageState.IN_FLIGHT, "c": MessageState.IN_FLIGHT}
        await asyncio.sleep(600)
        assert world.message_states() == {"b": MessageState.VISIBLE, "c": MessageState.IN_FLIGHT}
        world.states["check_2"] = "success"
        (event,) = await running.ended()
        assert "task 'check' succeeded, but it is not known which messages it named" in event.payload["error"]
        assert "pandas" in event.payload["error"]

    world.run(scenario)
    assert (world.report()["released"], world.report()["deleted"]) == (1, 2)
    assert caplog.text.count("cannot be read yet") == 1


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_takeover_that_cannot_read_what_was_settled_waits_some_seconds_and_then_gives_nothing_back(
    world: LeasedMessages, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    async def scenario() -> None:
        first = world.triggerer("first")
        await world.receive(first, Growing(visibility=450))
        world.states.update(dict.fromkeys(("check_0", "check_1", "check_2"), "running"))
        world.keep(first, CHECK)
        await asyncio.sleep(60)
        world.states["check_0"] = "failed"
        await asyncio.sleep(20)
        await first.kill()
        assert len(world.sqs.receive(world.url, max_messages=10, visibility_seconds=6000)) == 1
        monkeypatch.setattr("sqs_lease.airflow.airflow_api.requests.XCom", FailingBackend)
        check = replace(CHECK, returns=False)
        running = world.keep(world.triggerer("second"), check)
        await asyncio.sleep(10)
        monkeypatch.setattr(FailingBackend, "is_away", not comes_back)
        world.states.update({"check_1": "success", "check_2": "success"})
        await running.ended()
        assert len(world.message_states()) == 1

    world.run(scenario)
    assert not [entry for entry in world.events(AuditKind.CHANGED, AuditKind.RELEASED) if entry.stale]


def test_messages_are_held_while_the_work_waits_for_its_next_try(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        world.states["load"] = "up_for_retry"
        await asyncio.sleep(900)
        assert world.message_states() == ALL_HELD
        world.states["load"] = "success"
        await running.ended()

    world.run(scenario)
    assert world.report()["deleted"] == 3


def test_one_failed_instance_gives_back_its_message_while_the_others_work_on(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(CHECK)
        world.states["check"] = None
        await asyncio.sleep(60)
        del world.states["check"]
        world.states.update({"check_0": "running", "check_1": "failed", "check_2": "success"})
        await asyncio.sleep(LONGEST_POLL_SECONDS + 1)
        assert world.message_states() == {"a": MessageState.IN_FLIGHT, "b": MessageState.VISIBLE}
        world.states["check_0"] = "success"
        await running.ended()
        assert world.message_states() == {"b": MessageState.VISIBLE}

    world.run(scenario)
    assert world.report()["messages"] == {"released": [world.ids[1]], "deleted": [world.ids[2], world.ids[0]]}


def test_messages_that_the_work_names_in_its_return_value_are_given_back(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep()
        returned = {"batchItemFailures": [{"itemIdentifier": world.ids[1]}]}
        world.supervisor.xcoms[RUN_ID, "load", -1, "return_value"] = returned
        world.states["load"] = "success"
        await running.ended()
        assert world.message_states() == {"b": MessageState.VISIBLE}

    world.run(scenario)
    assert (world.report()["deleted"], world.report()["released"]) == (2, 1)


@pytest.mark.parametrize("failed", [(), (1,)], ids=["none", "one"])
def test_messages_may_be_named_in_a_tuple(world: LeasedMessages, failed: tuple[int, ...]) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(on_failure=dead_letter())
        returned = {"batchItemFailures": tuple({"itemIdentifier": world.ids[position]} for position in failed)}
        # As a worker stores it.
        world.supervisor.xcoms[RUN_ID, "load", -1, "return_value"] = serialize(returned)
        world.states["load"] = "success"
        await running.ended()

    world.run(scenario)
    assert world.report()["deleted"] == len(world.ids) - len(failed)
    assert world.report()["dead_lettered"] == len(failed)


def test_a_message_is_dead_lettered_with_the_reason_that_the_work_returned_for_it_alone(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(on_failure=dead_letter())
        returned = {
            "batchItemFailures": [
                {"itemIdentifier": world.ids[1], "reason": "total is not a number"},
                {"itemIdentifier": world.ids[2]},
            ]
        }
        world.supervisor.xcoms[RUN_ID, "load", -1, "return_value"] = returned
        world.states["load"] = "success"
        await running.ended()

    world.run(scenario)
    dead = world.sqs.receive(world.dead_letter_url, max_messages=10)
    why = "task load returned it in batchItemFailures in run run of DAG dag"
    assert {one.body: one.message_attributes["sqs_lease_reason"]["StringValue"] for one in dead} == {
        "b": f"total is not a number ({why})",
        "c": why,
    }


def test_messages_of_skipped_work_are_given_back_whatever_the_failure_rule(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(on_failure=dead_letter())
        world.states["load"] = "skipped"
        await running.ended()
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)
    assert not world.sqs.contents(world.dead_letter_url)


def test_messages_come_back_later_and_later_when_their_work_is_skipped_every_time(world: LeasedMessages) -> None:
    async def scenario() -> None:
        for _ in range(3):
            received = world.sqs.receive(world.url, max_messages=10)
            world.sqs.change_visibility(world.url, [VisibilityChange(message.receipt, 0) for message in received])
        running = await world.receive_and_keep()
        world.states["load"] = "skipped"
        await running.ended()
        assert world.message_states() == ALL_HELD
        await asyncio.sleep(6)
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)


def test_failed_messages_come_back_after_the_delay_of_the_failure_rule(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(on_failure=release(300))
        world.states["load"] = "failed"
        await running.ended()
        await asyncio.sleep(295)
        assert world.message_states() == ALL_HELD
        await asyncio.sleep(10)
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)


def test_failed_messages_are_dead_lettered_with_their_bodies_by_a_triggerer_that_never_saw_them(
    world: LeasedMessages,
) -> None:
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
    world = LeasedMessages(supervisor, fifo=True)

    async def scenario() -> None:
        running = await world.receive_and_keep(CHECK)
        del world.states["load"]
        world.states.update({"check_0": "success", "check_1": "failed", "check_2": "success"})
        await running.ended()
        assert world.message_states() == {"b": MessageState.VISIBLE, "c": MessageState.VISIBLE}

    world.run(scenario)


def test_a_lost_message_is_reported_and_neither_deleted_nor_released(world: LeasedMessages) -> None:
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


def test_leases_are_extended_although_airflow_answers_nothing(world: LeasedMessages) -> None:
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


def test_everything_is_settled_although_the_report_is_refused(world: LeasedMessages) -> None:
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
    world = LeasedMessages(supervisor)

    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer)
        tasks = ["load", RECEIVE.task_id, KEEP.task_id]
        watches = [triggerer.keepers.poller.watch("dag", f"run{number}", tasks) for number in range(40)]
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
