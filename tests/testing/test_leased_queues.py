"""Queues for tests of DAGs show what became of their messages."""

from __future__ import annotations

import pytest

from sqs_lease.testing import LeasedQueues


def test_messages_are_visible_until_they_are_received_and_gone_when_they_are_deleted() -> None:
    queues = LeasedQueues()
    queue = queues.create("orders", "a", "b")
    assert (queue.visible, queue.invisible, queue.deleted) == (["a", "b"], [], 0)
    (message,) = queues.sqs.receive(queue.url, max_messages=1, visibility_seconds=600)
    assert (queue.visible, queue.invisible) == (["b"], ["a"])
    queues.sqs.delete(queue.url, [message.receipt])
    assert (queue.visible, queue.invisible, queue.deleted) == (["b"], [], 1)


def test_messages_that_were_received_too_often_are_in_the_dead_letter_queue() -> None:
    queues = LeasedQueues()
    queue = queues.create("orders", "poison", max_receive_count=1)
    queues.sqs.receive(queue.url, max_messages=1, visibility_seconds=0)
    assert queues.sqs.receive(queue.url, max_messages=1, visibility_seconds=0) == []
    assert (queue.visible, queue.dead_letters, queue.deleted) == ([], ["poison"], 0)


def test_a_fifo_queue_keeps_a_group_back_while_one_of_its_messages_is_received() -> None:
    queues = LeasedQueues()
    queue = queues.create("orders.fifo", "first", "second", message_group_id="a")
    queue.send("other", message_group_id="b")
    queues.sqs.receive(queue.url, max_messages=1, visibility_seconds=600)
    received = queues.sqs.receive(queue.url, max_messages=10, visibility_seconds=600)
    assert [message.body for message in received] == ["other"]


def test_two_queues_of_one_name_are_refused() -> None:
    queues = LeasedQueues()
    queues.create("orders")
    with pytest.raises(ValueError, match="exists already"):
        queues.create("orders")
