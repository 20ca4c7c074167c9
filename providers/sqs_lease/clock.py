"""Time for the code that makes calls: a clock that never goes back, and the wall clock for handing leases on."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings of time. The core takes times as arguments; only the keeper and the hosts ask a clock."""

    def now(self) -> float:
        """Seconds since some fixed moment; never goes back."""

    def wall(self) -> float:
        """Seconds since the epoch, the same for all processes; may be set by an administrator."""


class SystemClock:
    """The machine's clocks. ``now`` goes on counting while the machine is suspended, if the system supports that."""

    def now(self) -> float:
        """Seconds since boot on Linux (suspended time included: a lease runs out meanwhile); else monotonic."""
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()
