"""Signs of life of the run worker that holds a batch, for steps that it is not the parent process of.

While it holds messages, a run worker writes ``alive.json`` into the batch's directory again and again: how long every
lease lasts at least from then on, and when the next sign is due. A step in a container or on another machine reads it.
When no more signs come, the run worker is gone, and the step must end before others receive its messages.

No two clocks are compared to decide that: the step counts from when it looked, and a sign that it had not seen when it
looked before was written after that. Only the first sign that a step sees is judged by its date; where that is not
recent, because the clocks differ or the run worker is gone, the step waits for another one.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Final
from uuid import uuid4

import msgspec

from sqs_lease.dagster.run_batch.folder import BatchFolder

logger = logging.getLogger(__name__)

ALIVE: Final = "alive.json"
"""The file."""

LOOK_SECONDS: Final = 1.0
"""How often the run worker looks whether the leases were extended, and a step whether there is a newer sign."""

SILENCE: Final = 3.0
"""After how many times the interval that a sign names the run worker is taken for gone, where no other came."""

_INTERPRETER: Final = uuid4().hex


def this_process() -> str:
    """Name this process among those of all machines; numbers of processes repeat in containers."""
    return f"{_INTERPRETER}-{os.getpid()}"


@dataclass(frozen=True, slots=True)
class SignOfLife:
    """What a run worker says when it lives.

    Attributes:
        process: Which process it is: see :func:`this_process`.
        host: Its machine, for people.
        number: Counts the signs.
        written_at: When it was written, in seconds since the epoch by the clock of the run worker.
        lasting_seconds: How long, from then on, every lease lasts at least.
        next_seconds: When the next sign is due, from then on.
    """

    process: str
    host: str
    number: int
    written_at: float
    lasting_seconds: float
    next_seconds: float

    def is_recent(self, wall: float) -> bool:
        """Whether it is so young, by the date, that no other one is overdue.

        Args:
            wall: Seconds since the epoch by the clock of this machine.
        """
        return abs(wall - self.written_at) <= SILENCE * self.next_seconds


def next_sign_seconds(lasting_seconds: float) -> float:
    """Return when the next sign is due: the sooner, the sooner the leases end."""
    return min(10.0, max(LOOK_SECONDS, lasting_seconds / 10))


@contextmanager
def signs_of_life(folder: BatchFolder, lasting_seconds: Callable[[], float | None]) -> Iterator[None]:
    """Write a sign now, and more of them from a thread until the block ends.

    What cannot be written later is logged: the steps that see no more of it end themselves.

    Args:
        folder: The batch's directory.
        lasting_seconds: How long every lease lasts for certain; None where that is not known.

    Raises:
        OSError: The first one cannot be written.
    """
    writer = _Writer(folder, lasting_seconds)
    writer.write()
    left = threading.Event()
    thread = threading.Thread(target=writer.run, args=(left,), name="sqs-lease signs of life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()


class _Writer:
    def __init__(self, folder: BatchFolder, lasting_seconds: Callable[[], float | None]) -> None:
        self._folder = folder
        self._lasting_seconds = lasting_seconds
        self._number = 0
        self._until = self._due = 0.0
        self._has_failed = False

    def run(self, left: threading.Event) -> None:
        while not left.wait(LOOK_SECONDS):
            try:
                self.write()
            except Exception as error:  # noqa: BLE001 - each store has errors of its own
                if not self._has_failed:
                    logger.warning("%s cannot be written (%s: %s)", self._folder, type(error).__name__, error)
                self._has_failed = True

    def write(self) -> None:
        """Write a sign where one is due, or where the leases were extended."""
        now = time.monotonic()
        lasting = max(0.0, self._lasting_seconds() or 0.0)
        if now < self._due and now + lasting <= self._until + LOOK_SECONDS:
            return
        self._number += 1
        due = next_sign_seconds(lasting)
        sign = SignOfLife(this_process(), socket.gethostname(), self._number, time.time(), lasting, due)
        self._folder.put(ALIVE, json.dumps(asdict(sign)).encode())
        self._until, self._due, self._has_failed = now + lasting, now + due, False


def read_sign(folder: BatchFolder) -> SignOfLife | None:
    """Read the newest sign of life; None where there is none.

    Raises:
        OSError: It cannot be read.
        ValueError: It cannot be understood, because it was read while it was written.
    """
    content = folder.get(ALIVE)
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=SignOfLife)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"{folder.path / ALIVE} is not a sign of life") from error


class Listening:
    """What a step makes of the signs. It has no clock: times are seconds of one that never jumps.

    Args:
        first: The first sign, which is recent or came after another one.
        now: When the look began that found it.
    """

    def __init__(self, first: SignOfLife, now: float) -> None:
        self._sign = first
        self._looked_at = self._heard_at = now
        # It may be as old as a recent one is.
        self._until = now - SILENCE * first.next_seconds + first.lasting_seconds

    def see(self, sign: SignOfLife, looked_at: float) -> None:
        """Take in what a look found.

        Args:
            sign: The newest sign.
            looked_at: When the look began.
        """
        if (sign.process, sign.number) != (self._sign.process, self._sign.number):
            # The look before did not find it, so it was written after that one.
            self._until = self._looked_at + sign.lasting_seconds
            self._heard_at = looked_at
            self._sign = sign
        self._looked_at = looked_at

    def is_over(self, now: float, margin_seconds: float) -> bool:
        """Whether the work must end: no sign came when it was due, and the leases are about to end.

        Args:
            now: The time.
            margin_seconds: How long the work may take to end.
        """
        is_silent = now - self._heard_at > SILENCE * self._sign.next_seconds
        return is_silent and now >= self._until - margin_seconds
