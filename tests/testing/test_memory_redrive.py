"""Move tasks: what was dead-lettered goes back, as new messages."""

from __future__ import annotations

import pytest

from sqs_lease.testing import AuditKind, MemorySqsError, MoveTask
from tests.testing.service import Service, ids


def service_with_dead_letters(count: int = 1, *, name: str = "orders") -> Service:
    service = Service(name, visibility_seconds=10, max_receive_count=1)
    service.send(count)
    while service.receive():
        service.clock.advance(10)
    assert service.states() == []
    return service


def test_a_redriven_message_is_a_new_one_with_another_id() -> None:
    service = service_with_dead_letters()
    (dead,) = service.sqs.receive(service.dead_letter_url, visibility_seconds=0)
    assert service.sqs.start_message_move_task(service.dead_letter_url) == MoveTask(1)
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
    assert service.sqs.start_message_move_task(service.dead_letter_url) == MoveTask(0)


def test_a_message_in_flight_stays_where_it_is() -> None:
    service = service_with_dead_letters(2)
    held = service.sqs.receive(service.dead_letter_url)
    assert service.sqs.start_message_move_task(service.dead_letter_url) == MoveTask(1)
    assert list(service.sqs.contents(service.dead_letter_url)) == ids(held)


def test_a_message_that_was_sent_to_the_dead_letter_queue_cannot_go_back() -> None:
    service = service_with_dead_letters()
    service.sqs.send(service.dead_letter_url, "sent there")
    task = service.sqs.start_message_move_task(service.dead_letter_url)
    assert task == MoveTask(1, "CouldNotDetermineMessageSource")
    assert list(service.sqs.bodies(service.dead_letter_url).values()) == ["sent there"]
    service.clock.advance(1)
    task = service.sqs.start_message_move_task(service.dead_letter_url, destination_url=service.url)
    assert task == MoveTask(1)


def test_what_cannot_be_moved_is_refused() -> None:
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
