"""``async with async_lease(...)``: on the program's own loop, by the same rules as ``lease``. Time is virtual."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest

from sqs_lease import (
    AsyncLeasedBatch,
    LeaseEvent,
    LeasesLostError,
    MessageFailed,
    SettlementError,
    async_lease,
    dead_letter,
    lease,
)
from sqs_lease.asynchronous import AsyncLeaseBlock
from sqs_lease.core.policies import Fixed
from sqs_lease.keeper.open_queue import OpenQueue
from sqs_lease.keeper.options import LeaseOptions
from sqs_lease.keeper.session import LeaseSession, LeaseSettings
from sqs_lease.sqs.errors import AccessDeniedError
from sqs_lease.testing import NO_FAULT, Fault, Operation, Outages, ScriptedFaults, VirtualClock, run_virtual
from sqs_lease.testing.service_errors import UNAVAILABLE
from tests.blocking.orders import DENIED, Orders, eventually, lost, no_message_left, refused

POLICY = Fixed(visibility=30, every=20)


class Program:
    """A program on virtual time, and the queues that it leases from."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.orders = Orders(self.clock)

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        async def within() -> None:
            await main()

        run_virtual(within, clock=self.clock)

    def lease(self, queue: str = "orders", **options: Any) -> AsyncLeaseBlock:
        """Make a lease block on this clock; it receives at once, unless ``linger`` says otherwise."""
        on_event, on_lost = options.pop("on_event", None), options.pop("on_lost", "warn")
        asked = LeaseOptions.of(**{"wait": 0, "linger": 0, "policy": POLICY, **options})
        settings = LeaseSettings(queue=queue, options=asked, on_lost=on_lost)

        async def open_queue() -> OpenQueue:
            return OpenQueue(self.orders.transport(), queue, asked, clock=self.clock)

        return AsyncLeaseBlock(settings, on_event, open_queue, closes_queue=True)


@pytest.fixture
def program() -> Program:
    return Program()


def test_messages_that_the_program_drops_do_not_wait_for_the_garbage_collector(program: Program) -> None:
    program.orders.queue.send("a", "b", "c")

    async def main() -> None:
        async with program.lease() as batch:
            assert len(batch) == 3

    with no_message_left():
        program.run(main)


def test_messages_are_held_while_the_program_works_and_deleted_at_the_end(program: Program) -> None:
    queue = program.orders.queue
    queue.send("a", "b", "c")

    async def main() -> None:
        async with program.lease() as batch:
            await asyncio.sleep(3600)
            assert queue.invisible == ["a", "b", "c"]
            assert [message.body for message in batch] == ["a", "b", "c"]
            first, second, _ = batch
            await batch.fail(first, "it is bad")
            await batch.succeed(second.message_id)
            assert not batch.still_held(second)
            await batch.flush()
            assert queue.visible == ["a"]
            assert not batch.still_held(second)
        report = batch.report()
        assert (report.received, report.deleted, report.released, report.late) == (3, 2, 1, 0)

    program.run(main)


@pytest.mark.parametrize(
    ("error", "visible", "dead"),
    [
        (lambda ids: ZeroDivisionError(), [], ["a", "b"]),
        (lambda ids: MessageFailed(ids[:1]), [], ["a"]),
        (lambda ids: ExceptionGroup("", [MessageFailed(one) for one in ids]), [], ["a", "b"]),
        (lambda ids: asyncio.CancelledError(), ["a", "b"], []),
    ],
    ids=["any", "named", "a group", "cancelled"],
)
def test_the_rules_for_what_the_block_raises_are_those_of_lease(
    program: Program, error: Callable[[list[str]], BaseException], visible: list[str], dead: list[str]
) -> None:
    program.orders.queue.send("a", "b")

    async def main() -> None:
        async with program.lease(on_failure=dead_letter()) as batch:
            raise error([message.message_id for message in batch])

    with pytest.raises((Exception, asyncio.CancelledError)):
        program.run(main)
    assert program.orders.queue.visible == visible
    assert program.orders.queue.dead_letters == dead


class TestCancellation:
    def test_a_block_that_is_cancelled_twice_gives_back_all_the_same(self, program: Program) -> None:
        program.orders.queue.send("a")
        program.orders.faults = slow(Operation.CHANGE_VISIBILITY, 2.0)

        async def main() -> None:
            async def work() -> None:
                async with program.lease(on_failure=dead_letter()):
                    await asyncio.sleep(3600)

            working = asyncio.create_task(work())
            await asyncio.sleep(1)
            working.cancel()
            await asyncio.sleep(1)
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert program.orders.queue.visible == ["a"]

        program.run(main)

    def test_one_that_comes_while_messages_are_deleted_waits_for_that(self, program: Program) -> None:
        program.orders.queue.send("a")
        program.orders.faults = slow(Operation.DELETE, 2.0)

        async def main() -> None:
            async def work() -> None:
                async with program.lease():
                    pass

            working = asyncio.create_task(work())
            await asyncio.sleep(1)
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert program.orders.queue.deleted == 1

        program.run(main)

    @pytest.mark.parametrize("first", [0.5 * step for step in range(1, 60)])
    def test_one_that_comes_twice_while_it_receives_leaves_no_message_in_flight(
        self, program: Program, first: float
    ) -> None:
        """10 of 25 stayed in flight at 20 of 532 points, and nothing was said."""
        program.orders.queue.send(*map(str, range(25)))
        program.orders.faults = lambda call: Fault(before_seconds=0.7, after_seconds=0.9)

        async def main() -> None:
            async def work() -> None:
                async with program.lease(max_messages=25, wait=20, linger=5):
                    await asyncio.sleep(3_600)

            working = asyncio.create_task(work())
            await asyncio.sleep(first)
            working.cancel()
            await asyncio.sleep(0.3)
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert program.orders.queue.invisible == []

        program.run(main)

    def test_one_that_comes_between_the_receive_and_the_block_gives_back(self, program: Program) -> None:
        program.orders.queue.send("a")

        async def main() -> None:
            async def work() -> None:
                async with program.lease():
                    pytest.fail("the block is not entered")

            def cancel_when_received(
                loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
            ) -> asyncio.Task[Any]:
                task = asyncio.Task(coroutine, loop=loop, **options)
                if coroutine.__qualname__ == LeaseSession.receive.__qualname__:
                    # Before the program is told that it has ended.
                    task.add_done_callback(lambda _: working.cancel())
                return task

            working = asyncio.create_task(work())
            asyncio.get_running_loop().set_task_factory(cancel_when_received)
            with pytest.raises(asyncio.CancelledError):
                await working
            await asyncio.sleep(3600)
            assert program.orders.queue.visible == ["a"]

        program.run(main)

    @pytest.mark.parametrize("settles", [False, True], ids=["at the end", "before"])
    def test_a_task_that_is_cancelled_with_all_others_of_the_loop_gives_back(
        self, program: Program, *, settles: bool
    ) -> None:
        program.orders.queue.send("a", "b")

        async def main() -> None:
            async def work() -> None:
                async with program.lease() as batch:
                    if settles:
                        await batch.succeed(next(iter(batch)))
                    await asyncio.sleep(3600)

            working = asyncio.create_task(work())
            await asyncio.sleep(25)
            # As asyncio.run() does at the end of a program.
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            began_at = program.clock.now()
            await asyncio.gather(*others, return_exceptions=True)
            assert working.cancelled()
            assert program.clock.now() - began_at < 5
            assert program.orders.queue.visible == (["b"] if settles else ["a", "b"])

        program.run(main)

    def test_a_receive_that_is_cancelled_gives_back_what_it_took(self, program: Program) -> None:
        async def main() -> None:
            async def work() -> None:
                async with program.lease(wait=20, linger=20, on_failure=dead_letter()):
                    pytest.fail("the block is not entered")

            program.orders.queue.send("a")
            working = asyncio.create_task(work())
            await asyncio.sleep(5)
            assert program.orders.queue.invisible == ["a"]
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert program.orders.queue.visible == ["a"]

        program.run(main)

    def test_giving_back_what_a_receive_took_takes_ten_seconds_at_most(self, program: Program) -> None:
        program.orders.queue.send("a")
        program.orders.faults = refused(Operation.CHANGE_VISIBILITY, UNAVAILABLE)

        async def main() -> None:
            async def work() -> None:
                async with program.lease(wait=5, linger=5, policy=Fixed(visibility=600, every=400)):
                    pytest.fail("the block is not entered")

            working = asyncio.create_task(work())
            await asyncio.sleep(2)
            working.cancel()
            await asyncio.wait([working])
            assert program.clock.now() <= 5 + 10 + 10, "its poll, ten seconds, and what a call under way may take"

        program.run(main)

    def test_giving_back_takes_ten_seconds_at_most(self, program: Program, caplog: pytest.LogCaptureFixture) -> None:
        program.orders.queue.send("a")
        program.orders.faults = Outages([(1, 3600)])

        async def main() -> None:
            async def work() -> None:
                async with program.lease(policy=Fixed(visibility=600, every=400)):
                    await asyncio.sleep(3600)

            working = asyncio.create_task(work())
            await asyncio.sleep(2)
            working.cancel()
            await asyncio.wait([working])
            assert program.clock.now() <= 2 + 10 + 20, "ten seconds, and what its calls under way may take"

        program.run(main)
        assert "could be settled in time" in caplog.text


def slow(operation: Operation, seconds: float) -> Callable[[Any], Fault]:
    """The service takes its time for a kind of call."""
    return lambda call: Fault(before_seconds=seconds) if call.operation is operation else NO_FAULT


class TestWhatWasNotAsAsked:
    def test_a_receive_that_fails_gives_everything_back_whatever_the_failure_rule(self, program: Program) -> None:
        program.orders.queue.send("a", "b")
        program.orders.faults = ScriptedFaults(NO_FAULT, DENIED, operation=Operation.RECEIVE)

        async def main() -> None:
            with pytest.raises(AccessDeniedError):
                async with program.lease(linger=5, on_failure=dead_letter()):
                    pytest.fail("the block is not entered")

        program.run(main)
        assert program.orders.queue.visible == ["a", "b"]

    def test_a_refused_settlement_is_an_error_at_the_end(self, program: Program) -> None:
        program.orders.queue.send("a")
        program.orders.faults = refused(Operation.DELETE)

        async def main() -> None:
            with pytest.raises(SettlementError, match="sqs:DeleteMessage"):
                async with program.lease():
                    pass

        program.run(main)

    def test_a_refused_settlement_is_an_error_when_it_is_waited_for(self, program: Program) -> None:
        program.orders.queue.send("a")
        program.orders.faults = refused(Operation.DELETE)

        async def main() -> None:
            async with program.lease() as batch:
                await batch.succeed(batch)
                with pytest.raises(SettlementError):
                    await batch.flush()
                with pytest.raises(KeyError):
                    await batch.release("a stranger")

        program.run(main)

    def test_leases_that_lapsed_are_not_certain_any_more(
        self, program: Program, caplog: pytest.LogCaptureFixture
    ) -> None:
        program.orders.queue.send(*map(str, range(25)))
        program.orders.faults = Outages([(10, 60)])
        held: list[bool] = []

        async def main() -> None:
            async with program.lease(max_messages=25, linger=1) as batch:
                (message, *_) = batch
                held.append(batch.still_held(message))
                await asyncio.sleep(50)
                held.append(batch.still_held(message))
                await asyncio.sleep(50)
                # It was extended again since, but another consumer may have it as well.
                held.append(batch.still_held(message))
            assert batch.report().late == 25
            assert batch.report().deleted == 0

        with caplog.at_level(logging.WARNING, logger="sqs_lease.keeper.session"):
            program.run(main)
        assert held == [True, False, False]
        summaries = [record for record in caplog.records if record.name == "sqs_lease.keeper.session"]
        assert len(summaries) == 1
        assert "25 messages were deleted after their leases had ended" in summaries[0].getMessage()
        lapsed = [record for record in caplog.records if "ran out" in record.getMessage()]
        assert len(lapsed) == 1

    def test_they_are_an_error_by_choice(self, program: Program) -> None:
        program.orders.queue.send("a")
        program.orders.faults = Outages([(10, 60)])

        async def main() -> None:
            with pytest.raises(LeasesLostError, match="1 time a lease lapsed") as caught:
                async with program.lease(on_lost="raise"):
                    await asyncio.sleep(100)
            assert caught.value.lapsed == 1
            assert len(caught.value.uncertain) == 1

        program.run(main)

    def test_a_note_says_what_was_lost_where_the_block_raises(self, program: Program) -> None:
        program.orders.queue.send("a")
        program.orders.faults = lost(Operation.CHANGE_VISIBILITY, places=1)

        async def main() -> None:
            async with program.lease(on_lost="raise"):
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as caught:
            program.run(main)
        assert "1 lease was lost" in caught.value.__notes__[0]


class TestListeners:
    def test_one_is_told_in_a_thread_of_its_own_and_may_ask_the_batch(self, program: Program) -> None:
        program.orders.queue.send("a")
        told: list[LeaseEvent] = []
        received: list[int] = []
        batches: list[AsyncLeasedBatch] = []

        def listen(event: LeaseEvent) -> None:
            told.append(event)
            received.append(batches[0].report().received)

        async def main() -> None:
            async with program.lease(on_event=listen) as batch:
                batches.append(batch)
            eventually(lambda: received == [1])

        program.run(main)
        assert len(told) == 1


class TestTheBlock:
    def test_its_messages_are_settled_within_it_only(self, program: Program) -> None:
        program.orders.queue.send("a")

        async def main() -> None:
            async with program.lease() as batch:
                pass
            with pytest.raises(RuntimeError, match="has ended"):
                await batch.succeed(batch)
            with pytest.raises(RuntimeError, match="has ended"):
                await batch.fail_each({message.message_id: "late" for message in batch})

        program.run(main)

    def test_a_lease_is_for_one_block(self, program: Program) -> None:
        async def main() -> None:
            block = program.lease()
            async with block:
                pass
            with pytest.raises(RuntimeError, match="used already"):
                await block.__aenter__()

        program.run(main)

    def test_its_messages_belong_to_its_loop(self, program: Program) -> None:
        program.orders.queue.send("a")

        async def main() -> None:
            async with program.lease() as batch:

                def elsewhere() -> None:
                    asyncio.run(batch.succeed(batch))

                with pytest.raises(RuntimeError, match=r"another event loop.*run_coroutine_threadsafe"):
                    await asyncio.to_thread(elsewhere)

        program.run(main)

    def test_one_that_was_entered_and_never_left_gives_back(self, program: Program) -> None:
        program.orders.queue.send("a")

        async def main() -> None:
            block = program.lease()
            await block.__aenter__()
            del block
            gc.collect()
            await asyncio.sleep(1)
            assert program.orders.queue.visible == ["a"]

        program.run(main)

    def test_a_generator_that_is_dropped_within_it_gives_back(self, program: Program) -> None:
        program.orders.queue.send("a", "b")

        async def bodies() -> AsyncIterator[str]:
            async with program.lease(on_failure=dead_letter()) as batch:
                for message in batch:
                    yield message.body

        async def main() -> None:
            async def consume() -> None:
                async for _ in bodies():
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await consume()
            await asyncio.sleep(1)
            assert program.orders.queue.visible == ["a", "b"]

        program.run(main)

    def test_its_tasks_keep_nothing_alive_that_the_programs_context_leads_to(self, program: Program) -> None:
        class Request:
            """An object that a web framework keeps in its context, say."""

        variable: ContextVar[Request] = ContextVar("request")

        async def main() -> None:
            async def enter() -> tuple[AsyncLeaseBlock, weakref.ref[Request]]:
                variable.set(Request())
                block = program.lease()
                await block.__aenter__()
                return block, weakref.ref(variable.get())

            block, request = await asyncio.create_task(enter())
            await asyncio.sleep(1)
            gc.collect()
            assert request() is None
            await block.__aexit__(None, None, None)

        program.run(main)


def test_on_the_machines_own_time_it_takes_from_the_same_queues_as_lease(orders: Orders) -> None:
    orders.queue.send("a", "b")

    async def main() -> None:
        async with async_lease("orders", max_messages=1) as batch:
            assert [message.body for message in batch] == ["a"]

    asyncio.run(main())
    with lease("orders", max_messages=1) as batch:
        assert [message.body for message in batch] == ["b"]
    assert orders.queue.deleted == 2


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_told_that_it_has_no_lease_and_leaves_the_block_in_peace(orders: Orders) -> None:
    orders.queue.send("a")

    async def leave_as_a_child(block: AsyncLeaseBlock, batch: AsyncLeasedBatch) -> None:
        signal.alarm(20)  # so that a child that hangs ends
        assert batch.report().held == 1
        with pytest.raises(RuntimeError, match=r"held by process \d+, and this is a forked child"):
            await batch.succeed(batch)
        # As sys.exit() in the child does.
        await block.__aexit__(SystemExit, SystemExit(0), None)

    async def main() -> None:
        block = async_lease("orders", linger=0)
        async with block as batch:
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    leave_as_a_child(block, batch).send(None)
                except StopIteration:
                    code = 0  # it ended, and waited for nothing
                finally:
                    os._exit(code)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            assert orders.queue.invisible == ["a"]

    asyncio.run(main())
    assert orders.queue.deleted == 1
