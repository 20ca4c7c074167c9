"""Ends of triggers: when a task may be resumed, and ends that are carried out although Airflow interrupts them.

A trigger whose task a user acted on, or whose deferral timed out, is cancelled again with every round of the triggerer,
once a second, until it has ended. What takes it longer (waiting for a long poll to come back, calls about thousands of
messages, an answer of a busy supervisor) would be cut off in the middle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from typing import Any, Final, TypeAlias, TypeVar

DEFERRAL_SECONDS: Final = 6.0
"""How long after its deferral a trigger has a worker resume the task at the earliest.

A worker's supervisor notices up to 5 s late that the deferring process ended; if the task is queued again by then,
the scheduler takes the old process's end for a failure of the new one.
"""

Trigger = TypeVar("Trigger")
Ending: TypeAlias = Callable[[Trigger], Coroutine[Any, Any, None]]


def carried_out(method: Ending[Trigger]) -> Ending[Trigger]:
    """Carry a method of a trigger out to its end, however often who waits for it is cancelled.

    An event loop that ends cancels the method itself as well, but only once.
    """

    @wraps(method)
    async def carried_out_method(trigger: Trigger) -> None:
        await end_of(task := asyncio.get_running_loop().create_task(method(trigger)))
        if not task.cancelled():
            task.result()

    return carried_out_method


async def cancelled_once(work: asyncio.Task[Any]) -> None:
    """Cancel work, unless that was done already, and wait until it has come to its end."""
    if not work.cancelling():
        work.cancel()
    await end_of(work)


async def end_of(work: asyncio.Task[Any]) -> None:
    """Wait for the end of work, however often the waiting is cancelled."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([work])
