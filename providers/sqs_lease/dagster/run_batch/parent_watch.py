"""Ends a step's process when the run worker that started it is gone.

Dagster's multiprocess executor starts a process for each step. Where the run worker is killed, these live on, for as
long as their work takes, while Dagster has the run down as failed. The holder of the run's messages gives them to
others then (or they come back by themselves, because the run worker held them), so the step must not go on.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Final

from sqs_lease.dagster._internals import run_worker

logger = logging.getLogger(__name__)

INTERRUPTED_SECONDS: Final = 3.0
"""How long a step may take to end by the interruption."""

EXIT_CODE: Final = 70
"""What an orphan exits with, that nobody waits for."""


@contextmanager
def ended_with_run_worker() -> Iterator[None]:
    """Within the block, end this process if it is a step's and its run worker ends.

    First the step is interrupted, as it is when its run is terminated: so it also stops what it started itself, such
    as the process behind a Pipes client. Whatever it does, after :data:`INTERRUPTED_SECONDS` the process exits on the
    spot and runs nothing more: code that catches the interruption, or waits where none reaches it, must not go on.
    """
    worker = run_worker()
    if worker is None:
        yield
        return
    left, leave = multiprocessing.Pipe(duplex=False)
    thread = threading.Thread(
        target=_watch, args=(worker.sentinel, left), name="sqs-lease run worker watch", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        leave.close()


def has_run_worker() -> bool:
    """Whether this is a process that the multiprocess executor started for a step, so that the run worker ends it."""
    return run_worker() is not None


def _watch(worker_ends: int, left: Connection) -> None:
    ready = wait([worker_ends, left])
    if worker_ends not in ready:
        left.close()
        return
    logger.error("The run worker is gone: this step ends, because its messages are given to others")
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)
    threading.Event().wait(INTERRUPTED_SECONDS)
    os._exit(EXIT_CODE)
