"""``with lease(...)``: what becomes of the messages however its block ends, and what the user is told.

The queues are in memory; tests/blocking/test_on_a_real_server.py has a real SQS server.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from functools import partial
from random import Random
from threading import Event, Thread, get_ident
from typing import Any

import pytest

from sqs_lease import (
    AsyncConsumer,
    Consumer,
    DeadLetter,
    FailureRule,
    LeasedBatch,
    LeaseEvent,
    LeasesLostError,
    MessageFailed,
    Outcome,
    Release,
    Settled,
    Settlement,
    SettlementError,
    async_lease,
    blocking,
    by_exception,
    dead_letter,
    expire,
    lease,
    release,
)
from sqs_lease.keeper import session
from sqs_lease.sqs.errors import AccessDeniedError
from sqs_lease.testing import NO_FAULT, Fault, MemoryTransport, Operation, ScriptedFaults, TransportCall, no_faults
from sqs_lease.testing.service_errors import UNAVAILABLE
from tests.blocking.orders import DENIED, Orders, eventually, lost, no_message_left, refused


async def asynchronous(_: object) -> None:
    pytest.fail("no loop runs it")


def generating(_: object) -> Iterator[None]:
    yield
    pytest.fail("no loop runs it")


def bodies(batch: LeasedBatch) -> list[str]:
    return [message.body for message in batch]


class TestBeforeTheBlock:
    @pytest.mark.parametrize("visibility", [None, 30])
    @pytest.mark.parametrize(
        "rule", [dead_letter(), by_exception({ValueError: dead_letter()}), by_exception({ValueError: release()})]
    )
    def test_a_rule_that_may_dead_letter_is_refused_for_a_queue_without_dead_letters(
        self, orders: Orders, rule: FailureRule, visibility: int | None
    ) -> None:
        url = orders.sqs.create_queue("plain")
        orders.sqs.send(url, "a")

        def take() -> list[int]:
            with lease("plain", visibility=visibility, on_failure=rule, wait=0) as batch:
                return [message.receive_count for message in batch]

        if rule.may_dead_letter:
            with pytest.raises(ValueError, match=r"nothing is received from plain: .* redrive policy"):
                take()
            with lease("plain", wait=0) as batch:
                assert [message.receive_count for message in batch] == [1]
        else:
            assert take() == [1]

    def test_a_receive_that_fails_gives_everything_back_whatever_the_failure_rule(self, orders: Orders) -> None:
        orders.queue.send("a", "b")
        # The first poll brings both, the second one looks for more and is denied.
        orders.faults = ScriptedFaults(NO_FAULT, DENIED, operation=Operation.RECEIVE)
        with pytest.raises(AccessDeniedError, match="orders"), lease("orders", on_failure=dead_letter()):
            pytest.fail("the block is not entered")
        assert orders.queue.visible == ["a", "b"]
        assert orders.queue.dead_letters == []

    def test_up_to_as_many_are_received_as_were_asked_for(self, orders: Orders) -> None:
        orders.queue.send(*map(str, range(30)))
        with lease("orders", max_messages=30) as batch:
            assert len(batch) == 30

    def test_a_visibility_timeout_is_rounded_up(self, orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[int | None] = []
        receive = MemoryTransport.receive

        async def noting(self: MemoryTransport, url: str, **arguments: Any) -> Any:
            asked.append(arguments["visibility_seconds"])
            return await receive(self, url, **arguments)

        monkeypatch.setattr(MemoryTransport, "receive", noting)
        with lease("orders", wait=0, visibility=7.1):
            pass
        assert asked == [8]

    def test_a_lease_is_for_one_block(self, orders: Orders) -> None:
        block = lease("orders", wait=0)
        with block:
            pass
        with pytest.raises(RuntimeError, match=r"used already: call lease\(\) for each block"), block:
            pytest.fail("the block is not entered")

    def test_without_a_with_statement_it_says_that_it_needs_one(self) -> None:
        with pytest.raises(TypeError, match=r"write `with lease\(\.\.\.\) as batch:`"):
            list(lease("orders", wait=0))  # type: ignore[call-overload]

    @pytest.mark.parametrize("listener", [3, asynchronous, partial(asynchronous), generating], ids=repr)
    def test_a_listener_that_would_do_nothing_is_refused(self, listener: Any) -> None:
        for made in (lease, async_lease, Consumer, AsyncConsumer):
            with pytest.raises(TypeError, match=r"on_event (must be a function|is async|yields)"):
                made("orders", on_event=listener)

    @pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
    def test_one_that_returns_its_work_undone_is_an_error_in_the_log(
        self, orders: Orders, caplog: pytest.LogCaptureFixture
    ) -> None:
        orders.queue.send("a")

        def listener(event: LeaseEvent) -> Any:
            return asynchronous(event)

        with lease("orders", linger=0, on_event=listener):
            pass
        assert "The listener of a lease of orders failed" in caplog.text
        assert "on_event returned its work undone, as a coroutine" in caplog.text

    def test_on_lost_is_checked(self) -> None:
        with pytest.raises(ValueError, match="on_lost must be 'warn' or 'raise', not 'fail'"):
            lease("orders", on_lost="fail")  # type: ignore[arg-type]

    def test_the_region_is_that_of_the_queue_where_no_region_is_configured(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in list(os.environ):
            if name.startswith("AWS_"):
                monkeypatch.delenv(name)
        for name, value in {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "CONFIG_FILE": os.devnull}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        transport: Any = blocking.open_transport(None, "https://sqs.eu-west-1.amazonaws.com/123456789012/orders")
        assert transport._given.meta.region_name == "eu-west-1"


def fail() -> None:
    raise ZeroDivisionError


class Step:
    """It keeps its error, as a Dagster step does, and the program's context leads to it."""

    error: Exception | None = None


STEP: ContextVar[Step] = ContextVar("step")


class TestArgumentsOfSettlements:
    @pytest.mark.parametrize("rule", [release(), dead_letter()])
    @pytest.mark.parametrize("reason", [ValueError("a body"), None], ids=repr)
    def test_a_reason_that_is_not_a_text_is_refused_and_nothing_is_settled_by_it(
        self, orders: Orders, rule: FailureRule, reason: Any
    ) -> None:
        orders.queue.send("a", "b")
        with lease("orders", linger=0, on_failure=rule) as batch:
            first, second = batch
            with pytest.raises(TypeError, match="the reason for a failure must be a text") as refusal:
                batch.fail(first, reason)
            assert "a body" not in str(refusal.value)
            with pytest.raises(TypeError, match="the reason for a failure must be a text"):
                batch.fail_each({first.message_id: "is bad", second.message_id: reason})
        assert orders.queue.deleted == 2

    def test_each_reason_needs_its_message(self, orders: Orders) -> None:
        orders.queue.send("a")
        with lease("orders", linger=0) as batch:
            for reasons in (*(m.message_id for m in batch), [m.message_id for m in batch]):
                with pytest.raises(TypeError, match="fail_each takes a mapping of message ids to reasons"):
                    batch.fail_each(reasons)  # type: ignore[arg-type]
        assert orders.queue.deleted == 1

    @pytest.mark.parametrize("errors", [[ValueError], "builtins.ValueError", ValueError("a body"), 3], ids=repr)
    def test_classes_that_no_rule_would_find_are_refused(self, orders: Orders, errors: Any) -> None:
        orders.queue.send("a")
        with lease("orders", linger=0, on_failure=by_exception({ValueError: dead_letter()})) as batch:
            with pytest.raises(TypeError, match=r"errors takes .*builtins\.ValueError") as refusal:
                batch.fail(list(batch), "is bad", errors=errors)
            assert "a body" not in str(refusal.value)
        assert orders.queue.deleted == 1

    def test_a_built_in_class_needs_no_module_as_in_the_rule(self, orders: Orders) -> None:
        orders.queue.send("a")
        with lease("orders", linger=0, on_failure=by_exception({"ValueError": dead_letter()})) as batch:
            batch.fail(list(batch), "is bad", errors=["ValueError"])
        assert orders.queue.dead_letters == ["a"]

    def test_a_message_may_be_named_by_what_tasks_get(self, orders: Orders) -> None:
        orders.queue.send("a", "b")
        with lease("orders", linger=0) as batch:
            batch.release([message.as_dict() for message in batch])  # type: ignore[misc]
        assert orders.queue.visible == ["a", "b"]

    @pytest.mark.parametrize("named", [None, 3, [None], [{"Body": "a body"}]], ids=repr)
    def test_other_things_than_messages_are_refused_by_their_type(self, orders: Orders, named: Any) -> None:
        orders.queue.send("a")
        with lease("orders", linger=0) as batch:
            with pytest.raises(TypeError, match="named by themselves or by their ids") as refusal:
                batch.release(named)
            assert "a body" not in str(refusal.value)

    def test_a_body_in_the_place_of_an_id_is_not_quoted(self, orders: Orders) -> None:
        orders.queue.send("a body")
        with lease("orders", linger=0) as batch:
            (message,) = batch
            with pytest.raises(KeyError, match="a text of 6 characters that is not a message's id") as refusal:
                batch.succeed(message.body)
            assert "a body" not in str(refusal.value)

    @pytest.mark.parametrize("settlement", [lambda: Release(2.5), lambda: DeadLetter(None)])  # type: ignore[arg-type]
    def test_a_rule_that_answers_with_something_impossible_gives_back_at_once(
        self, orders: Orders, settlement: Callable[[], Settlement]
    ) -> None:
        class Impossible(FailureRule):
            def settlement(self, *, receive_count: int, reason: str, random: Random) -> Settlement:
                return settlement()

        orders.queue.send("a")
        with pytest.raises(ZeroDivisionError), lease("orders", linger=0, on_failure=Impossible()):
            fail()
        assert orders.queue.visible == ["a"]


class TestABlockThatIsDropped:
    def bodies(self) -> Iterator[str]:
        with lease("orders", linger=0, on_failure=dead_letter()) as batch:
            for message in batch:
                yield message.body

    def test_a_generator_gives_back_at_once_when_its_consumer_fails(self, orders: Orders) -> None:
        orders.queue.send("a", "b")

        def consume() -> None:
            for _ in self.bodies():
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            consume()
        assert orders.queue.visible == ["a", "b"]
        assert orders.queue.dead_letters == []

    def test_so_does_one_in_a_circle_that_the_context_of_its_consumer_leads_to(self, orders: Orders) -> None:
        orders.queue.send("a", "b")

        def consume() -> None:
            step = Step()
            STEP.set(step)
            generator = self.bodies()
            try:
                for _ in generator:
                    fail()
            except ZeroDivisionError as error:
                # From here to the traceback, this frame, the generator, and back.
                step.error = error

        copy_context().run(consume)
        gc.collect()
        eventually(lambda: orders.queue.visible == ["a", "b"])
        eventually(lambda: not any(thread.name == "sqs-lease orders" for thread in threading.enumerate()))

    def test_so_does_one_that_is_closed_in_another_thread(self, orders: Orders) -> None:
        orders.queue.send("a")
        generator = self.bodies()
        next(generator)
        closing = Thread(target=generator.close)  # type: ignore[attr-defined]
        closing.start()
        closing.join(60)
        eventually(lambda: orders.queue.visible == ["a"])

    def test_so_does_one_that_is_closed_in_the_leases_own_thread(self, orders: Orders) -> None:
        orders.queue.send("a")
        block = lease("orders", linger=0)

        def suspended() -> Iterator[None]:
            with block:
                yield

        generator = suspended()
        next(generator)

        async def close() -> None:
            generator.close()  # type: ignore[attr-defined]

        assert block._open is not None
        block._open._host.run(close())
        eventually(lambda: orders.queue.visible == ["a"])

    def test_so_does_a_block_that_was_entered_and_never_left(
        self, orders: Orders, caplog: pytest.LogCaptureFixture
    ) -> None:
        orders.queue.send("a")
        block = lease("orders", linger=0)
        block.__enter__()
        del block
        gc.collect()
        eventually(lambda: orders.queue.visible == ["a"])
        eventually(lambda: "was dropped before its block ended" in caplog.text)

    @pytest.mark.parametrize("how", ["a method of its owner", "a function that refers to the batch"])
    def test_a_listener_does_not_keep_it_alive(self, orders: Orders, how: str) -> None:
        orders.queue.send("a", "b")

        class Loader:
            def __init__(self) -> None:
                self.told: list[LeaseEvent] = []
                self.batch: LeasedBatch | None = None

            def happened(self, event: LeaseEvent) -> None:
                self.told.append(event)

            def bodies(self) -> Iterator[str]:
                def listen(event: LeaseEvent) -> None:
                    self.happened(event)

                listener = self.happened if "method" in how else listen
                with lease("orders", linger=0, on_event=listener) as self.batch:
                    # Its thread has started, and waits for more.
                    self.batch.succeed(next(iter(self.batch)))
                    self.batch.flush()
                    eventually(lambda: bool(self.told))
                    for message in self.batch:
                        yield message.body

        suspended = Loader().bodies()
        assert next(suspended) == "a"
        del suspended
        gc.collect()
        eventually(lambda: orders.queue.visible == ["b"])

    def test_nor_does_one_keep_its_owner_alive_where_the_block_is_never_left(self, orders: Orders) -> None:
        orders.queue.send("a", "b")

        class Loader:
            def __init__(self) -> None:
                self.told: list[LeaseEvent] = []
                self.batch = lease("orders", linger=0, on_event=self.happened).__enter__()

            def happened(self, event: LeaseEvent) -> None:
                self.told.append(event)

        loader = Loader()
        loader.batch.succeed(next(iter(loader.batch)))
        loader.batch.flush()
        told = loader.told
        eventually(lambda: bool(told))
        owner = weakref.ref(loader)
        del loader
        for _ in range(50):
            # The listener's thread may be at the end of the call that told it.
            gc.collect()
            if owner() is None:
                break
        assert owner() is None
        eventually(lambda: orders.queue.visible == ["b"])

    def test_a_batch_that_is_still_there_keeps_its_messages(self, orders: Orders) -> None:
        orders.queue.send("a")
        batch = lease("orders", linger=0).__enter__()
        gc.collect()
        batch.succeed(batch)
        batch.flush()
        assert orders.queue.deleted == 1

    def test_a_host_may_give_back_what_will_not_be_left(self, orders: Orders) -> None:
        orders.queue.send("a", "b")
        block = lease("orders", linger=0, on_failure=dead_letter())

        def work() -> None:
            with block as batch:
                first, _ = batch
                batch.succeed(first)
                block.give_back()
                block.give_back()
                assert orders.queue.visible == ["b"]
                assert batch.report().released == 1
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            work()
        assert orders.queue.dead_letters == []

    def test_work_goes_on_without_its_messages_only_with_an_error(self, orders: Orders) -> None:
        orders.queue.send("a")
        block = lease("orders", linger=0)
        with pytest.raises(RuntimeError, match="given back before its block ended"), block:
            block.give_back()

    def test_an_interpreter_that_ends_does_not_wait_for_it(self) -> None:
        program = """
import sqs_lease.blocking
from sqs_lease import lease
from sqs_lease.testing import LeasedQueues, MemoryTransport

queues = LeasedQueues()
queues.create("orders", "a")
sqs_lease.blocking.open_transport = lambda client, queue: MemoryTransport(queues.sqs)

def bodies():
    with lease("orders", linger=0) as batch:
        for message in batch:
            yield message.body

suspended = bodies()
print(next(suspended))
"""
        ended = subprocess.run(
            [sys.executable, "-c", program],
            timeout=120,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert (ended.stdout, ended.stderr) == ("a\n", "")


class TestAMessageThatIsSettledTwice:
    @pytest.mark.parametrize("first", ["succeed", "fail", "release"])
    def test_the_first_wish_counts_also_where_both_reach_the_keeper_together(self, orders: Orders, first: str) -> None:
        orders.queue.send("a")
        both_asked = Event()
        with lease("orders", linger=0, on_failure=dead_letter()) as batch:
            assert isinstance(batch, blocking.OwnLeasedBatch)
            ask: dict[str, Callable[[], None]] = {
                "succeed": lambda: batch.succeed(batch),
                "fail": lambda: batch.fail(batch, "cannot be read"),
                "release": lambda: batch.release(batch),
            }
            batch._lease._host.post(lambda: both_asked.wait(60))
            ask.pop(first)()
            for settle in ask.values():
                settle()
            both_asked.set()
        report = batch.report()
        ends = {"succeed": report.deleted, "fail": report.dead_lettered, "release": report.released}
        assert ends == {**dict.fromkeys(ends, 0), first: 1}


class TestABlockThatRaises:
    def test_a_group_of_message_failed_fails_the_messages_of_all_and_no_others(self, orders: Orders) -> None:
        orders.queue.send("a", "b", "c")

        def work() -> None:
            with lease("orders", linger=0) as batch:
                first, second, _ = batch
                inner = ExceptionGroup("", [MessageFailed(first.message_id)])
                raise ExceptionGroup("", [inner, MessageFailed([second.message_id])])

        with pytest.raises(ExceptionGroup):
            work()
        assert orders.queue.visible == ["a", "b"]
        assert orders.queue.deleted == 1

    def test_a_group_with_another_exception_fails_all_by_the_rule_for_what_they_share(self, orders: Orders) -> None:
        orders.queue.send("a", "b")
        rule = by_exception({LookupError: dead_letter()}, otherwise=expire())
        with pytest.raises(ExceptionGroup), lease("orders", linger=0, on_failure=rule):
            raise ExceptionGroup("", [KeyError(), IndexError()])
        assert sorted(orders.queue.dead_letters) == ["a", "b"]

    def test_messages_that_were_settled_before_stay_so(self, orders: Orders) -> None:
        orders.queue.send("a", "b", "c")

        def work() -> None:
            with lease("orders", linger=0, on_failure=dead_letter()) as batch:
                first, second, _ = batch
                batch.succeed(first)
                batch.release(second)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            work()
        assert (orders.queue.visible, orders.queue.dead_letters) == (["b"], ["c"])


class TestOrderWithinAGroup:
    def test_a_message_is_not_waited_for_while_the_work_on_one_before_it_goes_on(self, orders: Orders) -> None:
        orders.fifo.send("first", "second", message_group_id="g")
        with lease("orders.fifo", linger=0) as batch:
            first, second = batch
            batch.succeed(second)
            assert orders.fifo.deleted == 0
            batch.succeed(first)
        assert orders.fifo.deleted == 2

    def test_it_is_given_back_with_the_one_before_it(self, orders: Orders) -> None:
        orders.fifo.send("first", "second", message_group_id="g")
        with lease("orders.fifo", linger=0) as batch:
            first, second = batch
            batch.succeed(second)
            batch.fail(first, "it is bad")
        assert orders.fifo.deleted == 0
        assert orders.fifo.visible == ["first", "second"]

    def test_the_end_of_the_block_decides_what_waits(self, orders: Orders) -> None:
        orders.fifo.send("first", "second", message_group_id="g")

        def work() -> None:
            with lease("orders.fifo", linger=0) as batch:
                _, second = batch
                batch.succeed(second)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            work()
        assert orders.fifo.visible == ["first", "second"]


class TestAnEndThatIsInterrupted:
    """One Ctrl-C while the end of a block deletes 600 messages whose work is done."""

    def interrupted(self, orders: Orders, faults: Callable[[TransportCall], Fault]) -> LeasedBatch:
        orders.queue.send(*map(str, range(600)))
        deletes: list[TransportCall] = []

        def interrupt(call: TransportCall) -> Fault:
            if call.operation is Operation.DELETE:
                deletes.append(call)
                if len(deletes) == 5:
                    # To the thread that waits: this one is the loop's.
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                return faults(call)
            return NO_FAULT

        orders.faults = interrupt
        block = lease("orders", max_messages=600, linger=60)
        batch = block.__enter__()
        assert len(batch) == 600
        with pytest.raises(KeyboardInterrupt) as raised:
            block.__exit__(None, None, None)
        self.notes = "".join(getattr(raised.value, "__notes__", []))
        return batch

    def test_deletes_them_all(self, orders: Orders) -> None:
        batch = self.interrupted(orders, no_faults)
        assert orders.queue.deleted == 600
        assert batch.report().deleted == 600
        assert self.notes == ""

    def test_says_what_it_could_not_delete_in_time_and_counts_it(
        self, orders: Orders, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(session, "GIVE_BACK_SECONDS", 0.5)
        batch = self.interrupted(orders, lambda _: Fault(error=UNAVAILABLE))
        report = batch.report()
        assert (report.deleted, report.failed, report.held) == (0, 600, 0)
        assert "600 messages" in self.notes
        assert "not settled as asked" in caplog.text


def test_an_interrupted_block_waits_no_longer_than_it_may_for_messages_that_cannot_be_given_back(
    orders: Orders, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking, "GIVE_BACK_SECONDS", 0.2)
    orders.queue.send("a")
    # The pauses between six tries are longer than that in all, however they are drawn.
    orders.faults = ScriptedFaults(*[Fault(error=UNAVAILABLE)] * 5, operation=Operation.CHANGE_VISIBILITY)
    with pytest.raises(KeyboardInterrupt), lease("orders", linger=0):
        raise KeyboardInterrupt
    assert "could be settled in time" in caplog.text
    assert orders.queue.invisible == ["a"]


class TestWhatTheServiceRefuses:
    def test_after_a_block_that_succeeded_it_is_an_error_with_counts_and_remedy(self, orders: Orders) -> None:
        orders.queue.send("a", "b", "c")
        orders.faults = refused(Operation.DELETE, places=2)
        with pytest.raises(SettlementError) as caught, lease("orders", linger=0) as batch:
            pass
        error = caught.value
        assert error.queue == orders.queue.url
        assert len(error.details) == 2
        ((said, count),) = error.counts.items()
        assert count == 2
        assert "AccessDenied" in said
        text = str(error)
        assert f"2 messages of {orders.queue.url} were not settled as asked" in text
        assert "sqs:DeleteMessage" in text
        assert not any(message.receipt.handle in text or message.receipt.handle in said for message in batch)
        assert orders.queue.deleted == 1
        assert batch.report().failed == 2

    def test_the_blocks_own_exception_goes_on_with_a_note(self, orders: Orders) -> None:
        orders.queue.send("a")
        orders.faults = refused(Operation.CHANGE_VISIBILITY)
        with pytest.raises(ZeroDivisionError) as caught, lease("orders", linger=0):
            raise ZeroDivisionError
        (note,) = caught.value.__notes__
        assert "1 message" in note
        assert "AccessDenied" in note

    def test_within_the_block_the_call_raises_and_the_end_does_not_again(self, orders: Orders) -> None:
        orders.queue.send("a", "b")
        orders.faults = refused(Operation.DELETE, places=1)
        with lease("orders", linger=0) as batch:
            first, _ = batch
            batch.succeed(first)
            with pytest.raises(SettlementError, match="1 message"):
                batch.flush()
            batch.release(batch)
        assert orders.queue.visible == ["b"]

    def test_if_that_leaves_the_block_the_rest_is_given_back_whatever_the_failure_rule(self, orders: Orders) -> None:
        orders.queue.send("a", "b")
        orders.faults = refused(Operation.DELETE)

        def work() -> None:
            with lease("orders", linger=0, on_failure=dead_letter()) as batch:
                batch.succeed(next(iter(batch)))
                batch.flush()

        with pytest.raises(SettlementError):
            work()
        assert orders.queue.visible == ["b"]
        assert orders.queue.dead_letters == []

    def test_a_refused_settlement_is_raised_at_the_next_call(self, orders: Orders) -> None:
        orders.queue.send("a", "b")
        orders.faults = refused(Operation.DELETE)

        def work() -> None:
            with lease("orders", linger=0) as batch:
                first, second = batch
                batch.succeed(first)
                eventually(lambda: batch.report().failed == 1)
                batch.release(second)

        with pytest.raises(SettlementError, match="1 message"):
            work()
        assert orders.queue.visible == ["b"]

    def test_an_interruption_takes_it_to_the_log(self, orders: Orders, caplog: pytest.LogCaptureFixture) -> None:
        orders.queue.send("a")
        orders.faults = refused(Operation.CHANGE_VISIBILITY)
        with pytest.raises(KeyboardInterrupt), lease("orders", linger=0):
            raise KeyboardInterrupt
        assert "not settled as asked" in caplog.text


class TestWhatWasLost:
    @pytest.fixture(autouse=True)
    def _losing(self, orders: Orders) -> None:
        orders.queue.send(*map(str, range(25)))
        orders.faults = lost(Operation.DELETE, places=1)

    def test_is_one_warning_with_the_counts_for_any_number_of_messages(
        self, orders: Orders, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING), lease("orders", max_messages=25):
            pass
        (line,) = [record.getMessage() for record in caplog.records]
        assert "3 leases were lost" in line
        assert "Make the work idempotent" in line

    def test_is_an_error_by_choice(self, orders: Orders) -> None:
        with (
            pytest.raises(LeasesLostError, match="3 leases were lost") as caught,
            lease("orders", max_messages=25, on_lost="raise") as batch,
        ):
            pass
        assert len(caught.value.details) == batch.report().lost == 3
        assert caught.value.queue == orders.queue.url

    def test_is_a_note_on_the_blocks_own_exception_then(self, orders: Orders) -> None:
        with (
            pytest.raises(MessageFailed) as caught,
            lease("orders", max_messages=25, on_lost="raise") as batch,
        ):
            raise MessageFailed(next(iter(batch)).message_id)
        (note,) = caught.value.__notes__
        assert "leases were lost" in note


class TestListeners:
    def test_one_may_ask_the_batch_and_raise_and_no_lease_stops(
        self, orders: Orders, caplog: pytest.LogCaptureFixture
    ) -> None:
        orders.queue.send("a", "b")
        reports: list[Any] = []
        batches: list[LeasedBatch] = []
        asked = Event()

        def listen(event: LeaseEvent) -> None:
            reports.append(batches[0].report())
            asked.set()
            raise SystemExit("no")

        with lease("orders", linger=0, on_event=listen) as batch:
            batches.append(batch)
            first, second = batch
            batch.succeed(first)
            assert asked.wait(60)
            assert batch.still_held(second)
        assert [report.received for report in reports] == [2, 2]
        assert orders.queue.deleted == 2
        assert sum("listener of a lease of orders failed" in record.getMessage() for record in caplog.records) == 1

    def test_one_that_blocks_delays_the_end_of_the_block_for_a_moment_only(
        self, orders: Orders, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        goes_on = Event()
        monkeypatch.setattr(session, "LISTENER_SECONDS", 0.01)
        orders.queue.send("a")

        def listen(_: LeaseEvent) -> None:
            goes_on.wait(60)

        with lease("orders", linger=0, on_event=listen):
            pass
        assert orders.queue.deleted == 1
        goes_on.set()

    def test_one_is_told_in_a_thread_of_its_own_of_all_that_happened(self, orders: Orders) -> None:
        orders.queue.send("a")
        told: list[tuple[LeaseEvent, str]] = []
        with lease("orders", linger=0, on_event=lambda event: told.append((event, threading.current_thread().name))):
            pass
        ((event, name),) = told
        assert isinstance(event, Settled)
        assert event.outcome is Outcome.DELETED
        assert name == "sqs-lease events orders"


class Rule(FailureRule):
    """One of the user's own."""

    def __init__(self, act: Callable[[], Settlement]) -> None:
        object.__setattr__(self, "act", act)

    def settlement(self, *, receive_count: int, reason: str, random: Random) -> Settlement:
        act: Callable[[], Settlement] = self.act  # type: ignore[attr-defined]
        return act()


class TestFailureRules:
    @pytest.mark.parametrize("fails", [lambda: 1 / 0, lambda: sys.exit("no"), lambda: "release"])
    def test_one_that_fails_makes_it_a_plain_release_and_is_logged_once(
        self, orders: Orders, caplog: pytest.LogCaptureFixture, fails: Callable[[], Any]
    ) -> None:
        orders.queue.send("a", "b")
        with pytest.raises(ZeroDivisionError), lease("orders", linger=0, on_failure=Rule(fails)):
            raise ZeroDivisionError
        assert orders.queue.visible == ["a", "b"]
        assert sum("failure rule" in record.getMessage() for record in caplog.records) == 1

    def test_one_runs_in_the_thread_of_the_block_where_it_may_block(self, orders: Orders) -> None:
        orders.queue.send("a", "b")
        threads: set[int] = set()

        def act() -> Settlement:
            threads.add(get_ident())
            return Release()

        def work() -> None:
            with lease("orders", linger=0, on_failure=Rule(act)) as batch:
                batch.fail(next(iter(batch)), "it is bad")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            work()
        assert threads == {get_ident()}

    def test_one_is_told_the_class_of_an_exception_and_not_its_text(self, orders: Orders) -> None:
        orders.queue.send("a")
        reasons: list[str] = []

        class Noting(Rule):
            def settlement(self, *, receive_count: int, reason: str, random: Random) -> Settlement:
                reasons.append(reason)
                return Release()

        with pytest.raises(ValueError, match="a body"), lease("orders", linger=0, on_failure=Noting(Release)):
            raise ValueError("it quotes a body")
        assert reasons == ["ValueError"]

    def test_other_things_than_rules_are_refused(self) -> None:
        with pytest.raises(TypeError, match="on_failure must be a failure rule"):
            lease("orders", on_failure="release")  # type: ignore[arg-type]


class TestAfterTheBlock:
    @pytest.mark.parametrize(
        "settle",
        [
            lambda batch: batch.succeed(batch),
            lambda batch: batch.fail(batch, "late"),
            lambda batch: batch.release(batch),
            lambda batch: batch.fail_each({message.message_id: "late" for message in batch}),
        ],
        ids=["succeed", "fail", "release", "fail_each"],
    )
    def test_settling_is_an_error_that_says_so(self, orders: Orders, settle: Callable[[LeasedBatch], None]) -> None:
        orders.queue.send("a")
        with lease("orders", linger=0) as batch:
            pass
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(RuntimeError, match="The block of this lease of orders has ended"):
                settle(batch)
            gc.collect()

    def test_messages_that_the_program_drops_do_not_wait_for_the_garbage_collector(self, orders: Orders) -> None:
        orders.queue.send(*map(str, range(30)))
        with no_message_left():
            with lease("orders", max_messages=30) as batch:
                assert len(batch) == 30
            del batch

    def test_leaving_it_once_more_does_nothing(self, orders: Orders) -> None:
        orders.queue.send("a")
        block = lease("orders", linger=0)
        with block:
            pass
        block.__exit__(None, None, None)
        assert orders.queue.deleted == 1

    @pytest.mark.parametrize("several", [["a", "b"], []], ids=str)
    def test_several_messages_are_not_asked_for_at_once(self, orders: Orders, several: list[str]) -> None:
        orders.queue.send("a", "b")
        with lease("orders", linger=0) as batch:
            some: Any = [message for message in batch if message.body in several]
            with pytest.raises(TypeError, match=f"one message or its id, not {len(several)}: ask for each"):
                batch.still_held(some)

    def test_the_messages_and_the_report_stay(self, orders: Orders) -> None:
        orders.queue.send("a")
        with lease("orders", linger=0) as batch:
            (message,) = batch
            assert batch.still_held(message)
        assert bodies(batch) == ["a"]
        assert batch.report().deleted == 1
        assert not batch.still_held(message)

    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    def test_a_forked_child_is_told_that_it_has_no_lease_and_leaves_the_block_in_peace(self, orders: Orders) -> None:
        orders.queue.send("a")
        block = lease("orders", linger=0, on_failure=release())
        with block as batch:
            child = os.fork()
            if child == 0:
                try:
                    batch.succeed(batch)
                except RuntimeError as error:
                    block.__exit__(None, None, None)
                    os._exit(0 if "forked child" in str(error) else 2)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert orders.queue.deleted == 1
