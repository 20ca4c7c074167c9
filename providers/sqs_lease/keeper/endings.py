"""The end of work that is waited for, however often whoever waits is cancelled."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any


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
