"""Waits for what happens by itself, in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(seen: Callable[[], bool], what: str) -> None:
    """Wait until something is seen; the time limit is one that no machine needs."""
    deadline = time.monotonic() + 600
    while not seen():
        assert time.monotonic() < deadline, f"not within 600 s: {what}"
        time.sleep(0.02)
