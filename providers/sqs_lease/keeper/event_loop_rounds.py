"""Work on many leases in an event loop that others wait for: a slice in each round, and one future for all answers."""

from __future__ import annotations

import asyncio
from typing import Final

LEASES_IN_A_ROUND: Final = 1_000
"""How many leases the batches of one keeper look at, all together, before the event loop does other things.

That takes it some milliseconds.
"""


class RoundLimiter:
    """Gives each round of the event loop to as many slices of work as fit in, in the order of their asking.

    Hundreds of batches may end at the same moment: each is small work, and all together they are long.
    """

    def __init__(self) -> None:
        self._waiting = asyncio.Lock()
        self._taken = 0  # leases in this round

    async def take(self, leases: int) -> None:
        """Wait until a slice of work on so many leases fits into the round. The first one always does."""
        async with self._waiting:
            if self._taken and self._taken + leases > LEASES_IN_A_ROUND:
                await asyncio.sleep(0)
            if not self._taken:
                asyncio.get_running_loop().call_soon(self._begin_round)
            self._taken += leases

    def _begin_round(self) -> None:
        self._taken = 0


class Countdown:
    """Waits until some leases have been heard of.

    It is one future, and not one for each lease: Python's garbage collector looks through each of them, and the event
    loop stands still meanwhile.
    """

    def __init__(self) -> None:
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = 1  # one more until somebody waits

    def expect(self, leases: int) -> None:
        """There are so many more to hear of."""
        self._left += leases

    def count(self) -> None:
        """There is one less to hear of."""
        self._left -= 1
        if self._left == 0:
            self.end()

    def end(self) -> None:
        """There is nothing more to wait for."""
        if not self._done.done():
            self._done.set_result(None)

    async def ended(self) -> None:
        """Wait until all have been heard of; to be called once."""
        self.count()
        await self._done
