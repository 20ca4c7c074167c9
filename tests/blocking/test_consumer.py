"""A consumer that lives on: each message is worked on once, and settled by the end of its work, until it is stopped."""

from __future__ import annotations

import gc
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Event, Thread, get_ident
from types import FrameType
from typing import Any

import pytest

from sqs_lease import (
    Consumer,
    LeasedBatch,
    LeaseEvent,
    LeaseReport,
    LeasesLostError,
    Message,
    MessageFailed,
    Settled,
    blocking,
    dead_letter,
    release,
)
from sqs_lease.keeper import consuming
from sqs_lease.keeper.loop_thread import LoopThreadError
from sqs_lease.sqs.errors import AccessDeniedError
from sqs_lease.testing import NO_FAULT, Fault, Operation, ScriptedFaults, TransportCall
from sqs_lease.testing.service_errors import ACCESS_DENIED, INTERNAL_ERROR
from tests.blocking.orders import DENIED, Orders, eventually, lost, no_message_left, refused

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer stops when its polls are answered."""
    monkeypatch.setattr(consuming, "LONGEST_POLL_SECONDS", 0)


def run_until(
    orders: Orders,
    is_over: Callable[[], bool],
    handle: Callable[[Message], object],
    *,
    queue: str = "orders",
    concurrency: int = 1,
    max_messages: int = 100,
    **options: object,
) -> LeaseReport:
    """Consume in this thread until something is so."""
    with Consumer(queue, max_messages=max_messages, **options) as consumer:  # type: ignore[arg-type]

        def stop() -> None:
            eventually(is_over)
            consumer.stop()

        stopping = Thread(target=stop)
        stopping.start()
        try:
            return consumer.run(handle, concurrency=concurrency)
        finally:
            stopping.join(60)


async def asynchronous(_: object) -> None:
    pytest.fail("no loop runs it")


def generating(_: object) -> Iterator[None]:
    yield
    pytest.fail("no loop runs it")


def in_a_pool(_: object) -> Future[None]:
    return Future()  # as a pool gives it for work that has not ended


class TestSingleMessages:
    @pytest.mark.parametrize("concurrency", [1, 8])
    def test_each_is_worked_on_once_and_deleted(self, orders: Orders, concurrency: int) -> None:
        orders.queue.send(*map(str, range(300)))
        worked: list[str] = []
        report = run_until(
            orders,
            lambda: orders.queue.deleted == 300,
            lambda message: worked.append(message.body),
            concurrency=concurrency,
        )
        assert sorted(worked, key=int) == list(map(str, range(300)))
        assert (report.received, report.deleted, report.held) == (300, 300, 0)

    def test_a_message_is_settled_by_the_failure_rule_when_its_work_raises_and_the_others_go_on(
        self, orders: Orders, caplog: pytest.LogCaptureFixture
    ) -> None:
        orders.queue.send("good", "bad", "fine")

        def work(message: Message) -> None:
            if message.body == "bad":
                raise ValueError(f"cannot read {message.body}")

        report = run_until(orders, lambda: orders.queue.deleted == 3, work, on_failure=dead_letter())
        assert orders.queue.dead_letters == ["bad"]
        assert (report.deleted, report.dead_lettered) == (2, 1)
        (line,) = [record.getMessage() for record in caplog.records if "failed" in record.getMessage()]
        assert "ValueError" in line
        assert "test_consumer.py" in line
        assert "cannot read" not in line, "an exception's text may quote a body"

    def test_one_that_names_itself_as_failed_is_failed(self, orders: Orders) -> None:
        orders.queue.send("a")

        def work(message: Message) -> None:
            raise MessageFailed(message.message_id)

        run_until(orders, lambda: bool(orders.queue.dead_letters), work, on_failure=dead_letter())
        assert orders.queue.dead_letters == ["a"]

    @pytest.mark.parametrize("handle", [3, asynchronous, generating, partial(asynchronous)], ids=repr)
    def test_a_handler_that_would_not_do_its_work_is_refused(self, orders: Orders, handle: Any) -> None:
        orders.queue.send("a")
        with Consumer("orders") as consumer:
            for run in (consumer.run, consumer.run_batches):
                with pytest.raises(TypeError, match=r"handle (must be a function|is async|yields)"):
                    run(handle)
        assert orders.queue.visible == ["a"]

    @pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
    @pytest.mark.parametrize("work", [asynchronous, generating, lambda message: map(str, [message]), in_a_pool])
    def test_one_whose_work_is_returned_and_not_done_is_failed(
        self, orders: Orders, work: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        def through(message: Message) -> object:
            return work(message)

        orders.queue.send("a")
        run_until(orders, lambda: bool(orders.queue.dead_letters), through, on_failure=dead_letter())
        assert orders.queue.dead_letters == ["a"]
        assert "handle returned its work undone, as a " in caplog.text

    def test_work_of_one_worker_is_done_in_the_callers_thread(self, orders: Orders) -> None:
        orders.queue.send("a")
        threads: list[int] = []
        run_until(orders, lambda: orders.queue.deleted == 1, lambda _: threads.append(get_ident()))
        assert threads == [get_ident()]

    def test_no_more_are_in_hand_than_were_asked_for(self, orders: Orders) -> None:
        orders.queue.send(*map(str, range(40)))
        in_hand: list[int] = []
        ended: list[str] = []

        def work(message: Message) -> None:
            # In this order: what happens between the looks makes the number smaller, never larger.
            deleted = orders.queue.deleted
            received = deleted + len(orders.queue.invisible)
            in_hand.append(received - len(ended))
            ended.append(message.body)

        run_until(orders, lambda: orders.queue.deleted == 40, work, max_messages=7, concurrency=3)
        assert max(in_hand) <= 7

    def test_no_more_are_received_than_can_be_deleted(self, orders: Orders) -> None:
        orders.queue.send(*map(str, range(60)))
        deletes: list[TransportCall] = []
        most: list[int] = []

        def cut_off(call: TransportCall) -> Fault:
            if call.operation is not Operation.DELETE:
                return NO_FAULT
            deletes.append(call)
            return Fault(unreachable=len(deletes) <= 6)

        def work(message: Message) -> None:
            most.append(len(orders.queue.invisible))

        orders.faults = cut_off
        run_until(orders, lambda: orders.queue.deleted == 60, work, max_messages=7, concurrency=3)
        assert len(deletes) > 6
        assert max(most) <= 7 + 10

    def test_it_does_not_work_through_the_queue_while_deletes_are_refused(self, orders: Orders) -> None:
        orders.queue.send(*map(str, range(60)))
        refusals: list[TransportCall] = []
        most: list[int] = []

        def refuse(call: TransportCall) -> Fault:
            if call.operation is not Operation.DELETE or len(refusals) >= 6:
                return NO_FAULT
            refusals.append(call)
            return DENIED

        def work(message: Message) -> None:
            most.append(len(orders.queue.invisible))

        orders.faults = refuse
        run_until(orders, lambda: orders.queue.deleted == 60, work, max_messages=7, concurrency=3, visibility=2)
        assert len(refusals) == 6
        assert max(most) <= 7 + 10

    def test_several_are_worked_on_at_a_time(self, orders: Orders) -> None:
        orders.queue.send("a", "b", "c")
        together = threading.Barrier(3, timeout=60)
        run_until(orders, lambda: orders.queue.deleted == 3, lambda _: together.wait(), concurrency=3)

    def test_workers_that_are_free_get_messages_while_the_others_work_on(self, orders: Orders) -> None:
        orders.queue.send("a", "b", "c")
        together = threading.Barrier(8, timeout=60)
        begun: list[str] = []

        def work(message: Message) -> None:
            begun.append(message.body)
            if len(begun) == 3:
                orders.queue.send(*"defgh")
            together.wait()

        run_until(orders, lambda: orders.queue.deleted == 8, work, max_messages=8, concurrency=8)
        assert sorted(begun) == list("abcdefgh")

    def test_the_listener_is_told(self, orders: Orders) -> None:
        orders.queue.send("a", "b")
        told: list[LeaseEvent] = []
        run_until(orders, lambda: orders.queue.deleted == 2, lambda _: None, on_event=told.append)
        assert [type(event) for event in told] == [Settled, Settled]

    def test_settling_one_by_one_costs_calls_of_ten(self, orders: Orders) -> None:
        orders.queue.send(*map(str, range(300)))
        calls: list[TransportCall] = []

        def count(call: TransportCall) -> Fault:
            if call.operation is Operation.DELETE:
                calls.append(call)
            return NO_FAULT

        orders.faults = count
        run_until(orders, lambda: orders.queue.deleted == 300, lambda _: None)
        assert len(calls) <= 60, "ten a call, but for those that came alone"


class TestGroups:
    def test_messages_of_a_group_are_worked_on_in_their_order_and_one_at_a_time(self, orders: Orders) -> None:
        for number in range(20):
            orders.fifo.send(f"a{number}", message_group_id="a")
            orders.fifo.send(f"b{number}", message_group_id="b")
        worked: dict[str, list[int]] = {"a": [], "b": []}
        busy = {"a": threading.Lock(), "b": threading.Lock()}

        def work(message: Message) -> None:
            group = message.body[0]
            with_others = busy[group].locked()
            with busy[group]:
                assert not with_others
                worked[group].append(int(message.body[1:]))

        run_until(orders, lambda: orders.fifo.deleted == 40, work, queue="orders.fifo", concurrency=8)
        assert worked == {"a": list(range(20)), "b": list(range(20))}

    def test_those_behind_one_that_goes_back_are_not_worked_on_before_it(self, orders: Orders) -> None:
        for number in range(5):
            orders.fifo.send(str(number), message_group_id="a")
        worked: list[str] = []

        def work(message: Message) -> None:
            worked.append(message.body)
            if message.body == "1" and worked.count("1") == 1:
                raise ValueError

        run_until(
            orders,
            lambda: orders.fifo.deleted == 5,
            work,
            queue="orders.fifo",
            concurrency=4,
            on_failure=release(),
        )
        assert worked == ["0", "1", "1", "2", "3", "4"]

    def test_those_behind_one_that_is_dead_lettered_go_on(self, orders: Orders) -> None:
        for number in range(3):
            orders.fifo.send(str(number), message_group_id="a")
        worked: list[str] = []

        def work(message: Message) -> None:
            worked.append(message.body)
            if message.body == "0":
                raise ValueError

        run_until(orders, lambda: orders.fifo.deleted == 3, work, queue="orders.fifo", on_failure=dead_letter())
        assert worked == ["0", "1", "2"]
        assert orders.fifo.dead_letters == ["0"]


class TestStopping:
    def test_work_that_has_begun_ends_and_what_waits_is_given_back(self, orders: Orders) -> None:
        orders.queue.send(*map(str, range(10)))
        begun = Event()
        with Consumer("orders", max_messages=10) as consumer:

            def work(message: Message) -> None:
                consumer.stop()
                eventually(lambda: len(orders.queue.visible) == 9)
                begun.set()

            report = consumer.run(work)
        assert begun.is_set()
        assert (report.deleted, report.released) == (1, 9)
        assert len(orders.queue.visible) == 9

    def test_work_that_does_not_end_in_time_is_given_back(
        self, orders: Orders, caplog: pytest.LogCaptureFixture
    ) -> None:
        orders.queue.send("a")
        released = Event()
        with Consumer("orders") as consumer:

            def work(message: Message) -> None:
                consumer.stop()
                eventually(lambda: orders.queue.visible == ["a"])
                released.set()

            report = consumer.run(work, stop_within=0.05)
        assert released.is_set()
        assert report.released == 1
        assert "did not end in time" in caplog.text
        assert orders.queue.deleted == 0, "it may be another consumer's by then"

    def test_an_interruption_of_the_work_gives_everything_back(self, orders: Orders) -> None:
        orders.queue.send(*map(str, range(10)))

        def work(message: Message) -> None:
            raise KeyboardInterrupt

        with Consumer("orders", on_failure=dead_letter()) as consumer, pytest.raises(KeyboardInterrupt):
            consumer.run(work)
        assert len(orders.queue.visible) == 10
        assert orders.queue.dead_letters == []

    def test_an_error_that_ends_another_worker_for_good_ends_all_and_is_raised(self, orders: Orders) -> None:
        orders.queue.send(*map(str, range(10)))
        mine = get_ident()
        exited = Event()

        def work(message: Message) -> None:
            if get_ident() != mine:
                exited.set()
                sys.exit("enough")
            assert exited.wait(60)

        with Consumer("orders") as consumer, pytest.raises(SystemExit):
            consumer.run(work, concurrency=2)
        eventually(lambda: len(orders.queue.invisible) == 0)

    def test_a_signal_handler_may_stop_it_wherever_it_interrupts_a_stop(self, orders: Orders) -> None:
        consumers = [Consumer("orders") for _ in range(20)]

        def stop_interrupted(consumer: Consumer, step: int) -> None:
            steps = iter(range(step))

            def traced(frame: FrameType, event: str, argument: object) -> Any:
                if next(steps, None) is None:
                    sys.settrace(None)
                    consumer.stop()
                return traced

            sys.settrace(traced)
            consumer.stop()
            sys.settrace(None)

        def stop_all() -> None:
            for step, consumer in enumerate(consumers):
                stop_interrupted(consumer, step)

        stopping = Thread(target=stop_all, daemon=True)
        stopping.start()
        stopping.join(20)
        assert not stopping.is_alive()

    @pytest.mark.parametrize("by", ["another thread", "its own work"])
    def test_closing_it_while_it_runs_settles_what_is_in_hand(self, orders: Orders, by: str) -> None:
        orders.queue.send(*map(str, range(10)))
        consumer = Consumer("orders", max_messages=10)

        def work(message: Message) -> None:
            closing = Thread(target=consumer.close)
            if by == "another thread":
                closing.start()
                closing.join(60)
            else:
                consumer.close()

        report = consumer.run(work)
        assert (report.deleted, report.released) == (1, 9)
        assert len(orders.queue.visible) == 9
        assert consumer._opened is None

    def test_it_cannot_run_again(self, orders: Orders) -> None:
        with Consumer("orders") as consumer:
            consumer.stop()
            with pytest.raises(RuntimeError, match="stopped"):
                consumer.run(lambda _: None)
        with pytest.raises(RuntimeError, match="closed"), consumer.lease():
            pytest.fail("the block is not entered")

    @pytest.mark.parametrize("how", ["run(load)", "run(load, concurrency=3)", "run_batches(load_all)"])
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
    def test_a_signal_stops_a_program_by_finishing_and_giving_back(self, number: signal.Signals, how: str) -> None:
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.replace("HOW", how)],
            cwd=ROOT,
            env={"PYTHONPATH": "providers:."},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert program.stdout is not None
        assert program.stdin is not None
        assert program.stdout.readline() == "working\n"
        program.send_signal(number)
        output, _ = program.communicate("go on\n", timeout=120)
        assert output.splitlines() == ["returned", "deleted 1" if "batches" not in how else "deleted 10", "in flight 0"]
        assert program.returncode == 0


PROGRAM = """
import os, signal, sys, threading
from sqs_lease import Consumer, blocking
from sqs_lease.keeper import consuming
from sqs_lease.keeper.loop_thread import LoopThreadError
from tests.blocking.orders import Orders

consuming.LONGEST_POLL_SECONDS = 0
orders = Orders()
blocking.open_transport = lambda client, queue: orders.transport()
orders.queue.send(*map(str, range(10)))
said = threading.Lock()

def load(message):
    if said.acquire(blocking=False):
        print("working", flush=True)
        sys.stdin.readline()
    stopped.wait(60)  # the signal was sent; the main thread may not have heard of it yet

def load_all(batch):
    load(batch)

stopped = threading.Event()
consumer = Consumer("orders", max_messages=1 if "concurrency" not in "HOW" and "batches" not in "HOW" else 10)
stop = consumer.stop
def stopping():
    stop()
    stopped.set()
consumer.stop = stopping
with consumer:
    consumer.HOW
print("returned")
deleted = orders.queue.deleted
print("deleted", 10 if deleted == 10 else 1 if 1 <= deleted <= 3 else deleted)
print("in flight", len(orders.queue.invisible))
"""


class TestTrouble:
    def test_a_queue_that_cannot_be_used_is_told_at_once(self, orders: Orders) -> None:
        orders.faults = refused(Operation.RECEIVE)
        with Consumer("orders") as consumer, pytest.raises(AccessDeniedError, match="orders"):
            consumer.run(lambda _: None)

    def test_a_refusal_after_the_first_answer_passes(self, orders: Orders, caplog: pytest.LogCaptureFixture) -> None:
        orders.queue.send("a")
        orders.faults = ScriptedFaults(NO_FAULT, DENIED, Fault(error=INTERNAL_ERROR), operation=Operation.RECEIVE)
        sent = Event()

        def send_another() -> bool:
            if orders.queue.deleted == 1 and not sent.is_set():
                sent.set()
                orders.queue.send("b")
            return orders.queue.deleted == 2

        report = run_until(orders, send_another, lambda _: None)
        assert report.deleted == 2
        assert "Receiving failed" in caplog.text

    def test_a_refused_delete_is_logged_and_counted_and_the_others_go_on(
        self, orders: Orders, caplog: pytest.LogCaptureFixture
    ) -> None:
        orders.queue.send("a", "b", "c")
        orders.faults = refused(Operation.DELETE, ACCESS_DENIED, places=1)
        report = run_until(orders, lambda: orders.queue.deleted == 2, lambda _: None)
        assert (report.deleted, report.failed) == (2, 1)
        assert "did not settle" in caplog.text

    def test_a_lease_that_is_lost_ends_it_where_the_user_asked_for_that(self, orders: Orders) -> None:
        orders.queue.send("a", "b")
        orders.faults = lost(Operation.DELETE, places=1)
        with Consumer("orders", on_lost="raise") as consumer, pytest.raises(LeasesLostError):
            consumer.run(lambda _: None)

    @pytest.mark.parametrize("concurrency", [0, 11, 1.5])
    def test_bad_values_are_refused(self, orders: Orders, concurrency: int) -> None:
        with Consumer("orders", max_messages=10) as consumer, pytest.raises(ValueError, match="concurrency"):
            consumer.run(lambda _: None, concurrency=concurrency)

    def test_nothing_of_it_stays(self, orders: Orders, caplog: pytest.LogCaptureFixture) -> None:
        orders.queue.send(*map(str, range(500)))
        with Consumer("orders", max_messages=100) as consumer:

            def stop() -> None:
                eventually(lambda: orders.queue.deleted == 500)
                consumer.stop()

            Thread(target=stop).start()
            consumer.run(lambda _: None)
            opened = consumer._opened
            assert opened is not None
            driver = next(iter(opened.queue.keeper._drivers.values()))
            eventually(lambda: not len(driver._ledger))
            assert not opened.queue.keeper._batches
            assert not driver._owners


class TestBatches:
    def test_each_batch_is_a_lease_and_its_end_settles_it(self, orders: Orders) -> None:
        orders.queue.send(*map(str, range(35)))
        sizes: list[int] = []
        with Consumer("orders", max_messages=10, linger=0) as consumer:

            def work(batch: LeasedBatch) -> None:
                sizes.append(len(batch))
                if sum(sizes) == 35:
                    consumer.stop()

            consumer.run_batches(work)
        assert orders.queue.deleted == 35
        assert max(sizes) <= 10

    def test_one_that_fails_is_logged_and_the_next_follows(
        self, orders: Orders, caplog: pytest.LogCaptureFixture
    ) -> None:
        orders.queue.send("bad", "good")
        with Consumer("orders", max_messages=1, on_failure=dead_letter()) as consumer:

            def work(batch: LeasedBatch) -> None:
                (message,) = batch
                if message.body == "good":
                    consumer.stop()
                else:
                    raise ValueError(message.body)

            consumer.run_batches(work)
        assert orders.queue.dead_letters == ["bad"]
        assert "ValueError" in caplog.text

    def test_it_pauses_after_a_batch_that_the_service_refused_to_settle(
        self, orders: Orders, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(blocking, "FIRST_PAUSE_SECONDS", 3600.0)
        orders.queue.send(*map(str, range(60)))
        orders.faults = refused(Operation.DELETE)
        sizes: list[int] = []
        with Consumer("orders", max_messages=10, linger=0) as consumer:

            def stop() -> None:
                try:
                    eventually(lambda: "not settled as asked" in caplog.text)
                finally:
                    consumer.stop()

            stopping = Thread(target=stop)
            stopping.start()
            consumer.run_batches(lambda batch: sizes.append(len(batch)))
            stopping.join(60)
        assert len(sizes) == 1

    def test_several_are_worked_on_at_a_time(self, orders: Orders) -> None:
        orders.queue.send(*map(str, range(2)))
        together = threading.Barrier(2, timeout=60)
        with Consumer("orders", max_messages=1, linger=0) as consumer:

            def work(batch: LeasedBatch) -> None:
                together.wait()
                consumer.stop()

            consumer.run_batches(work, concurrency=2)
        assert orders.queue.deleted == 2

    def test_a_batch_is_given_back_when_its_work_does_not_end_in_time(self, orders: Orders) -> None:
        orders.queue.send("a")
        with Consumer("orders", linger=0) as consumer:

            def work(batch: LeasedBatch) -> None:
                consumer.stop()
                eventually(lambda: orders.queue.visible == ["a"])

            consumer.run_batches(work, stop_within=0.05)
        assert orders.queue.visible == ["a"]

    def test_messages_that_come_after_the_time_to_stop_go_back(
        self, orders: Orders, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(consuming, "LONGEST_POLL_SECONDS", 20)
        polls = Event()

        def note(call: TransportCall) -> Fault:
            if call.operation is Operation.RECEIVE:
                polls.set()
            return NO_FAULT

        orders.faults = note
        with Consumer("orders", linger=0) as consumer:

            def stop() -> None:
                assert polls.wait(60)
                consumer.stop()
                # Until the time is over: its timer is the only thread that does not stay.
                eventually(lambda: not any(isinstance(thread, threading.Timer) for thread in threading.enumerate()))
                orders.queue.send("a")

            stopping = Thread(target=stop)
            stopping.start()
            consumer.run_batches(lambda _: None, stop_within=0)
            stopping.join(60)
        assert orders.queue.visible == ["a"]

    def test_two_that_stop_it_at_the_same_time_do_not_disturb_each_other(self, orders: Orders) -> None:
        with Consumer("orders", max_messages=1, wait=0) as consumer:
            orders.queue.send("a")

            def work(batch: LeasedBatch) -> None:
                # As when a signal comes in the middle of stop().
                consumer._on_stop()
                consumer.stop()

            consumer.run_batches(work)
        assert orders.queue.deleted == 1

    def test_leases_of_one_consumer_share_its_client(self, orders: Orders) -> None:
        orders.queue.send("a", "b")
        with Consumer("orders", max_messages=1, wait=0) as consumer:
            with consumer.lease() as first, consumer.lease() as second:
                assert {message.body for message in (*first, *second)} == {"a", "b"}
            with consumer.lease() as third:
                assert not third
        assert orders.queue.deleted == 2
        assert len(orders.transports) == 1


def test_a_program_that_drops_a_lease_of_a_consumer_gives_its_messages_back(orders: Orders) -> None:
    orders.queue.send("a")
    with Consumer("orders", linger=0) as consumer:
        consumer.lease().__enter__()
        eventually(lambda: orders.queue.visible == ["a"])


def test_a_consumer_that_is_dropped_ends_its_thread_and_its_client(orders: Orders) -> None:
    orders.queue.send("a")
    before = set(threading.enumerate())
    consumer = Consumer("orders", wait=0, linger=0)
    with consumer.lease() as batch:
        del consumer
        gc.collect()
        batch.succeed(batch)
        batch.flush()
    del batch
    gc.collect()
    eventually(lambda: not [one for one in set(threading.enumerate()) - before if one.name.startswith("sqs-lease")])
    assert orders.queue.deleted == 1


def test_messages_do_not_wait_for_the_garbage_collector_after_their_work_has_ended(orders: Orders) -> None:
    orders.queue.send(*map(str, range(30)))
    with no_message_left():
        run_until(orders, lambda: orders.queue.deleted == 30, lambda _: None)


def test_it_is_silent_when_all_goes_well(orders: Orders, caplog: pytest.LogCaptureFixture) -> None:
    orders.queue.send("a")
    with caplog.at_level(logging.WARNING):
        run_until(orders, lambda: orders.queue.deleted == 1, lambda _: None)
    assert caplog.records == []


@pytest.mark.parametrize("form", ["run", "run_batches"])
def test_an_interruption_gives_back_what_other_threads_work_on_without_waiting(orders: Orders, form: str) -> None:
    orders.queue.send("a", "b")
    may_end, are_busy = Event(), threading.Barrier(2)

    def work(_: object) -> None:
        are_busy.wait(60)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        may_end.wait(60)

    most = 2 if form == "run" else 1
    with pytest.raises(KeyboardInterrupt), Consumer("orders", max_messages=most, linger=0) as consumer:
        getattr(consumer, form)(work, concurrency=2)
    assert sorted(orders.queue.visible) == ["a", "b"]
    may_end.set()


def test_an_interruption_waits_for_other_threads_that_receive(orders: Orders) -> None:
    orders.queue.send("a")
    works, is_polled = Event(), Event()

    def on_its_way(call: TransportCall) -> Fault:
        if call.operation is not Operation.RECEIVE or not works.is_set() or is_polled.is_set():
            return NO_FAULT
        orders.queue.send("b")
        is_polled.set()
        return Fault(after_seconds=0.3)  # the message is taken by then

    def work(batch: LeasedBatch) -> None:
        if threading.current_thread() is not threading.main_thread():
            batch.release(list(batch))
            return
        works.set()
        assert is_polled.wait(60)
        raise KeyboardInterrupt

    orders.faults = on_its_way
    with pytest.raises(KeyboardInterrupt), Consumer("orders", max_messages=1, linger=0) as consumer:
        consumer.run_batches(work, concurrency=2)
    assert sorted(orders.queue.visible) == ["a", "b"]


def test_a_lease_that_is_open_when_its_consumer_is_closed_says_so(orders: Orders) -> None:
    orders.queue.send("a")
    consumer = Consumer("orders", linger=0)

    def work() -> None:
        with consumer.lease() as batch:
            consumer.close()
            batch.succeed(list(batch))

    with pytest.raises(LoopThreadError, match=r"the consumer of orders was closed.* visible again when"):
        work()
    assert orders.queue.invisible == ["a"]


@pytest.mark.parametrize("form", ["run", "run_batches"])
class TestEndsWithAnErrorIfItCanNeverReceive:
    """A supervisor can then start another one. One that went on would say the same for ever."""

    @pytest.fixture
    def consume(self, form: str) -> Iterator[Callable[..., object]]:
        timers: list[threading.Timer] = []

        def consume(queue: str, **options: Any) -> object:
            with Consumer(queue, max_messages=1, **options) as consumer:
                timers.append(threading.Timer(20, consumer.stop))
                timers[0].start()
                return getattr(consumer, form)(lambda _: None)

        yield consume
        timers[0].cancel()

    def test_because_its_thread_died(self, orders: Orders, consume: Callable[..., object]) -> None:
        orders.queue.send("a")
        is_received = Event()

        def die_after_a_receive(call: TransportCall) -> Fault:
            if call.operation is Operation.RECEIVE:
                if is_received.is_set():
                    raise SystemExit
                is_received.set()
            return NO_FAULT

        orders.faults = die_after_a_receive
        with pytest.raises(LoopThreadError, match="died of SystemExit"):
            consume("orders")

    def test_because_of_its_visibility_timeout(self, orders: Orders, consume: Callable[..., object]) -> None:
        orders.sqs.create_queue("instant", visibility_seconds=0)
        with pytest.raises(ValueError, match="from instant: the queue's own visibility timeout is 0 s"):
            consume("instant")

    def test_because_its_queue_has_no_dead_letters(self, orders: Orders, consume: Callable[..., object]) -> None:
        orders.sqs.create_queue("plain")
        with pytest.raises(ValueError, match=r"from plain: .* redrive policy"):
            consume("plain", on_failure=dead_letter())
