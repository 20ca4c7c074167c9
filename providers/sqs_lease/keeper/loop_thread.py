"""An event loop in a separate thread, for callers that block: leases are extended there while the caller works.

The thread lives until it is ended, and may live longer than the lease for which it was started. So it keeps no objects
of others alive for that long:

- The thread does not refer to its :class:`LoopThread`.
- Coroutines do not run in the caller's context. Tasks and timers copy the context that they are made in, and a caller's
  context variables may lead to all that the caller has: Dagster's lead from the run's context over the exception of a
  step to the suspended generator that holds the lease.

No caller waits for ever: when the loop ends, for whatever reason, each waiting caller gets an error.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

LAST_TASKS_SECONDS: Final = 5.0
"""How long tasks that are left when the loop ends may take to end after they are cancelled."""


class LoopThreadError(RuntimeError):
    """An error: the loop cannot be called from here, or has ended; the text says why."""


class LoopThread:
    """The loop and its thread, which run from now on.

    Args:
        name: The thread's name.
    """

    def __init__(self, name: str) -> None:
        # Making a loop copies the context, too.
        self._loop = Context().run(asyncio.new_event_loop)
        self._calls = _Calls(name)
        self._process = os.getpid()
        self._ends_after_last = False
        # A daemon: an interpreter that ends without leaving the block must not wait for it. The leases then lapse.
        self._thread = threading.Thread(target=_serve, args=(self._loop, self._calls), name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the loop and wait for its result. It does not see the caller's context variables.

        If the caller is interrupted, the coroutine is cancelled and its end awaited: a receive hands over what its
        polls bring before it ends.

        Raises:
            LoopThreadError: It would never be answered: this is the loop's own thread, a forked child or an interpreter
                that ends, or the loop has ended. If the loop ends while the caller waits, it is raised, too.
        """
        result: Future[_T] = Future()
        tasks: list[asyncio.Task[_T]] = []

        def start() -> None:
            if result.done():
                return
            task = self._loop.create_task(coroutine)
            tasks.append(task)
            task.add_done_callback(partial(_pass_on, result))

        def cancel() -> None:
            for task in tasks:
                task.cancel()
            if not tasks and not result.done():
                # The caller was interrupted before it had requested a start, so no start will come.
                result.set_exception(CancelledError())

        try:
            self._refuse_if_nobody_would_answer()
            self._calls.add(result)
            try:
                # Inside the block: the loop may have begun, and be far ahead, before this thread runs its next line.
                self._loop.call_soon_threadsafe(start, context=Context())
                return result.result()
            except BaseException:
                if not result.done():
                    # A loop that is closed has answered all calls.
                    with suppress(RuntimeError):
                        self._loop.call_soon_threadsafe(cancel, context=Context())
                    wait_for([result])
                raise
            finally:
                self._calls.remove(result)
        finally:
            if not tasks:
                # It never began: close it, so that Python does not warn about it.
                coroutine.close()

    def post(self, callback: Callable[[], object]) -> None:
        """Call a function in the loop soon, without waiting. It must not raise. It does not see the caller's context.

        Raises:
            LoopThreadError: The loop has ended, or is in another process.
        """
        if self._process != os.getpid() or self._calls.ended is not None:
            raise LoopThreadError(f"No more calls can be made: {self._calls.ended or 'this is a forked child'}")
        try:
            self._loop.call_soon_threadsafe(callback, context=Context())
        except RuntimeError as error:
            raise LoopThreadError(f"No more calls can be made: {self._calls.ended}") from error

    def start(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Begin a coroutine in the loop, and return a future of its result. If the loop ends, that is an error.

        Raises:
            LoopThreadError: As :meth:`run` does.
        """
        result: Future[_T] = Future()

        def begin() -> None:
            self._loop.create_task(coroutine).add_done_callback(ended)

        def ended(task: asyncio.Task[_T]) -> None:
            self._calls.remove(result)
            _pass_on(result, task)

        try:
            self._refuse_if_nobody_would_answer()
            self._calls.add(result)
            self._loop.call_soon_threadsafe(begin, context=Context())
        except BaseException:
            coroutine.close()
            raise
        return result

    def end_after(self, last: Coroutine[Any, Any, object]) -> None:
        """Run a last coroutine, and end when it has ended. This does not wait, so any thread may call it.

        It does nothing in a forked child, where there is no loop, and when the loop has ended.
        """
        if self._process != os.getpid() or self._calls.ended is not None:
            last.close()
            return

        def start() -> None:
            task = self._loop.create_task(last)
            task.add_done_callback(_log_failure)
            task.add_done_callback(lambda _: _stop(self._loop, self._calls))

        self._calls.end(f"the thread {self._thread.name!r} is ending")
        self._ends_after_last = True
        try:
            self._loop.call_soon_threadsafe(start, context=Context())
        except RuntimeError:
            # It was closed meanwhile.
            last.close()

    @property
    def is_stopped(self) -> bool:
        """Whether the loop refuses calls because it was ended, or its thread died."""
        return self._calls.ended is not None

    def stop(self, why: str = "") -> None:
        """End the loop and the thread, and wait until they have ended. In a forked child it does nothing.

        After :meth:`end_after` it waits for the last coroutine, too.

        Args:
            why: What to tell those that call it afterwards; by default, that the thread was stopped.

        Raises:
            LoopThreadError: This is the loop's own thread.
        """
        if self._process != os.getpid():
            return
        self._refuse_own_thread()
        self._calls.end(why or f"the thread {self._thread.name!r} was stopped")
        if not self._ends_after_last:
            # A closed loop has ended already.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_stop, self._loop, self._calls)
        self._thread.join()

    def _refuse_if_nobody_would_answer(self) -> None:
        if self._process != os.getpid():
            raise LoopThreadError(
                f"The thread {self._thread.name!r} is in process {self._process}, and this is a forked child without "
                "it: call from the process that began the block"
            )
        self._refuse_own_thread()
        if sys.is_finalizing():
            raise LoopThreadError(f"The interpreter is ending: the thread {self._thread.name!r} has stopped")

    def _refuse_own_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise LoopThreadError(
                f"This was called in the thread {self._thread.name!r} itself, which would wait for itself for ever: "
                "policies, meters and other callbacks of a keeper must not call back into it"
            )


class _Calls:
    """The calls that wait for the loop, and its readiness for more; used by all threads."""

    def __init__(self, name: str) -> None:
        self.ended: str | None = None  # why it refuses calls
        self.is_served = True  # the thread still takes callbacks, and has not begun to end
        self._name = name
        self._waiting: set[Future[Any]] = set()
        # Reentrant: a finalizer may run in the middle of any of these methods, and call one of them.
        self._lock = threading.RLock()

    def add(self, result: Future[Any]) -> None:
        with self._lock:
            if self.ended is not None:
                raise LoopThreadError(f"No more calls can be made: {self.ended}")
            self._waiting.add(result)

    def remove(self, result: Future[Any]) -> None:
        with self._lock:
            self._waiting.discard(result)

    def end(self, why: str) -> None:
        """Refuse calls from now on."""
        with self._lock:
            self.ended = self.ended or why

    def fail(self, cause: BaseException | None) -> None:
        """Tell callers that still wait that no answer comes."""
        with self._lock:
            left = [result for result in self._waiting if not result.done()]
        for result in left:
            error = LoopThreadError(f"No answer comes: {self.ended}")
            error.__cause__ = cause
            result.set_exception(error)


def _serve(loop: asyncio.AbstractEventLoop, calls: _Calls) -> None:
    """Run the loop until it is stopped. The thread calls this."""
    name = threading.current_thread().name
    died: BaseException | None = None
    try:
        loop.run_forever()
    except BaseException as error:
        # SystemExit leaves the loop from any callback.
        died = error
        logger.critical("The thread %r died: its leases are no longer extended", name, exc_info=error)
    calls.end(f"the thread {name!r} " + ("has ended" if died is None else f"died of {type(died).__name__}"))
    calls.is_served = False
    calls.fail(died)
    try:
        if left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=LAST_TASKS_SECONDS))
    except BaseException:
        logger.exception("The tasks of the thread %r could not be ended", name)
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop, calls: _Calls) -> None:
    """Stop the loop, unless it is ending already. Called in its thread."""
    if calls.is_served:
        loop.stop()


def _pass_on(result: Future[_T], task: asyncio.Task[_T]) -> None:
    if result.done():
        # The loop ended meanwhile, and the caller knows.
        return
    if task.cancelled():
        result.set_exception(CancelledError())
    elif (error := task.exception()) is not None:
        result.set_exception(error)
    else:
        result.set_result(task.result())


def _log_failure(task: asyncio.Task[object]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("The last calls of a thread that ends failed", exc_info=error)
