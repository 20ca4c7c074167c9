"""Between the sensor and its keeper a batch has no holder: its messages stay invisible, and the keeper adopts it."""

from __future__ import annotations

import asyncio
import logging

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse, GetXCom, SetXCom
from airflow.triggers.base import TaskSuccessEvent

from sqs_lease.airflow.airflow_api.requests import RETURN_VALUE_KEY, CommsError
from sqs_lease.airflow.handover import HANDED_KEY, LEASE_KEY
from sqs_lease.core.policies import Growing, Never
from sqs_lease.testing import NO_FAULT, AuditKind, Fault, MemoryTransport, MessageState, Operation
from sqs_lease.testing.service_errors import THROTTLED
from tests.airflow.leased_messages import ALL_HELD, ALL_VISIBLE, LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import KEEP, LOAD, RECEIVE, RUN_ID, USER_ACTION, receive_trigger

HANDOFF_SECONDS = 300.0
SOON_SECONDS = 2.5


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor)


async def receive(world: LeasedMessages, name: str = "first", visibility: float = 30.0) -> None:
    policy = Growing(visibility=visibility)
    await world.receive(world.triggerer(name), policy, handoff_timeout_seconds=HANDOFF_SECONDS)


# The sensor's last act


def test_the_sensor_extends_once_by_the_handoff_timeout_and_forgets(world: LeasedMessages) -> None:
    async def scenario() -> None:
        first = world.triggerer("first")
        await world.receive(first, Growing(visibility=30.0), handoff_timeout_seconds=HANDOFF_SECONDS)
        assert first.open_transports == 0
        ended_at = world.clock.now()
        await asyncio.sleep(HANDOFF_SECONDS - 5)
        assert world.message_states() == ALL_HELD
        await asyncio.sleep(10)
        assert world.message_states() == ALL_VISIBLE
        assert all(entry.at <= ended_at for entry in world.events(AuditKind.CHANGED))

    world.run(scenario)
    assert len(world.events(AuditKind.CHANGED)) == 3


def test_a_lease_that_lasts_longer_is_left_alone(world: LeasedMessages) -> None:
    async def scenario() -> None:
        await receive(world, visibility=HANDOFF_SECONDS * 2)

    world.run(scenario)
    assert not world.events(AuditKind.CHANGED)


def test_leases_that_are_never_to_be_extended_are_not(world: LeasedMessages) -> None:
    async def scenario() -> None:
        await world.receive(world.triggerer(), Never(visibility=30.0), handoff_timeout_seconds=HANDOFF_SECONDS)

    world.run(scenario)
    assert not world.events(AuditKind.CHANGED)


def test_the_log_says_until_when_the_messages_stay_invisible_if_no_keeper_comes(
    world: LeasedMessages, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        with caplog.at_level(logging.INFO):
            await receive(world)

    world.run(scenario)
    (line,) = [record.getMessage() for record in caplog.records if "stay invisible until" in record.getMessage()]
    assert line.startswith("3 messages of ")
    assert line.endswith("UTC if no keeper takes them over")


# The keeper's first act


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("gap_seconds", [0.5, 60, HANDOFF_SECONDS - 120])
def test_the_keeper_makes_no_call_when_it_adopts_and_settles_at_once(
    world: LeasedMessages, gap_seconds: float, elsewhere: bool
) -> None:
    async def scenario() -> None:
        first = world.triggerer("first")
        await world.receive(first, Growing(visibility=30.0), handoff_timeout_seconds=HANDOFF_SECONDS)
        world.states[LOAD.task_id] = "failed"
        await asyncio.sleep(gap_seconds)
        extended = len(world.events(AuditKind.CHANGED))
        began_at = world.clock.now()
        await world.keep(world.triggerer("second") if elsewhere else first).ended()
        assert world.message_states() == ALL_VISIBLE
        assert len(world.events(AuditKind.CHANGED)) == extended
        released_at = max(entry.at for entry in world.events(AuditKind.RELEASED))
        assert released_at - began_at < SOON_SECONDS

    world.run(scenario)
    assert world.report()["released"] == 3


def test_an_adoption_does_not_shorten_what_the_sensor_gave(world: LeasedMessages) -> None:
    async def scenario() -> None:
        await receive(world)
        second = world.triggerer("second")
        world.keep(second)
        await asyncio.sleep(20)
        await second.kill()
        await asyncio.sleep(HANDOFF_SECONDS - 60)
        assert world.message_states() == ALL_HELD

    world.run(scenario)
    assert not world.events(AuditKind.EXPIRED)


def test_the_policy_extends_when_it_is_due(world: LeasedMessages) -> None:
    async def scenario() -> None:
        await receive(world)
        world.keep(world.triggerer("second"))
        await asyncio.sleep(1800)
        assert world.message_states() == ALL_HELD

    world.run(scenario)
    assert not world.events(AuditKind.EXPIRED)
    by_second = [entry for entry in world.events(AuditKind.CHANGED) if entry.caller == "second"]
    assert by_second
    assert by_second[0].at > HANDOFF_SECONDS / 2


def test_a_keeper_of_a_fresh_batch_asks_airflow_two_questions_before_it_holds(world: LeasedMessages) -> None:
    async def scenario() -> None:
        await receive(world)
        asked = world.supervisor.count(GetXCom)
        world.keep(world.triggerer("second"))
        await asyncio.sleep(5)
        assert world.supervisor.count(GetXCom) - asked == 2

    world.run(scenario)


# Faults in between


def test_a_triggerer_that_dies_in_the_gap_costs_nothing(world: LeasedMessages) -> None:
    async def scenario() -> None:
        first = world.triggerer("first")
        await world.receive(first, Growing(visibility=30.0), handoff_timeout_seconds=HANDOFF_SECONDS)
        await first.kill()
        await asyncio.sleep(120)
        assert world.message_states() == ALL_HELD
        world.states[LOAD.task_id] = "success"
        await world.keep(world.triggerer("second")).ended()

    world.run(scenario)
    assert world.report()["deleted"] == 3
    assert world.report()["uncertain"] == 0


@pytest.mark.parametrize("state", ["success", "failed", "skipped"])
def test_a_keeper_that_comes_too_late_takes_nothing_back_for_a_run_that_is_over(
    world: LeasedMessages, state: str
) -> None:
    async def scenario() -> None:
        await receive(world)
        world.states[LOAD.task_id] = state
        await asyncio.sleep(HANDOFF_SECONDS + 5)
        other = MemoryTransport(world.sqs, name="other")
        assert len(await other.receive(world.url, max_messages=10, wait_seconds=0, visibility_seconds=600)) == 3
        await world.keep(world.triggerer("second")).ended()
        assert state == "success" or world.message_states() == ALL_HELD

    world.run(scenario)
    late = [entry for entry in world.events(AuditKind.CHANGED, AuditKind.RELEASED) if entry.at > HANDOFF_SECONDS]
    assert not late
    assert world.report()["deleted"] == 0


def test_a_keeper_that_comes_too_late_takes_back_the_messages_not_yet_received_while_its_work_runs(
    world: LeasedMessages,
) -> None:
    async def scenario() -> None:
        await receive(world)
        await asyncio.sleep(HANDOFF_SECONDS + 5)
        assert world.message_states() == ALL_VISIBLE
        running = world.keep(world.triggerer("second"))
        await asyncio.sleep(60)
        assert world.message_states() == ALL_HELD
        world.states[LOAD.task_id] = "success"
        await running.ended()
        assert world.message_states() == {}

    world.run(scenario)
    assert world.report()["uncertain"] == 3


def test_a_sensor_ends_with_the_batch_that_it_had_when_its_success_was_not_written_down(world: LeasedMessages) -> None:
    """Its triggerer was killed after it had published everything: another one runs its trigger."""

    async def scenario() -> None:
        first, second = world.triggerer("first"), world.triggerer("second")
        await world.receive(first, Growing(visibility=30.0), handoff_timeout_seconds=HANDOFF_SECONDS)
        await first.kill()
        await asyncio.sleep(60)
        (event,) = await second.start(receive_trigger("orders", world.clock), RECEIVE).ended()
        assert isinstance(event, TaskSuccessEvent)

    world.run(scenario)
    assert len(world.events(AuditKind.RECEIVED)) == 3
    assert not world.events(AuditKind.RELEASED)


def test_a_sensor_that_was_killed_before_it_had_published_its_messages_receives_them_again(
    world: LeasedMessages,
) -> None:
    async def scenario() -> None:
        first, second = world.triggerer("first"), world.triggerer("second")
        await world.receive(first, Growing(visibility=30.0), handoff_timeout_seconds=HANDOFF_SECONDS)
        await first.kill()
        del world.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, RETURN_VALUE_KEY]
        began_at = world.clock.now()
        (event,) = await second.start(receive_trigger("orders", world.clock), RECEIVE).ended()
        assert isinstance(event, TaskSuccessEvent)
        assert world.clock.now() - began_at < SOON_SECONDS

    world.run(scenario)
    assert len(world.events(AuditKind.RECEIVED)) == 6


def test_the_batch_of_a_cleared_sensor_can_be_found_until_its_keeper_begins(world: LeasedMessages) -> None:
    async def scenario() -> None:
        await receive(world)
        lease = world.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, LEASE_KEY]
        assert world.supervisor.xcoms[RUN_ID, KEEP.task_id, -1, HANDED_KEY] == lease

    world.run(scenario)


def test_messages_that_were_given_back_are_not_given_back_again_by_the_sensors_next_try(
    world: LeasedMessages,
) -> None:
    def refuse_the_messages(request: object) -> None:
        if isinstance(request, SetXCom) and request.key == RETURN_VALUE_KEY:
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 500}))

    world.supervisor.on_request = refuse_the_messages

    async def scenario() -> None:
        trigger = receive_trigger("orders", world.clock, handoff_timeout_seconds=HANDOFF_SECONDS)
        with pytest.raises(CommsError):
            await world.triggerer().start(trigger, RECEIVE).ended()
        assert world.message_states() == ALL_VISIBLE
        # Another consumer has them now; a release with the old receipts would take them from it.
        assert len(world.sqs.receive(world.url, max_messages=10, visibility_seconds=600)) == 3
        assert (RUN_ID, KEEP.task_id, -1, HANDED_KEY) not in world.supervisor.xcoms

    world.run(scenario)


def test_a_batch_that_a_killed_sensor_could_not_publish_is_given_back_only_once(world: LeasedMessages) -> None:
    async def scenario() -> None:
        first, second, third = map(world.triggerer, ("first", "second", "third"))
        await world.receive(first, Growing(visibility=30.0), handoff_timeout_seconds=HANDOFF_SECONDS)
        await first.kill()
        del world.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, RETURN_VALUE_KEY]
        second.faults = lambda call: Fault(error=THROTTLED) if call.operation is Operation.RECEIVE else NO_FAULT
        second.start(receive_trigger("orders", world.clock), RECEIVE)
        await asyncio.sleep(SOON_SECONDS)
        assert world.message_states() == ALL_VISIBLE
        await second.kill()
        assert len(world.sqs.receive(world.url, max_messages=10, visibility_seconds=600)) == 3
        third.start(receive_trigger("orders", world.clock), RECEIVE)
        await asyncio.sleep(SOON_SECONDS)
        await third.kill()

    world.run(scenario)
    # By the first trigger, and by the other consumer, from which the third one took none.
    assert len(world.events(AuditKind.RECEIVED)) == 6


def test_a_cleared_keeper_leaves_its_leases_for_the_handoff_timeout(world: LeasedMessages) -> None:
    async def scenario() -> None:
        await receive(world)
        running = world.keep(world.triggerer("second"))
        await asyncio.sleep(600)
        world.states[KEEP.task_id] = "queued"
        await running.cancel(USER_ACTION)
        assert (RUN_ID, KEEP.task_id, -1, HANDED_KEY) in world.supervisor.xcoms
        await asyncio.sleep(HANDOFF_SECONDS - 10)
        assert world.message_states() == ALL_HELD
        again = world.keep(world.triggerer("third"), tried_before=True)
        world.states[LOAD.task_id] = "failed"
        await again.ended()
        assert world.message_states() == dict.fromkeys("abc", MessageState.VISIBLE)

    world.run(scenario)
    assert world.report()["released"] == 3


def test_leases_that_a_cleared_keeper_left_are_not_found_any_more_when_its_next_try_holds_them(
    world: LeasedMessages,
) -> None:
    """Airflow deletes a task's XComs when a try begins, which may be just before the try before it is told."""

    async def scenario() -> None:
        await receive(world)
        running = world.keep(world.triggerer("second"))
        await asyncio.sleep(60)
        world.states[KEEP.task_id] = "queued"
        await running.cancel(USER_ACTION)
        assert world.supervisor.xcoms[RUN_ID, KEEP.task_id, -1, HANDED_KEY] is not None
        again = world.keep(world.triggerer("third"), tried_before=True)
        await asyncio.sleep(60)
        assert world.message_states() == ALL_HELD
        # A sensor that is cleared now would give back what this keeper gives back itself, perhaps after others have it.
        assert world.supervisor.xcoms[RUN_ID, KEEP.task_id, -1, HANDED_KEY] is None
        world.states[LOAD.task_id] = "success"
        await again.ended()

    world.run(scenario)


def test_messages_are_handed_on_although_it_cannot_be_known_whether_the_sensors_next_try_would_find_them(
    world: LeasedMessages,
) -> None:
    def store_and_fail(request: object) -> None:
        if isinstance(request, SetXCom) and request.key == HANDED_KEY:
            world.supervisor.xcoms[RUN_ID, KEEP.task_id, -1, HANDED_KEY] = request.value
            raise ConnectionError("the answer was lost")

    world.supervisor.on_request = store_and_fail

    async def scenario() -> None:
        running = await world.receive(world.triggerer(), handoff_timeout_seconds=HANDOFF_SECONDS)
        assert isinstance(running.events[0], TaskSuccessEvent)
        # Given back here, they would be given back once more by the next try.
        assert world.message_states() == ALL_HELD

    world.run(scenario)


def test_a_trigger_that_is_stopped_while_it_writes_its_leases_down_leaves_them_to_the_next_one(
    world: LeasedMessages,
) -> None:
    written = asyncio.Event()

    def store(request: object) -> None:
        if isinstance(request, SetXCom) and request.key == LEASE_KEY:
            world.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, LEASE_KEY] = request.value
            written.set()

    world.supervisor.on_request = store

    async def scenario() -> None:
        trigger = receive_trigger("orders", world.clock, handoff_timeout_seconds=HANDOFF_SECONDS)
        first = world.triggerer("first").start(trigger, RECEIVE)
        await written.wait()
        await first.cancel()
        # Another consumer has these messages when the next trigger gives them back once more.
        world.sqs.receive(world.url, max_messages=10, visibility_seconds=600)
        second = world.triggerer("second").start(receive_trigger("orders", world.clock), RECEIVE)
        await asyncio.sleep(SOON_SECONDS)
        await second.cancel()

    world.run(scenario)
    assert not [entry for entry in world.events(AuditKind.RELEASED) if entry.stale]
