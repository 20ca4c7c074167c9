"""A receiver over scripted polls on virtual time, and a record of what it handed over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

from sqs_lease.keeper.receiver import Collected, Receiver, Reception
from sqs_lease.sqs.errors import (
    AccessDeniedError,
    OverLimitError,
    ThrottledError,
    TransientError,
    UnavailableError,
)
from sqs_lease.testing import VirtualClock, run_virtual
from tests.keeper.receiver.scripted_polls import Reply, ScriptedPolls

URL = "https://sqs.us-east-1.amazonaws.com/123456789012/orders"
FIFO = f"{URL}.fifo"

TRANSIENT = TransientError("no answer", queue=URL)
UNAVAILABLE = UnavailableError("not available", queue=URL)
THROTTLED = ThrottledError("slower", queue=URL)
OVER_LIMIT = OverLimitError("too many in flight", queue=URL)
DENIED = AccessDeniedError("denied", queue=URL)


class Collecting:
    """A receiver over scripted polls, and what it handed over: (when, reception)."""

    def __init__(self, *script: Reply, url: str = URL, visibility_seconds: int = 30) -> None:
        self.clock = VirtualClock(start=1000.0)
        self.polls = ScriptedPolls(self.clock, list(script))
        self.receiver = Receiver(
            self.polls, url, visibility_seconds=visibility_seconds, clock=self.clock, random=Random(1)
        )
        self.handed: list[tuple[float, Reception]] = []
        self.seconds = 0.0

    def hold(self, reception: Reception) -> None:
        self.handed.append((self.clock.now() - 1000.0, reception))

    @property
    def handed_ids(self) -> list[str]:
        return [held.message_id for _, reception in self.handed for held in reception.messages]

    async def collecting(self, max_messages: int, *, wait: float, linger: float = 0.0) -> Collected:
        try:
            return await self.receiver.collect(max_messages, wait=wait, linger=linger, on_received=self.hold)
        finally:
            self.seconds = self.clock.now() - 1000.0

    def collect(self, max_messages: int, *, wait: float, linger: float = 0.0) -> Collected:
        return self.run(lambda: self.collecting(max_messages, wait=wait, linger=linger))

    def run(self, main: Callable[[], Awaitable[Collected]]) -> Collected:
        async def scenario() -> Collected:
            return await main()

        return run_virtual(scenario, clock=self.clock)

    def waits(self) -> list[int]:
        return [poll.wait_seconds for poll in self.polls.polls]

    def sent_at(self) -> list[float]:
        return [poll.sent_at - 1000.0 for poll in self.polls.polls if poll.sent_at is not None]
