"""The size of a batch that goes through XCom, in bytes: where it ends, and when it is stored in files instead."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import TaskDeferred

from sqs_lease.airflow import SqsLeaseSensor, sqs_lease
from sqs_lease.airflow.payload import INLINE_BYTES
from sqs_lease.airflow.triggers import receive
from sqs_lease.airflow.triggers.receive import ReceiveOptions, SqsLeaseReceiveTrigger
from sqs_lease.core.messages import Receipt
from sqs_lease.core.policies import Fixed
from sqs_lease.testing import AuditKind, LeasedQueue, MemorySqs, MessageState, VirtualClock, run_virtual
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import KEEP, RECEIVE, RUN_ID, VirtualTriggerer, receive_trigger

LARGE = 100_000
MANY = 400
OPTION = "AIRFLOW__SQS_LEASE__PAYLOAD"


@pytest.fixture
def sqs(supervisor: ScriptedComms) -> MemorySqs:
    """A queue with 40 MB in 400 messages."""
    supervisor.states[RUN_ID] = {RECEIVE.task_id: "deferred", KEEP.task_id: None}
    made = MemorySqs(VirtualClock())
    url = made.create_queue("orders")
    for number in range(MANY):
        made.send(url, f"{number:0{LARGE}}")
    return made


def received(sqs: MemorySqs, supervisor: ScriptedComms, **options: Any) -> Any:
    """Return the messages that a sensor's trigger publishes which may receive 2 000."""
    clock = sqs.clock
    assert isinstance(clock, VirtualClock)

    async def scenario() -> None:
        triggerer = VirtualTriggerer(sqs, clock)
        await triggerer.start(receive_trigger("orders", clock, max_messages=2000, **options), RECEIVE).ended()

    run_virtual(scenario, clock=clock)
    return supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, "return_value"]


def test_a_batch_ends_at_its_size_and_leaves_the_other_messages_in_the_queue(
    sqs: MemorySqs, supervisor: ScriptedComms
) -> None:
    published = received(sqs, supervisor)
    size = sum(len(message["Body"]) for message in published)
    assert INLINE_BYTES <= size <= INLINE_BYTES + 100 * LARGE
    states = Counter(sqs.contents(sqs.queue_url("orders")).values())
    assert states == {MessageState.IN_FLIGHT: len(published), MessageState.VISIBLE: MANY - len(published)}
    # Nothing was given back: that would count as a receive of messages without any work on them.
    assert not [entry for entry in sqs.trail().entries() if entry.kind is AuditKind.RELEASED]


def options_of(max_messages: int | str = 10, *, mapped: bool = False, payload: str | None = None) -> ReceiveOptions:
    """Return the options that the sensor of a new DAG gives to its trigger."""

    @task
    def load(messages: Any) -> None: ...

    with (
        DAG("shop", schedule=None) as dag,
        sqs_lease("orders", queue_url="orders", max_messages=max_messages, payload=payload) as messages,
    ):
        if mapped:
            load.expand(messages=messages)
        else:
            load(messages)
    sensor = dag.task_dict["orders"]
    assert isinstance(sensor, SqsLeaseSensor)
    instance = SimpleNamespace(dag_id="shop", run_id="run", task_id="orders", map_index=-1, try_number=1)
    with pytest.raises(TaskDeferred) as deferred:
        SqsLeaseSensor.execute.__wrapped__(sensor, {"ti": instance})  # type: ignore[attr-defined]
    trigger = deferred.value.trigger
    assert isinstance(trigger, SqsLeaseReceiveTrigger)
    return trigger.options


def test_without_a_place_too_many_messages_are_refused_at_parse_with_both_remedies(supervisor: ScriptedComms) -> None:
    with pytest.raises(ValueError, match=r"payload='s3://.*\[sqs_lease\] payload.*lower max_messages"):
        options_of(5000)


def test_a_configured_place_is_used_where_there_may_be_too_many_messages_and_nowhere_else(
    supervisor: ScriptedComms, empty_queue: LeasedQueue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(OPTION, str(tmp_path))
    many, few, mapped = options_of(5000), options_of(10), options_of(10, mapped=True)
    assert (many.payload, many.most_bytes) == (str(tmp_path), None)
    # Whatever it weighs: work that was given a list today must not be given a reference tomorrow.
    assert (few.payload, few.most_bytes) == (None, INLINE_BYTES)
    # No task is mapped over what is in a file.
    assert (mapped.payload, mapped.most_bytes) == (None, INLINE_BYTES)
    own = options_of(5000, payload="/its/own")
    assert own.payload == "/its/own"


def test_a_wrong_place_is_an_error_while_the_dag_is_parsed(
    supervisor: ScriptedComms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OPTION, "relative/path")
    with pytest.raises(ValueError, match=r"\[sqs_lease\] payload"):
        options_of(5000)


def test_a_sensor_receives_again_when_its_full_batch_was_lost_while_a_poll_was_under_way(
    supervisor: ScriptedComms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive, "INLINE_BYTES", 1_000)
    supervisor.states[RUN_ID] = {RECEIVE.task_id: "deferred", KEEP.task_id: None}
    clock = VirtualClock()
    sqs = MemorySqs(clock)
    url = sqs.create_queue("orders")
    for number in range(10):
        sqs.send(url, str(number))

    def delete_all() -> None:
        for entry in sqs.trail().entries():
            if entry.kind is AuditKind.RECEIVED:
                sqs.delete(url, [Receipt(entry.message_id, entry.handle)])

    async def scenario() -> None:
        policy = Fixed(visibility=30.0, every=2.0)
        receiving = receive_trigger("orders", clock, max_messages=100, linger_seconds=60.0, policy=policy)
        running = VirtualTriggerer(sqs, clock).start(receiving, RECEIVE)
        await asyncio.sleep(1)  # Now two polls are under way, and the next message ends the batch.
        sqs.send(url, "x" * 1_000)
        await asyncio.sleep(1)
        delete_all()
        await asyncio.sleep(20)
        assert not running.task.done()
        sqs.send(url, "later")
        await running.ended()

    run_virtual(scenario, clock=clock)
    (message,) = supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, "return_value"]
    assert message["Body"] == "later"
