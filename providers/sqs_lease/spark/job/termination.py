"""Orderly end of a job on request: by SIGTERM, or by the end of the process that started it."""

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
"""The exit code of a job that ended on request, as a shell reports it."""

GRACE_SECONDS: Final = 20.0
"""The longest time for the cancellation. After it the process ends all the same, because its session hangs."""

_AGAIN_SECONDS: Final = 0.5


class Termination:
    """The request to end the job. It is made and used in the main thread."""

    def __init__(self) -> None:
        self._asked = Event()
        self._ended = Event()
        self._cancel: Callable[[], object] | None = None

    def install(self) -> None:
        """Handle SIGTERM from now on."""
        signal.signal(signal.SIGTERM, self._take)

    @property
    def asked(self) -> bool:
        """Whether the job was asked to end."""
        return self._asked.is_set()

    @contextmanager
    def cancelling(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Run a block that SIGTERM does not interrupt: another thread then cancels until the block ends."""
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
    """Ask this process to end when its standard input ends: then the process at the other end has died."""

    def read() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=read, name="standard input", daemon=True).start()
