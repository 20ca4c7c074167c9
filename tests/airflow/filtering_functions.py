"""Functions of filters about the bodies a, b and c. A filter's process imports this module, so it imports little."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
