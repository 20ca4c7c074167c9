"""A loop in a thread of its own: no caller waits for it for ever, and it keeps nothing of its callers alive."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from threading import Event
from typing import Any

import pytest

from sqs_lease.inbox import Inbox
from sqs_lease.keeper.loop_thread import LoopThread, LoopThreadError
from tests.blocking.orders import eventually


@pytest.fixture
def host() -> Iterator[LoopThread]:
    running = LoopThread("under test")
    yield running
    running.stop()


class Work:
    """A coroutine that never ends by itself, and what became of it."""

    def __init__(self) -> None:
        self.begun = Event()
        self.ended = Event()

    async def run(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


async def nothing() -> None:
    """Do nothing."""


def interrupted_once(
    monkeypatch: pytest.MonkeyPatch, host: LoopThread, ask: Callable[[Callable[[], Any]], Any]
) -> None:
    """Interrupt the first who asks the loop for something, before or after it is asked."""
    loop: Any = host._loop
    real = loop.call_soon_threadsafe

    def interrupted(callback: Any, *arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(loop, "call_soon_threadsafe", real)
        ask(lambda: real(callback, *arguments, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)


def test_a_caller_that_is_interrupted_before_it_waits_still_waits_for_the_end_of_what_began_meanwhile(
    host: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work()

    def ask(request: Callable[[], Any]) -> None:
        request()
        assert work.begun.wait(60)

    interrupted_once(monkeypatch, host, ask)
    with pytest.raises(KeyboardInterrupt):
        host.run(work.run())
    assert work.ended.is_set()


def test_a_caller_that_is_interrupted_waits_also_where_the_end_takes_a_while(
    host: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = Event(), Event()

    async def ends_slowly() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.2)
            ended.set()

    def ask(request: Callable[[], Any]) -> None:
        request()
        assert begun.wait(60)

    interrupted_once(monkeypatch, host, ask)
    with pytest.raises(KeyboardInterrupt):
        host.run(ends_slowly())
    assert ended.is_set()


def test_calls_after_the_interruption_never_begin(host: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    interrupted_once(monkeypatch, host, lambda request: None)
    with pytest.raises(KeyboardInterrupt):
        host.run(work.run())
    assert not work.begun.is_set()


def test_values_that_come_while_the_loop_is_busy_are_taken_together(host: LoopThread) -> None:
    taken: list[list[int]] = []
    inbox = Inbox[int](host.post, lambda values: taken.append(list(values)))
    is_busy, goes_on = Event(), Event()

    def be_busy() -> None:
        is_busy.set()
        goes_on.wait(60)

    host.post(be_busy)
    assert is_busy.wait(60)
    for value in range(3):
        inbox.put(value)
    goes_on.set()
    host.run(nothing())
    assert taken == [[0, 1, 2]]


class TestWhoWouldWaitForEverGetsAnError:
    def test_in_the_loops_own_thread(self, host: LoopThread) -> None:
        async def calls_back() -> None:
            host.run(nothing())

        with pytest.raises(LoopThreadError, match=r"called in the thread 'under test' itself"):
            host.run(calls_back())

    def test_to_stop_it_in_its_own_thread(self, host: LoopThread) -> None:
        async def stops() -> None:
            host.stop()

        with pytest.raises(LoopThreadError, match="itself"):
            host.run(stops())

    def test_after_its_end_without_a_warning_of_the_coroutine(self) -> None:
        host = LoopThread("under test")
        host.stop()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(LoopThreadError, match="No more calls can be made: the thread 'under test' was stopped"):
                host.run(nothing())
            gc.collect()
        assert host.is_stopped

    def test_a_caller_that_waits_while_it_is_stopped(self, host: LoopThread) -> None:
        work = Work()
        with ThreadPoolExecutor() as others:
            waiting = others.submit(host.run, work.run())
            assert work.begun.wait(60)
            host.stop()
            with pytest.raises(LoopThreadError, match="No answer comes: the thread 'under test' was stopped"):
                waiting.result(60)
        assert work.ended.is_set()

    def test_a_caller_that_waits_when_its_thread_dies(self, host: LoopThread) -> None:
        async def exits() -> None:
            raise SystemExit("a callback of the user's own calls sys.exit()")

        work = Work()
        with ThreadPoolExecutor() as others:
            waiting = others.submit(host.run, work.run())
            assert work.begun.wait(60)
            dying = others.submit(host.run, exits())
            for each in (waiting, dying):
                with pytest.raises(LoopThreadError, match="died of SystemExit"):
                    each.result(60)
        assert work.ended.wait(60)
        with pytest.raises(LoopThreadError, match="died of SystemExit"):
            host.run(nothing())

    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    def test_in_a_forked_child(self, host: LoopThread) -> None:
        child = os.fork()
        if child == 0:
            try:
                host.run(nothing())
            except LoopThreadError as error:
                # Neither does the child wait for a thread that it does not have.
                host.stop()
                os._exit(0 if "forked child" in str(error) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class TestTheLastCoroutine:
    def test_is_run_to_its_end_before_the_thread_ends(self) -> None:
        host = LoopThread("under test")
        done: list[str] = []

        async def last() -> None:
            await asyncio.sleep(0.01)
            done.append("done")

        host.end_after(last())
        with pytest.raises(LoopThreadError, match="is ending"):
            host.run(nothing())
        host.stop()
        assert done == ["done"]

    def test_may_be_asked_for_in_the_loops_own_thread(self) -> None:
        host = LoopThread("under test")
        done = Event()

        async def last() -> None:
            done.set()

        async def drops() -> None:
            host.end_after(last())

        host.run(drops())
        assert done.wait(60)
        host.stop()


class Run:
    """An object that a program's context variables lead to."""


def test_the_loop_keeps_nothing_alive_that_the_callers_context_leads_to() -> None:
    variable: ContextVar[Run] = ContextVar("run")
    runs: list[weakref.ref[Run]] = []
    timers: list[asyncio.TimerHandle] = []

    async def begin_what_goes_on() -> None:
        timers.append(asyncio.get_running_loop().call_later(3600, print))

    def within_a_run() -> LoopThread:
        variable.set(Run())
        runs.append(weakref.ref(variable.get()))
        host = LoopThread("under test")
        host.run(begin_what_goes_on())
        return host

    host = copy_context().run(within_a_run)
    gc.collect()
    assert [run() for run in runs] == [None]
    host.stop()


def test_the_thread_does_not_keep_its_host_alive() -> None:
    host = LoopThread("under test")
    thread, loop = host._thread, host._loop
    left = weakref.ref(host)
    del host
    assert left() is None
    loop.call_soon_threadsafe(loop.stop)
    eventually(lambda: not thread.is_alive())
    assert thread not in threading.enumerate()
