"""Defects that the simulator once showed, each in the few steps that it takes: its seed means another one today."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from sqs_lease.core.messages import Lease
from sqs_lease.core.policies import Threshold
from sqs_lease.keeper.keeper import Keeper, Leaving
from sqs_lease.testing import (
    NO_FAULT,
    AuditKind,
    Fault,
    MemorySqs,
    MemoryTransport,
    TransportCall,
    VirtualClock,
    run_virtual,
)
from sqs_lease.testing.service_errors import INTERNAL_ERROR

VISIBILITY_SECONDS = 30


@pytest.mark.parametrize("jitter", range(20))
def test_seed_7003911_a_lapsed_lease_is_tried_again_before_a_lost_answer_has_run_out(jitter: int) -> None:
    """A calendar was 340 s ahead, so a lease that was taken over seemed to have ended long ago.

    Its first extension was carried out without an answer. After the next error the keeper waited for 20 s, as its
    lease had nothing left to lose, and meanwhile the message became visible.
    """
    clock = VirtualClock(start=1000)
    sqs = MemorySqs(clock)
    queue_url = sqs.create_queue("orders", visibility_seconds=VISIBILITY_SECONDS)
    sqs.send(queue_url, "body")
    (message,) = sqs.receive(queue_url)
    calls = 0

    def one_answer_lost_then_errors(call: TransportCall) -> Fault:
        nonlocal calls
        calls += 1
        if calls == 1:
            return Fault(answer_lost=True)
        return Fault(error=INTERNAL_ERROR) if call.at < 1025 else NO_FAULT

    async def work() -> None:
        transport = MemoryTransport(sqs, faults=one_answer_lost_then_errors)
        keeper = Keeper(transport, clock=clock, random=Random(jitter))
        batch = keeper.open_batch(queue_url, policy=Threshold(visibility=VISIBILITY_SECONDS))
        batch.adopt([Lease(message.receipt, clock.now() - 370, clock.now() - 340)])
        await asyncio.sleep(60)
        await keeper.close(Leaving.NOTHING)

    run_virtual(work, clock=clock)
    assert not any(entry.kind is AuditKind.EXPIRED for entry in sqs.trail().of(message.message_id))
