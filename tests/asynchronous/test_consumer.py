"""The consumer of asyncio programs, on virtual time: each message is worked on once until it is stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from sqs_lease import (
    AsyncConsumer,
    AsyncLeasedBatch,
    KeeperClosedError,
    LeaseReport,
    LeasesLostError,
    Message,
    MessageFailed,
    blocking,
    dead_letter,
    release,
)
from sqs_lease.keeper import open_queue
from sqs_lease.keeper.keeper import Keeper
from sqs_lease.sqs.errors import AccessDeniedError
from sqs_lease.testing import (
    NO_FAULT,
    Fault,
    Operation,
    Outages,
    ScriptedFaults,
    TransportCall,
    VirtualClock,
    run_virtual,
)
from tests.blocking.orders import DENIED, Orders, lost, no_message_left, refused

VISIBILITY_SECONDS = 30


class Program:
    """A program on virtual time, and the queue that it consumes."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.orders = Orders(self.clock)

    def consumer(self, queue: str = "orders", **options: Any) -> AsyncConsumer:
        return AsyncConsumer(queue, **{"visibility": VISIBILITY_SECONDS, "max_messages": 100, **options})

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        async def within() -> None:
            await main()

        run_virtual(within, clock=self.clock)

    def consume(
        self, handle: Callable[[Message], Awaitable[object]], *, seconds: float, concurrency: int = 1, **options: Any
    ) -> LeaseReport:
        """Consume for so many seconds."""
        reports: list[LeaseReport] = []

        async def main() -> None:
            async with self.consumer(**options) as consumer:
                asyncio.get_running_loop().call_later(seconds, consumer.stop)
                reports.append(await consumer.run(handle, concurrency=concurrency))

        self.run(main)
        return reports[0]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    made = Program()
    monkeypatch.setattr(blocking, "open_transport", lambda client, queue: made.orders.transport())
    keeper = Keeper

    def on_virtual_time(transport: Any, *, clock: object, **options: Any) -> Keeper:
        return keeper(transport, clock=made.clock, **options)

    monkeypatch.setattr(open_queue, "Keeper", on_virtual_time)
    return made


async def at_once(_: Message) -> None:
    """Work that takes no time."""


@pytest.mark.parametrize("concurrency", [1, 10])
def test_each_is_worked_on_once_and_deleted(program: Program, concurrency: int) -> None:
    program.orders.queue.send(*map(str, range(300)))
    worked: list[str] = []

    async def work(message: Message) -> None:
        worked.append(message.body)

    report = program.consume(work, seconds=60, concurrency=concurrency)
    assert sorted(worked, key=int) == list(map(str, range(300)))
    assert (report.received, report.deleted) == (300, 300)


def test_messages_of_long_work_are_extended_and_no_other_consumer_gets_them(program: Program) -> None:
    program.orders.queue.send(*map(str, range(20)))

    async def work(message: Message) -> None:
        await asyncio.sleep(3_600)
        assert program.orders.queue.visible == []

    report = program.consume(work, seconds=3_700, concurrency=20)
    assert (report.deleted, report.late) == (20, 0)


def test_a_message_is_settled_by_the_failure_rule_when_its_work_raises(program: Program) -> None:
    program.orders.queue.send("good", "bad")

    async def work(message: Message) -> None:
        if message.body == "bad":
            raise ValueError

    report = program.consume(work, seconds=10, on_failure=dead_letter())
    assert program.orders.queue.dead_letters == ["bad"]
    assert (report.deleted, report.dead_lettered) == (1, 1)


async def generating(_: object) -> AsyncIterator[None]:
    yield
    pytest.fail("no loop runs it")


@pytest.mark.parametrize("handle", [3, generating, partial(generating)], ids=repr)
@pytest.mark.parametrize("form", ["run", "run_batches"])
def test_a_handler_that_would_not_do_its_work_is_refused(program: Program, form: str, handle: Any) -> None:
    program.orders.queue.send("a")

    async def main() -> None:
        async with program.consumer() as consumer:
            with pytest.raises(TypeError, match=r"handle (must be a function|yields)"):
                await getattr(consumer, form)(handle)

    program.run(main)
    assert program.orders.queue.visible == ["a"]


async def returning_a_coroutine(message: Message) -> object:
    return at_once(message)


async def returning_a_future(_: Message) -> object:
    return Future()  # as a pool gives it for work that has not ended


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("work", [returning_a_coroutine, returning_a_future])
def test_one_whose_work_is_returned_and_not_done_is_failed(
    program: Program, work: Any, caplog: pytest.LogCaptureFixture
) -> None:
    program.orders.queue.send("a")
    program.consume(work, seconds=10, on_failure=dead_letter())
    assert program.orders.queue.dead_letters == ["a"]
    assert "handle returned its work undone, as a " in caplog.text


def test_work_of_a_plain_function_is_done_once_and_said_to_block(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    program.orders.queue.send("a", "b")
    worked: list[str] = []
    plain: Any = lambda message: worked.append(message.body)  # noqa: E731 - a function that type checkers refuse
    report = program.consume(plain, seconds=10, on_failure=dead_letter())
    assert (sorted(worked), report.deleted) == (["a", "b"], 2)
    assert [record.levelname for record in caplog.records if "not a coroutine function" in record.message] == [
        "WARNING"
    ]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_leases_are_extended_between_messages_whose_work_never_awaits(program: Program, concurrency: int) -> None:
    program.orders.queue.send(*map(str, range(50)))

    async def blocking_work(_: Message) -> None:
        program.clock.advance(1)  # as time.sleep() does: nothing else runs meanwhile

    report = program.consume(blocking_work, seconds=300, concurrency=concurrency)
    assert (report.received, report.deleted, report.late) == (50, 50, 0)


@pytest.mark.parametrize("form", ["run", "run_batches"])
def test_another_thread_may_stop_it(program: Program, form: str) -> None:
    program.orders.queue.send("a", "b")

    async def main() -> None:
        async with program.consumer(max_messages=1, linger=0) as consumer:

            async def work(_: object) -> None:
                await asyncio.to_thread(consumer.stop)
                await asyncio.sleep(1)

            await asyncio.wait_for(getattr(consumer, form)(work), 300)

    program.run(main)
    assert (program.orders.queue.deleted, len(program.orders.queue.visible)) == (1, 1)


def test_it_stops_between_messages_whose_work_never_awaits(program: Program) -> None:
    program.orders.queue.send(*map(str, range(10)))
    worked: list[str] = []

    async def main() -> None:
        async with program.consumer() as consumer:

            async def work(message: Message) -> None:
                worked.append(message.body)
                asyncio.get_running_loop().call_soon(consumer.stop)  # as a signal does

            await consumer.run(work)

    program.run(main)
    assert len(worked) == 1
    assert len(program.orders.queue.visible) == 9


def test_a_group_keeps_its_order_and_those_behind_a_failed_one_go_back_unworked(program: Program) -> None:
    for number in range(5):
        program.orders.fifo.send(str(number), message_group_id="a")
    worked: list[str] = []

    async def work(message: Message) -> None:
        worked.append(message.body)
        await asyncio.sleep(1)
        if message.body == "1" and worked.count("1") == 1:
            raise ValueError

    program.consume(work, seconds=60, queue="orders.fifo", concurrency=5, on_failure=release())
    assert worked == ["0", "1", "1", "2", "3", "4"]
    assert program.orders.fifo.deleted == 5


def test_messages_that_lapse_while_they_wait_are_not_worked_on(program: Program) -> None:
    program.orders.queue.send("long", "waits")
    program.orders.faults = Outages([(5, 70)])
    worked: list[str] = []

    async def work(message: Message) -> None:
        worked.append(message.body)
        await asyncio.sleep(60)

    program.consume(work, seconds=65, max_messages=2)
    assert worked == ["long"], "another consumer may have the other by then"


def test_those_behind_one_that_is_dead_lettered_are_worked_on_as_they_were_received(program: Program) -> None:
    program.orders.fifo.send("a", "b", "c", message_group_id="group")
    worked: list[tuple[str, int]] = []

    async def handle(message: Message) -> None:
        worked.append((message.body, message.receive_count))
        if message.body == "a":
            raise ZeroDivisionError

    program.consume(handle, seconds=60, queue="orders.fifo", on_failure=dead_letter())
    assert worked == [("a", 1), ("b", 1), ("c", 1)]


def test_work_of_a_few_milliseconds_is_settled_by_calls_of_ten(program: Program) -> None:
    program.orders.queue.send(*map(str, range(20)))
    deletes = 0

    def count(call: TransportCall) -> Fault:
        nonlocal deletes
        deletes += call.operation is Operation.DELETE
        return NO_FAULT

    async def handle(_: Message) -> None:
        await asyncio.sleep(0.005)

    program.orders.faults = count
    assert program.consume(handle, seconds=60).deleted == 20
    assert deletes <= 4


def test_a_group_that_lapses_and_comes_again_waits_for_the_work_that_goes_on(program: Program) -> None:
    for number in range(3):
        program.orders.fifo.send(str(number), message_group_id="a")
    program.orders.faults = Outages([(5, 70)])
    worked: list[str] = []
    busy: list[Message] = []
    together: list[int] = []

    async def work(message: Message) -> None:
        worked.append(message.body)
        busy.append(message)
        together.append(len(busy))
        await asyncio.sleep(75 if len(worked) == 1 else 20)
        busy.remove(message)

    program.consume(work, seconds=300, queue="orders.fifo", concurrency=5)
    assert worked == ["0", "0", "1", "2"]
    assert set(together) == {1}, "one after the other"
    assert program.orders.fifo.deleted == 3


def test_messages_do_not_wait_for_the_garbage_collector_after_their_work_has_ended(program: Program) -> None:
    program.orders.queue.send(*map(str, range(30)))
    with no_message_left():
        assert program.consume(at_once, seconds=60).deleted == 30


class TestStopping:
    def test_no_work_begins_while_the_polls_in_flight_are_awaited(self, program: Program) -> None:
        program.orders.queue.send("a", "b", "c")
        worked: list[str] = []

        async def handle(message: Message) -> None:
            worked.append(message.body)
            await asyncio.sleep(2)

        program.consume(handle, seconds=1)
        assert len(worked) == 1
        assert len(program.orders.queue.visible) == 2

    def test_work_that_has_begun_ends_and_what_waits_is_visible_at_once(self, program: Program) -> None:
        program.orders.queue.send(*map(str, range(10)))
        seen: list[int] = []

        async def work(message: Message) -> None:
            await asyncio.sleep(15)
            seen.append(len(program.orders.queue.visible))

        report = program.consume(work, seconds=1)
        assert seen == [9]
        assert (report.deleted, report.released) == (1, 9)

    def test_work_that_does_not_end_in_time_is_cancelled_and_given_back(self, program: Program) -> None:
        program.orders.queue.send("a")
        cancelled: list[float] = []

        async def work(message: Message) -> None:
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                cancelled.append(program.clock.now())
                raise

        report = program.consume(work, seconds=10)
        assert report.released == 1
        assert program.orders.queue.visible == ["a"]
        assert cancelled == [pytest.approx(30, abs=1)]

    def test_a_program_that_is_cancelled_gives_everything_back(self, program: Program) -> None:
        program.orders.queue.send(*map(str, range(10)))

        async def work(message: Message) -> None:
            await asyncio.sleep(3_600)

        async def main() -> None:
            async with program.consumer(on_failure=dead_letter()) as consumer:
                running = asyncio.create_task(consumer.run(work, concurrency=3))
                await asyncio.sleep(10)
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
                assert len(program.orders.queue.visible) == 10

        program.run(main)

    def test_closing_it_while_it_runs_settles_what_is_in_hand(self, program: Program) -> None:
        program.orders.queue.send(*map(str, range(10)))

        async def work(message: Message) -> None:
            await asyncio.sleep(3)

        async def main() -> None:
            async with program.consumer() as consumer:
                running = asyncio.create_task(consumer.run(work))
                await asyncio.sleep(1)
            report = await running
            assert (report.deleted, report.released) == (1, 9)

        program.run(main)
        assert len(program.orders.queue.visible) == 9

    def test_an_error_that_ends_a_worker_for_good_ends_all_and_is_raised(self, program: Program) -> None:
        program.orders.queue.send(*map(str, range(10)))

        class EndError(BaseException):
            """Not an Exception."""

        async def work(message: Message) -> None:
            await asyncio.sleep(1)
            raise EndError

        async def main() -> None:
            async with program.consumer() as consumer:
                with pytest.raises(EndError):
                    await consumer.run(work)
            assert len(program.orders.queue.visible) == 10

        program.run(main)

    def test_sigterm_stops_it(self, program: Program) -> None:
        program.orders.queue.send("a", "b")

        async def work(message: Message) -> None:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(1)

        async def main() -> None:
            before = signal.getsignal(signal.SIGTERM)
            async with program.consumer() as consumer:
                report = await consumer.run(work)
            assert (report.deleted, report.released) == (1, 1)
            assert signal.getsignal(signal.SIGTERM) is before

        program.run(main)


class TestTrouble:
    def test_a_queue_that_cannot_be_used_is_told_at_once(self, program: Program) -> None:
        program.orders.faults = refused(Operation.RECEIVE)
        with pytest.raises(AccessDeniedError):
            program.consume(at_once, seconds=60)

    def test_a_refusal_after_the_first_answer_passes(self, program: Program) -> None:
        program.orders.queue.send("a")
        program.orders.faults = ScriptedFaults(NO_FAULT, DENIED, operation=Operation.RECEIVE)

        async def main() -> None:
            async with program.consumer() as consumer:
                running = asyncio.create_task(consumer.run(at_once))
                await asyncio.sleep(10)
                program.orders.queue.send("b")
                await asyncio.sleep(30)
                assert program.orders.queue.deleted == 2
                consumer.stop()
                await running

        program.run(main)

    def test_a_lease_that_is_lost_ends_it_where_the_user_asked_for_that(self, program: Program) -> None:
        program.orders.queue.send("a")
        program.orders.faults = lost(Operation.DELETE, places=1)
        with pytest.raises(LeasesLostError):
            program.consume(at_once, seconds=3_600, on_lost="raise")
        assert program.clock.now() < 60

    @pytest.mark.parametrize("kind", ["messages", "batches"])
    def test_it_goes_on_after_work_that_waited_for_something_that_was_cancelled(
        self, program: Program, kind: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        program.orders.queue.send("a")
        begun: list[float] = []

        async def work(_: Message | AsyncLeasedBatch) -> None:
            begun.append(program.clock.now())
            if len(begun) == 1:
                waited_for = asyncio.create_task(asyncio.sleep(10))
                waited_for.cancel()
                await waited_for

        async def main() -> None:
            async with program.consumer(linger=0) as consumer:
                asyncio.get_running_loop().call_later(60, consumer.stop)
                await (consumer.run(work) if kind == "messages" else consumer.run_batches(work))

        program.run(main)
        assert len(begun) == 2
        assert program.orders.queue.deleted == 1
        assert "CancelledError" in caplog.text

    def test_it_goes_on_after_an_outage_of_hours(self, program: Program) -> None:
        program.orders.queue.send("a")
        program.orders.faults = Outages([(10, 7_210)])

        async def main() -> None:
            async with program.consumer() as consumer:
                running = asyncio.create_task(consumer.run(at_once))
                await asyncio.sleep(7_200)
                program.orders.queue.send("b")
                await asyncio.sleep(30)
                assert program.orders.queue.deleted == 2
                consumer.stop()
                await running

        program.run(main)

    @pytest.mark.parametrize("answers", ["after the wait", "empty at once", "with errors"])
    def test_an_idle_consumer_does_not_spin(self, program: Program, answers: str) -> None:
        polls = 0

        def count(call: TransportCall) -> Fault:
            nonlocal polls
            polls += call.operation is Operation.RECEIVE
            return Fault(unreachable=True) if answers == "with errors" and polls > 1 else NO_FAULT

        program.orders.faults = count
        if answers == "empty at once":
            program.orders.sqs.wait_for_messages = False  # type: ignore[attr-defined]
        program.consume(at_once, seconds=3_600)
        assert polls <= 3_600


def test_batches_are_leases(program: Program) -> None:
    program.orders.queue.send(*map(str, range(35)))
    sizes: list[int] = []

    async def main() -> None:
        async with program.consumer(max_messages=10, linger=0) as consumer:

            async def work(batch: AsyncLeasedBatch) -> None:
                sizes.append(len(batch))
                await asyncio.sleep(100)
                if sum(sizes) == 35:
                    consumer.stop()

            await consumer.run_batches(work, concurrency=2)

    program.run(main)
    assert program.orders.queue.deleted == 35
    assert max(sizes) <= 10


@pytest.mark.parametrize("form", ["messages", "batches"])
def test_it_does_not_work_through_the_queue_while_deletes_are_refused(program: Program, form: str) -> None:
    program.orders.queue.send(*map(str, range(200)))
    program.orders.faults = refused(Operation.DELETE)
    worked_on: list[str] = []

    async def work(given: Message | AsyncLeasedBatch) -> None:
        worked_on.extend([given.body] if isinstance(given, Message) else [message.body for message in given])

    async def main() -> None:
        async with program.consumer(max_messages=10) as consumer:
            asyncio.get_running_loop().call_later(VISIBILITY_SECONDS - 5, consumer.stop)
            await (consumer.run(work) if form == "messages" else consumer.run_batches(work))

    program.run(main)
    # In flight at once are twice ten messages; the pauses between batches last 0.5, 1, 2, 4, 8, 10 s.
    assert len(worked_on) <= (20 if form == "messages" else 60)


def test_a_message_that_the_dead_letter_queue_refuses_does_not_keep_the_others_waiting(program: Program) -> None:
    program.orders.queue.send("bad", "bad")
    program.orders.faults = refused(Operation.SEND)
    worked_on: list[str] = []

    async def work(message: Message) -> None:
        worked_on.append(message.body)
        if message.body == "bad":
            raise ValueError

    async def main() -> None:
        async with program.consumer(max_messages=1, on_failure=dead_letter(), visibility=3600) as consumer:
            loop = asyncio.get_running_loop()
            # The bad ones are visible again at once, until SQS moves them by itself.
            loop.call_later(300, program.orders.queue.send, "good")
            loop.call_later(600, consumer.stop)
            await consumer.run(work)

    program.run(main)
    assert worked_on[-1] == "good"


def test_it_pauses_after_refused_deletes_also_when_the_work_failed_a_message(program: Program) -> None:
    program.orders.queue.send(*map(str, range(200)))
    program.orders.faults = refused(Operation.DELETE)
    worked_on: list[str] = []

    async def work(batch: AsyncLeasedBatch) -> None:
        worked_on.extend(message.body for message in batch)
        raise MessageFailed({next(iter(batch)).message_id: "bad"})

    async def main() -> None:
        async with program.consumer(max_messages=10) as consumer:
            asyncio.get_running_loop().call_later(VISIBILITY_SECONDS - 5, consumer.stop)
            await consumer.run_batches(work)

    program.run(main)
    assert len(worked_on) <= 60


@pytest.mark.parametrize("form", ["run", "run_batches"])
def test_it_ends_with_an_error_if_the_queue_can_never_be_leased_from(program: Program, form: str) -> None:
    program.orders.sqs.create_queue("instant", visibility_seconds=0)

    async def main() -> None:
        async with program.consumer("instant", visibility=None) as consumer:
            with pytest.raises(ValueError, match="visibility timeout is 0 s"):
                await getattr(consumer, form)(at_once)

    program.run(main)


def test_a_batch_is_given_back_when_its_work_does_not_end_in_time(program: Program) -> None:
    program.orders.queue.send("a")

    async def main() -> None:
        async with program.consumer(linger=0) as consumer:

            async def work(batch: AsyncLeasedBatch) -> None:
                consumer.stop()
                await asyncio.sleep(3_600)

            await consumer.run_batches(work, stop_within=5)
            assert program.clock.now() < 10

    program.run(main)
    assert program.orders.queue.visible == ["a"]


def test_work_that_swallows_its_cancellation_does_not_keep_the_consumer_running(program: Program) -> None:
    program.orders.queue.send("a", "b")

    async def main() -> None:
        async with program.consumer(linger=0) as consumer:

            async def work(_: Message) -> None:
                consumer.stop()
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(3_600)

            await consumer.run(work, stop_within=5)
            assert program.clock.now() < 10

    program.run(main)
    assert sorted(program.orders.queue.visible) == ["a", "b"]


def test_a_lease_that_is_open_when_its_consumer_is_closed_says_so(program: Program) -> None:
    program.orders.queue.send("a")

    async def main() -> None:
        consumer = program.consumer(linger=0)
        async with consumer.lease() as batch:
            await consumer.aclose()
            await batch.succeed(list(batch))

    with pytest.raises(KeeperClosedError, match=r"1 message of .*: no longer held here.* was closed"):
        program.run(main)
    assert program.orders.queue.deleted == 0


def test_leases_of_one_consumer_share_its_client(program: Program) -> None:
    program.orders.queue.send("a", "b")

    async def main() -> None:
        async with program.consumer(max_messages=1, wait=0) as consumer:
            leases = [consumer.lease(), consumer.lease()]
            async with leases[0] as first, leases[1] as second:
                assert {message.body for message in (*first, *second)} == {"a", "b"}
        assert program.orders.queue.deleted == 2
        assert len(program.orders.transports) == 1

    program.run(main)
