"""Where the transports' contract is tested: each transport with a service behind it."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from sqs_lease.clock import Clock, SystemClock
from sqs_lease.sqs.transport import Transport
from sqs_lease.testing import MemorySqs, MemoryTransport, VirtualClock, run_virtual
from tests.sqs.clients import MakeTransport, boto3_client

HELD_SECONDS = 300
"""The visibility timeout of what is not to become visible during a test, however slow the machine is."""


class Bench(Protocol):
    """A service, and a transport to it while a scenario runs."""

    @property
    def transport(self) -> Transport:
        """The transport under test."""

    @property
    def clock(self) -> Clock:
        """Time as it passes for the scenario."""

    def create_queue(
        self, *, fifo: bool = False, visibility_seconds: int = HELD_SECONDS, dead_letters: tuple[str, int] | None = None
    ) -> str:
        """Create a queue under a new name and return its URL; ``dead_letters``: that queue's ARN, receives."""

    def check_no_time_passed_since(self, moment: float) -> None:
        """Check that something happened at once after a moment of the clock: where time is virtual only."""

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """Run a scenario to its end."""


def new_name(fifo: bool) -> str:
    return f"queue-{uuid.uuid4().hex[:12]}{'.fifo' if fifo else ''}"


class MemoryBench:
    """The in-memory service on virtual time."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.sqs = MemorySqs(self.clock)
        self.transport: Transport = MemoryTransport(self.sqs)
        self._urls: dict[str, str] = {}

    def create_queue(
        self, *, fifo: bool = False, visibility_seconds: int = HELD_SECONDS, dead_letters: tuple[str, int] | None = None
    ) -> str:
        settings: dict[str, Any] = {}
        if dead_letters is not None:
            arn, settings["max_receive_count"] = dead_letters
            settings["dead_letter_queue_url"] = self._urls[arn]
        url = self.sqs.create_queue(new_name(fifo), visibility_seconds=visibility_seconds, **settings)
        self._urls[self.sqs.attributes(url).arn] = url
        return url

    def check_no_time_passed_since(self, moment: float) -> None:
        assert self.clock.now() == moment

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            await scenario()

        run_virtual(main, clock=self.clock)


class ServerBench:
    """A real server process, in real time."""

    transport: Transport

    def __init__(self, make_transport: MakeTransport, endpoint_url: str) -> None:
        self.clock = SystemClock()
        self._make_transport = make_transport
        self._endpoint_url = endpoint_url
        self._admin = boto3_client(endpoint_url)

    def create_queue(
        self, *, fifo: bool = False, visibility_seconds: int = HELD_SECONDS, dead_letters: tuple[str, int] | None = None
    ) -> str:
        attributes: dict[Any, str] = {"VisibilityTimeout": str(visibility_seconds)}
        if fifo:
            attributes["FifoQueue"] = "true"
        if dead_letters is not None:
            arn, count = dead_letters
            attributes["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": count})
        return self._admin.create_queue(QueueName=new_name(fifo), Attributes=attributes)["QueueUrl"]

    def check_no_time_passed_since(self, moment: float) -> None:
        """A busy machine may take any time."""

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            async with self._make_transport(self._endpoint_url) as self.transport:
                await scenario()

        asyncio.run(main())
