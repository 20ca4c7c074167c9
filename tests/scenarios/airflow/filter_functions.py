"""Functions as users write them for ``message_filtering="callable"``: they do not expect what strangers send."""

from __future__ import annotations

import json
from typing import Any


def is_dear(message: dict[str, Any]) -> bool:
    """Reads far into the body."""
    return any(item["price"] > 5 for item in json.loads(message["Body"])["items"])


def is_of_kind(message: dict[str, Any]) -> bool:
    """Reads a number from an attribute."""
    return int(message["MessageAttributes"]["kind"]["StringValue"]) == 7


def has_an_even_id(message: dict[str, Any]) -> bool:
    """Computes with what it finds, whatever that is."""
    return bool(json.loads(message["Body"])["id"] % 2 == 0)


def says_what_it_found(message: dict[str, Any]) -> Any:
    """Returns part of the body, which is not an answer."""
    return json.loads(message["Body"])


def takes_the_message_apart(message: dict[str, Any]) -> bool:
    """Works on the dictionary that it is given."""
    for attribute in message.get("MessageAttributes", {}).values():
        attribute.clear()
    message.clear()
    return True


def quotes_the_body(message: dict[str, Any]) -> bool:
    """Fails with the whole body in its text."""
    raise ValueError(f"this is not an order: {message!r}")


def ends_the_process(message: dict[str, Any]) -> bool:
    """Takes the triggerer for a script."""
    raise SystemExit(message["Body"])
