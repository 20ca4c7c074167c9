"""Move tasks: what was dead-lettered goes back, as new messages."""

from __future__ import annotations

import pytest

from sqs_lease.sqs.move_tasks import CANCELLED, CANCELLING, COMPLETED, FAILED, RUNNING
from sqs_lease.testing import AuditKind, MemorySqsError, MoveTask, run_virtual
from tests.testing.service import Service, ids


def service_with_dead_letters(count: int = 1, *, name: str = "orders") -> Service:
    service = Service(name, visibility_seconds=10, max_receive_count=1)
    service.send(count)
    while service.receive():
        service.clock.advance(10)
    assert service.states() == []
    return service


def tasks(service: Service) -> list[MoveTask]:
    return list(service.sqs.move_tasks(service.dead_letter_url))


def test_a_redriven_message_is_a_new_one_with_another_id() -> None:
    service = service_with_dead_letters()
    (dead,) = service.sqs.receive(service.dead_letter_url, visibility_seconds=0)
    service.sqs.start_message_move_task(service.dead_letter_url)
    (again,) = service.receive()
    assert again.body == dead.body
    assert again.message_id != dead.message_id
    assert again.receive_count == 1
    assert again.sent_at is not None
    assert dead.sent_at is not None
    assert again.sent_at > dead.sent_at
    assert "DeadLetterQueueSourceArn" not in again.attributes
    assert service.sqs.trail().of(dead.message_id)[-1].kind is AuditKind.REDRIVEN


def test_fifo_messages_are_redriven_in_order() -> None:
    service = service_with_dead_letters(3, name="orders.fifo")
    service.sqs.start_message_move_task(service.dead_letter_url)
    service.clock.advance(1)
    assert [message.body for message in service.receive()] == ["body 0", "body 1", "body 2"]


def test_messages_can_be_moved_to_another_queue() -> None:
    service = service_with_dead_letters()
    other = service.sqs.create_queue("other")
    service.sqs.start_message_move_task(service.dead_letter_url, destination_url=other)
    assert service.receive() == []
    assert len(service.sqs.receive(other)) == 1


def test_a_task_moves_so_many_messages_a_second_and_only_one_runs_at_a_time() -> None:
    service = service_with_dead_letters(6)
    service.sqs.start_message_move_task(service.dead_letter_url, max_per_second=2)
    assert len(service.receive()) == 1
    service.clock.advance(1)
    assert len(service.receive()) == 2
    with pytest.raises(MemorySqsError, match="already a task running"):
        service.sqs.start_message_move_task(service.dead_letter_url)
    service.clock.advance(2)
    service.sqs.start_message_move_task(service.dead_letter_url)
    assert [(task.status, task.moved, task.to_move) for task in tasks(service)] == [
        (COMPLETED, 0, 0),
        (COMPLETED, 6, 6),
    ]


def test_messages_stay_in_the_dead_letter_queue_until_it_is_their_turn() -> None:
    service = service_with_dead_letters(3)
    handle = service.sqs.start_message_move_task(service.dead_letter_url, max_per_second=1)
    assert len(service.sqs.contents(service.dead_letter_url)) == 2
    (task,) = tasks(service)
    assert (task.status, task.moved, task.to_move, task.handle) == (RUNNING, 1, 3, handle)
    assert handle not in repr(task)


def test_a_cancelled_task_leaves_the_rest_and_makes_room_for_another_one() -> None:
    service = service_with_dead_letters(3)
    handle = service.sqs.start_message_move_task(service.dead_letter_url, max_per_second=1)
    service.sqs.cancel_message_move_task(handle)
    assert [(task.status, task.handle) for task in tasks(service)] == [(CANCELLING, "")]
    with pytest.raises(MemorySqsError, match="already a task running"):
        service.sqs.start_message_move_task(service.dead_letter_url)
    service.clock.advance(1)
    assert [(task.status, task.moved) for task in tasks(service)] == [(CANCELLED, 1)]
    service.sqs.start_message_move_task(service.dead_letter_url)
    assert tasks(service)[0].to_move == 2
    with pytest.raises(MemorySqsError, match="Task does not exist"):
        service.sqs.cancel_message_move_task(handle)
    with pytest.raises(MemorySqsError, match="TaskHandle is invalid"):
        service.sqs.cancel_message_move_task("another")


def test_an_open_long_poll_gets_a_message_that_is_moved_meanwhile() -> None:
    service = service_with_dead_letters(2)

    async def scenario() -> tuple[str, float]:
        service.sqs.start_message_move_task(service.dead_letter_url, max_per_second=1)
        await service.sqs.poll(service.url)
        began_at = service.clock.now()
        (message,) = await service.sqs.poll(service.url)
        return message.body, service.clock.now() - began_at

    assert run_virtual(scenario, clock=service.clock) == ("body 1", 1.0)


def test_the_source_queues_are_known() -> None:
    service = service_with_dead_letters()
    assert service.sqs.dead_letter_sources(service.dead_letter_url) == [service.url]
    assert service.sqs.dead_letter_sources(service.url) == []


def test_a_message_in_flight_stays_where_it_is() -> None:
    service = service_with_dead_letters(2)
    held = service.sqs.receive(service.dead_letter_url)
    service.sqs.start_message_move_task(service.dead_letter_url)
    assert [(task.status, task.moved, task.to_move) for task in tasks(service)] == [(COMPLETED, 1, 1)]
    assert list(service.sqs.contents(service.dead_letter_url)) == ids(held)


def test_a_message_that_was_sent_to_the_dead_letter_queue_cannot_go_back() -> None:
    service = service_with_dead_letters()
    service.sqs.send(service.dead_letter_url, "sent there")
    service.sqs.start_message_move_task(service.dead_letter_url)
    service.clock.advance(1)
    (task,) = tasks(service)
    assert (task.status, task.moved, task.to_move, task.failure) == (FAILED, 1, 2, "CouldNotDetermineMessageSource")
    assert list(service.sqs.bodies(service.dead_letter_url).values()) == ["sent there"]
    service.sqs.start_message_move_task(service.dead_letter_url, destination_url=service.url)
    assert [(task.status, task.moved) for task in tasks(service)] == [(COMPLETED, 1), (FAILED, 1)]


def test_an_impossible_move_is_refused() -> None:
    service = service_with_dead_letters()
    fifo = service.sqs.create_queue("other.fifo")
    start = service.sqs.start_message_move_task
    with pytest.raises(MemorySqsError, match="must be configured as a Dead Letter Queue"):
        start(service.url)
    with pytest.raises(MemorySqsError, match="SourceArn parameter doesn't exist"):
        start(service.url + "x")
    with pytest.raises(MemorySqsError, match="DestinationArn parameter doesn't exist"):
        start(service.dead_letter_url, destination_url=service.url + "x")
    with pytest.raises(MemorySqsError, match="not valid for this queue type"):
        start(service.dead_letter_url, destination_url=fifo)
    with pytest.raises(MemorySqsError, match="between 1 and 500"):
        start(service.dead_letter_url, max_per_second=501)
