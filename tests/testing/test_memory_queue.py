"""Long polls on virtual time: they return as soon as a message becomes visible, whatever the reason."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from sqs_lease.clock import SystemClock
from sqs_lease.testing import MemorySqs, run_virtual
from tests.testing.service import Service


def test_a_long_poll_returns_as_soon_as_something_is_sent() -> None:
    service = Service()

    async def work() -> float:
        poll = asyncio.create_task(service.sqs.poll(service.url))
        await asyncio.sleep(7)
        service.send()
        assert len(await poll) == 1
        return service.clock.now()

    assert run_virtual(work, clock=service.clock) == 107


def test_a_long_poll_returns_when_a_visibility_timeout_ends() -> None:
    service = Service(visibility_seconds=12)
    service.send()
    service.receive()

    async def work() -> float:
        assert len(await service.sqs.poll(service.url)) == 1
        return service.clock.now()

    assert run_virtual(work, clock=service.clock) == 112


def test_a_long_poll_returns_when_a_shortened_visibility_timeout_ends() -> None:
    service = Service(visibility_seconds=600)
    service.send()
    receipt = service.receive_one()

    async def work() -> float:
        poll = asyncio.create_task(service.sqs.poll(service.url))
        await asyncio.sleep(1)
        service.change(receipt, 5)
        assert len(await poll) == 1
        return service.clock.now()

    assert run_virtual(work, clock=service.clock) == 106


def test_a_long_poll_returns_when_the_delay_of_a_message_ends_that_was_sent_meanwhile() -> None:
    service = Service()

    async def work() -> float:
        poll = asyncio.create_task(service.sqs.poll(service.url))
        await asyncio.sleep(1)
        service.sqs.send(service.url, "later", delay_seconds=5)
        assert len(await poll) == 1
        return service.clock.now()

    assert run_virtual(work, clock=service.clock) == 106


def test_where_nothing_is_hidden_all_long_polls_get_the_message() -> None:
    service = Service(visibility_seconds=0)

    async def work() -> float:
        polls = [asyncio.create_task(service.sqs.poll(service.url)) for _ in range(3)]
        await asyncio.sleep(1)
        service.send()
        assert [len(await poll) for poll in polls] == [1, 1, 1]
        return service.clock.now()

    assert run_virtual(work, clock=service.clock) == 101


def test_a_long_poll_on_a_fifo_queue_wakes_when_the_group_is_free() -> None:
    service = Service("orders.fifo", visibility_seconds=600)
    service.send(2)
    receipt = service.receive_one()

    async def work() -> float:
        poll = asyncio.create_task(service.sqs.poll(service.url))
        await asyncio.sleep(3)
        service.delete(receipt)
        assert len(await poll) == 1
        return service.clock.now()

    assert run_virtual(work, clock=service.clock) == 103


def test_a_long_poll_ends_empty_after_its_wait() -> None:
    service = Service()

    async def work() -> float:
        assert await service.sqs.poll(service.url, wait_seconds=20) == []
        return service.clock.now()

    assert run_virtual(work, clock=service.clock) == 120


def test_a_cancelled_long_poll_takes_nothing() -> None:
    service = Service()

    async def work() -> None:
        poll = asyncio.create_task(service.sqs.poll(service.url))
        await asyncio.sleep(1)
        poll.cancel()
        await asyncio.sleep(1)
        service.send()
        assert len(service.receive()) == 1

    run_virtual(work, clock=service.clock)


def test_polls_in_one_thread_return_what_another_thread_sends() -> None:
    sqs = MemorySqs(SystemClock())
    url = sqs.create_queue("orders")
    received = SimpleQueue[str]()

    async def poll_again_and_again() -> None:
        for _ in range(300):
            received.put("polling")
            async with asyncio.TaskGroup() as polls:
                asked = [polls.create_task(sqs.poll(url)) for _ in range(3)]
                done, others = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                for other in others:
                    other.cancel()
            for poll in done:
                sqs.delete(url, [message.receipt for message in poll.result()])

    with ThreadPoolExecutor(1) as threads:
        polling = threads.submit(asyncio.run, poll_again_and_again())
        for number in range(300):
            received.get(timeout=60)
            sqs.send(url, str(number))
        polling.result(60)
    assert not sqs.contents(url)
