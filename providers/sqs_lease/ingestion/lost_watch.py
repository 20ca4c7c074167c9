"""A watch that ends a job when its messages are no longer held, while the task waits for the job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 10.0
"""How often to ask: an answer may cost requests to an orchestrator."""


@contextmanager
def ending_when_lost(any_held: Callable[[], bool], end: Callable[[], object]) -> Iterator[Event]:
    """In the block, end a job when its messages are no longer held.

    While ``any_held`` fails, the job goes on.

    Args:
        any_held: Returns whether any message is still held; it is called in a separate thread.
        end: Ends the job; called again until the block ends.

    Yields:
        An event that is set when the messages are no longer held.
    """
    lost, stop = Event(), Event()

    def watch() -> None:
        while not stop.wait(LOOK_SECONDS):
            try:
                held = not lost.is_set() and any_held()
            except Exception as error:  # noqa: BLE001 - orchestrators have errors of many kinds, and the work goes on
                logger.warning("It is not known whether the messages are still held: %r", error)
                continue
            if not held:
                # Called again and again, because the job may not have started at the first call.
                lost.set()
                end()

    thread = Thread(target=watch, name="sqs-lease held", daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        stop.set()
        thread.join()
