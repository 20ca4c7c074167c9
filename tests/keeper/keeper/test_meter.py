"""The meter of a keeper knows how many leases and batches are held, whatever becomes of them."""

from __future__ import annotations

import asyncio
from random import Random

from sqs_lease.core.events import Outcome
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.keeper.keeper import Keeper, Leaving
from sqs_lease.testing import VirtualClock, run_virtual
from tests.keeper.held import POLICY, QUEUE, messages
from tests.keeper.scripted_transport import ScriptedTransport


class HeldMeter:
    """Adds up what it is told of leases and batches that are held."""

    def __init__(self) -> None:
        self.held_leases = 0
        self.held_batches = 0

    def held(self, queue_url: str, change: int) -> None:
        assert queue_url == QUEUE
        self.held_leases += change

    def batches(self, queue_url: str, change: int) -> None:
        assert queue_url == QUEUE
        self.held_batches += change

    def extended(self, queue_url: str, leases: int) -> None: ...

    def late(self, queue_url: str) -> None: ...

    def ended(self, queue_url: str, outcome: Outcome, settling_seconds: float | None) -> None: ...


def test_it_knows_of_leases_that_are_settled_handed_over_received_again_dropped_and_left() -> None:
    clock, meter = VirtualClock(), HeldMeter()

    async def scenario() -> None:
        keeper = Keeper(ScriptedTransport(clock), clock=clock, random=Random(0), meter=meter)

        def held() -> int:
            return sum(holding.leases for holding in keeper.holdings())

        def batches() -> int:
            return sum(holding.batches for holding in keeper.holdings())

        first, second = keeper.open_batch(QUEUE, policy=POLICY), keeper.open_batch(QUEUE, policy=POLICY)
        first.add(messages(5), received_at=clock.now())
        assert (meter.held_leases, held()) == (5, 5)
        assert (meter.held_batches, batches()) == (1, 1)
        await first.succeed([first.leases()[0].receipt])
        assert (meter.held_leases, held()) == (4, 4)
        second.adopt(first.leases()[:2])
        assert (meter.held_leases, held()) == (4, 4)
        assert (meter.held_batches, batches()) == (2, 2)
        again = Message(Receipt("m4", "newer"), "body 4", {"ApproximateReceiveCount": "2"})
        first.add([again], received_at=clock.now())
        assert (meter.held_leases, held()) == (4, 4)
        keeper.drop(second)
        assert (meter.held_leases, held()) == (2, 2)
        assert (meter.held_batches, batches()) == (1, 1)
        await asyncio.sleep(60)
        await keeper.close(Leaving.NOTHING)
        assert (meter.held_leases, meter.held_batches) == (0, 0)

    run_virtual(scenario, clock=clock)
