"""Turns in asking Airflow's supervisor: few requests at the same time, and none while many triggers start.

The supervisor serves one request after the other, about 40 a second. Hundreds of triggers that ask at the same moment
(after a takeover, say) would wait for longer than a request may take, give up and ask again, while it still answers
what nobody waits for any more. So requests queue here, where their time does not run yet.

Requests that are made for all triggers together do not queue: there are only two of them at any time.

The supervisor reads the log lines of triggers, too: 4 kB of them for each request that it serves, and none for the four
seconds in which it loads the API server's code for its first answer. Airflow logs a line for each trigger that starts.
After some two hundred that were not read, the socket is full, and whoever logs next blocks the event loop. So as long
as many triggers start, nothing is asked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakKeyDictionary

REQUESTS_AT_ONCE: Final = 8
"""Enough to keep the supervisor busy; whatever else is asked waits for them, about a fifth of a second."""

MANY_STARTS: Final = 50
"""As many triggers as a triggerer takes over at once by default; those that are left follow with its next round."""

STARTING_SECONDS: Final = 2.0
"""That many starts within this time are many: a triggerer's rounds are a little more than a second apart."""

LONGEST_START_SECONDS: Final = 10.0
"""How long nothing is asked at most: a thousand triggers, Airflow's default limit, start sooner. Leases last longer."""


class Turns:
    """The turns of one event loop's triggers; made by :func:`turns`."""

    def __init__(self) -> None:
        self._semaphore = asyncio.Semaphore(REQUESTS_AT_ONCE)
        self._started_at: deque[float] = deque(maxlen=MANY_STARTS)
        self._many_since = 0.0

    def trigger_started(self) -> None:
        """Take in that one more trigger started."""
        now = asyncio.get_running_loop().time()
        if not self._many_started(now):
            self._many_since = now
        self._started_at.append(now)

    def _many_started(self, now: float) -> bool:
        return len(self._started_at) == MANY_STARTS and now - self._started_at[0] < STARTING_SECONDS

    async def calm(self) -> None:
        """Wait as long as many triggers start."""
        loop = asyncio.get_running_loop()
        while self._many_started(now := loop.time()) and now - self._many_since < LONGEST_START_SECONDS:  # noqa: ASYNC110 - until when is known
            await asyncio.sleep(max(self._started_at[0] + STARTING_SECONDS - now, 0.01))

    @asynccontextmanager
    async def turn(self, *, for_all_triggers: bool) -> AsyncIterator[None]:
        """Wait for a turn to make a request, and have it until the block ends.

        Args:
            for_all_triggers: Whether the request is made for all triggers together; those do not queue.
        """
        if for_all_triggers:
            await self.calm()
            yield
            return
        async with self._semaphore:
            await self.calm()
            yield


# One for each event loop that ever asked; a triggerer has one for life.
_turns: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Turns]] = WeakKeyDictionary()


def turns() -> Turns:
    """Return the turns of the running event loop."""
    loop = asyncio.get_running_loop()
    if (found := _turns.get(loop)) is None:
        found = _turns[loop] = Turns()
    return found
