"""Threads for calls that may block for ever, in processes that must be able to end meanwhile.

A thread that has made its call waits for the next one for a while before it ends. To start a thread for each call
costs more processor time than the rest of what this package adds to a call of boto3.
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
"""A call, which returns what tells of its outcome."""


class DaemonThreads(Executor):
    """Makes calls in threads of its own, at most so many at once.

    A thread ends when it had no call for :data:`IDLE_SECONDS`, at :meth:`end`, or when this object is collected. Until
    then it keeps nothing of the calls that it made. After :meth:`end`, and in a process that was forked, the first call
    starts a thread again.

    Not in the event loop's default threads: those are few and serve everybody, look-ups of addresses among them, so
    that calls that block would stop every client of the process. And not in those of a ``ThreadPoolExecutor``: Python
    waits for them at the end of the process, so that one call that blocks would keep it from ending.

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
        """End the threads as soon as the calls so far are made, without waiting for that."""
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
            call: Makes the call, and returns what tells of its outcome. That is called in the same thread, which takes
                the next call by then: who hears of the outcome may make one at once. Neither may raise.
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
    """The threads of one process. They know nothing of the object that they serve, so that it can be collected."""

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
        """End each thread once the calls so far are made. Takes no lock: a garbage collection may come anywhere."""
        self._calls.put(None)

    def _starts_another(self) -> bool:
        """Start a thread, unless Python starts none any more: then the caller has to do without."""
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except RuntimeError:
            # 3.12.0 and 3.12.1 refuse once the main thread has ended, although other threads go on with their work.
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
                # A call came at the last moment: it counts on this thread.
                continue
            if taken is None:
                self._calls.put(None)  # for the other threads
                return
            # In a context of its own: what a call sets there, the next one must not find.
            tell = Context().run(taken)
            # Counted first: who hears of the outcome may make the next call at once, and finds this thread.
            self._count_free()
            tell()
            # Nothing of a call is kept while the next is awaited.
            del taken, tell

    def _count_free(self) -> None:
        with self._lock:
            self._free += 1


def _outcome(future: Future[_T], call: Callable[[], _T]) -> Callable[[], None]:
    """Make a call, unless its future was cancelled; return what tells the future."""
    if not future.set_running_or_notify_cancel():
        return _nothing
    try:
        return partial(future.set_result, call())
    except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
        return partial(future.set_exception, error)


def _nothing() -> None:
    """Tell nothing: the call was not made."""
