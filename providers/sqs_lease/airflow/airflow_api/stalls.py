"""Notices that this process stood still: then another triggerer may have taken its triggers over meanwhile.

A stall is a gap in the event loop's time (the process was stopped, or its machine was suspended), never a slow answer
of Airflow's: while the event loop runs, Airflow tells this process within about a second which triggers run elsewhere.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Final

from sqs_lease.clock import Clock

STALL_SECONDS: Final = 10.0
"""A longer gap is a stall. Airflow takes a triggerer for dead after 30 s by default."""

BEAT_SECONDS: Final = 1.0
"""How often the event loop shows that it runs."""


class StallWatch:
    """Looks at the clock once a second while anybody relies on it.

    Args:
        clock: Source of time. It must go on counting while the machine is suspended.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._users = 0
        self._beat_at = clock.now()
        self._last_ended_at = -math.inf
        self._beating: asyncio.Task[None] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch until the context ends, from the event loop."""
        if self._users == 0:
            self._beat_at = self._clock.now()
        self._users += 1
        if self._beating is None or self._beating.done():
            # In a context of its own: it belongs to no single trigger.
            self._beating = asyncio.get_running_loop().create_task(
                self._beat(), name="sqs-lease stalls", context=Context()
            )
        try:
            yield
        finally:
            self._users -= 1

    def last_ended_at(self) -> float:
        """When the last stall ended, by the clock; minus infinity where there was none.

        Whoever runs first after a stall finds it by this, even before the next beat.
        """
        now = self._clock.now()
        if now - self._beat_at > STALL_SECONDS:
            self._last_ended_at = now
        self._beat_at = now
        return self._last_ended_at

    async def _beat(self) -> None:
        while self._users:
            self.last_ended_at()
            await asyncio.sleep(BEAT_SECONDS)
