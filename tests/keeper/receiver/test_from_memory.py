"""A receiver over the in-memory SQS: whatever happens, no message stays invisible without a holder."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from sqs_lease.core.calls import VisibilityChange
from sqs_lease.core.messages import Message
from sqs_lease.keeper.receiver import Receiver, Reception
from sqs_lease.sqs.errors import OverLimitError, SqsError
from sqs_lease.testing import (
    NO_FAULT,
    Fault,
    MemorySqs,
    MemoryTransport,
    MessageState,
    Operation,
    RandomFaults,
    ScriptedFaults,
    VirtualClock,
    run_virtual,
)

SEEDS = range(150)


class Service:
    """The in-memory service with one queue, and what a receiver handed over of it, by message id."""

    def __init__(self, *, fifo: bool = False, in_flight_limit: int = 120_000, visibility_seconds: int = 30) -> None:
        self.clock = VirtualClock()
        self.sqs = MemorySqs(self.clock, in_flight_limit=in_flight_limit)
        self.url = self.sqs.create_queue("orders.fifo" if fifo else "orders", visibility_seconds=visibility_seconds)
        self.transport = MemoryTransport(self.sqs)
        self.held: dict[str, Message] = {}
        self._visibility_seconds = visibility_seconds

    def send(self, count: int) -> None:
        fifo = self.url.endswith(".fifo")
        for number in range(count):
            self.sqs.send(
                self.url,
                f"body {number}",
                message_group_id=f"group-{number % 7}" if fifo else None,
                deduplication_id=str(number) if fifo else None,
            )

    def receiver(self, seed: int = 0) -> Receiver:
        return Receiver(
            self.transport,
            self.url,
            visibility_seconds=self._visibility_seconds,
            clock=self.clock,
            random=Random(seed),
        )

    def hold(self, reception: Reception) -> None:
        self.held |= {message.message_id: message for message in reception.messages}

    def in_flight(self) -> set[str]:
        contents = self.sqs.contents(self.url)
        return {message_id for message_id, state in contents.items() if state is MessageState.IN_FLIGHT}


def test_a_fifo_answer_that_was_lost_comes_again_instead_of_blocking_its_groups() -> None:
    service = Service(fifo=True)
    service.send(20)
    service.transport.faults = ScriptedFaults(
        Fault(answer_lost=True, after_seconds=10), NO_FAULT, operation=Operation.RECEIVE
    )
    receptions: list[Reception] = []

    async def main() -> None:
        collected = await service.receiver().collect(10, wait=20, on_received=receptions.append)
        assert len(collected.messages) == 10

    run_virtual(main, clock=service.clock)
    (reception,) = receptions
    assert reception.received_at == 0
    assert reception.sent_at > 10
    assert {message.message_id for message in reception.messages} == service.in_flight()


def test_over_limit_comes_with_what_was_received_before_it() -> None:
    service = Service(in_flight_limit=25)
    service.send(60)

    async def main() -> None:
        receiver = service.receiver()
        collected = await receiver.collect(50, wait=20, linger=20, on_received=service.hold)
        assert isinstance(collected.error, OverLimitError)
        assert 20 <= len(collected.messages) == len(service.in_flight())
        with pytest.raises(OverLimitError, match=r"too many of its messages are in flight.*Settle messages"):
            await receiver.collect(50, wait=20, on_received=service.hold)

    run_virtual(main, clock=service.clock)


def test_a_message_received_again_within_the_batch_is_held_by_its_newest_receipt_alone() -> None:
    service = Service(visibility_seconds=4)
    service.send(1)

    async def main() -> None:
        # The message is not extended, so that its visibility timeout ends while others are awaited.
        collected = await service.receiver().collect(2, wait=20, linger=10, on_received=service.hold)
        (message,) = collected.messages
        assert message.receive_count > 1
        assert service.held == {message.message_id: message}
        (answer,) = await service.transport.change_visibility(service.url, [VisibilityChange(message.receipt, 0)])
        assert not answer.code

    run_virtual(main, clock=service.clock)


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_nothing_is_lost_or_taken_beyond_the_batch_whenever_the_collection_is_cancelled_or_stopped(fifo: bool) -> None:
    ends: set[str] = set()
    for seed in SEEDS:
        random = Random(seed)
        # So long that nothing becomes visible again by itself: what is in flight was received.
        service = Service(fifo=fifo, visibility_seconds=3600)
        service.transport.faults = RandomFaults(
            random=Random(seed), latency_seconds=2.0, throttled=0.1, failed=0.1, lost_requests=0.1
        )
        size = random.randint(1, 60)

        async def main(service: Service = service, random: Random = random, size: int = size, seed: int = seed) -> None:
            async def publish() -> None:
                for _ in range(8):
                    service.send(0 if random.random() < 0.3 else random.randint(1, 12))
                    await asyncio.sleep(random.random() * 5)

            publishing = asyncio.create_task(publish())
            receiver = service.receiver(seed)
            collecting = asyncio.create_task(
                receiver.collect(size, wait=random.random() * 30, linger=random.random() * 20, on_received=service.hold)
            )
            await asyncio.wait([collecting], timeout=random.random() * 40)
            if not collecting.done():
                ends.add("cancelled" if random.random() < 0.5 else "stopped")
                if "cancelled" in ends and random.random() < 0.5:
                    collecting.cancel()
                else:
                    receiver.stop()
            await asyncio.wait([collecting])
            calls = service.transport.count(Operation.RECEIVE)
            assert service.in_flight() == set(service.held), f"seed {seed}"
            assert len(service.held) <= size, f"seed {seed}"
            if not collecting.cancelled() and (error := collecting.exception()) is not None:
                assert isinstance(error, SqsError), f"seed {seed}"
                assert not service.held, f"seed {seed}"
                ends.add("raised")
            elif not collecting.cancelled():
                received = {message.message_id: message for message in collecting.result().messages}
                assert received == service.held, f"seed {seed}"
                ends.add("returned")
            await publishing
            await asyncio.sleep(60)
            assert service.transport.count(Operation.RECEIVE) == calls, f"seed {seed}: a poll after the end"

        run_virtual(main, clock=service.clock)
    # Where lost answers are asked for again, hardly any collection ends with nothing but an error.
    assert ends >= {"cancelled", "stopped", "returned"}
    assert fifo or "raised" in ends


def test_lost_answers_of_a_fifo_queue_leave_nothing_behind_when_the_network_comes_back() -> None:
    recovered = 0
    for seed in SEEDS:
        service = Service(fifo=True, visibility_seconds=3600)
        service.send(40)
        service.transport.faults = RandomFaults(
            random=Random(seed), latency_seconds=1.0, lost_answers=0.4, noticed_seconds=3.0
        )

        async def main(service: Service = service, seed: int = seed) -> int:
            # Groups are blocked while their messages are in flight, so seven answers at most bring messages.
            collected = await service.receiver(seed).collect(40, wait=60, linger=60, on_received=service.hold)
            assert {message.message_id for message in collected.messages} == set(service.held)
            if collected.error is None:
                assert service.in_flight() == set(service.held), f"seed {seed}"
                return 1
            return 0

        recovered += run_virtual(main, clock=service.clock)
    assert recovered > len(SEEDS) / 2
