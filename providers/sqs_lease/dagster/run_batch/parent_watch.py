"""Ends a step's process when the run worker that started it is gone.

Dagster's multiprocess executor starts a process for each step. Where the run worker is killed, these live on, for as
long as their work takes, while Dagster has the run down as failed. The holder of the run's messages gives them to
others then (or they come back by themselves, because the run worker held them), so the step must not go on.

A step that the run worker did not start, in another container or on another machine, cannot see whether it is gone. So
:func:`is_of_run_worker` tells the one from the other.
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

_runs: Final[set[str]] = set()
"""The runs that this process is the worker of, by their ids."""

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


@contextmanager
def working_on(run_id: str) -> Iterator[None]:
    """Within the block, this process is the worker of a run, and holds its messages.

    Args:
        run_id: The run.
    """
    _runs.add(run_id)
    try:
        yield
    finally:
        _runs.discard(run_id)


def is_of_run_worker(run_id: str) -> bool:
    """Whether this process is the worker of a run that holds its messages, or one that the worker started for a step.

    The multiprocess executor starts steps by ``multiprocessing``. Those in containers and on other machines are
    programs of their own.

    Args:
        run_id: The run.
    """
    return run_id in _runs or multiprocessing.parent_process() is not None


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
