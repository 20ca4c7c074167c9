"""The service's limits on a message that is sent: sizes, characters and attributes."""

from __future__ import annotations

from typing import Any

import pytest

from sqs_lease.testing import MemorySqsError
from tests.testing.service import Service

MEBIBYTE = 1024 * 1024


Attributes = dict[str, dict[str, Any]]


def send(body: str = "body", attributes: Attributes | None = None) -> Service:
    service = Service()
    service.sqs.send(service.url, body, message_attributes=attributes)
    return service


def test_binary_attributes_come_as_they_were_sent() -> None:
    checksum = {"DataType": "Binary.sha256", "BinaryValue": bytes(range(256))}
    count = {"DataType": "Number", "StringValue": "-1.5e3"}
    (message,) = send(attributes={"checksum": checksum, "count": count}).receive()
    assert message.message_attributes == {"checksum": checksum, "count": count}


def test_a_body_may_have_a_mebibyte() -> None:
    send("x" * MEBIBYTE)
    send("ä" * (MEBIBYTE // 2))


@pytest.mark.parametrize("body", ["x" * (MEBIBYTE + 1), "ä" * (MEBIBYTE // 2 + 1)], ids=["letters", "umlauts"])
def test_a_body_of_more_than_a_mebibyte_is_refused(body: str) -> None:
    with pytest.raises(MemorySqsError, match="1048576"):
        send(body)


@pytest.mark.parametrize(
    "attribute",
    [{"DataType": "String", "StringValue": "value"}, {"DataType": "Binary", "BinaryValue": b"value"}],
    ids=["text", "binary"],
)
def test_attributes_count_into_the_mebibyte_by_name_type_and_value(attribute: dict[str, Any]) -> None:
    taken = len("name") + 6 + len("value")
    send("x" * (MEBIBYTE - taken), {"name": attribute})
    with pytest.raises(MemorySqsError, match="1048576"):
        send("x" * (MEBIBYTE - taken + 1), {"name": attribute})


def test_a_message_has_ten_attributes_at_most() -> None:
    attributes: Attributes = {f"a{number}": {"DataType": "String", "StringValue": "x"} for number in range(11)}
    with pytest.raises(MemorySqsError, match=r"Number of message attributes \[11\] exceeds the allowed maximum \[10\]"):
        send(attributes=attributes)
    del attributes["a0"]
    send(attributes=attributes)


@pytest.mark.parametrize("body", ["", "\x00", "\x0b", "\ufffe", "\ud800"], ids=["empty", "nul", "tab", "fffe", "half"])
def test_a_body_has_the_characters_of_xml_and_is_not_empty(body: str) -> None:
    with pytest.raises(MemorySqsError, match=r"MissingParameter|InvalidMessageContents"):
        send(body)
    send("\t\n\r \ud7ff\ue000\ufffd\U00010000\U0010ffff")


@pytest.mark.parametrize(
    ("name", "attribute", "text"),
    [
        ("a", {}, "non-empty message attribute type"),
        ("a", {"DataType": ""}, "non-empty message attribute type"),
        ("a", {"DataType": "Date", "StringValue": "x"}, "Binary, Number and String"),
        ("a", {"DataType": "String"}, "non-empty message attribute value"),
        ("a", {"DataType": "String", "StringValue": ""}, "non-empty message attribute value"),
        ("a", {"DataType": "Binary", "StringValue": "x"}, "non-empty message attribute value"),
        ("a", {"DataType": "Binary", "BinaryValue": b""}, "non-empty message attribute value"),
        ("a", {"DataType": "String", "StringValue": "\x00"}, "InvalidMessageContents"),
        ("a", {"DataType": "Number", "StringValue": "many"}, "must contain a number"),
        ("AWS.a", {"DataType": "String", "StringValue": "x"}, "not allowed"),
        ("a..b", {"DataType": "String", "StringValue": "x"}, "not allowed"),
        ("a b", {"DataType": "String", "StringValue": "x"}, "not allowed"),
        ("x" * 257, {"DataType": "String", "StringValue": "x"}, "not allowed"),
    ],
)
def test_a_malformed_attribute_is_refused(name: str, attribute: dict[str, Any], text: str) -> None:
    with pytest.raises(MemorySqsError, match=text):
        send(attributes={name: attribute})
