"""Functions as users write them for ``message_filtering="callable"``: none of them expects what strangers send.

A filter's process imports this module, so it imports little.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
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
    """Returns part of the body, which is no answer."""
    return json.loads(message["Body"])


def takes_the_message_apart(message: dict[str, Any]) -> bool:
    """Works on the dictionary that it is given."""
    for attribute in message.get("MessageAttributes", {}).values():
        attribute.clear()
    message.clear()
    return True


def quotes_the_body(message: dict[str, Any]) -> bool:
    """Fails with the whole body in its text."""
    raise ValueError(f"this is no order: {message!r}")


def ends_the_process(message: dict[str, Any]) -> bool:
    """Takes the triggerer for a script."""
    raise SystemExit(message["Body"])


# About the bodies a, b and c, for tests/airflow/test_filtering.py


PUBLISHED_KEYS = {"MessageId", "Body", "Attributes", "MessageAttributes"}


def is_b(message: dict[str, Any]) -> bool:
    return message == {**message, "Body": "b"} and set(message) == PUBLISHED_KEYS


def raises_on_a(message: dict[str, Any]) -> bool:
    if message["Body"] == "a":
        raise KeyError("secret")
    return is_b(message)


def exits_on_a(message: dict[str, Any]) -> bool:
    if message["Body"] == "a":
        sys.exit("secret")
    return is_b(message)


def cancels_on_a(message: dict[str, Any]) -> bool:
    if message["Body"] == "a":
        raise asyncio.CancelledError("secret")
    return is_b(message)


def is_out_of_time_on_a(message: dict[str, Any]) -> bool:
    from airflow.sdk.exceptions import AirflowTaskTimeout

    if message["Body"] == "a":
        raise AirflowTaskTimeout("secret")
    return is_b(message)


def interrupts_on_a(message: dict[str, Any]) -> bool:
    if message["Body"] == "a":
        raise KeyboardInterrupt("secret")
    return is_b(message)


async def is_asynchronous(message: dict[str, Any]) -> bool:
    return True


class AnyMessage:
    def __init__(self, message: dict[str, Any]) -> None: ...


class AsynchronousObject:
    async def __call__(self, message: dict[str, Any]) -> bool:
        return False


asynchronous_object = AsynchronousObject()


def yields(message: dict[str, Any]) -> Iterator[bool]:
    yield False


def forgets_to_return_on_a(message: dict[str, Any]) -> Any:
    if message["Body"] != "a":
        return is_b(message)
    return None


def is_wrapped(message: dict[str, Any]) -> Any:
    return is_asynchronous(message) if message["Body"] == "a" else is_b(message)


def changes(message: dict[str, Any]) -> bool:
    message["Body"] = "changed"
    message["Attributes"].clear()
    message["MessageAttributes"].clear()
    return True


def waits_for_its_test(message: dict[str, Any]) -> bool:
    """Say that it was asked, and wait until the test has a file that says go on."""
    Path(os.environ["ASKED"]).touch()
    wait_for(Path(os.environ["GO_ON"]))
    return True


def wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


def ends_its_process_on_a(message: dict[str, Any]) -> bool:
    if message["Body"] == "a":
        os.kill(os.getpid(), signal.SIGKILL)
    return True


def says_its_process(message: dict[str, Any]) -> bool:
    with Path(os.environ["ASKED"]).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return True
