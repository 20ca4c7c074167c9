"""The code of docs/plain-python.md does what the text around it says."""

from __future__ import annotations

import asyncio
import os
import signal
from threading import Thread
from time import sleep
from typing import Any

import pytest

from sqs_lease import LeasedBatch, Message, MessageFailed, lease
from sqs_lease.keeper import consuming
from sqs_lease.testing.leased_queues import LeasedQueue, LeasedQueues
from sqs_lease.testing.pytest_plugin import leased_queues
from tests.docs.test_examples import ROOT, blocks

__all__ = ["leased_queues"]

PAGE = ROOT / "docs" / "plain-python.md"


def function(name: str, *, is_async: bool = False) -> Any:
    """A function that the page defines."""
    definition = ("\nasync def " if is_async else "\ndef ") + name
    (code,) = (block for block in blocks(PAGE) if f"{definition}(" in block)
    names: dict[str, Any] = {"__name__": "plain_python"}
    exec(compile(code, str(PAGE), "exec", dont_inherit=True), names)
    return names[name]


def test_a_block_that_ends_deletes_its_messages(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", "one", "two")
    handled: list[str] = []
    function("work_through")("orders", handled.append)
    assert (sorted(handled), queue.deleted) == (["one", "two"], 2)


def test_a_block_that_raises_gives_its_messages_back(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", "one", "two")

    def handle(body: str) -> None:
        raise OSError("the table is away")

    with pytest.raises(OSError, match="away"):
        function("work_through")("orders", handle)
    assert sorted(queue.visible) == ["one", "two"]


def test_a_block_that_names_messages_as_failed_deletes_the_others(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", "one", "two")
    with pytest.raises(MessageFailed), lease("orders") as batch:
        raise MessageFailed([message.message_id for message in batch if message.body == "one"])
    assert (queue.visible, queue.deleted) == (["one"], 1)


def test_single_messages_are_deleted_or_dead_lettered(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", "1", "torn")
    report = function("work_through_one_by_one")("orders", int)
    assert (report.deleted, report.dead_lettered) == (1, 1)
    assert queue.dead_letters == ["torn"]


def test_a_block_that_watches_its_leases_is_not_alarmed_without_cause(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", "one")
    alerts: list[str] = []
    function("work_and_watch")("orders", lambda body: None, alerts.append)
    assert (queue.deleted, alerts) == (1, [])


def test_a_lease_takes_a_client_of_your_own(leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    queue = leased_queues.create("orders", "one")
    function("work_elsewhere")("orders", lambda body: None, "http://127.0.0.1:9")
    assert queue.deleted == 1


def test_an_asyncio_program_gives_back_what_it_cannot_handle(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", "an order", "a torn one")

    async def handle(body: str) -> bool:
        return body == "an order"

    asyncio.run(function("work_through", is_async=True)("orders", handle))
    assert (queue.visible, queue.deleted) == (["a torn one"], 1)


def until_deleted(queue: LeasedQueue, count: int) -> None:
    """Send this program SIGTERM once so many messages are deleted."""

    def stop() -> None:
        while queue.deleted < count:
            sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=stop, daemon=True).start()


@pytest.fixture(autouse=True)
def _short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consuming, "LONGEST_POLL_SECONDS", 0)


def test_a_service_works_on_each_message_until_it_is_stopped(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", *map(str, range(25)), "torn")
    until_deleted(queue, 26)
    report = function("serve")("orders", lambda message: int(message.body))
    assert (report.deleted, report.dead_lettered) == (25, 1)
    assert queue.dead_letters == ["torn"]


def test_a_service_of_batches_works_on_each_batch_until_it_is_stopped(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", *map(str, range(25)))
    worked: list[str] = []

    def load_all(batch: LeasedBatch) -> None:
        worked.extend(message.body for message in batch)
        if len(worked) == 25:
            os.kill(os.getpid(), signal.SIGTERM)

    function("serve_batches")("orders", load_all)
    assert sorted(worked, key=int) == list(map(str, range(25)))
    assert queue.deleted == 25


def test_an_asyncio_service_works_on_each_message_until_it_is_stopped(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", *map(str, range(25)))
    until_deleted(queue, 25)

    async def load(message: Message) -> None:
        int(message.body)

    report = asyncio.run(function("serve_async", is_async=True)("orders", load))
    assert report.deleted == 25


def test_a_program_that_is_terminated_gives_its_messages_back(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", "one", "two")
    before = signal.getsignal(signal.SIGTERM)

    def handle(body: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        sleep(1)

    try:
        with pytest.raises(SystemExit):
            function("work_until_terminated")("orders", handle)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert sorted(queue.visible) == ["one", "two"]
