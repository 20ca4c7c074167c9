"""What only the real service does and no emulator: each test names the fact that it holds the in-memory service to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from sqs_lease.core.actions import VisibilityChange
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.testing import (
    AuditKind,
    MemorySqs,
    MemorySqsError,
    MessageState,
    ServiceChoices,
    ServiceError,
    VirtualClock,
    run_virtual,
)

TWELVE_HOURS = 43_200


class Service:
    """A service with one queue, and the calls on it in short."""

    def __init__(self, name: str = "orders", **settings: object) -> None:
        self.clock = VirtualClock(start=100)
        choices = settings.pop("choices", None)
        limit = settings.pop("in_flight_limit", 120_000)
        assert isinstance(limit, int)
        assert choices is None or isinstance(choices, ServiceChoices)
        self.sqs = MemorySqs(self.clock, in_flight_limit=limit, choices=choices)
        self.fifo = name.endswith(".fifo")
        self.dead_letter_url = self.sqs.create_queue("dead.fifo" if self.fifo else "dead")
        if "max_receive_count" in settings:
            settings["dead_letter_queue_url"] = self.dead_letter_url
        self.url = self.sqs.create_queue(name, **settings)  # type: ignore[arg-type]

    def send(self, count: int = 1, *, group: str = "a") -> list[str]:
        sent = self.sqs.trail().message_ids()
        return [
            self.sqs.send(
                self.url,
                f"body {number}",
                message_group_id=group if self.fifo else None,
                deduplication_id=f"{len(sent)}-{number}" if self.fifo else None,
            )
            for number in range(count)
        ]

    def receive(
        self, count: int = 10, *, visibility: int | None = None, attempt_id: str | None = None
    ) -> list[Message]:
        return self.sqs.receive(self.url, max_messages=count, visibility_seconds=visibility, attempt_id=attempt_id)

    def receive_one(self) -> Receipt:
        (message,) = self.receive(1)
        return message.receipt

    def change(self, receipt: Receipt, seconds: int) -> ServiceError | None:
        return self.sqs.change_visibility(self.url, [VisibilityChange(receipt, seconds)])[0]

    def delete(self, receipt: Receipt) -> ServiceError | None:
        return self.sqs.delete(self.url, [receipt])[0]

    def states(self) -> list[MessageState]:
        return list(self.sqs.contents(self.url).values())


def ids(messages: Sequence[Message]) -> list[str]:
    return [message.message_id for message in messages]


def refused(error: ServiceError | None, code: str, text: str) -> bool:
    return error is not None and error.code == code and text in error.text


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


def test_on_a_standard_queue_extending_after_expiry_works_while_nobody_else_received() -> None:
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


def test_on_a_standard_queue_deleting_after_expiry_works_while_nobody_else_received() -> None:
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


# FIFO


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
    with pytest.raises(MemorySqsError, match="EmptyBatchRequest"):
        service.sqs.delete(service.url, [])
    with pytest.raises(MemorySqsError, match="TooManyEntries"):
        service.sqs.delete(service.url, [Receipt("a", "b")] * 11)


def test_an_unknown_queue_is_an_error() -> None:
    service = Service()
    with pytest.raises(MemorySqsError, match="NonExistentQueue"):
        service.sqs.receive(service.url + "x")


def test_a_message_over_a_mebibyte_is_refused() -> None:
    service = Service()
    with pytest.raises(MemorySqsError, match="1048576"):
        service.sqs.send(service.url, "x" * (1024 * 1024 + 1))


# Long polls


def test_a_long_poll_returns_as_soon_as_something_is_sent() -> None:
    service = Service()

    async def work() -> float:
        poll = asyncio.create_task(service.sqs.poll(service.url))
        await asyncio.sleep(7)
        service.send()
        assert len(await poll) == 1
        return service.clock.now()

    assert run_virtual(work, clock=service.clock) == 107


def test_a_long_poll_returns_when_a_visibility_timeout_ends() -> None:
    service = Service(visibility_seconds=12)
    service.send()
    service.receive()

    async def work() -> float:
        assert len(await service.sqs.poll(service.url)) == 1
        return service.clock.now()

    assert run_virtual(work, clock=service.clock) == 112


def test_a_long_poll_on_a_fifo_queue_wakes_when_the_group_is_free() -> None:
    service = Service("orders.fifo", visibility_seconds=600)
    service.send(2)
    receipt = service.receive_one()

    async def work() -> float:
        poll = asyncio.create_task(service.sqs.poll(service.url))
        await asyncio.sleep(3)
        service.delete(receipt)
        assert len(await poll) == 1
        return service.clock.now()

    assert run_virtual(work, clock=service.clock) == 103


def test_a_long_poll_ends_empty_after_its_wait() -> None:
    service = Service()

    async def work() -> float:
        assert await service.sqs.poll(service.url, wait_seconds=20) == []
        return service.clock.now()

    assert run_virtual(work, clock=service.clock) == 120


def test_a_cancelled_long_poll_takes_nothing() -> None:
    service = Service()

    async def work() -> None:
        poll = asyncio.create_task(service.sqs.poll(service.url))
        await asyncio.sleep(1)
        poll.cancel()
        await asyncio.sleep(1)
        service.send()
        assert len(service.receive()) == 1

    run_virtual(work, clock=service.clock)


# The audit trail


def test_the_audit_trail_tells_who_held_what_when() -> None:
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


def test_a_hundred_thousand_messages_are_received_extended_and_deleted_without_scans() -> None:
    service = Service()
    count = 100_000
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
