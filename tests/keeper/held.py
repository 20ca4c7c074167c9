"""A keeper on a scripted transport and a virtual clock, and messages for it to hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from sqs_lease.core.events import LeaseEvent
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.core.policies import Fixed
from sqs_lease.keeper.keeper import Keeper, Leaving
from sqs_lease.testing import VirtualClock, run_virtual
from tests.keeper.scripted_transport import ScriptedTransport

QUEUE = "https://queue"
OTHER = "https://other"
POLICY = Fixed(visibility=30, every=20)


def messages(count: int, *, receive_count: int = 1, group: str | None = None) -> list[Message]:
    attributes = {"ApproximateReceiveCount": str(receive_count)} | ({"MessageGroupId": group} if group else {})
    return [Message(Receipt(f"m{number}", f"handle-{number}"), f"body {number}", attributes) for number in range(count)]


class Setting:
    """A keeper on a scripted transport and a virtual clock."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.transport = ScriptedTransport(self.clock)
        self.events: list[LeaseEvent] = []
        self.left: list[str] = []  # the names of the tasks that a keeper left behind

    def run(self, scenario: Callable[[Keeper], Awaitable[None]], leaving: Leaving = Leaving.NOTHING) -> None:
        async def within() -> None:
            keeper = Keeper(self.transport, clock=self.clock, random=Random(0))
            await scenario(keeper)
            await keeper.close(leaving)
            self.left = [task.get_name() for task in asyncio.all_tasks()]

        run_virtual(within, clock=self.clock)
