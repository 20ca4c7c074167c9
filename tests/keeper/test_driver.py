"""The calls of a driver after its process stood still, and how many calls it begins at once."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random

from sqs_lease.core.messages import Message, Receipt
from sqs_lease.core.policies import Fixed
from sqs_lease.keeper.driver import CALLS_STARTED_AT_ONCE, STALL_SECONDS
from sqs_lease.keeper.keeper import Keeper, Leaving
from sqs_lease.testing import VirtualClock, run_virtual
from tests.keeper.scripted_transport import ScriptedTransport

QUEUE = "https://queue"
MESSAGE = Message(Receipt("m", "handle"), "body")
POLICY = Fixed(visibility=60, every=20)
QUIET_SECONDS = 3.0
CALLS = 5 * CALLS_STARTED_AT_ONCE


def extensions_after_a_stall(
    stall_seconds: float, *, forgotten: bool = False, quiet_seconds: float = QUIET_SECONDS
) -> list[float]:
    """When the message was extended, in seconds after a stall that began 5 s after its receive."""
    clock = VirtualClock()
    transport = ScriptedTransport(clock)
    ended_at = 0.0

    async def within() -> None:
        nonlocal ended_at
        keeper = Keeper(transport, clock=clock, random=Random(0), quiet_after_stall_seconds=quiet_seconds)
        batch = keeper.open_batch(QUEUE, policy=POLICY)
        batch.add([MESSAGE], received_at=clock.now())
        await asyncio.sleep(5)
        clock.advance(stall_seconds)
        ended_at = clock.now()
        await asyncio.sleep(1)
        if forgotten:
            batch.forget()
        await asyncio.sleep(9)
        await keeper.close(Leaving.NOTHING)

    run_virtual(within, clock=clock)
    return [asked.at - ended_at for asked in transport.calls("extend")]


def test_an_overdue_lease_is_extended_some_seconds_after_a_stall() -> None:
    assert extensions_after_a_stall(16 + STALL_SECONDS) == [QUIET_SECONDS]


def test_a_lease_that_another_consumer_holds_by_then_is_not_extended_after_a_stall() -> None:
    assert extensions_after_a_stall(16 + STALL_SECONDS, forgotten=True) == []


def test_an_extension_that_is_only_a_little_late_is_made_at_once() -> None:
    assert extensions_after_a_stall(14 + STALL_SECONDS) == [0.0]


def test_a_lease_that_is_about_to_end_is_extended_within_half_of_what_it_has_left() -> None:
    assert extensions_after_a_stall(53) == [1.0]


def test_a_host_without_takeovers_goes_on_at_once() -> None:
    assert extensions_after_a_stall(16 + STALL_SECONDS, quiet_seconds=0) == [0.0]


def test_a_batch_is_settled_at_once_although_its_first_message_comes_late() -> None:
    clock = VirtualClock()
    transport = ScriptedTransport(clock)

    async def within() -> None:
        keeper = Keeper(transport, clock=clock, random=Random(0), quiet_after_stall_seconds=QUIET_SECONDS)
        batch = keeper.open_batch(QUEUE, policy=POLICY)
        await asyncio.sleep(10 * STALL_SECONDS)
        batch.add([MESSAGE], received_at=clock.now())
        await batch.succeed()
        await keeper.close(Leaving.NOTHING)

    run_virtual(within, clock=clock)
    assert [asked.at for asked in transport.calls("delete")] == [10 * STALL_SECONDS]


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
