"""Turns in asking Airflow's supervisor: only a few requests of a triggerer are under way at the same time.

The supervisor serves one request after the other, about 40 a second. Hundreds of triggers that ask at the same moment
(after a takeover, say) would wait for longer than a request may take, give up and ask again, while it still answers
what nobody waits for any more. So requests queue here, where their time does not run yet.

Requests that are made for all triggers together do not queue: there are only two of them at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

from airflow.sdk.execution_time.comms import GetTaskStates, GetVariableKeys

REQUESTS_AT_ONCE: Final = 8
"""Enough to keep the supervisor busy; whatever else is asked waits for them, about a fifth of a second."""

_FOR_ALL_TRIGGERS: Final = (GetTaskStates, GetVariableKeys)

# One for each event loop that ever asked; a triggerer has one for life.
_turns: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]] = WeakKeyDictionary()


@asynccontextmanager
async def turn_for(request: Any) -> AsyncIterator[None]:
    """Wait for a turn to make a request, and have it until the block ends."""
    if isinstance(request, _FOR_ALL_TRIGGERS):
        yield
        return
    loop = asyncio.get_running_loop()
    async with _turns.setdefault(loop, asyncio.Semaphore(REQUESTS_AT_ONCE)):
        yield
