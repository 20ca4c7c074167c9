"""Steps that run where the run worker cannot end them: in containers, on other machines, under another scheduler.

All that such a step shares with the run worker is the batch's directory. So it watches that: when the run worker gives
the batch up, when another attempt at the step took over, or when no more signs of life come and the leases are about to
end, the step is interrupted, as if its run were terminated. The run worker in turn waits until the steps have left
their blocks, before it gives messages to others.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from sqs_lease.dagster.run_batch.folder import BatchFolder, BatchFolderError, PieceOfWork
from sqs_lease.dagster.run_batch.lease_files import begin_settling
from sqs_lease.dagster.run_batch.parent_watch import EXIT_CODE, INTERRUPTED_SECONDS
from sqs_lease.dagster.run_batch.signs_of_life import (
    LOOK_SECONDS,
    SILENCE,
    Listening,
    SignOfLife,
    read_sign,
)

logger = logging.getLogger(__name__)

MARGIN_SECONDS: Final = INTERRUPTED_SECONDS + LOOK_SECONDS
"""How long before the leases end a step begins to end whose run worker is gone."""


def recent_sign(folder: BatchFolder, sign: SignOfLife) -> SignOfLife:
    """Return a sign of life of a run worker that lives, before the work on its messages begins.

    Args:
        folder: The batch's directory.
        sign: The newest sign in it.

    Raises:
        BatchFolderError: The run worker is gone.
    """
    if sign.is_recent(time.time()):
        return sign
    # The clocks of the two machines may differ.
    ends = time.monotonic() + SILENCE * sign.next_seconds + LOOK_SECONDS
    while time.monotonic() < ends:
        threading.Event().wait(LOOK_SECONDS)
        newer = _look(folder)
        if newer is not None and (newer.process, newer.number) != (sign.process, sign.number):
            return newer
    raise BatchFolderError(
        f"the run worker on {sign.host}, which holds the messages at {folder}, gives no sign of life to this step on "
        f"{socket.gethostname()}: it is gone, and its messages are received again when their last extension ends"
    )


@contextmanager
def ended_with_batch(folder: BatchFolder, work: PieceOfWork, sign: SignOfLife) -> Iterator[None]:
    """Within the block, end this process when others are about to get the batch.

    It is interrupted first, and after :data:`INTERRUPTED_SECONDS` it exits on the spot and runs nothing more, unless
    the block was left. Where the block is in another thread than the main one, nobody can interrupt it, and other work
    may be under way in the process: the log has an error then, and no more.

    Args:
        folder: The batch's directory.
        work: What this process is at.
        sign: A recent sign of life of the run worker.
    """
    left = threading.Event()
    watch = _Watch(folder, work, Listening(sign, time.monotonic()), left)
    is_main = threading.current_thread() is threading.main_thread()
    thread = threading.Thread(target=watch.run, args=(is_main,), name="sqs-lease batch watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()


class _Watch:
    def __init__(self, folder: BatchFolder, work: PieceOfWork, listening: Listening, left: threading.Event) -> None:
        self._folder = folder
        self._work = work
        self._listening = listening
        self._left = left

    def run(self, may_end: bool) -> None:
        while not self._left.wait(LOOK_SECONDS):
            reason = self._reason_to_end()
            if reason is None:
                continue
            logger.error("%s: step %s ends, because its messages are given to others", reason, self._work.name)
            if may_end:
                self._end()
            return

    def _reason_to_end(self) -> str | None:
        looked_at = time.monotonic()
        try:
            if self._folder.is_settling():
                return "The run worker gave the batch up"
            sign = read_sign(self._folder)
            now = self._folder.read(self._work.name)
        except (OSError, ValueError, BatchFolderError):
            # What cannot be read for a while says nothing, until the leases end.
            pass
        else:
            if sign is None:
                return "The batch is settled"
            if now is not None and now.attempt != self._work.attempt:
                return "Another attempt at the step took over"
            self._listening.see(sign, looked_at)
        if self._listening.is_over(time.monotonic(), MARGIN_SECONDS):
            return "The run worker is gone"
        return None

    def _end(self) -> None:
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, signal.SIGINT)
        if self._left.wait(INTERRUPTED_SECONDS):
            return
        try:
            report(self._folder, PieceOfWork(self._work.name, self._work.attempt, is_over=True, is_elsewhere=True))
        except Exception:
            logger.exception("That step %s has ended cannot be written", self._work.name)
        os._exit(EXIT_CODE)


def report(folder: BatchFolder, work: PieceOfWork) -> None:
    """Write how a piece of work ended, unless the batch is gone or another attempt took over meanwhile.

    Raises:
        OSError: It cannot be written.
    """
    now = folder.read(work.name)
    if now is None or now.attempt != work.attempt:
        logger.warning("How %s of step %s ended does not count any more", work.attempt, work.name)
        return
    folder.write(work)


def end_steps_elsewhere(folder: BatchFolder, ended: Collection[tuple[str, str]], within_seconds: float) -> bool:
    """Tell the steps that run elsewhere that the batch is given up, and wait until none works on it.

    Args:
        folder: The batch's directory.
        ended: The steps that have ended for Dagster: the name of the piece of work, and the attempt at it.
        within_seconds: How long the others may take.

    Returns:
        Whether none works on it. False also where that cannot be found out.
    """
    ends = time.monotonic() + within_seconds
    try:
        begin_settling(folder, ())
        # A step writes that it begins before it looks for what was just written, so one of both is seen.
        while any(
            work.is_elsewhere and not work.is_over and (work.name, work.attempt) not in ended
            for work in folder.pieces().values()
        ):
            if time.monotonic() > ends:
                return False
            threading.Event().wait(LOOK_SECONDS / 2)
    except (OSError, BatchFolderError) as error:
        logger.warning("The steps cannot be told to end (%s: %s)", type(error).__name__, error)
        return False
    return True


def _look(folder: BatchFolder) -> SignOfLife | None:
    try:
        return read_sign(folder)
    except (OSError, ValueError):
        return None
