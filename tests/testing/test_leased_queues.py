"""Queues for tests of DAGs show what became of their messages."""

from __future__ import annotations

from typing import Any

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


@pytest.mark.parametrize(
    "name", ["my orders", None, "https://sqs.us-east-1.amazonaws.com/123456789012/orders", "q" * 81], ids=str
)
def test_other_texts_than_queue_names_are_refused(name: Any) -> None:
    with pytest.raises(ValueError, match=r"is not a queue name|give the queue's name"):
        LeasedQueues().create(name)


@pytest.mark.parametrize("name", ["q" * 80, f"{'q' * 75}.fifo"])
def test_a_queue_may_have_the_longest_name(name: str) -> None:
    assert LeasedQueues().create(name).name == name


@pytest.mark.parametrize("body", [{"order_id": 1}, ["a", "b"], 5, b"a"], ids=str)
def test_a_body_that_is_not_a_text_is_refused_with_a_remedy(body: Any) -> None:
    with pytest.raises(TypeError, match=rf"a text, not {type(body).__name__}: json.dumps\(\)"):
        LeasedQueues().create("orders", body)


def test_an_attribute_has_the_shape_of_the_api() -> None:
    queue = LeasedQueues().create("orders")
    with pytest.raises(TypeError, match=r"attribute 'kind' is of type str; .*StringValue"):
        queue.send("a", message_attributes={"kind": "express"})
