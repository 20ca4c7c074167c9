"""Threads for calls that may block for ever, in processes that must be able to end meanwhile.

A thread that has made its call waits for the next one for a while before it ends. Starting a thread for each call would
cost more processor time than all else that this package adds to a call of boto3.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import Context, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar

IDLE_SECONDS: Final = 10.0
"""How long a thread waits for another call before it ends."""

_T = TypeVar("_T")

_Call: TypeAlias = Callable[[], Callable[[], object]]
"""A call, which returns a function that reports its outcome."""


class DaemonThreads(Executor):
    """An executor with daemon threads of its own, at most a fixed number.

    A thread ends when it had no call for :data:`IDLE_SECONDS`, at :meth:`end`, or when this object is collected. It
    keeps no references to its earlier calls. After :meth:`end`, and in a forked process, the first call starts a thread
    again.

    The event loop's default threads would not do: they are few and serve the whole process, look-ups of addresses among
    them, so that calls that block would stop every client. Those of a ``ThreadPoolExecutor`` would not do either:
    Python waits for them at the end of the process, so that one call that blocks would keep it from ending.

    Args:
        most: How many calls are made at once; others wait for one of them.
        name: Names the threads.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._threads = _Threads(most, name)

    def __del__(self) -> None:
        self._threads.end()

    def end(self) -> None:
        """End the threads after the calls so far, without waiting for them."""
        ending, self._threads = self._threads, _Threads(self._most, self._name)
        ending.end()

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """Make a call as soon as a thread is free."""
        future: Future[_T] = Future()
        self.begin(partial(_outcome, future, partial(fn, *args, **kwargs)))
        return future

    def begin(self, call: _Call) -> None:
        """Make a call as soon as a thread is free, without a future for its outcome.

        Args:
            call: Makes the call, and returns a function that reports its outcome. That is called in the same thread,
                which already counts as free then: the report may make the next call at once. Neither may raise.
        """
        if self._threads.process_id != os.getpid():
            # A fork copies the lock, which may be held, and the counts, but not the threads.
            self._threads = _Threads(self._most, self._name)
        if not self._threads.take(call):
            call()()

    async def run(self, call: Callable[..., _T], /, *args: Any) -> _T:
        """Make a call from an event loop, in the caller's context. Cancelling the await does not stop the call."""
        return await asyncio.get_running_loop().run_in_executor(self, partial(copy_context().run, call, *args))


class _Threads:
    """The threads of one process. They do not refer to the object that they serve, so that it can be collected."""

    def __init__(self, most: int, name: str) -> None:
        self.process_id = os.getpid()
        self._most = most
        self._name = name
        self._lock = threading.Lock()
        self._running = 0
        # Threads without a call, less the calls in the queue.
        self._free = 0
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()

    def take(self, call: _Call) -> bool:
        """Let a thread make a call; False if there is none and Python starts none."""
        with self._lock:
            if self._free <= 0 and self._running < self._most and self._starts_another():
                self._running += 1
                self._free += 1
            if self._running == 0:
                return False
            self._free -= 1
            self._calls.put(call)
        return True

    def end(self) -> None:
        """End each thread after the calls so far. It takes no lock, because the garbage collector may call it."""
        self._calls.put(None)

    def _starts_another(self) -> bool:
        """Start a thread; return False if Python no longer starts threads."""
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except RuntimeError:
            # Python 3.12.0 and 3.12.1 refuse after the main thread has ended, although other threads still work.
            if threading.main_thread().is_alive():
                raise
            return False
        return True

    def _work(self) -> None:
        while True:
            try:
                taken = self._calls.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._free > 0:
                        self._free -= 1
                        self._running -= 1
                        return
                # A call came at the last moment, for this thread.
                continue
            if taken is None:
                self._calls.put(None)  # for the other threads
                return
            # A context of its own, so that a call does not see the variables of the call before it.
            tell = Context().run(taken)
            # Counted before the report, which may make the next call at once and needs this thread.
            self._count_free()
            tell()
            # No references to a call are kept while the thread waits for the next one.
            del taken, tell

    def _count_free(self) -> None:
        with self._lock:
            self._free += 1


def _outcome(future: Future[_T], call: Callable[[], _T]) -> Callable[[], None]:
    """Make a call, unless its future was cancelled; return the function that sets the future."""
    if not future.set_running_or_notify_cancel():
        return _nothing
    try:
        return partial(future.set_result, call())
    except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
        return partial(future.set_exception, error)


def _nothing() -> None:
    """Report nothing, because the call was not made."""
