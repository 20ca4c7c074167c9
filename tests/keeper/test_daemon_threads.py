"""Threads for calls that may block for ever."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from contextvars import ContextVar

import pytest

from sqs_lease.daemon_threads import DaemonThreads

PATIENCE_SECONDS = 120.0

who: ContextVar[str] = ContextVar("who", default="nobody")


def test_no_more_calls_are_made_at_once_than_there_are_threads_and_none_is_left_out() -> None:
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


def test_who_asks_for_a_call_hears_that_there_are_too_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
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
