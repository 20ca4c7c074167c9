"""Ends a job in order when it is asked to: by SIGTERM, or by the end of its starter."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from types import FrameType
from typing import Final

logger = logging.getLogger(__name__)

EXIT_CODE: Final = 128 + signal.SIGTERM
"""What a job that was asked to end ends with, as a shell reports it."""

GRACE_SECONDS: Final = 20.0
"""How long the cancellation may take; a process whose session hangs ends without one then."""

_AGAIN_SECONDS: Final = 0.5


class Termination:
    """Whether the job was asked to end; made and used in the main thread."""

    def __init__(self) -> None:
        self._asked = Event()
        self._ended = Event()
        self._cancel: Callable[[], object] | None = None

    def install(self) -> None:
        """Take SIGTERM from now on."""
        signal.signal(signal.SIGTERM, self._take)

    @property
    def asked(self) -> bool:
        """Whether it was asked to end."""
        return self._asked.is_set()

    @contextmanager
    def cancelling(self, cancel: Callable[[], object]) -> Iterator[None]:
        """In the block, being asked to end interrupts nothing: another thread cancels, again and again until then."""
        self._cancel = cancel
        try:
            if self.asked:
                raise SystemExit(EXIT_CODE)
            yield
        finally:
            self._cancel = None
            self._ended.set()

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            return
        self._asked.set()
        if self._cancel is None:
            raise SystemExit(EXIT_CODE)
        Thread(target=self._keep_cancelling, args=(self._cancel,), name="termination", daemon=True).start()

    def _keep_cancelling(self, cancel: Callable[[], object]) -> None:
        logger.info("asked to end: the Spark jobs of this ingestion are cancelled")
        ends_at = time.monotonic() + GRACE_SECONDS
        while not self._ended.is_set():
            if time.monotonic() > ends_at:
                os._exit(EXIT_CODE)
            try:
                cancel()
            except Exception as error:  # noqa: BLE001 - Spark may be gone, and with it the jobs
                logger.debug("%r while jobs were cancelled", error)
            self._ended.wait(_AGAIN_SECONDS)


def end_with_standard_input() -> None:
    """From now on, ask this process to end when its standard input does: when the holder of the other end died."""

    def read() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=read, name="standard input", daemon=True).start()
