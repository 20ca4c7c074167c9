"""The sensor's trigger: what it publishes, how it ends its task, and what becomes of messages when it ends early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from airflow.triggers.base import TaskSkippedEvent, TaskSuccessEvent
from botocore.exceptions import NoCredentialsError, ProfileNotFound

from sqs_lease.airflow.airflow_api.requests import CommsError
from sqs_lease.airflow.handover import LEASE_KEY, HandedLease
from sqs_lease.airflow.triggers.receive import FAILED, FAILED_FOR_GOOD, TIMED_OUT
from sqs_lease.core.failure_rules import dead_letter
from sqs_lease.core.policies import Growing
from sqs_lease.core.specs import encode_failure_rule
from sqs_lease.testing import AuditKind, MemorySqs, MessageState, VirtualClock, run_virtual
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import (
    KEEP,
    RECEIVE,
    RUN_ID,
    USER_ACTION,
    RunningTrigger,
    VirtualTriggerer,
    receive_trigger,
)


class World:
    """A queue, a triggerer and Airflow's supervisor on one clock."""

    def __init__(self, supervisor: ScriptedComms, *, visibility_seconds: int = 30, in_flight_limit: int = 1000) -> None:
        self.clock = VirtualClock()
        self.sqs = MemorySqs(self.clock, in_flight_limit=in_flight_limit)
        self.url = self.sqs.create_queue("orders", visibility_seconds=visibility_seconds)
        self.supervisor = supervisor
        self.supervisor.states[RUN_ID] = {RECEIVE.task_id: "deferred", KEEP.task_id: None}

    def run(self, scenario: Callable[[VirtualTriggerer], Coroutine[Any, Any, Any]]) -> Any:
        async def main() -> Any:
            return await scenario(VirtualTriggerer(self.sqs, self.clock))

        return run_virtual(main, clock=self.clock)

    def start(self, triggerer: VirtualTriggerer, **options: Any) -> RunningTrigger:
        queue = options.pop("queue", "orders")
        options.setdefault("handoff_timeout_seconds", 300.0)
        return triggerer.start(receive_trigger(queue, self.clock, **options), RECEIVE)

    def states(self) -> set[MessageState]:
        return set(self.sqs.contents(self.url).values())

    def xcom(self, key: str) -> Any:
        return self.supervisor.xcoms.get((RUN_ID, RECEIVE.task_id, -1, key))


@pytest.fixture
def world(supervisor: ScriptedComms) -> World:
    return World(supervisor)


def test_the_messages_are_published_and_the_task_ends_from_the_triggerer(world: World) -> None:
    sent = [world.sqs.send(world.url, body) for body in ("a", "b", "c")]

    async def scenario(triggerer: VirtualTriggerer) -> None:
        running = world.start(triggerer)
        assert [type(event) for event in await running.ended()] == [TaskSuccessEvent]
        assert running.events[0].xcoms is None  # type: ignore[attr-defined]

    world.run(scenario)
    assert sorted(message["MessageId"] for message in world.xcom("return_value")) == sorted(sent)
    assert {message["Body"] for message in world.xcom("return_value")} == {"a", "b", "c"}


def test_no_receipt_handle_can_be_read_in_what_is_published(world: World) -> None:
    world.sqs.send(world.url, "a")

    async def scenario(triggerer: VirtualTriggerer) -> None:
        await world.start(triggerer).ended()

    world.run(scenario)
    (entry,) = [entry for entry in world.sqs.trail().entries() if entry.kind is AuditKind.RECEIVED]
    assert entry.handle
    assert entry.handle not in repr(world.supervisor.xcoms)
    leases = HandedLease.decode(world.xcom(LEASE_KEY), RECEIVE).leases
    assert [lease.receipt.handle for lease in leases] == [entry.handle]


def test_the_leases_are_published_in_the_order_of_the_messages_and_in_time_since_the_epoch(world: World) -> None:
    for number in range(25):
        world.sqs.send(world.url, str(number))

    async def scenario(triggerer: VirtualTriggerer) -> None:
        await world.start(triggerer, max_messages=25).ended()

    world.run(scenario)
    leases = HandedLease.decode(world.xcom(LEASE_KEY), RECEIVE).leases
    assert [lease.receipt.message_id for lease in leases] == [
        message["MessageId"] for message in world.xcom("return_value")
    ]
    assert len(leases) == 25
    assert all(299 < lease.deadline - world.clock.wall() <= 300 for lease in leases)


@pytest.mark.parametrize(("mapped_over", "length"), [(True, 2), (False, None)])
def test_a_length_to_map_over_is_published_where_a_task_is_mapped_over_the_messages(
    world: World, mapped_over: bool, length: int | None
) -> None:
    world.sqs.send(world.url, "a")
    world.sqs.send(world.url, "b")

    async def scenario(triggerer: VirtualTriggerer) -> None:
        await world.start(triggerer, mapped_over=mapped_over).ended()

    world.run(scenario)
    assert world.supervisor.mapped_lengths[RUN_ID, RECEIVE.task_id, -1, "return_value"] == length
    assert world.supervisor.mapped_lengths[RUN_ID, RECEIVE.task_id, -1, LEASE_KEY] is None


@pytest.mark.parametrize(("own", "taken"), [(0, 450), (77, 450), (600, 600)])
def test_without_a_visibility_timeout_the_longer_of_the_queues_own_and_a_safe_one_is_taken(
    supervisor: ScriptedComms, own: int, taken: int
) -> None:
    world = World(supervisor, visibility_seconds=own)
    world.sqs.send(world.url, "a")

    async def scenario(triggerer: VirtualTriggerer) -> None:
        await world.start(triggerer, policy=Growing()).ended()

    world.run(scenario)
    assert HandedLease.decode(world.xcom(LEASE_KEY), RECEIVE).policy.visibility_seconds == taken
    (received,) = [entry for entry in world.sqs.trail().entries() if entry.kind is AuditKind.RECEIVED]
    assert received.until is not None
    assert received.until - received.at == taken


@pytest.mark.parametrize(("visibility", "warned"), [(30.0, True), (180.0, False), (None, False)])
def test_the_log_says_when_leases_would_not_survive_a_takeover(
    world: World, caplog: pytest.LogCaptureFixture, visibility: float | None, warned: bool
) -> None:
    world.sqs.send(world.url, "a")

    async def scenario(triggerer: VirtualTriggerer) -> None:
        await world.start(triggerer, policy=Growing(visibility=visibility)).ended()

    world.run(scenario)
    assert ("needs up to 60 s to take over" in caplog.text) is warned


def test_messages_are_held_for_the_keeper_after_the_task_ended(world: World) -> None:
    world.sqs.send(world.url, "a")

    async def scenario(triggerer: VirtualTriggerer) -> None:
        await world.start(triggerer).ended()
        await asyncio.sleep(290)
        assert world.states() == {MessageState.IN_FLIGHT}

    world.run(scenario)


def test_the_task_is_skipped_when_no_message_came_in_time_and_that_was_asked_for(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        events = await world.start(triggerer, timeout_seconds=5, skip_when_expired=True).ended()
        assert [type(event) for event in events] == [TaskSkippedEvent]

    world.run(scenario)
    assert 5 <= world.clock.now() < 7


def test_the_task_is_resumed_to_fail_when_no_message_came_in_time(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        (event,) = await world.start(triggerer, timeout_seconds=30).ended()
        assert event.payload == {"status": TIMED_OUT, "error": "no message of orders came in time"}

    world.run(scenario)
    assert 30 <= world.clock.now() < 32


def test_the_task_is_not_resumed_before_the_worker_noticed_that_it_deferred(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        (event,) = await world.start(triggerer, timeout_seconds=0).ended()
        assert event.payload["status"] == TIMED_OUT

    world.run(scenario)
    assert world.clock.now() == pytest.approx(6, abs=0.1)


def test_the_wait_is_not_begun_again_by_a_triggerer_that_resumes_it(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        trigger = receive_trigger("orders", world.clock, timeout_seconds=60)
        first = triggerer.start(trigger, RECEIVE)
        await asyncio.sleep(50)
        await first.cancel()
        await triggerer.start(trigger, RECEIVE).ended()

    world.run(scenario)
    assert 60 <= world.clock.now() < 75


def test_a_queue_that_does_not_exist_fails_the_task_for_good_with_the_remedy(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        (event,) = await world.start(triggerer, queue="no-such-queue").ended()
        assert event.payload["status"] == FAILED_FOR_GOOD
        assert "no-such-queue" in event.payload["error"]
        assert "Check its name" in event.payload["error"]

    world.run(scenario)


@pytest.mark.parametrize("option", ["on_failure", "unmatched"])
def test_a_rule_that_may_dead_letter_fails_the_task_if_the_queue_has_no_dead_letters(world: World, option: str) -> None:
    world.sqs.send(world.url, "a")

    async def scenario(triggerer: VirtualTriggerer) -> None:
        (event,) = await world.start(triggerer, **{option: encode_failure_rule(dead_letter())}).ended()
        assert event.payload["status"] == FAILED_FOR_GOOD
        assert f"nothing is received from orders: {option} may send messages to a dead-letter" in event.payload["error"]

    world.run(scenario)
    assert world.states() == {MessageState.VISIBLE}


def test_a_name_that_no_queue_can_have_fails_the_task_for_good(world: World) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        (event,) = await world.start(triggerer, queue="not a name").ended()
        assert event.payload["status"] == FAILED_FOR_GOOD

    world.run(scenario)


def test_a_queue_with_too_many_messages_in_flight_fails_the_task_but_may_be_tried_again(
    supervisor: ScriptedComms,
) -> None:
    world = World(supervisor, in_flight_limit=1)
    world.sqs.send(world.url, "held by another consumer")
    world.sqs.send(world.url, "waiting")
    world.sqs.receive(world.url, visibility_seconds=3600)

    async def scenario(triggerer: VirtualTriggerer) -> None:
        (event,) = await world.start(triggerer).ended()
        assert event.payload["status"] == FAILED
        assert "in flight" in event.payload["error"]

    world.run(scenario)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ProfileNotFound(profile="nobody"), FAILED_FOR_GOOD),
        (NoCredentialsError(), FAILED_FOR_GOOD),
        (TimeoutError("no answer"), FAILED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_a_client_that_cannot_be_made_fails_the_task_with_the_queue_named(
    world: World, error: Exception, status: str
) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        triggerer.open_error = error
        (event,) = await world.start(triggerer).ended()
        assert event.payload["status"] == status
        assert "orders" in event.payload["error"]

    world.run(scenario)


def test_a_triggerer_that_gets_its_connection_to_aws_only_after_a_while_receives_then(world: World) -> None:
    # On a busy machine the first answer of a new triggerer takes half a minute.
    world.sqs.send(world.url, "a")

    async def scenario(triggerer: VirtualTriggerer) -> None:
        triggerer.open_error = TimeoutError("Airflow gave no answer about the connection")
        running = world.start(triggerer, timeout_seconds=3600)
        await asyncio.sleep(60)
        assert running.events == []
        triggerer.open_error = None
        assert [type(event) for event in await running.ended()] == [TaskSuccessEvent]

    world.run(scenario)


@pytest.mark.parametrize("message", [None, USER_ACTION], ids=["the triggerer stops", "a user acts"])
def test_received_messages_are_visible_again_at_once_when_the_trigger_ends_before_it_published(
    world: World, message: str | None
) -> None:
    world.sqs.send(world.url, "a")

    async def scenario(triggerer: VirtualTriggerer) -> None:
        running = world.start(triggerer, linger_seconds=60.0)
        await asyncio.sleep(5)
        assert world.states() == {MessageState.IN_FLIGHT}
        await running.cancel(message)
        assert running.events == []
        assert world.states() == {MessageState.VISIBLE}

    world.run(scenario)
    assert world.clock.now() < 30


def test_received_messages_are_visible_again_when_airflow_does_not_take_them(world: World) -> None:
    world.sqs.send(world.url, "a")
    world.supervisor.refusing = True

    async def scenario(triggerer: VirtualTriggerer) -> None:
        running = world.start(triggerer)
        with pytest.raises(CommsError):
            await running.ended()
        assert world.states() == {MessageState.VISIBLE}

    world.run(scenario)


def test_a_batch_is_published_although_airflow_takes_a_minute_to_answer(world: World) -> None:
    world.sqs.send(world.url, "a")
    world.supervisor.silent = True

    async def scenario(triggerer: VirtualTriggerer) -> None:
        running = world.start(triggerer)
        await asyncio.sleep(60)
        assert world.states() == {MessageState.IN_FLIGHT}
        world.supervisor.silent = False
        assert [type(event) for event in await running.ended()] == [TaskSuccessEvent]

    world.run(scenario)


def test_a_batch_is_given_back_when_airflow_never_answers(world: World) -> None:
    world.sqs.send(world.url, "a")
    world.supervisor.silent = True

    async def scenario(triggerer: VirtualTriggerer) -> None:
        with pytest.raises(CommsError, match="no answer about the XCom 'lease' of task 'orders'"):
            await world.start(triggerer).ended()
        assert world.states() == {MessageState.VISIBLE}

    world.run(scenario)
    assert world.clock.now() < 150
