"""What was dead-lettered goes back: by a move task of SQS, or message by message where only some are wanted."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from threading import Thread
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowTaskTimeout,
    TaskDeferralError,
    TaskDeferralTimeout,
    TaskDeferred,
)

from sqs_lease.airflow import SqsMoveMessagesOperator
from sqs_lease.airflow.airflow_api.requests import RunOfTask
from sqs_lease.airflow.aws_connection import AwsConnection
from sqs_lease.airflow.queues.queue_task import DONE
from sqs_lease.airflow.queues.redrive import SqsFilteredMoveTrigger, SqsMoveTaskTrigger
from sqs_lease.keeper import move_orders, text_search
from sqs_lease.keeper.driver import REASON_ATTRIBUTE
from sqs_lease.keeper.keeper import Keeper
from sqs_lease.keeper.move_orders import MoveOrder, StartedMove, follow, move_filtered, start
from sqs_lease.keeper.outcome import FAILED, OutcomeError
from sqs_lease.sqs.move_tasks import CANCELLED, RUNNING, MoveTask
from sqs_lease.testing import (
    Fault,
    LeasedQueues,
    MemorySqs,
    MemoryTransport,
    MessageState,
    Operation,
    ScriptedFaults,
    TransportCall,
    VirtualClock,
    run_virtual,
)
from sqs_lease.testing.service_errors import (
    ACCESS_DENIED,
    INTERNAL_ERROR,
    MESSAGE_TOO_LONG,
    THROTTLED,
    UNAVAILABLE,
    ServiceError,
)
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import DAG_ID, RUN_ID, USER_ACTION, VirtualTriggerer

_T = TypeVar("_T")

REDRIVE = RunOfTask(DAG_ID, RUN_ID, "redrive")

TAKEOVER_SECONDS = 60.0


class Ground:
    """A queue with a dead-letter queue, on virtual time."""

    def __init__(self, kind: str = "") -> None:
        self.clock = VirtualClock(start=1000)
        self.sqs = MemorySqs(self.clock)
        self.kind = kind
        self.dead = self.sqs.create_queue(f"dead{kind}")
        self.orders = self.create("orders")
        self.transport = MemoryTransport(self.sqs)

    def create(self, name: str) -> str:
        return self.sqs.create_queue(f"{name}{self.kind}", dead_letter_queue_url=self.dead, max_receive_count=1)

    def dead_letter(self, *bodies: str, reason: str | None = None, group: str = "a", **attributes: Any) -> None:
        """Put messages into the dead-letter queue as ``dead_letter()`` does."""
        if reason is not None:
            attributes[REASON_ATTRIBUTE] = {"DataType": "String", "StringValue": reason}
        for body in bodies:
            self.sqs.send(
                self.dead,
                body,
                message_attributes=attributes,
                message_group_id=group if self.kind else None,
                deduplication_id=f"id-of-{body}" if self.kind else None,
            )

    def fail(self, *bodies: str, url: str | None = None) -> None:
        """Have SQS move messages to the dead-letter queue."""
        source = url or self.orders
        for body in bodies:
            self.sqs.send(source, body)
            self.sqs.receive(source, visibility_seconds=0)
            self.sqs.receive(source)

    def bodies(self, url: str) -> list[str]:
        return list(self.sqs.bodies(url).values())

    def run(self, scenario: Callable[[], Awaitable[_T]]) -> _T:
        async def main() -> _T:
            return await scenario()

        return run_virtual(main, clock=self.clock)

    def move(self, **order: Any) -> dict[str, Any]:
        """Move with a filter, without a trigger."""

        async def scenario() -> dict[str, Any]:
            async with Keeper(self.transport, clock=self.clock) as keeper:
                wanted = MoveOrder(**{"queue": "dead" + self.kind, **order})
                return await move_filtered(self.transport, keeper, wanted, takeover_seconds=TAKEOVER_SECONDS)

        return self.run(scenario)


@pytest.fixture
def ground() -> Ground:
    return Ground()


def task_trigger(ground: Ground, started: StartedMove, *, ends_at: float | None = None) -> SqsMoveTaskTrigger:
    return SqsMoveTaskTrigger(
        queue="dead",
        deferred_at=ground.clock.wall(),
        ends_at=ends_at,
        **AwsConnection().encode(),
        **asdict(started),
    )


def filtered_trigger(ground: Ground, *, ends_at: float | None = None, **order: Any) -> SqsFilteredMoveTrigger:
    return SqsFilteredMoveTrigger(
        deferred_at=ground.clock.wall(),
        ends_at=ends_at,
        **AwsConnection().encode(),
        **asdict(MoveOrder(queue="dead", **order)),
    )


async def started(ground: Ground, **order: Any) -> StartedMove:
    return await start(ground.transport, MoveOrder(queue="dead", **order), ground.clock)


# By a move task


def test_a_move_task_is_followed_to_its_end(
    ground: Ground, supervisor: ScriptedComms, caplog: pytest.LogCaptureFixture
) -> None:
    ground.fail(*(f"order {number}" for number in range(50)))
    caplog.set_level(logging.INFO, "sqs_lease")

    async def scenario() -> None:
        trigger = task_trigger(ground, await started(ground, max_per_second=1))
        triggerer = VirtualTriggerer(ground.sqs, ground.clock)
        (event,) = await triggerer.start(trigger, REDRIVE).ended()
        assert event.payload == {"status": DONE, "report": {"status": "COMPLETED", "moved": 50, "to_move": 50}}
        assert triggerer.open_transports == 0

    ground.run(scenario)
    assert len(ground.bodies(ground.orders)) == 50
    assert "31 of 50 messages moved" in caplog.text


def test_another_triggerer_follows_it_where_the_first_one_stopped(ground: Ground, supervisor: ScriptedComms) -> None:
    ground.fail("a", "b", "c")

    async def scenario() -> None:
        trigger = task_trigger(ground, await started(ground, max_per_second=1))
        first = VirtualTriggerer(ground.sqs, ground.clock).start(trigger, REDRIVE)
        await asyncio.sleep(1)
        await first.cancel()
        assert ground.sqs.move_tasks(ground.dead)[0].status == RUNNING
        await asyncio.sleep(10)
        second = VirtualTriggerer(ground.sqs, ground.clock).start(trigger, REDRIVE)
        (event,) = await second.ended()
        assert event.payload["report"]["moved"] == 3

    ground.run(scenario)


@pytest.mark.parametrize("state", [None, "success", "failed", "running"])
def test_a_task_that_is_marked_or_cleared_cancels_its_move_task(
    ground: Ground, supervisor: ScriptedComms, state: str | None
) -> None:
    ground.fail("a", "b", "c")
    supervisor.states[RUN_ID] = {"redrive": state}

    async def scenario() -> None:
        trigger = task_trigger(ground, await started(ground, max_per_second=1))
        triggerer = VirtualTriggerer(ground.sqs, ground.clock)
        running = triggerer.start(trigger, REDRIVE)
        await asyncio.sleep(1.5)
        await running.cancel(USER_ACTION)
        await asyncio.sleep(2)
        (task,) = ground.sqs.move_tasks(ground.dead)
        assert (task.status, task.moved) == (CANCELLED, 2)
        assert triggerer.open_transports == 0

    ground.run(scenario)


@pytest.mark.parametrize("answers", [True, False])
def test_a_triggerer_that_stood_still_leaves_the_move_task_alone(
    ground: Ground, supervisor: ScriptedComms, *, answers: bool
) -> None:
    ground.fail("a", "b", "c")
    supervisor.states[RUN_ID] = {"redrive": "deferred"}
    supervisor.refusing = not answers

    async def scenario() -> None:
        trigger = task_trigger(ground, await started(ground, max_per_second=1))
        running = VirtualTriggerer(ground.sqs, ground.clock).start(trigger, REDRIVE)
        await asyncio.sleep(0.5)
        await running.cancel(USER_ACTION)
        assert ground.sqs.move_tasks(ground.dead)[0].status == RUNNING

    ground.run(scenario)


def test_a_move_task_whose_time_is_up_is_cancelled(ground: Ground, supervisor: ScriptedComms) -> None:
    ground.fail(*"abcdefghij")

    async def scenario() -> None:
        begun = await started(ground, max_per_second=1)
        trigger = task_trigger(ground, begun, ends_at=ground.clock.wall() + 4.5)
        (event,) = await VirtualTriggerer(ground.sqs, ground.clock).start(trigger, REDRIVE).ended()
        assert event.payload["status"] == "timed out"
        assert (event.payload["report"]["moved"], event.payload["report"]["to_move"]) == (5, 10)
        assert "execution_timeout was over: 5 of 10 messages moved" in event.payload["error"]

    ground.run(scenario)
    assert len(ground.bodies(ground.dead)) == 5


def test_answers_that_are_lost_meanwhile_are_asked_for_again(ground: Ground, supervisor: ScriptedComms) -> None:
    ground.fail("a")

    async def scenario() -> None:
        trigger = task_trigger(ground, await started(ground))
        triggerer = VirtualTriggerer(ground.sqs, ground.clock)
        triggerer.faults = ScriptedFaults(
            Fault(error=INTERNAL_ERROR), Fault(error=UNAVAILABLE), operation=Operation.LIST_MOVE_TASKS
        )
        (event,) = await triggerer.start(trigger, REDRIVE).ended()
        assert event.payload["status"] == DONE

    ground.run(scenario)


def test_a_move_task_that_sqs_does_not_list_is_given_up(ground: Ground, supervisor: ScriptedComms) -> None:
    async def scenario() -> None:
        arn = ground.sqs.attributes(ground.dead).arn
        trigger = task_trigger(ground, StartedMove(arn, 0.0, "handle"))
        (event,) = await VirtualTriggerer(ground.sqs, ground.clock).start(trigger, REDRIVE).ended()
        assert event.payload["error"].startswith(f"SQS no longer lists it, and the move task of {arn} may go on")

    ground.run(scenario)


def test_what_dead_letter_put_there_goes_back_to_the_only_source_queue(ground: Ground) -> None:
    ground.fail("by SQS")
    ground.dead_letter("by dead_letter()")

    async def scenario() -> None:
        await started(ground)
        await asyncio.sleep(1)

    ground.run(scenario)
    assert ground.bodies(ground.orders) == ["by SQS", "by dead_letter()"]


def test_with_several_source_queues_the_error_asks_for_the_destination(
    ground: Ground, supervisor: ScriptedComms
) -> None:
    ground.create("bookings")
    ground.fail("by SQS")
    ground.dead_letter("by dead_letter()")

    async def scenario() -> None:
        trigger = task_trigger(ground, await started(ground))
        (event,) = await VirtualTriggerer(ground.sqs, ground.clock).start(trigger, REDRIVE).ended()
        assert event.payload["status"] == "failed for good"
        assert event.payload["report"] == {"status": "FAILED", "moved": 1, "to_move": 2}
        assert "name the destination" in event.payload["error"]

    ground.run(scenario)


def test_messages_go_to_a_named_queue(ground: Ground) -> None:
    other = ground.sqs.create_queue("other")
    ground.dead_letter("a")

    async def scenario() -> None:
        await started(ground, destination="other")

    ground.run(scenario)
    assert ground.bodies(other) == ["a"]


@pytest.mark.parametrize("may_list", [True, False])
def test_a_queue_that_is_no_dead_letter_queue_is_refused(ground: Ground, *, may_list: bool) -> None:
    if not may_list:
        ground.transport.faults = denied(Operation.DEAD_LETTER_SOURCES)

    async def scenario() -> None:
        await start(ground.transport, MoveOrder(queue="orders"), ground.clock)

    with pytest.raises(OutcomeError, match=r"orders: it is not the dead-letter queue of any queue. Name the") as raised:
        ground.run(scenario)
    assert raised.value.status == "failed for good"


def test_a_second_move_task_waits_a_little_and_then_says_what_runs(ground: Ground) -> None:
    ground.fail(*"abcdefghijklmnopqrstuvwxyz")

    async def scenario() -> None:
        begun = await started(ground, max_per_second=1)
        with pytest.raises(
            OutcomeError, match=r"runs already .*\(16 of 26 messages moved\). Wait for its end"
        ) as raised:
            await started(ground)
        assert raised.value.status == "failed"
        assert begun.handle not in str(raised.value)
        # A task that was cleared starts while its first move task is being cancelled.
        ground.sqs.cancel_message_move_task(begun.handle)
        await started(ground)

    ground.run(scenario)


def test_a_missing_permission_is_named_with_all_that_a_move_task_needs(ground: Ground) -> None:
    ground.transport.faults = denied(Operation.START_MOVE_TASK)
    with pytest.raises(OutcomeError, match=r"Allow sqs:StartMessageMoveTask .*sqs:SendMessage on each destination"):
        ground.run(lambda: started(ground))


def test_a_move_task_that_ended_before_is_not_taken_for_this_one(ground: Ground) -> None:
    ground.fail("a", "b", "c")

    async def scenario() -> None:
        first = await started(ground, max_per_second=1)
        ground.sqs.cancel_message_move_task(first.handle)
        await asyncio.sleep(2)
        second = await started(ground, max_per_second=1)
        transport = ForgetfulTransport(ground.sqs, newest_missing_from=(1, 1))
        assert (await follow(transport, second, ground.clock))["status"] == "COMPLETED"

    ground.run(scenario)


def test_a_move_task_that_the_list_lacks_for_a_moment_is_followed_on(ground: Ground) -> None:
    ground.fail(*(f"order {number}" for number in range(120)))

    async def scenario() -> None:
        begun = await started(ground, max_per_second=1)
        transport = ForgetfulTransport(ground.sqs, newest_missing_from=(15, 17))
        assert (await follow(transport, begun, ground.clock))["moved"] == 120

    ground.run(scenario)


class ForgetfulTransport(MemoryTransport):
    """Lists move tasks, some of the times without the newest one."""

    def __init__(self, sqs: MemorySqs, newest_missing_from: tuple[int, int]) -> None:
        super().__init__(sqs)
        self._missing = newest_missing_from

    async def move_tasks(self, source_arn: str) -> Sequence[MoveTask]:
        tasks = await super().move_tasks(source_arn)
        first, last = self._missing
        return tasks[1:] if first <= self.count(Operation.LIST_MOVE_TASKS) <= last else tasks


def test_a_move_task_whose_start_got_no_answer_is_followed(ground: Ground) -> None:
    ground.fail(*"abcdefghijklmnopqrstuvwxyz")
    ground.transport.faults = ScriptedFaults(Fault(answer_lost=True), operation=Operation.START_MOVE_TASK)

    async def scenario() -> None:
        begun = await started(ground, max_per_second=1)
        assert (await follow(ground.transport, begun, ground.clock))["moved"] == 26

    ground.run(scenario)
    assert len(ground.sqs.move_tasks(ground.dead)) == 1


@pytest.mark.parametrize("failure", [Fault(error=UNAVAILABLE), Fault(error=THROTTLED)])
def test_a_start_that_may_succeed_later_is_repeated(ground: Ground, failure: Fault) -> None:
    ground.fail("a")
    ground.transport.faults = ScriptedFaults(failure, operation=Operation.START_MOVE_TASK)
    ground.run(lambda: started(ground))
    assert ground.bodies(ground.orders) == ["a"]


def test_a_start_that_is_cancelled_leaves_no_move_task_behind(ground: Ground) -> None:
    ground.fail(*"abcdefghij")
    ground.transport.faults = ScriptedFaults(Fault(after_seconds=3), operation=Operation.START_MOVE_TASK)

    async def scenario() -> None:
        starting = asyncio.get_running_loop().create_task(started(ground, max_per_second=1))
        await asyncio.sleep(1)
        starting.cancel()
        await asyncio.wait([starting])
        assert starting.cancelled()
        await asyncio.sleep(2)
        assert ground.sqs.move_tasks(ground.dead)[0].status == CANCELLED

    ground.run(scenario)


def test_the_source_queue_is_not_asked_for_its_arn(ground: Ground) -> None:
    # A connection may move messages without being allowed to read the attributes of the queues that they go to.
    ground.dead_letter("a")
    ground.transport.faults = lambda call: (
        Fault(error=ACCESS_DENIED)
        if call.operation is Operation.QUEUE_ATTRIBUTES and call.queue_url == ground.orders
        else Fault()
    )
    ground.run(lambda: started(ground))
    assert ground.bodies(ground.orders) == ["a"]


@pytest.mark.parametrize(
    "code", ["InvalidAction", "UnknownOperationException", "AWS.SimpleQueueService.UnsupportedOperation"]
)
def test_a_server_without_move_tasks_is_told_of_with_the_way_round(ground: Ground, code: str) -> None:
    error = ServiceError(code, "not here", 400)
    ground.transport.faults = lambda call: (
        Fault(error=error) if call.operation in (Operation.LIST_MOVE_TASKS, Operation.START_MOVE_TASK) else Fault()
    )
    with pytest.raises(OutcomeError, match=r"has no move tasks.* older_than=0 moves messages one by one") as raised:
        ground.run(lambda: started(ground))
    assert raised.value.status == "failed for good"


def test_a_cancellation_that_may_succeed_later_is_repeated(ground: Ground, supervisor: ScriptedComms) -> None:
    ground.fail(*"abcdefghij")

    async def scenario() -> None:
        trigger = task_trigger(ground, await started(ground, max_per_second=1))
        triggerer = VirtualTriggerer(ground.sqs, ground.clock)
        triggerer.faults = ScriptedFaults(
            Fault(error=UNAVAILABLE), Fault(error=THROTTLED), operation=Operation.CANCEL_MOVE_TASK
        )
        running = triggerer.start(trigger, REDRIVE)
        await asyncio.sleep(0.5)
        await running.cancel(USER_ACTION)
        await asyncio.sleep(2)
        assert ground.sqs.move_tasks(ground.dead)[0].status == CANCELLED

    ground.run(scenario)


def test_a_move_task_that_could_not_be_cancelled_is_not_called_cancelled(
    ground: Ground, supervisor: ScriptedComms
) -> None:
    ground.fail(*"abcdefghij")

    async def scenario() -> None:
        trigger = task_trigger(ground, await started(ground, max_per_second=1), ends_at=ground.clock.wall() + 4.5)
        triggerer = VirtualTriggerer(ground.sqs, ground.clock)
        triggerer.faults = denied(Operation.CANCEL_MOVE_TASK)
        (event,) = await triggerer.start(trigger, REDRIVE).ended()
        assert event.payload["status"] == "timed out"
        assert "may go on" in event.payload["error"]
        assert "Allow sqs:CancelMessageMoveTask" in event.payload["error"]
        assert "was cancelled" not in event.payload["error"]

    ground.run(scenario)


def test_a_move_task_that_ended_in_time_is_not_called_late(ground: Ground, supervisor: ScriptedComms) -> None:
    ground.fail("a", "b", "c")

    async def scenario() -> None:
        trigger = task_trigger(ground, await started(ground, max_per_second=1), ends_at=ground.clock.wall() + 4.5)
        (event,) = await VirtualTriggerer(ground.sqs, ground.clock).start(trigger, REDRIVE).ended()
        assert event.payload == {"status": DONE, "report": {"status": "COMPLETED", "moved": 3, "to_move": 3}}

    ground.run(scenario)


def test_a_move_task_that_cannot_be_followed_is_cancelled(ground: Ground, supervisor: ScriptedComms) -> None:
    ground.fail(*"abcdefghij")

    async def scenario() -> None:
        trigger = task_trigger(ground, await started(ground, max_per_second=1))
        triggerer = VirtualTriggerer(ground.sqs, ground.clock)
        triggerer.faults = denied(Operation.LIST_MOVE_TASKS)
        (event,) = await triggerer.start(trigger, REDRIVE).ended()
        assert event.payload["status"] == "failed for good"
        assert "Allow sqs:ListMessageMoveTasks" in event.payload["error"]
        assert "was cancelled" in event.payload["error"]
        await asyncio.sleep(2)
        assert ground.sqs.move_tasks(ground.dead)[0].status == CANCELLED

    ground.run(scenario)


def denied(operation: Operation) -> Callable[[TransportCall], Fault]:
    return lambda call: Fault(error=ACCESS_DENIED) if call.operation is operation else Fault()


# With a filter


def test_messages_with_a_reason_are_moved_whole_and_the_others_are_given_back(ground: Ground) -> None:
    raw = {"DataType": "Binary", "BinaryValue": b"\x00\xff"}
    ground.dead_letter("a", "b", reason="ValueError: no total", raw=raw)
    ground.dead_letter("c", reason="KeyError: customer")
    ground.fail("d")
    report = ground.move(reason=r"^ValueError")
    assert (report["moved"], report["to_move"], report["looked_at"]) == (2, 2, 4)
    assert sorted(ground.bodies(ground.orders)) == ["a", "b"]
    assert sorted(ground.bodies(ground.dead)) == ["c", "d"]
    assert set(ground.sqs.contents(ground.dead).values()) == {MessageState.VISIBLE}
    moved = ground.sqs.receive(ground.orders)[0]
    assert moved.message_attributes["raw"] == raw
    assert moved.message_attributes[REASON_ATTRIBUTE]["StringValue"] == "ValueError: no total"


def test_messages_are_moved_by_their_age(ground: Ground) -> None:
    ground.dead_letter("old")
    ground.clock.advance(3600)
    ground.dead_letter("middle")
    ground.clock.advance(3600)
    ground.dead_letter("new")
    ground.move(older_than_seconds=1800.0, newer_than_seconds=5400.0)
    assert ground.bodies(ground.orders) == ["middle"]


def test_each_goes_back_to_the_queue_that_it_came_from(ground: Ground) -> None:
    bookings = ground.create("bookings")
    ground.fail("order")
    ground.fail("booking", url=bookings)
    ground.move(older_than_seconds=0.0)
    assert (ground.bodies(ground.orders), ground.bodies(bookings)) == (["order"], ["booking"])


def test_a_message_that_nothing_says_the_origin_of_stays(ground: Ground) -> None:
    ground.create("bookings")
    ground.fail("order")
    ground.dead_letter("from where")
    with pytest.raises(OutcomeError, match=r"of 2 messages .* 1 were not moved, .* name the destination") as raised:
        ground.move(older_than_seconds=0.0)
    assert (raised.value.report["moved"], raised.value.report["not_moved"]) == (1, 1)
    assert ground.bodies(ground.dead) == ["from where"]


def test_more_messages_than_one_receive_are_moved_and_none_is_seen_twice(ground: Ground) -> None:
    ground.dead_letter(*(f"wanted {number}" for number in range(700)), reason="x")
    ground.dead_letter(*(f"other {number}" for number in range(700)))
    report = ground.move(reason="x")
    assert (report["looked_at"], report["moved"]) == (1400, 700)
    assert len(ground.bodies(ground.orders)) == len(ground.bodies(ground.dead)) == 700


def test_no_more_messages_are_looked_at_than_allowed(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    ground.dead_letter(*(f"order {number}" for number in range(30)))
    report = ground.move(older_than_seconds=0.0, max_messages=12)
    assert (report["looked_at"], report["moved"]) == (12, 12)
    assert "raise max_messages" in caplog.text


def test_what_fails_again_meanwhile_is_not_moved_again(ground: Ground) -> None:
    ground.dead_letter("a")
    ground.clock.advance(10)

    async def scenario() -> None:
        async def failing_work() -> None:
            while True:
                for message in await ground.sqs.poll(ground.orders):
                    ground.sqs.delete(ground.orders, [message.receipt])
                    ground.dead_letter(message.body)

        work = asyncio.get_running_loop().create_task(failing_work())
        async with Keeper(ground.transport, clock=ground.clock) as keeper:
            order = MoveOrder(queue="dead", older_than_seconds=0.0)
            report = await move_filtered(ground.transport, keeper, order, takeover_seconds=TAKEOVER_SECONDS)
        work.cancel()
        assert (report["looked_at"], report["moved"]) == (2, 1)

    ground.run(scenario)


@pytest.mark.parametrize("fault", [Fault(answer_lost=True), Fault(error=UNAVAILABLE)])
def test_a_message_is_deleted_only_after_its_send_was_confirmed(ground: Ground, fault: Fault) -> None:
    ground.dead_letter("a")
    ground.transport.faults = ScriptedFaults(fault, operation=Operation.SEND)
    report = ground.move(older_than_seconds=0.0)
    assert report["moved"] == 1
    operations = [call.operation for call in ground.transport.calls]
    sends = [place for place, operation in enumerate(operations) if operation is Operation.SEND]
    assert operations.index(Operation.DELETE) > max(sends)
    assert set(ground.bodies(ground.orders)) == {"a"}
    assert ground.bodies(ground.dead) == []


def test_a_destination_that_may_not_be_sent_to_ends_it_and_gives_all_back(ground: Ground) -> None:
    ground.dead_letter(*"abcdefghijklmnop")
    ground.transport.faults = denied(Operation.SEND)
    with pytest.raises(OutcomeError, match=r"Allow sqs:SendMessage .*0 of 16 messages moved until then"):
        ground.move(older_than_seconds=0.0)
    assert set(ground.sqs.contents(ground.dead).values()) == {MessageState.VISIBLE}
    assert len(ground.sqs.contents(ground.dead)) == 16


def test_a_message_that_the_destination_refuses_stays_and_the_others_go(ground: Ground) -> None:
    ground.dead_letter("a", "b", "c")
    ground.transport.faults = ScriptedFaults(Fault(error=MESSAGE_TOO_LONG), operation=Operation.SEND)
    with pytest.raises(OutcomeError, match=r"1 were not moved, .*must be shorter"):
        ground.move(older_than_seconds=0.0)
    assert len(ground.bodies(ground.orders)) == 2
    assert len(ground.bodies(ground.dead)) == 1


def test_a_message_that_cannot_be_deleted_is_told_of(ground: Ground) -> None:
    ground.dead_letter("a")
    ground.transport.faults = denied(Operation.DELETE)
    with pytest.raises(OutcomeError, match="1 were sent but could not be deleted, and are in both queues"):
        ground.move(older_than_seconds=0.0)


def test_no_more_messages_are_sent_in_a_second_than_allowed(ground: Ground) -> None:
    ground.dead_letter(*"abcdefghij")
    ground.move(older_than_seconds=0.0, max_per_second=2)
    sent = [call.at for call in ground.transport.calls if call.operation is Operation.SEND]
    assert sent[-1] - sent[0] == pytest.approx(4.5)


def test_groups_keep_their_order_and_deduplicate_by_message_id() -> None:
    ground = Ground(".fifo")
    for number in range(12):
        ground.dead_letter(f"a{number}", group="a", reason="x")
        ground.dead_letter(f"b{number}", group="b", reason="x")
    message_id = next(iter(ground.sqs.bodies(ground.dead)))
    report = ground.move(reason="x")
    assert (report["moved"], report["hidden"]) == (24, 0)
    for group in "ab":
        assert [body for body in ground.bodies(ground.orders) if body[0] == group] == [f"{group}{n}" for n in range(12)]
    first = ground.sqs.receive(ground.orders)[0]
    assert first.message_group_id == "a"
    assert first.attributes["MessageDeduplicationId"] == message_id


def test_a_lost_answer_puts_no_second_copy_into_a_fifo_queue() -> None:
    ground = Ground(".fifo")
    ground.dead_letter("a", "b")
    ground.transport.faults = ScriptedFaults(Fault(answer_lost=True), operation=Operation.SEND)
    ground.move(older_than_seconds=0.0)
    assert ground.bodies(ground.orders) == ["a", "b"]


def test_messages_behind_one_that_stays_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    ground = Ground(".fifo")
    ground.dead_letter("stays")
    ground.dead_letter(*(f"behind-{number}" for number in range(15)), reason="x")
    report = ground.move(reason="x")
    # One receive brings ten of the group; then SQS holds the others back.
    assert (report["looked_at"], report["moved"], report["hidden"]) == (10, 9, 6)
    assert "About 6 messages" in caplog.text


def test_behind_a_message_that_cannot_be_sent_nothing_of_its_group_is() -> None:
    ground = Ground(".fifo")
    ground.dead_letter("a", "b", "c")
    ground.transport.faults = ScriptedFaults(Fault(error=MESSAGE_TOO_LONG), operation=Operation.SEND)
    with pytest.raises(OutcomeError, match="3 were not moved"):
        ground.move(older_than_seconds=0.0)
    assert ground.bodies(ground.orders) == []


def test_messages_that_share_a_deduplication_id_are_all_moved() -> None:
    ground = Ground(".fifo")
    for body in ("monday's", "tuesday's"):
        ground.sqs.send(ground.dead, body, message_group_id="a", deduplication_id="report")
        ground.clock.advance(400)
    # SQS would take the second one, drop it as a duplicate of the first, and say that all is well.
    assert ground.move(older_than_seconds=0.0)["moved"] == 2
    assert ground.bodies(ground.orders) == ["monday's", "tuesday's"]


def test_a_message_whose_lease_ended_is_not_sent_again(ground: Ground) -> None:
    ground.dead_letter("a")
    lost = Fault(request_lost=True, after_seconds=400)
    sends = ScriptedFaults(lost, operation=Operation.SEND)
    extensions_denied = denied(Operation.CHANGE_VISIBILITY)
    ground.transport.faults = lambda call: sends(call) if call.operation is Operation.SEND else extensions_denied(call)
    with pytest.raises(OutcomeError, match="its lease ended before it was sent"):
        ground.move(older_than_seconds=0.0)
    assert ground.transport.count(Operation.SEND) == 1


def test_a_message_that_comes_again_after_it_was_sent_is_deleted(ground: Ground) -> None:
    ground.dead_letter(*(f"order {number}" for number in range(300)))
    # The first message is sent, and its delete refused: it is visible again long before the last one is sent.
    ground.transport.faults = ScriptedFaults(Fault(error=ACCESS_DENIED), operation=Operation.DELETE)
    report = ground.move(older_than_seconds=0.0, max_per_second=1)
    assert (report["moved"], report["duplicated"]) == (300, 0)
    assert len(ground.bodies(ground.orders)) == 300
    assert ground.bodies(ground.dead) == []


@pytest.mark.parametrize("operation", [Operation.QUEUE_URL, Operation.SEND])
def test_a_source_queue_that_cannot_be_used_stops_only_its_own_messages(ground: Ground, operation: Operation) -> None:
    bookings = ground.create("bookings")
    for number in range(30):
        ground.fail(f"booking {number}", url=bookings)
        ground.fail(f"order {number}")

    def no_bookings(call: TransportCall) -> Fault:
        is_concerned = call.operation is operation and call.queue_url.endswith("bookings")
        return Fault(error=ACCESS_DENIED) if is_concerned else Fault()

    ground.transport.faults = no_bookings
    with pytest.raises(OutcomeError, match=r"of 60 messages .* 30 were not moved, .*bookings: access denied"):
        ground.move(older_than_seconds=0.0)
    assert len(ground.bodies(ground.orders)) == len(ground.bodies(ground.dead)) == 30
    assert ground.transport.count(operation) < 45  # The queue is not asked again for each of its messages.


def test_a_named_destination_takes_messages_of_a_queue_that_nobody_dead_letters_to(ground: Ground) -> None:
    kept = ground.sqs.create_queue("kept")
    ground.dead_letter("a")
    ground.dead = kept  # whose redrive policy was removed, for example
    ground.dead_letter("b")
    with pytest.raises(OutcomeError, match="it is not the dead-letter queue of any queue"):
        ground.move(queue="kept", older_than_seconds=0.0)
    assert ground.move(queue="kept", older_than_seconds=0.0, destination="orders")["moved"] == 1


def test_messages_that_another_consumer_holds_are_waited_for_and_then_counted(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    ground.dead_letter("held for a minute", "held for hours", "visible")
    for seconds in (60, 10_000):
        ground.sqs.receive(ground.dead, max_messages=1, visibility_seconds=seconds)
    report = ground.move(older_than_seconds=0.0)
    assert (report["moved"], report["hidden"]) == (2, 1)
    assert "About 1 messages" in caplog.text
    assert ground.clock.now() < 1000 + 300


def test_a_triggerer_that_takes_over_from_one_that_was_killed_moves_what_that_one_held(
    ground: Ground, supervisor: ScriptedComms
) -> None:
    ground.dead_letter(*(f"order {number}" for number in range(50)))

    async def scenario() -> None:
        trigger = filtered_trigger(ground, older_than_seconds=0.0, max_per_second=5)
        killed = VirtualTriggerer(ground.sqs, ground.clock)
        killed.start(trigger, REDRIVE)
        await asyncio.sleep(5)
        killed.faults = lambda _: Fault(unreachable=True)
        await killed.kill()
        await asyncio.sleep(30)
        (event,) = await VirtualTriggerer(ground.sqs, ground.clock).start(trigger, REDRIVE).ended()
        assert event.payload["status"] == DONE

    ground.run(scenario)
    assert len(set(ground.bodies(ground.orders))) == 50
    assert ground.bodies(ground.dead) == []


def test_a_mover_that_is_cancelled_sends_nothing_more_and_ends_at_once(
    ground: Ground, supervisor: ScriptedComms
) -> None:
    ground.dead_letter(*(f"order {number}" for number in range(50)))

    async def scenario() -> None:
        triggerer = VirtualTriggerer(ground.sqs, ground.clock)
        running = triggerer.start(filtered_trigger(ground, older_than_seconds=0.0, max_per_second=1), REDRIVE)
        await asyncio.sleep(10.5)
        sent = len(ground.bodies(ground.orders))
        cancelled_at = ground.clock.now()
        await running.cancel(USER_ACTION)
        # A triggerer that stops is killed after ten seconds, and a task's process after five.
        assert ground.clock.now() - cancelled_at < 2
        assert len(ground.bodies(ground.orders)) == sent > 0

    ground.run(scenario)


def test_queues_of_the_other_kind_and_the_same_queue_are_refused(ground: Ground) -> None:
    ground.sqs.create_queue("other.fifo")
    with pytest.raises(OutcomeError, match="one is a FIFO queue and the other is not"):
        ground.move(older_than_seconds=0.0, destination="other.fifo")
    with pytest.raises(OutcomeError, match="to the same queue"):
        ground.move(older_than_seconds=0.0, destination="dead")


def test_a_pattern_that_takes_too_long_ends_its_own_move_alone(
    ground: Ground, supervisor: ScriptedComms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_search, "SEARCH_SECONDS", 0.5)
    ground.dead_letter("a", reason="a" * 25 + "b")

    async def scenario() -> None:
        triggerer = VirtualTriggerer(ground.sqs, ground.clock)
        (event,) = await triggerer.start(filtered_trigger(ground, reason="(a+)+$"), REDRIVE).ended()
        assert event.payload["status"] == FAILED
        assert "without a repetition within a repetition" in event.payload["error"]
        assert event.payload["report"]["looked_at"] == 1
        assert triggerer.open_transports == 0

    ground.run(scenario)
    assert set(ground.sqs.contents(ground.dead).values()) == {MessageState.VISIBLE}


def test_the_trigger_moves_what_matches(ground: Ground, supervisor: ScriptedComms) -> None:
    ground.dead_letter("a", reason="x")
    ground.dead_letter("b")

    async def scenario() -> None:
        triggerer = VirtualTriggerer(ground.sqs, ground.clock)
        (event,) = await triggerer.start(filtered_trigger(ground, reason="x"), REDRIVE).ended()
        assert event.payload["status"] == DONE
        assert event.payload["report"]["moved"] == 1
        assert triggerer.open_transports == 0

    ground.run(scenario)


@pytest.mark.parametrize("message", [None, USER_ACTION])
def test_a_trigger_that_is_cancelled_gives_back_what_it_holds(
    ground: Ground, supervisor: ScriptedComms, message: str | None
) -> None:
    ground.dead_letter(*(f"wanted {number}" for number in range(20)), reason="x")
    ground.dead_letter("other")

    async def scenario() -> None:
        triggerer = VirtualTriggerer(ground.sqs, ground.clock)
        running = triggerer.start(filtered_trigger(ground, reason="x", max_per_second=2), REDRIVE)
        await asyncio.sleep(5)
        await running.cancel(message)
        assert set(ground.sqs.contents(ground.dead).values()) == {MessageState.VISIBLE}
        assert triggerer.open_transports == 0

    ground.run(scenario)
    bodies = ground.bodies(ground.orders) + ground.bodies(ground.dead)
    assert len(bodies) == len(set(bodies)) == 21
    assert 0 < len(ground.bodies(ground.orders)) < 20


def test_sends_under_way_come_to_their_end_however_often_airflow_cancels(
    ground: Ground, supervisor: ScriptedComms
) -> None:
    ground.dead_letter(*(f"order {number}" for number in range(20)))

    async def scenario() -> None:
        triggerer = VirtualTriggerer(ground.sqs, ground.clock)
        triggerer.faults = lambda call: Fault(after_seconds=4.0 if call.operation is Operation.SEND else 0.0)
        running = triggerer.start(filtered_trigger(ground, older_than_seconds=0.0), REDRIVE)
        await ground.sqs.poll(ground.orders, visibility_seconds=0)
        await running.cancel(USER_ACTION)

    ground.run(scenario)
    bodies = ground.bodies(ground.orders) + ground.bodies(ground.dead)
    assert len(bodies) == len(set(bodies)) == 20
    assert set(ground.sqs.contents(ground.dead).values()) == {MessageState.VISIBLE}


def test_a_move_with_a_filter_ends_when_its_time_is_up(ground: Ground, supervisor: ScriptedComms) -> None:
    ground.dead_letter(*(f"order {number}" for number in range(20)))

    async def scenario() -> None:
        trigger = filtered_trigger(ground, older_than_seconds=0.0, max_per_second=1, ends_at=ground.clock.wall() + 10)
        (event,) = await VirtualTriggerer(ground.sqs, ground.clock).start(trigger, REDRIVE).ended()
        assert event.payload["status"] == "timed out"
        assert event.payload["report"]["moved"] == len(ground.bodies(ground.orders)) > 0

    ground.run(scenario)
    assert set(ground.sqs.contents(ground.dead).values()) == {MessageState.VISIBLE}


# The operator


class TaskInstance(SimpleNamespace):
    def __init__(self) -> None:
        super().__init__(map_index=-1, try_number=1)
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, *, key: str, value: Any) -> None:
        self.pushed[key] = json.loads(json.dumps(value))

    def xcom_pull(self, *, key: str, **_: Any) -> Any:
        return self.pushed.get(key)


def operator(**options: Any) -> SqsMoveMessagesOperator:
    with DAG("shop", schedule=None):
        return SqsMoveMessagesOperator(task_id="redrive", queue_url="orders-dead-letters", **options)


def execute(made: SqsMoveMessagesOperator, task_instance: TaskInstance | None = None) -> Any:
    body = SqsMoveMessagesOperator.execute
    return getattr(body, "__wrapped__", body)(made, {"ti": task_instance or TaskInstance()})


def test_the_operator_starts_the_move_task_and_defers_with_plain_values(
    leased_queues: LeasedQueues, supervisor: ScriptedComms
) -> None:
    queue = leased_queues.create("orders")
    leased_queues.sqs.send(queue.dead_letter_url, "an order")
    with pytest.raises(TaskDeferred) as deferred:
        execute(operator(execution_timeout=timedelta(minutes=10)))
    assert isinstance(deferred.value.trigger, SqsMoveTaskTrigger)
    assert queue.visible == ["an order"]
    _, arguments = deferred.value.trigger.serialize()
    assert json.loads(json.dumps(arguments)) == arguments
    assert arguments["ends_at"] - arguments["deferred_at"] == pytest.approx(600, abs=60)
    assert deferred.value.timeout == timedelta(minutes=11)


def test_with_a_filter_the_operator_defers_at_once(leased_queues: LeasedQueues, supervisor: ScriptedComms) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        execute(operator(reason="ValueError", older_than=timedelta(hours=1)))
    assert isinstance(deferred.value.trigger, SqsFilteredMoveTrigger)
    _, arguments = deferred.value.trigger.serialize()
    assert json.loads(json.dumps(arguments)) == arguments
    assert (arguments["reason"], arguments["older_than_seconds"]) == ("ValueError", 3600)


def test_an_operator_that_does_not_defer_moves_in_its_own_process(
    leased_queues: LeasedQueues, supervisor: ScriptedComms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_orders, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr("sqs_lease.keeper.moving.LAST_LOOK_SECONDS", 0.0)
    queue = leased_queues.create("orders")
    leased_queues.sqs.send(queue.dead_letter_url, "an order")
    assert execute(operator(deferrable=False)) == {"status": "COMPLETED", "moved": 1, "to_move": 1}
    leased_queues.sqs.send(queue.dead_letter_url, "another order")
    report = execute(operator(deferrable=False, older_than=0))
    assert (report["moved"], report["looked_at"]) == (1, 1)
    assert queue.visible == ["an order", "another order"]


def test_a_task_that_is_killed_cancels_what_its_process_began(
    leased_queues: LeasedQueues, supervisor: ScriptedComms
) -> None:
    queue = leased_queues.create("orders")
    for number in range(5):
        leased_queues.sqs.send(queue.dead_letter_url, f"order {number}")
    made = operator(deferrable=False, max_per_second=1)
    errors: list[Exception] = []

    def run() -> None:
        try:
            execute(made)
        except Exception as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    thread = Thread(target=run)
    thread.start()
    while not leased_queues.sqs.move_tasks(queue.dead_letter_url):
        thread.join(0.01)
    made.on_kill()
    thread.join()
    (task,) = leased_queues.sqs.move_tasks(queue.dead_letter_url)
    assert task.status != RUNNING
    assert "killed" in str(errors[0])


def test_the_operator_fails_with_task_queue_and_remedy(leased_queues: LeasedQueues, supervisor: ScriptedComms) -> None:
    leased_queues.sqs.create_queue("orders-dead-letters")
    with pytest.raises(AirflowFailException, match=r"task 'redrive' of DAG 'shop': queue .*RedrivePolicy"):
        execute(operator())
    with pytest.raises(AirflowFailException, match=r"task 'redrive' of DAG 'shop'.*there is no such queue"):
        execute(operator(destination="nowhere", deferrable=False, reason="x"))


@pytest.mark.parametrize(
    ("status", "error"),
    [("timed out", AirflowTaskTimeout), ("failed", AirflowException), ("failed for good", AirflowFailException)],
)
def test_the_resumed_task_fails_as_the_trigger_says_and_leaves_its_report(status: str, error: type[Exception]) -> None:
    task_instance = TaskInstance()
    report = {"status": "CANCELLED", "moved": 1, "to_move": 2}
    with pytest.raises(error, match="task 'redrive' of DAG 'shop': why") as raised:
        operator().execute_complete({"ti": task_instance}, {"status": status, "error": "why", "report": report})
    assert type(raised.value) is error
    assert task_instance.pushed == {"return_value": report}


def test_the_resumed_task_returns_the_report() -> None:
    report = {"status": "COMPLETED", "moved": 2, "to_move": 2}
    assert operator().execute_complete({"ti": TaskInstance()}, {"status": DONE, "report": report}) == report


def test_values_of_other_tasks_are_taken_as_arguments(leased_queues: LeasedQueues, supervisor: ScriptedComms) -> None:
    @task
    def choose() -> str:
        return "orders-dead-letters"

    with DAG("shop", schedule=None):
        chosen: Any = choose()
        SqsMoveMessagesOperator(task_id="redrive", queue_url=chosen, destination=chosen, reason=chosen)


def test_arguments_of_the_connection_come_from_default_args_and_through_mapping() -> None:
    with DAG("shop", schedule=None, default_args={"aws_conn_id": "other", "region_name": "eu-west-1"}) as dag:
        made = SqsMoveMessagesOperator(task_id="redrive", queue_url="orders-dead-letters", verify=False)
        names = ["orders-dead-letters", "bookings-dead-letters"]
        SqsMoveMessagesOperator.partial(task_id="mapped", aws_conn_id=None).expand(queue_url=names)
    assert (made.aws_conn_id, made.region_name, made.verify) == ("other", "eu-west-1", False)
    mapped: Any = dag.get_task("mapped")
    assert mapped.unmap({"queue_url": names[1]}).aws_conn_id is None
    with pytest.raises(TypeError, match="aws_con_id"), DAG("shop", schedule=None):
        SqsMoveMessagesOperator.partial(task_id="mapped", aws_con_id=None)


@pytest.mark.parametrize("reason", ["", 404])
def test_a_reason_that_a_template_left_empty_moves_nothing(
    leased_queues: LeasedQueues, supervisor: ScriptedComms, reason: Any
) -> None:
    made = operator(reason="{{ params.reason }}")
    made.reason = reason
    with pytest.raises(AirflowFailException, match="reason must be a regular expression"):
        execute(made)


def test_a_task_that_is_killed_while_it_defers_cancels_its_move_task(
    leased_queues: LeasedQueues, supervisor: ScriptedComms, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = leased_queues.create("orders")
    for number in range(5):
        leased_queues.sqs.send(queue.dead_letter_url, f"order {number}")
    made = operator(max_per_second=1)

    def killed_now(**arguments: Any) -> None:
        made.on_kill()
        raise TaskDeferred(**arguments)

    monkeypatch.setattr(made, "defer", killed_now)
    with pytest.raises(AirflowException, match="killed"):
        execute(made)
    (task,) = leased_queues.sqs.move_tasks(queue.dead_letter_url)
    assert task.status != RUNNING


def test_a_task_that_is_killed_before_its_first_call_starts_nothing(
    leased_queues: LeasedQueues, supervisor: ScriptedComms
) -> None:
    queue = leased_queues.create("orders")
    leased_queues.sqs.send(queue.dead_letter_url, "an order")
    for deferrable in (True, False):
        made = operator(deferrable=deferrable)
        made.on_kill()
        with pytest.raises(AirflowException, match="killed"):
            execute(made)
    assert not leased_queues.sqs.move_tasks(queue.dead_letter_url)


@pytest.mark.parametrize("error", ["Trigger timeout", "Trigger failure"])
def test_a_deferral_that_ends_without_its_trigger_cancels_the_move_task(
    leased_queues: LeasedQueues, supervisor: ScriptedComms, error: str
) -> None:
    queue = leased_queues.create("orders")
    for number in range(5):
        leased_queues.sqs.send(queue.dead_letter_url, f"order {number}")
    task_instance = TaskInstance()
    with pytest.raises(TaskDeferred):
        execute(operator(max_per_second=1), task_instance)
    handle = leased_queues.sqs.move_tasks(queue.dead_letter_url)[0].handle
    assert handle not in json.dumps(task_instance.pushed)
    with pytest.raises((TaskDeferralError, TaskDeferralTimeout)):
        # In another process, which knows only what was published.
        operator(max_per_second=1).resume_execution("__fail__", {"error": error}, {"ti": task_instance})
    (task,) = leased_queues.sqs.move_tasks(queue.dead_letter_url)
    assert task.status != RUNNING


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_per_second": 501}, "max_per_second must be an integer from 1 to 500"),
        ({"max_messages": 0}, "max_messages must be an integer from 1"),
        ({"reason": "("}, "reason is not a regular expression"),
        ({"destination": "no queue"}, "'no queue' is not a queue name"),
        ({"older_than": -1}, "older_than"),
        ({"older_than": 100, "newer_than": 100}, "no message is 100 s old or older, and newer than 100 s"),
        ({"max_messages": 5}, "max_messages=5 has no effect without a filter"),
    ],
)
def test_mistakes_are_found_when_the_dag_is_parsed(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        operator(**options)
