"""Messages keep what the service said, and keep their secrets to themselves."""

from __future__ import annotations

import gc
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from sqs_lease.core.ledger import Entry
from sqs_lease.core.messages import Lease, Message, Receipt, count_of, plain_attributes
from sqs_lease.core.policies import Growing

ANSWER = {
    "MessageId": "id-1",
    "ReceiptHandle": "AQEBsecret-handle-of-this-message",
    "Body": "private",
    "Attributes": {
        "ApproximateReceiveCount": "3",
        "SentTimestamp": "1767225600123",
        "MessageGroupId": "tenant",
    },
    "MessageAttributes": {"colour": {"DataType": "String", "StringValue": "red"}},
}


def test_a_message_reads_the_services_attributes() -> None:
    message = Message.from_api(ANSWER)
    assert message.message_id == "id-1"
    assert message.receive_count == 3
    assert message.message_group_id == "tenant"
    assert message.sent_at == datetime(2026, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC)


def test_a_message_without_attributes_was_received_once_and_has_no_group() -> None:
    message = Message.from_api({"MessageId": "id", "Body": "b"})
    assert (message.receive_count, message.message_group_id, message.sent_at) == (1, None, None)


def test_neither_body_nor_handle_appears_when_a_message_or_receipt_is_printed() -> None:
    message = Message.from_api(ANSWER)
    for text in (repr(message), str(message), repr(message.receipt), str(message.receipt), f"{message.receipt}"):
        assert "private" not in text
        assert "red" not in text
        assert "secret" not in text
        assert "id-1" in text


def test_messages_for_work_tasks_have_no_receipt_handle_and_can_be_read_back() -> None:
    message = Message.from_api(ANSWER)
    shown = message.as_dict()
    assert "ReceiptHandle" not in shown
    assert Message.from_api(shown) == Message(
        Receipt("id-1", ""), message.body, message.attributes, message.message_attributes
    )


def test_the_garbage_collector_does_not_look_through_leases() -> None:
    lease = Lease(Receipt("id-1", "handle"), received_at=0.0, deadline=30.0)

    assert [gc.is_tracked(value) for value in (lease, lease.receipt, Entry(lease, Growing(), 1))] == [False] * 3


def test_bytes_are_base64_in_what_work_tasks_get_and_bytes_again_when_it_is_read_back() -> None:
    attributes = {
        "image": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        "base64": {"DataType": "String", "StringValue": "AP8="},
        "several": {"DataType": "Binary", "BinaryListValues": [b"a", b"b"]},
    }
    message = Message.from_api({"MessageId": "id", "Body": "b", "MessageAttributes": attributes})
    shown = message.as_dict()
    assert shown["MessageAttributes"]["image"] == {"DataType": "Binary", "BinaryValue": {"base64": "AP8="}}
    assert Message.from_api(json.loads(json.dumps(shown))).message_attributes == attributes
    assert plain_attributes(shown["MessageAttributes"]) == shown["MessageAttributes"]


def test_an_attribute_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot hold a set"):
        plain_attributes({"odd": {"DataType": "String", "StringValue": {"text"}}})


@pytest.mark.parametrize("text", ["", "many", "-1", "0", "1e3", "9" * 19, "9" * 5_000, "²", None, []])
def test_a_number_of_the_service_that_cannot_be_read_counts_as_not_said(text: Any) -> None:
    strange = Message(Receipt("id", "handle"), "body", {"ApproximateReceiveCount": text})

    assert strange.receive_count == 1


@pytest.mark.parametrize("text", ["", "soon", "-1", "253402300800000", "9" * 30, "9" * 5_000, None])
def test_a_time_that_no_calendar_has_counts_as_not_said(text: Any) -> None:
    assert Message(Receipt("id", "handle"), "body", {"SentTimestamp": text}).sent_at is None


def test_a_receive_count_is_limited_to_what_tables_have_room_for() -> None:
    assert Message(Receipt("id", "handle"), "body", {"ApproximateReceiveCount": "9" * 15}).receive_count == 2**31 - 1


@pytest.mark.parametrize("attributes", [["a"], {"a": "b"}, {"a": None}])
def test_attributes_that_are_not_a_mapping_of_mappings_are_refused_both_ways(attributes: Any) -> None:
    with pytest.raises(TypeError, match="a mapping of mappings"):
        plain_attributes(attributes)
    with pytest.raises(TypeError, match="a mapping of mappings"):
        Message.from_api({"MessageId": "id", "Body": "b", "MessageAttributes": attributes})


@pytest.mark.parametrize(("number", "shown"), [(0, "0 leases"), (1, "1 lease"), (1_200, "1,200 leases")])
def test_a_number_of_things_is_said_as_people_say_it(number: int, shown: str) -> None:
    assert count_of(number, "lease") == shown
