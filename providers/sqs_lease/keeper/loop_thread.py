"""An event loop in a thread of its own, for callers that block: leases are extended there while the caller works."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from concurrent.futures import wait as wait_for
from functools import partial
from threading import Thread
from typing import Any, TypeVar

_T = TypeVar("_T")


class LoopThread:
    """The loop and its thread, which run from now on.

    Args:
        name: The thread's name.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # A daemon: an interpreter that ends without leaving the block must not wait for it. The leases then lapse.
        self._thread = Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the loop and wait for its result.

        If the caller is interrupted, the coroutine is cancelled and its end awaited: a receive hands over what its
        polls bring before it ends.
        """
        result: Future[_T] = Future()
        tasks: list[asyncio.Task[_T]] = []

        def start() -> None:
            task = self._loop.create_task(coroutine)
            tasks.append(task)
            task.add_done_callback(partial(_pass_on, result))

        def cancel() -> None:
            for task in tasks:
                task.cancel()
            if not tasks:
                # The caller was interrupted before it had asked for a start, which now will not come.
                coroutine.close()
                result.set_exception(CancelledError())

        try:
            # Within: the loop may have begun, and be far, before this thread comes to its next line.
            self._loop.call_soon_threadsafe(start)
            return result.result()
        except BaseException:
            if not result.done():
                self._loop.call_soon_threadsafe(cancel)
                wait_for([result])
            raise

    @property
    def is_stopped(self) -> bool:
        """Whether :meth:`stop` has ended it."""
        return self._loop.is_closed()

    def stop(self) -> None:
        """End the loop and the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _pass_on(result: Future[_T], task: asyncio.Task[_T]) -> None:
    if task.cancelled():
        result.set_exception(CancelledError())
    elif (error := task.exception()) is not None:
        result.set_exception(error)
    else:
        result.set_result(task.result())
