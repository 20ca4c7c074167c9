"""The display of a message on a terminal: its size as SQS counts it, its age, and harmless text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqs_lease.core.messages import Message


def size_bytes(message: Message) -> int:
    """Return the size that SQS bills and limits: body, and names, types and values of the sender's attributes."""
    return len(message.body.encode()) + sum(
        len(name.encode()) + _attribute_bytes(attribute) for name, attribute in message.message_attributes.items()
    )


def age_seconds(message: Message, now: float) -> float | None:
    """Return how long ago a message was sent; None if SQS does not tell.

    Args:
        message: The message.
        now: Seconds since the epoch.
    """
    return None if message.sent_at is None else max(now - message.sent_at.timestamp(), 0.0)


def harmless(text: str) -> str:
    """Return text with control characters as escapes, except line breaks and tabs, so that a terminal ignores them."""
    return "".join(
        character
        if character.isprintable() or character in "\n\t"
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def one_line(text: str) -> str:
    """Return text on one line, without control characters: the answer of a service or a proxy may have some."""
    return harmless(" ".join(text.split()))


def _attribute_bytes(attribute: Mapping[str, Any]) -> int:
    value = attribute.get("BinaryValue") or str(attribute.get("StringValue", "")).encode()
    return len(str(attribute.get("DataType", "")).encode()) + len(value)
