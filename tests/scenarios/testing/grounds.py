"""Two services to run the same scenario on: the in-memory one, and a real ministack process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from demo.sqs_server import REGION, SqsServer
from sqs_lease.clock import Clock, SystemClock
from sqs_lease.sqs.aiobotocore import AiobotocoreTransport
from sqs_lease.sqs.transport import Transport
from sqs_lease.testing import MemorySqs, MemoryTransport, VirtualClock, run_virtual

if TYPE_CHECKING:
    from types_boto3_sqs.literals import QueueAttributeNameType

KEY = "test"

HELD_SECONDS = 300
"""The visibility timeout of what is not to become visible during a test, however slow the machine is."""


class Ground(Protocol):
    """A service with a transport to it."""

    @property
    def clock(self) -> Clock:
        """Time as it passes for the scenario."""

    @property
    def transport(self) -> Transport:
        """The way to the service, while a scenario runs."""

    def create_queue(
        self,
        *,
        fifo: bool = False,
        visibility_seconds: int = HELD_SECONDS,
        delay_seconds: int = 0,
        dead_letter_queue_url: str | None = None,
        max_receive_count: int | None = None,
    ) -> str:
        """Create a queue under a name of its own and return its URL."""

    def check_passed(self, began_at: float, *, least: float, most: float) -> None:
        """Check how much time has passed since a moment of its clock: how much at most, where time is virtual only."""

    def run(self, scenario: Callable[[Ground], Awaitable[None]]) -> None:
        """Run a scenario to its end."""


def new_name(fifo: bool) -> str:
    return f"queue-{uuid4().hex[:12]}{'.fifo' if fifo else ''}"


class MemoryGround:
    """The in-memory service on virtual time."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self._sqs = MemorySqs(self.clock)
        self.transport: Transport = MemoryTransport(self._sqs)

    def create_queue(self, *, fifo: bool = False, visibility_seconds: int = HELD_SECONDS, **settings: Any) -> str:
        return self._sqs.create_queue(new_name(fifo), visibility_seconds=visibility_seconds, **settings)

    def check_passed(self, began_at: float, *, least: float, most: float) -> None:
        assert least <= self.clock.now() - began_at <= most

    def run(self, scenario: Callable[[Ground], Awaitable[None]]) -> None:
        async def main() -> None:
            await scenario(self)

        run_virtual(main, clock=self.clock)


class MinistackGround:
    """A real server process, in real time."""

    transport: Transport

    def __init__(self, server: SqsServer) -> None:
        self.clock = SystemClock()
        self._endpoint_url = server.endpoint_url
        self._client = server.sqs_client()
        self._session = get_session()

    def create_queue(
        self,
        *,
        fifo: bool = False,
        visibility_seconds: int = HELD_SECONDS,
        delay_seconds: int = 0,
        dead_letter_queue_url: str | None = None,
        max_receive_count: int | None = None,
    ) -> str:
        attributes: dict[QueueAttributeNameType, str] = {
            "VisibilityTimeout": str(visibility_seconds),
            "DelaySeconds": str(delay_seconds),
        }
        if fifo:
            attributes["FifoQueue"] = "true"
        if dead_letter_queue_url is not None:
            answer = self._client.get_queue_attributes(QueueUrl=dead_letter_queue_url, AttributeNames=["QueueArn"])
            attributes["RedrivePolicy"] = json.dumps(
                {"deadLetterTargetArn": answer["Attributes"]["QueueArn"], "maxReceiveCount": max_receive_count}
            )
        return self._client.create_queue(QueueName=new_name(fifo), Attributes=attributes)["QueueUrl"]

    def check_passed(self, began_at: float, *, least: float, most: float) -> None:
        # A busy machine may take any time, and the server's clock is another one.
        assert self.clock.now() - began_at > 0.9 * least

    def run(self, scenario: Callable[[Ground], Awaitable[None]]) -> None:
        async def main() -> None:
            self.transport = AiobotocoreTransport(
                self._session.create_client(
                    "sqs",
                    endpoint_url=self._endpoint_url,
                    region_name=REGION,
                    aws_access_key_id=KEY,
                    aws_secret_access_key=KEY,
                    config=AioConfig(retries={"total_max_attempts": 1}),
                )
            )
            try:
                await scenario(self)
            finally:
                await self.transport.aclose()

        asyncio.run(main())
