"""FIFO queues as the real service has them: group locks, expired handles, deduplication, repeated receives."""

from __future__ import annotations

import pytest

from sqs_lease.testing import MemorySqsError, MessageState
from tests.testing.service import Service, ids, refused


def test_a_fifo_delete_after_expiry_is_refused() -> None:
    service = Service("orders.fifo", visibility_seconds=30)
    service.send()
    receipt = service.receive_one()
    service.clock.advance(30)
    assert refused(service.delete(receipt), "InvalidParameterValue", "The receipt handle has expired")
    assert refused(service.change(receipt, 30), "InvalidParameterValue", "not available")
    assert service.states() == [MessageState.VISIBLE]


def test_a_fifo_group_is_blocked_while_any_of_its_messages_is_in_flight() -> None:
    service = Service("orders.fifo")
    service.send(3, group="a")
    service.send(1, group="b")
    first, second = service.receive(2)
    assert [message.message_group_id for message in service.receive()] == ["b"]
    service.delete(first.receipt)
    assert service.receive() == []
    service.delete(second.receipt)
    assert [message.body for message in service.receive()] == ["body 2"]


def test_fifo_messages_come_in_order_within_their_group() -> None:
    service = Service("orders.fifo")
    sent = service.send(5)
    assert ids(service.receive()) == sent


def test_fifo_expiry_is_per_message() -> None:
    service = Service("orders.fifo", visibility_seconds=30)
    sent = service.send(2)
    first, _ = service.receive()
    assert service.change(first.receipt, 60) is None
    service.clock.advance(31)
    assert list(service.sqs.contents(service.url).values()) == [MessageState.IN_FLIGHT, MessageState.VISIBLE]
    # The second is visible, and still held back by the first.
    assert service.receive() == []
    service.delete(first.receipt)
    assert ids(service.receive()) == sent[1:]


def test_a_released_fifo_message_comes_first_again_and_those_behind_wait_for_it() -> None:
    service = Service("orders.fifo")
    sent = service.send(3)
    first, second, third = service.receive()
    assert service.change(second.receipt, 0) is None
    assert service.receive() == []
    service.delete(first.receipt)
    assert service.receive() == []
    assert service.change(third.receipt, 0) is None
    assert ids(service.receive()) == sent[1:]


def test_a_fifo_message_released_with_a_delay_holds_back_those_behind_it() -> None:
    service = Service("orders.fifo")
    sent = service.send(2)
    first = service.receive_one()
    assert service.change(first, 60) is None
    service.clock.advance(59)
    assert service.receive() == []
    service.clock.advance(1)
    assert ids(service.receive()) == sent


def test_a_superseded_fifo_handle_changes_nothing() -> None:
    service = Service("orders.fifo", visibility_seconds=1)
    service.send()
    first = service.receive_one()
    service.clock.advance(1)
    second = service.receive(visibility=30)[0].receipt
    assert refused(service.change(first, 0), "InvalidParameterValue", "not available")
    assert refused(service.delete(first), "InvalidParameterValue", "The receipt handle has expired")
    assert service.delete(second) is None


def test_on_a_fifo_queue_with_a_visibility_timeout_of_0_nothing_can_be_deleted() -> None:
    service = Service("orders.fifo", visibility_seconds=0)
    service.send(2)
    first, second = service.receive_one(), service.receive_one()
    assert first.message_id == second.message_id
    assert refused(service.delete(second), "InvalidParameterValue", "The receipt handle has expired")


def test_a_duplicate_within_five_minutes_is_not_sent_again() -> None:
    service = Service("orders.fifo", content_based_deduplication=True)

    def send() -> str:
        return service.sqs.send(service.url, "same", message_group_id="a")

    first = send()
    service.clock.advance(300)
    assert send() == first
    service.clock.advance(1)
    assert send() != first
    assert len(service.states()) == 2


def test_a_fifo_message_needs_a_group_and_a_deduplication_id() -> None:
    service = Service("orders.fifo")
    with pytest.raises(MemorySqsError, match="MessageGroupId"):
        service.sqs.send(service.url, "body", deduplication_id="1")
    with pytest.raises(MemorySqsError, match="ContentBasedDeduplication"):
        service.sqs.send(service.url, "body", message_group_id="a")


@pytest.mark.parametrize("parameter", ["message_group_id", "deduplication_id"])
@pytest.mark.parametrize("value", ["", "x" * 129, "a b", "ä"], ids=["empty", "long", "space", "umlaut"])
def test_ids_have_1_to_128_letters_digits_and_punctuation(parameter: str, value: str) -> None:
    service = Service("orders.fifo")
    given = {"message_group_id": "a", "deduplication_id": "1", parameter: value}
    with pytest.raises(MemorySqsError, match="1 to 128 in length"):
        service.sqs.send(
            service.url,
            "body",
            message_group_id=given["message_group_id"],
            deduplication_id=given["deduplication_id"],
        )


# ReceiveRequestAttemptId


def test_a_receive_repeated_with_its_attempt_id_returns_the_same_messages_with_their_visibility_reset() -> None:
    service = Service("orders.fifo", visibility_seconds=30)
    service.send(3)
    first = service.receive(2, attempt_id="one")
    service.clock.advance(20)
    again = service.receive(2, attempt_id="one")
    assert [message.receipt for message in again] == [message.receipt for message in first]
    assert [message.receive_count for message in again] == [1, 1]
    service.clock.advance(20)
    assert service.delete(again[0].receipt) is None


def test_an_attempt_id_is_void_once_a_visibility_timeout_has_ended() -> None:
    service = Service("orders.fifo", visibility_seconds=30)
    service.send(1)
    (first,) = service.receive(attempt_id="one")
    service.clock.advance(30)
    (second,) = service.receive(attempt_id="one")
    assert second.receipt.handle != first.receipt.handle
    assert second.receive_count == 2


def test_the_12_hours_of_a_replayed_message_count_from_the_first_receive() -> None:
    service = Service("orders.fifo", visibility_seconds=30)
    service.send(1)
    (first,) = service.receive(attempt_id="one")
    service.clock.advance(20)
    service.receive(attempt_id="one")
    text = "beyond the limit [43200 seconds]"
    assert refused(service.change(first.receipt, 43_190), "InvalidParameterValue", text)


def test_another_attempt_id_does_not_return_them() -> None:
    service = Service("orders.fifo")
    service.send(1)
    service.receive(attempt_id="one")
    assert service.receive(attempt_id="two") == []


@pytest.mark.parametrize("act", ["change", "release", "delete"])
def test_an_attempt_id_is_void_once_any_of_its_messages_was_changed(act: str) -> None:
    service = Service("orders.fifo")
    service.send(2)
    first, _ = service.receive(attempt_id="one")
    if act == "delete":
        service.delete(first.receipt)
    else:
        service.change(first.receipt, 0 if act == "release" else 60)
    assert service.receive(attempt_id="one") == []


def test_an_attempt_id_is_void_after_five_minutes() -> None:
    service = Service("orders.fifo", visibility_seconds=3600)
    service.send(1)
    service.receive(attempt_id="one")
    service.clock.advance(300)
    assert len(service.receive(attempt_id="one")) == 1
    service.clock.advance(1)
    assert service.receive(attempt_id="one") == []


def test_an_attempt_id_on_a_standard_queue_is_the_callers_error() -> None:
    service = Service()
    with pytest.raises(MemorySqsError, match="ReceiveRequestAttemptId"):
        service.receive(attempt_id="one")
