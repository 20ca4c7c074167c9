"""Threads for calls that may block for ever."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial

import pytest

from sqs_lease import daemon_threads
from sqs_lease.daemon_threads import DaemonThreads

PATIENCE_SECONDS = 120.0

who: ContextVar[str] = ContextVar("who", default="nobody")


def test_no_more_calls_are_made_at_once_than_there_are_threads_and_no_call_is_left_out() -> None:
    threads = DaemonThreads(2, "some")
    gate, under_way, most = threading.Event(), threading.Semaphore(0), []

    def call(number: int) -> int:
        under_way.release()
        most.append(sum(thread.name == "some" for thread in threading.enumerate()))
        assert gate.wait(PATIENCE_SECONDS)
        return number

    futures = [threads.submit(call, number) for number in range(5)]
    for _ in range(2):
        assert under_way.acquire(timeout=PATIENCE_SECONDS)
    assert not under_way.acquire(blocking=False)
    assert futures[4].cancel()
    gate.set()
    assert [future.result(PATIENCE_SECONDS) for future in futures[:4]] == [0, 1, 2, 3]
    assert max(most) <= 2


def test_a_call_has_the_context_of_its_caller_and_raises_there() -> None:
    async def scenario() -> None:
        threads = DaemonThreads(1, "some")
        who.set("caller")
        assert await threads.run(who.get) == "caller"
        with pytest.raises(ZeroDivisionError):
            await threads.run(divmod, 1, 0)

    asyncio.run(scenario())


def test_a_call_that_is_begun_at_the_end_of_another_is_made_in_the_same_thread() -> None:
    threads = DaemonThreads(8, "some")
    idents: list[int] = []
    ended = threading.Event()

    def call() -> Callable[[], object]:
        idents.append(threading.get_ident())
        return ended.set if len(idents) == 20 else partial(threads.begin, call)

    threads.begin(call)
    assert ended.wait(PATIENCE_SECONDS)
    assert len(idents) == 20
    assert len(set(idents)) == 1


def test_calls_one_after_the_other_are_made_in_one_thread() -> None:
    threads = DaemonThreads(8, "some")
    idents = {threads.submit(threading.get_ident).result(PATIENCE_SECONDS) for _ in range(20)}
    assert len(idents) == 1


def test_a_call_beside_one_that_blocks_has_a_thread_of_its_own() -> None:
    threads = DaemonThreads(2, "some")
    gate = threading.Event()
    threads.submit(int).result(PATIENCE_SECONDS)
    blocked = threads.submit(gate.wait, PATIENCE_SECONDS)
    assert threads.submit(divmod, 7, 2).result(PATIENCE_SECONDS) == (3, 1)
    gate.set()
    assert blocked.result(PATIENCE_SECONDS)


def test_a_call_does_not_find_what_the_one_before_it_set_in_its_context() -> None:
    threads = DaemonThreads(1, "some")
    threads.submit(who.set, "the first").result(PATIENCE_SECONDS)
    assert threads.submit(who.get).result(PATIENCE_SECONDS) == "nobody"


class Given:
    """The argument and the result of a call."""

    def itself(self) -> Given:
        return self


def test_a_thread_that_waits_for_a_call_keeps_nothing_of_the_last_one() -> None:
    threads = DaemonThreads(1, "some")
    given, collected = Given(), threading.Event()
    kept = weakref.ref(given, lambda _: collected.set())
    threads.submit(given.itself).result(PATIENCE_SECONDS)
    del given
    # The thread lets go of the outcome a moment after it told it.
    assert collected.wait(PATIENCE_SECONDS)
    assert kept() is None


def test_a_thread_that_had_no_call_for_a_while_ends_and_the_next_call_has_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(daemon_threads, "IDLE_SECONDS", 0.001)
    threads = DaemonThreads(1, "some")
    for _ in range(20):
        thread = threads.submit(threading.current_thread).result(PATIENCE_SECONDS)
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def test_no_call_is_left_when_threads_end_at_the_moment_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_threads, "IDLE_SECONDS", 0.0)
    threads = DaemonThreads(3, "some")
    for _ in range(300):
        futures = [threads.submit(divmod, number, 2) for number in range(5)]
        assert [future.result(PATIENCE_SECONDS)[0] for future in futures] == [0, 0, 1, 1, 2]


def test_threads_end_with_the_object_that_they_serve_once_its_calls_are_made() -> None:
    threads = DaemonThreads(2, "some")
    gate = threading.Event()
    idle = threads.submit(threading.current_thread).result(PATIENCE_SECONDS)
    blocked = threads.submit(gate.wait, PATIENCE_SECONDS)
    waiting = threads.submit(threading.current_thread)
    busy = waiting.result(PATIENCE_SECONDS)
    last = threads.submit(divmod, 7, 2)
    del threads
    gc.collect()
    gate.set()
    assert blocked.result(PATIENCE_SECONDS)
    assert last.result(PATIENCE_SECONDS) == (3, 1)
    for thread in (idle, busy):
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def test_threads_end_when_they_are_told_to_and_a_later_call_has_another() -> None:
    threads = DaemonThreads(2, "some")
    gate = threading.Event()
    idle = threads.submit(threading.current_thread).result(PATIENCE_SECONDS)
    blocked = threads.submit(gate.wait, PATIENCE_SECONDS)
    threads.end()
    assert threads.submit(threading.current_thread).result(PATIENCE_SECONDS) is not idle
    gate.set()
    assert blocked.result(PATIENCE_SECONDS)
    idle.join(PATIENCE_SECONDS)
    assert not idle.is_alive()


FORKED = """
import os, sys
from sqs_lease.daemon_threads import DaemonThreads

threads = DaemonThreads(1, "some")
assert threads.submit(os.getpid).result(60) == os.getpid()
child = os.fork()
if child == 0:
    assert threads.submit(os.getpid).result(60) == os.getpid()
    print("made in the child", flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert threads.submit(os.getpid).result(60) == os.getpid()
print("made in the parent")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork processes")
def test_a_forked_process_makes_its_calls_although_the_threads_of_its_parent_are_not_in_it() -> None:
    made = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED],
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert (made.stdout, made.stderr) == ("made in the child\nmade in the parent\n", "")


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't create new thread at interpreter shutdown")


def test_a_call_is_made_where_it_is_asked_for_once_python_starts_no_more_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Python 3.12.0 and 3.12.1 do while other threads outlive the main thread."""
    ended = threading.Thread()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(threading, "main_thread", lambda: ended)
    threads = DaemonThreads(1, "some")
    assert threads.submit(divmod, 7, 2).result(0) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 1, 0).result(0)


def test_a_caller_is_told_that_there_are_too_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't create new thread"):
        DaemonThreads(1, "some").submit(divmod, 7, 2)


BLOCKED = """
import asyncio, sys, threading
from sqs_lease.daemon_threads import DaemonThreads

async def main():
    try:
        async with asyncio.timeout(0.1):
            await DaemonThreads(1, "blocked").run(threading.Event().wait)
    except TimeoutError:
        print("ended")

asyncio.run(main())
"""


def test_a_call_that_blocks_does_not_keep_its_process_from_ending() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", BLOCKED], check=True, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert (ended.stdout, ended.stderr) == ("ended\n", "")
