"""Waiting for the end of a task, even if the wait is cancelled, once or many times."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any


async def cancelled_once(work: asyncio.Task[Any]) -> None:
    """Cancel a task, unless it was cancelled already, and wait for its end."""
    if not work.cancelling():
        work.cancel()
    await end_of(work)


async def end_of(work: asyncio.Task[Any]) -> None:
    """Wait for the end of a task, even if the wait is cancelled, once or many times."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([work])
