"""Binary attributes are published as base64, and a message that Airflow cannot take is settled by itself."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse, SetXCom
from airflow.triggers.base import TaskSuccessEvent

from sqs_lease.airflow import read_messages
from sqs_lease.airflow.airflow_api.requests import CommsError
from sqs_lease.airflow.handover import LEASE_KEY, HandedLease
from sqs_lease.airflow.triggers.receive import TIMED_OUT
from sqs_lease.core.failure_rules import FailureRule, dead_letter, expire, release
from sqs_lease.core.policies import Growing
from sqs_lease.core.specs import encode_failure_rule
from sqs_lease.testing import AuditKind, MessageState, memory_sqs
from tests.airflow.leased_messages import LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import RECEIVE, RUN_ID, receive_trigger

PICTURE = {"DataType": "Binary", "BinaryValue": b"\x89PNG\x00\xff"}
AS_TEXT = {"DataType": "Binary", "BinaryValue": {"base64": "iVBORwD/"}}
RESERVED = {"__classname__": {"DataType": "String", "StringValue": "builtins.tuple"}}
"""SQS allows attributes of this name, and Airflow refuses to serialise a mapping with it."""

LEGACY = {
    "__type": {"DataType": "String", "StringValue": "dict"},
    "__var": {"DataType": "String", "StringValue": "{}"},
}
"""Airflow serialises these names, and reads another value back."""


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor)


def published(world: LeasedMessages) -> Any:
    return world.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, "return_value"]


def receives(world: LeasedMessages) -> Counter[str]:
    return Counter(entry.message_id for entry in world.sqs.trail().entries() if entry.kind is AuditKind.RECEIVED)


@pytest.mark.parametrize("stored", [False, True], ids=["through XCom", "by files"])
def test_a_binary_attribute_travels_as_base64(world: LeasedMessages, stored: bool, tmp_path: Path) -> None:
    picture = world.sqs.send(world.url, "picture", message_attributes={"image": PICTURE})

    async def scenario() -> None:
        running = await world.receive(world.triggerer(), payload=str(tmp_path) if stored else None)
        assert [type(event) for event in running.events] == [TaskSuccessEvent]

    world.run(scenario)
    by_id = {message["MessageId"]: message for message in read_messages(published(world))}
    assert by_id[picture]["MessageAttributes"] == {"image": AS_TEXT}
    assert by_id.keys() == {picture, *world.ids}
    json.dumps(list(by_id.values()))


def test_a_binary_attribute_is_whole_again_in_the_dead_letter_queue(world: LeasedMessages) -> None:
    world.sqs.send(world.url, "picture", message_attributes={"image": PICTURE})

    async def scenario() -> None:
        first = world.triggerer("first")
        await world.receive(first)
        await first.kill()
        # This one has nothing but what was published.
        keeping = world.keep(world.triggerer("second"), on_failure=dead_letter())
        await asyncio.sleep(30)
        world.states["load"] = "failed"
        await keeping.ended()
        dead = world.sqs.receive(world.dead_letter_url, max_messages=10, visibility_seconds=10)
        (message,) = [message for message in dead if message.body == "picture"]
        assert message.message_attributes["image"] == PICTURE

    world.run(scenario)


@pytest.mark.parametrize("attributes", [RESERVED, LEGACY], ids=["reserved", "legacy"])
def test_a_message_that_airflow_cannot_take_is_dead_lettered_alone_where_the_lease_says_so(
    world: LeasedMessages, attributes: Any, caplog: pytest.LogCaptureFixture
) -> None:
    poison = world.sqs.send(world.url, "secret", message_attributes=attributes)

    async def scenario() -> None:
        running = await world.receive(world.triggerer(), on_failure=encode_failure_rule(dead_letter()))
        assert [type(event) for event in running.events] == [TaskSuccessEvent]
        (dead,) = world.sqs.receive(world.dead_letter_url, max_messages=10, visibility_seconds=10)
        assert dead.body == "secret"
        reason = dead.message_attributes["sqs_lease_reason"]["StringValue"]
        assert "Airflow cannot publish it" in reason
        assert "payload" in reason

    world.run(scenario)
    assert [message["MessageId"] for message in published(world)] == world.ids
    assert poison in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("stored", [False, True], ids=["through XCom", "by files"])
def test_a_message_of_a_group_that_cannot_be_written_down_does_not_keep_the_others_from_their_keeper(
    world: LeasedMessages, stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SQS refuses half a surrogate pair in a group's name, and other services may not.
    monkeypatch.setattr(memory_sqs, "check_token", lambda *_: None)
    odd = world.sqs.send(world.url, "odd", message_group_id="\ud800")

    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer, payload=str(tmp_path) if stored else None)
        keeping = world.keep(triggerer)
        world.states["load"] = "success"
        assert [type(event) for event in await keeping.ended()] == [TaskSuccessEvent]

    world.run(scenario)
    assert list(world.sqs.contents(world.url)) == [odd]


@pytest.mark.parametrize("rule", [release(), release(0), expire()], ids=["release", "release(0)", "expire"])
def test_a_sensor_that_finds_nothing_else_does_not_receive_such_a_message_over_and_over(
    world: LeasedMessages, rule: FailureRule
) -> None:
    poison = world.sqs.send(world.url, "poison", message_attributes=RESERVED)

    async def scenario() -> None:
        triggerer = world.triggerer()
        # The others are taken by the first sensor.
        await world.receive(triggerer, on_failure=encode_failure_rule(rule), handoff_timeout_seconds=900.0)
        world.supervisor.xcoms.clear()
        second = await world.receive(
            triggerer, batch_id="second", timeout_seconds=600, on_failure=encode_failure_rule(rule)
        )
        assert second.events[0].payload["status"] == TIMED_OUT

    world.run(scenario)
    assert {
        message_id: count for message_id, count in receives(world).items() if message_id != poison
    } == dict.fromkeys(world.ids, 1)
    # By its own visibility timeout, 30 s, a message that is left alone comes 20 times within 600 s.
    assert receives(world)[poison] <= (22 if rule == expire() else 8)


def test_such_a_message_goes_through_files(world: LeasedMessages, tmp_path: Path) -> None:
    poison = world.sqs.send(world.url, "unusual", message_attributes={**RESERVED, "image": PICTURE})

    async def scenario() -> None:
        await world.receive(world.triggerer(), payload=str(tmp_path))

    world.run(scenario)
    (unusual,) = [message for message in read_messages(published(world)) if message["MessageId"] == poison]
    assert unusual["MessageAttributes"] == {**RESERVED, "image": AS_TEXT}


def test_messages_behind_such_a_message_of_a_fifo_group_wait_with_it(supervisor: ScriptedComms) -> None:
    world = LeasedMessages(supervisor, fifo=True, bodies="a")
    for body, group, attributes in (("x", "group", RESERVED), ("b", "group", {}), ("c", "other", {})):
        world.sqs.send(world.url, body, message_attributes=attributes, message_group_id=group, deduplication_id=body)

    async def scenario() -> None:
        await world.receive(world.triggerer())
        assert {message["Body"] for message in published(world)} == {"a", "c"}
        received = HandedLease.decode(world.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, LEASE_KEY], RECEIVE).leases
        world.sqs.delete(world.url, [lease.receipt for lease in received])
        await asyncio.sleep(15)
        again = world.sqs.receive(world.url, max_messages=10, visibility_seconds=30)
        assert [message.body for message in again] == ["x", "b"]

    world.run(scenario)


def test_a_nul_character_in_an_attribute_is_found_too(world: LeasedMessages, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL refuses it. SQS refuses it as well, but other servers do not."""
    monkeypatch.setattr(memory_sqs, "check_sent_message", lambda *_: None)
    attributes = {"kind": {"DataType": "String", "StringValue": "a\0b"}}
    poison = world.sqs.send(world.url, "poison", message_attributes=attributes)

    async def scenario() -> None:
        await world.receive(world.triggerer())

    world.run(scenario)
    assert poison not in {message["MessageId"] for message in published(world)}
    assert len(published(world)) == len(world.bodies)


@pytest.mark.parametrize("alone", [False, True], ids=["with others", "alone"])
def test_a_sensor_goes_on_without_a_message_that_airflow_refuses_for_an_unforeseen_reason(
    supervisor: ScriptedComms, alone: bool
) -> None:
    world = LeasedMessages(supervisor, bodies=["poison"] if alone else ["a", "poison", "b", "c"])

    def refuse_poison(request: Any) -> None:
        if isinstance(request, SetXCom) and "'Body': 'poison'" in str(request.value):
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 500}))

    async def scenario() -> None:
        supervisor.on_request = refuse_poison
        receiving = world.receive(world.triggerer())
        if alone:
            with pytest.raises(CommsError):
                await receiving
        else:
            await receiving
            assert [message["Body"] for message in published(world)] == ["a", "b", "c"]
            leases = HandedLease.decode(supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, LEASE_KEY], RECEIVE).leases
            assert [lease.receipt.message_id for lease in leases] == [one["MessageId"] for one in published(world)]
        assert world.message_states()["poison"] is MessageState.IN_FLIGHT
        await asyncio.sleep(15)
        assert world.message_states()["poison"] is MessageState.VISIBLE

    world.run(scenario)
    assert set(receives(world).values()) == {1}


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_work_is_given_no_part_of_a_batch_when_a_triggerer_ends_while_it_looks_for_what_airflow_refuses(
    supervisor: ScriptedComms, is_killed: bool
) -> None:
    world = LeasedMessages(supervisor, bodies=["a", "poison", "b", "c"])
    searching = asyncio.Event()

    def refuse_poison(request: Any) -> None:
        if isinstance(request, SetXCom) and request.key == "return_value":
            if "'Body': 'poison'" in str(request.value):
                raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 500}))
            searching.set()

    async def scenario() -> None:
        supervisor.on_request = refuse_poison
        triggerer = world.triggerer()
        trigger = receive_trigger(
            "orders", world.clock, policy=Growing(visibility=180), timeout_seconds=600.0, handoff_timeout_seconds=180.0
        )
        running = triggerer.start(trigger, RECEIVE)
        await searching.wait()
        await asyncio.sleep(2 * supervisor.answer_seconds)
        await (triggerer.kill() if is_killed else running.cancel())
        assert (RUN_ID, RECEIVE.task_id, -1, "return_value") in supervisor.xcoms, "a part of the batch"
        await world.triggerer("next").start(trigger, RECEIVE).ended()

    world.run(scenario)
    assert {message["Body"] for message in published(world)} == {"a", "b", "c"}
    leases = HandedLease.decode(supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, LEASE_KEY], RECEIVE).leases
    assert [lease.receipt.message_id for lease in leases] == [one["MessageId"] for one in published(world)]
