"""Work on many leases that does not block the event loop: a slice in each round, and one future for all answers."""

from __future__ import annotations

import asyncio
from typing import Final

LEASES_IN_A_ROUND: Final = 1_000
"""Most leases that all batches of one keeper look at in one round of the event loop. They take a few milliseconds.
"""


class RoundLimiter:
    """A limit on the leases worked on in one round of the event loop. Slices get their turn in the order they ask.

    Hundreds of batches may end at the same moment: each is little work, but together they would block the loop.
    """

    def __init__(self) -> None:
        self._waiting = asyncio.Lock()
        self._taken = 0  # leases in this round

    async def take(self, leases: int) -> None:
        """Wait until a slice of work on ``leases`` leases fits into a round. The first slice of a round always fits."""
        async with self._waiting:
            if self._taken and self._taken + leases > LEASES_IN_A_ROUND:
                await asyncio.sleep(0)
            if not self._taken:
                asyncio.get_running_loop().call_soon(self._begin_round)
            self._taken += leases

    def _begin_round(self) -> None:
        self._taken = 0


class Countdown:
    """A wait until the answers about some leases have come.

    One future serves all leases. With a future for each, Python's garbage collector would look through all of them and
    block the event loop.
    """

    def __init__(self) -> None:
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = 1  # ended() counts this one

    def expect(self, leases: int) -> None:
        """Add to the number of answers to wait for."""
        self._left += leases

    def count(self) -> None:
        """Count one answer."""
        self._left -= 1
        if self._left == 0:
            self.end()

    def end(self) -> None:
        """Stop waiting, even if answers are missing."""
        if not self._done.done():
            self._done.set_result(None)

    async def ended(self) -> None:
        """Wait for all answers. Call this once."""
        self.count()
        await self._done
