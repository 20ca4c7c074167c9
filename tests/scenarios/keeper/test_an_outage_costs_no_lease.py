"""The promises of the default policy, by the real keeper on virtual time: few requests, and outages without a loss."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from sqs_lease.core.policies import Growing
from sqs_lease.keeper.keeper import Keeper, Leaving
from sqs_lease.testing import (
    NO_FAULT,
    AuditKind,
    Fault,
    FaultRule,
    MemorySqs,
    MemoryTransport,
    Outages,
    TransportCall,
    VirtualClock,
    run_virtual,
)

VISIBILITY_SECONDS = 30
OUTAGE_SECONDS = 20.0


def held(messages: int, seconds: float, faults: FaultRule) -> MemorySqs:
    """Receive messages at 0, hold them for a time, and delete them; a second consumer looks all the time."""
    clock = VirtualClock()
    sqs = MemorySqs(clock)
    queue_url = sqs.create_queue("orders", visibility_seconds=VISIBILITY_SECONDS)
    for number in range(messages):
        sqs.send(queue_url, f"body {number}")

    async def work() -> None:
        async with Keeper(MemoryTransport(sqs, faults=faults), clock=clock, random=Random(0)) as keeper:
            batch = keeper.open_batch(queue_url, policy=Growing(visibility=VISIBILITY_SECONDS))
            while received := sqs.receive(queue_url, max_messages=10):
                batch.add(received, received_at=clock.now())
            await asyncio.sleep(seconds)
            await batch.succeed()
            await keeper.close(Leaving.NOTHING)

    run_virtual(work, clock=clock)
    return sqs


def test_a_thousand_messages_take_1_600_requests_in_an_hour() -> None:
    calls: list[TransportCall] = []

    def count(call: TransportCall) -> Fault:
        calls.append(call)
        return NO_FAULT

    sqs = held(1_000, 3_600, count)
    # The receives, ten messages each, were not made by the transport.
    assert len(calls) + 100 == 1_600
    assert not any(entry.kind is AuditKind.EXPIRED for entry in sqs.trail().entries())


@pytest.mark.parametrize("unreachable", [True, False], ids=["connections are refused", "no answer comes"])
@pytest.mark.parametrize("start", range(0, 90, 10))
def test_an_outage_of_20_s_that_begins_at_any_moment_costs_no_lease(start: int, *, unreachable: bool) -> None:
    """One that began 16 s after the receive lost all ten messages."""
    # Not at the moment of a renewal itself: such an outage ends with the lease, and either may come first.
    for tenth in range(0, 100, 3):
        begins_at = start + tenth / 10 + 0.05
        outage = [(begins_at, begins_at + OUTAGE_SECONDS)]
        sqs = held(10, 120, Outages(outage, unreachable=unreachable))
        entries = sqs.trail().entries()
        assert not any(entry.kind is AuditKind.EXPIRED for entry in entries), begins_at
        assert sum(entry.kind is AuditKind.DELETED for entry in entries) == 10
