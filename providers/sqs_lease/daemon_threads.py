"""Threads for calls that may block for ever, in processes that must be able to end meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

_T = TypeVar("_T")


class DaemonThreads(Executor):
    """Makes calls in threads of its own, at most so many at once; a thread ends when no call waits for it.

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
        self._lock = threading.Lock()
        self._running = 0
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """Make a call as soon as a thread is free."""
        future: Future[_T] = Future()
        call = partial(fn, *args, **kwargs)
        with self._lock:
            if self._running < self._most and self._starts_another():
                self._running += 1
            has_thread = self._running > 0
            if has_thread:
                self._calls.append((future, call))
        if not has_thread:
            future.set_running_or_notify_cancel()
            _make(future, call)
        return future

    async def run(self, call: Callable[..., _T], /, *args: Any) -> _T:
        """Make a call from an event loop, in the caller's context. Who stops waiting leaves it to its thread."""
        return await asyncio.get_running_loop().run_in_executor(self, partial(copy_context().run, call, *args))

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
            with self._lock:
                if not self._calls:
                    self._running -= 1
                    return
                future, call = self._calls.popleft()
            if future.set_running_or_notify_cancel():
                _make(future, call)
            # Nothing of a call is kept while the next is awaited.
            del future, call


def _make(future: Future[_T], call: Callable[[], _T]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
        future.set_exception(error)
    else:
        future.set_result(result)
