"""Facts of the real service that no emulator has: each test names the fact that it holds the in-memory service to."""

from __future__ import annotations

import string
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from sqs_lease.core.calls import VisibilityChange
from sqs_lease.core.messages import Receipt
from sqs_lease.testing import AuditKind, MemorySqsError, MessageState, ServiceChoices
from tests.testing.service import Service, ids, refused

TWELVE_HOURS = 43_200


# Visibility


def test_a_visibility_change_counts_from_now_not_from_the_old_deadline() -> None:
    service = Service(visibility_seconds=30)
    service.send()
    receipt = service.receive_one()
    service.clock.advance(20)
    assert service.change(receipt, 15) is None
    service.clock.advance(14.9)
    assert service.receive() == []
    service.clock.advance(0.1)
    assert len(service.receive()) == 1


def test_a_message_that_is_extended_again_and_again_stays_invisible_until_the_last_extension_ends() -> None:
    service = Service(visibility_seconds=30)
    service.send()
    receipt = service.receive_one()
    for _ in range(5):
        service.clock.advance(20)
        assert service.change(receipt, 30) is None
        assert service.receive() == []
    service.clock.advance(29.9)
    assert service.receive() == []
    service.clock.advance(0.1)
    assert len(service.receive()) == 1


def test_each_receive_gives_a_new_handle_and_counts() -> None:
    service = Service(visibility_seconds=1)
    service.send()
    (first,) = service.receive()
    service.clock.advance(1)
    (second,) = service.receive()
    assert first.message_id == second.message_id
    assert first.receipt.handle != second.receipt.handle
    assert str(first.receipt) != str(second.receipt)
    assert (first.receive_count, second.receive_count) == (1, 2)


def test_a_superseded_handle_can_end_the_next_holders_lease() -> None:
    service = Service(visibility_seconds=1)
    service.send()
    first = service.receive_one()
    service.clock.advance(1)
    service.receive(visibility=30)
    assert service.change(first, 0) is None
    assert len(service.receive()) == 1


def test_a_superseded_handle_may_also_be_refused() -> None:
    service = Service(visibility_seconds=1, choices=ServiceChoices(superseded_handle_changes=False))
    service.send()
    first = service.receive_one()
    service.clock.advance(1)
    service.receive(visibility=30)
    assert refused(service.change(first, 0), "InvalidParameterValue", "not available for visibility timeout change")
    assert service.receive() == []


def test_a_stale_delete_answers_success_and_deletes_nothing() -> None:
    service = Service(visibility_seconds=1)
    service.send()
    first = service.receive_one()
    service.clock.advance(1)
    second = service.receive_one()
    assert service.delete(first) is None
    assert service.states() == [MessageState.IN_FLIGHT]
    assert service.delete(second) is None
    assert service.states() == []


def test_on_a_standard_queue_extending_after_expiry_works_until_another_consumer_receives() -> None:
    service = Service(visibility_seconds=30)
    service.send()
    receipt = service.receive_one()
    service.clock.advance(31)
    assert service.states() == [MessageState.VISIBLE]
    assert service.change(receipt, 30) is None
    service.clock.advance(29)
    assert service.receive() == []


def test_on_a_standard_queue_extending_after_expiry_may_also_give_message_not_inflight() -> None:
    service = Service(visibility_seconds=30, choices=ServiceChoices(extends_after_expiry=False))
    service.send()
    receipt = service.receive_one()
    service.clock.advance(31)
    assert refused(service.change(receipt, 30), "MessageNotInflight", "")


def test_on_a_standard_queue_deleting_after_expiry_works_until_another_consumer_receives() -> None:
    service = Service(visibility_seconds=30)
    service.send()
    receipt = service.receive_one()
    service.clock.advance(31)
    assert service.delete(receipt) is None
    assert service.receive() == []


def test_a_released_message_is_not_in_flight_any_more() -> None:
    service = Service()
    service.send()
    receipt = service.receive_one()
    assert service.change(receipt, 0) is None
    assert refused(service.change(receipt, 30), "MessageNotInflight", "isn't in flight")


def test_a_deleted_message_is_not_available_for_a_visibility_change() -> None:
    service = Service()
    service.send()
    receipt = service.receive_one()
    service.delete(receipt)
    text = "Message does not exist or is not available for visibility timeout change"
    assert refused(service.change(receipt, 30), "InvalidParameterValue", text)
    assert service.delete(receipt) is None


@pytest.mark.parametrize("handle", ["", "nonsense", "bm9uc2Vuc2U="], ids=["empty", "text", "base64"])
def test_a_malformed_handle_is_told_from_a_lost_one(handle: str) -> None:
    service = Service()
    receipt = Receipt("message", handle)
    assert refused(service.change(receipt, 30), "ReceiptHandleIsInvalid", "")
    assert refused(service.delete(receipt), "ReceiptHandleIsInvalid", "")


def test_a_handle_of_another_queue_is_malformed_here() -> None:
    service = Service()
    service.sqs.send(service.dead_letter_url, "body")
    (message,) = service.sqs.receive(service.dead_letter_url)
    assert refused(service.delete(message.receipt), "ReceiptHandleIsInvalid", "")


@pytest.mark.parametrize("seconds", [-1, 43_201])
def test_a_visibility_out_of_range_is_refused_where_emulators_accept_it(seconds: int) -> None:
    service = Service()
    service.send()
    assert refused(service.change(service.receive_one(), seconds), "InvalidParameterValue", "between 0 and 43200")


def test_a_queue_with_a_visibility_timeout_of_0_hides_nothing() -> None:
    service = Service(visibility_seconds=0)
    service.send()
    first, second = service.receive_one(), service.receive_one()
    assert first.message_id == second.message_id
    assert first.handle != second.handle
    assert service.states() == [MessageState.VISIBLE]
    assert service.sqs.attributes(service.url).visibility_seconds == 0
    held = service.receive(visibility=30)[0].receipt
    assert service.receive() == []
    assert service.change(held, 60) is None
    service.clock.advance(59)
    assert service.receive() == []


def test_a_message_that_is_visible_at_once_is_deleted_by_its_newest_handle_alone() -> None:
    service = Service(visibility_seconds=0)
    service.send()
    first, second = service.receive_one(), service.receive_one()
    assert service.delete(first) is None
    assert service.states() == [MessageState.VISIBLE]
    assert service.delete(second) is None
    assert service.states() == []


# The 12-hour cap


def test_the_cap_of_12_hours_counts_from_the_receive() -> None:
    service = Service(visibility_seconds=30)
    service.send()
    service.clock.advance(3600)
    receipt = service.receive_one()
    service.clock.advance(10)
    assert service.change(receipt, TWELVE_HOURS - 10) is None
    service.clock.advance(TWELVE_HOURS - 11)
    assert service.receive() == []
    service.clock.advance(1)
    assert len(service.receive()) == 1


def test_an_extension_beyond_the_cap_is_rejected_never_clamped() -> None:
    service = Service(visibility_seconds=30)
    service.send()
    receipt = service.receive_one()
    service.clock.advance(10)
    text = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"
    assert refused(service.change(receipt, TWELVE_HOURS - 9), "InvalidParameterValue", text)
    service.clock.advance(20)
    assert len(service.receive()) == 1


def test_releasing_is_never_beyond_the_cap() -> None:
    service = Service(visibility_seconds=TWELVE_HOURS)
    service.send()
    receipt = service.receive_one()
    service.clock.advance(TWELVE_HOURS - 1)
    assert service.change(receipt, 2) is not None
    assert service.change(receipt, 0) is None


# In flight


def test_a_standard_queue_answers_over_limit_with_too_many_in_flight() -> None:
    service = Service(in_flight_limit=3)
    service.send(5)
    taken = service.receive(10)
    assert len(taken) == 3
    with pytest.raises(MemorySqsError, match="OverLimit"):
        service.receive()
    service.delete(taken[0].receipt)
    assert len(service.receive()) == 1


def test_a_fifo_queue_answers_with_nothing_with_too_many_in_flight() -> None:
    service = Service("orders.fifo", in_flight_limit=1)
    service.send(1, group="a")
    service.send(1, group="b")
    assert len(service.receive()) == 1
    assert service.receive() == []


# Fair queues


def send_for_tenants(service: Service, tenants: str) -> None:
    for tenant in tenants:
        service.sqs.send(service.url, tenant, message_group_id=tenant)


def test_a_tenant_with_much_in_flight_comes_after_the_others() -> None:
    service = Service()
    send_for_tenants(service, "n" * 60 + "qr")
    for _ in range(3):
        assert [message.body for message in service.receive()] == ["n"] * 10
    assert [message.body for message in service.receive(3)] == ["q", "r", "n"]


def test_a_tenant_is_not_put_off_below_30_messages_in_flight_or_a_tenth_of_all() -> None:
    service = Service()
    send_for_tenants(service, "n" * 30 + "q")
    for count in (10, 10, 9):
        service.receive(count)
    assert [message.body for message in service.receive(1)] == ["n"]
    service = Service()
    send_for_tenants(service, "".join(letter * 10 for letter in string.ascii_uppercase + "1234") + "n" * 31 + "q")
    for _ in range(33):
        service.receive()
    assert [message.body for message in service.receive(1)] == ["n"]


def test_messages_without_a_group_are_never_put_off() -> None:
    service = Service()
    service.send(60)
    send_for_tenants(service, "q")
    for _ in range(6):
        assert len(service.receive()) == 10
    assert [message.body for message in service.receive()] == ["q"]


def test_a_noisy_tenant_is_not_kept_waiting_where_no_other_waits() -> None:
    service = Service()
    send_for_tenants(service, "n" * 100)
    assert sum(len(service.receive()) for _ in range(10)) == 100


# Redrive, delays, retention, counts


@pytest.mark.parametrize("name", ["orders", "orders.fifo"])
def test_a_message_received_too_often_is_moved_with_its_id_and_sent_time(name: str) -> None:
    service = Service(name, visibility_seconds=10, max_receive_count=2)
    (sent,) = service.send()
    before = service.receive()[0]
    for _ in range(2):
        service.clock.advance(10)
        last = service.receive()
    assert last == []
    assert service.states() == []
    (dead,) = service.sqs.receive(service.dead_letter_url)
    assert dead.message_id == sent
    assert dead.sent_at == before.sent_at
    assert dead.attributes["DeadLetterQueueSourceArn"].endswith(f":{name}")


def test_dead_lettering_the_first_of_a_fifo_group_lets_the_next_come() -> None:
    service = Service("orders.fifo", visibility_seconds=10, max_receive_count=1)
    sent = service.send(2)
    service.receive(1)
    service.clock.advance(10)
    assert ids(service.receive(1)) == sent[1:]


def test_a_dead_letter_keeps_its_age_on_a_standard_queue_and_starts_again_on_a_fifo_queue() -> None:
    for name, left in (("orders", 0), ("orders.fifo", 1)):
        service = Service(name, visibility_seconds=10, max_receive_count=1)
        short = service.sqs.create_queue(f"short-{name}", retention_seconds=60)
        url = service.sqs.create_queue(f"a-{name}", dead_letter_queue_url=short, max_receive_count=1)
        service.sqs.send(
            url,
            "body",
            message_group_id="a" if service.fifo else None,
            deduplication_id="1" if service.fifo else None,
        )
        service.sqs.receive(url, visibility_seconds=50)
        service.clock.advance(50)
        assert service.sqs.receive(url) == []
        service.clock.advance(59)
        assert len(service.sqs.contents(short)) == left


def test_a_fifo_dead_letter_has_its_message_id_as_deduplication_id() -> None:
    service = Service("orders.fifo", visibility_seconds=10, max_receive_count=1)
    (sent,) = service.send()
    service.receive()
    # A consumer forwards it under its id, as the service does; then the service moves it as well.
    service.sqs.send(service.dead_letter_url, "body 0", message_group_id="a", deduplication_id=sent)
    service.clock.advance(10)
    assert service.receive() == []
    assert len(service.sqs.contents(service.dead_letter_url)) == 1


def test_a_delayed_message_comes_when_its_delay_is_over() -> None:
    service = Service(delay_seconds=5, visibility_seconds=600)
    service.send()
    service.sqs.send(service.url, "later", delay_seconds=60)
    assert service.sqs.attributes(service.url).delayed == 2
    service.clock.advance(5)
    assert len(service.receive()) == 1
    service.clock.advance(55)
    assert [message.body for message in service.receive()] == ["later"]


def test_a_message_is_kept_no_longer_than_the_retention_period_even_in_flight() -> None:
    service = Service(retention_seconds=60)
    service.send()
    receipt = service.receive_one()
    service.change(receipt, 3600)
    service.clock.advance(60)
    assert service.states() == []
    assert refused(service.change(receipt, 30), "InvalidParameterValue", "not available")


def test_the_queue_counts_its_messages() -> None:
    service = Service(max_receive_count=5)
    service.send(5)
    service.sqs.send(service.url, "later", delay_seconds=60)
    first, _ = service.receive(2)
    service.delete(first.receipt)
    attributes = service.sqs.attributes(service.url)
    assert (attributes.visible, attributes.in_flight, attributes.delayed) == (3, 1, 1)
    assert attributes.max_receive_count == 5
    assert attributes.dead_letter_arn == "arn:aws:sqs:us-east-1:123456789012:dead"


# Calls


def test_message_attributes_and_the_services_own_come_with_the_message() -> None:
    service = Service()
    sender = {"trace": {"DataType": "String", "StringValue": "x"}}
    service.sqs.send(service.url, "body", message_attributes=sender, message_group_id="tenant")
    (message,) = service.receive()
    assert message.message_attributes == sender
    assert message.message_group_id == "tenant"
    assert message.sent_at is not None
    assert message.sent_at.timestamp() == pytest.approx(service.clock.wall(), abs=0.001)


def test_batches_hold_one_to_ten_entries() -> None:
    service = Service()
    with pytest.raises(MemorySqsError, match=r"EmptyBatchRequest.*DeleteMessageBatchRequestEntry"):
        service.sqs.delete(service.url, [])
    with pytest.raises(MemorySqsError, match=r"EmptyBatchRequest.*ChangeMessageVisibilityBatchRequestEntry"):
        service.sqs.change_visibility(service.url, [])
    with pytest.raises(MemorySqsError, match=r"TooManyEntries.*You have sent 11"):
        service.sqs.delete(service.url, [Receipt("a", "b")] * 11)


def test_an_unknown_queue_is_an_error() -> None:
    service = Service()
    with pytest.raises(MemorySqsError, match="NonExistentQueue"):
        service.sqs.receive(service.url + "x")


# The audit trail


def test_the_audit_trail_tells_when_each_caller_held_each_message() -> None:
    service = Service(visibility_seconds=30)
    (sent,) = service.send()
    (first,) = service.sqs.receive(service.url, caller="one")
    service.clock.advance(10)
    service.change(first.receipt, 40)
    service.clock.advance(60)
    (second,) = service.sqs.receive(service.url, caller="two")
    service.delete(first.receipt)
    service.sqs.delete(service.url, [second.receipt], caller="two")
    entries = service.sqs.trail().of(sent)
    assert [(entry.at, entry.kind) for entry in entries] == [
        (100, AuditKind.SENT),
        (100, AuditKind.RECEIVED),
        (110, AuditKind.CHANGED),
        (150, AuditKind.EXPIRED),
        (170, AuditKind.RECEIVED),
        (170, AuditKind.IGNORED),
        (170, AuditKind.DELETED),
    ]
    assert entries[1].until == 130
    assert entries[2].until == 150
    assert [entry.caller for entry in entries] == ["", "one", "", "", "two", "", "two"]
    assert entries[5].stale


def test_the_audit_trail_shows_no_full_handle() -> None:
    service = Service()
    (sent,) = service.send()
    handle = service.receive_one().handle
    assert handle not in str(service.sqs.trail().of(sent))
    assert handle[-6:] in str(service.sqs.trail().of(sent))


# Size


def test_ten_thousand_messages_are_received_extended_and_deleted() -> None:
    receive_extend_and_delete(10_000)


def test_the_work_for_a_message_does_not_grow_with_their_number() -> None:
    few, many = (lines_of(partial(receive_extend_and_delete, count)) / count for count in (100, 1_000))
    assert many < 1.02 * few


def receive_extend_and_delete(count: int) -> None:
    service = Service()
    for number in range(count):
        service.sqs.send(service.url, str(number))
    receipts = [message.receipt for _ in range(count // 10) for message in service.receive(10)]
    assert len(receipts) == count
    service.clock.advance(10)
    for start in range(0, count, 10):
        batch = receipts[start : start + 10]
        changes = [VisibilityChange(receipt, 60) for receipt in batch]
        assert service.sqs.change_visibility(service.url, changes) == [None] * 10
    service.clock.advance(50)
    for start in range(0, count, 10):
        assert service.sqs.delete(service.url, receipts[start : start + 10]) == [None] * 10
    assert service.states() == []


def lines_of(work: Callable[[], None]) -> int:
    """How many lines of Python some work takes: unlike its time, always the same."""
    executed = 0

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        nonlocal executed
        executed += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return executed
