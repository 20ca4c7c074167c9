"""Many calls that fall due together are begun a few at a time, so that the event loop has time for others."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random

from sqs_lease.core.messages import Message, Receipt
from sqs_lease.core.policies import Fixed
from sqs_lease.keeper.driver import CALLS_STARTED_AT_ONCE
from sqs_lease.keeper.keeper import Keeper, Leaving
from sqs_lease.testing import VirtualClock, run_virtual
from tests.keeper.scripted_transport import ScriptedTransport

QUEUE = "https://queue"
CALLS = 5 * CALLS_STARTED_AT_ONCE


def test_the_event_loop_gets_a_turn_after_every_few_calls() -> None:
    clock = VirtualClock()
    transport = ScriptedTransport(clock)
    begun: list[int] = []

    async def look_on() -> None:
        while True:
            begun.append(len(transport.asked))
            await asyncio.sleep(0)

    async def within() -> None:
        keeper = Keeper(transport, clock=clock, random=Random(0))
        batch = keeper.open_batch(QUEUE, policy=Fixed(visibility=60, every=20))
        messages = [Message(Receipt(f"m{number}", "handle"), "body") for number in range(10 * CALLS)]
        batch.add(messages, received_at=clock.now())
        extending = asyncio.create_task(batch.extend_now())
        looking = asyncio.create_task(look_on())
        await extending
        looking.cancel()
        await keeper.close(Leaving.NOTHING)

    run_virtual(within, clock=clock)
    assert len(transport.asked) == CALLS
    assert max(after - before for before, after in pairwise(begun)) <= CALLS_STARTED_AT_ONCE
