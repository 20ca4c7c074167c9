"""What `watch` reads of queues again and again, and what a series of readings says."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqs_lease.clock import Clock
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.transport import QueueAttributes, Transport
from sqs_lease.sqs.validation import queue_reference

KEPT_READINGS: Final = 600

_BARS: Final = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a queue said of itself.

    Attributes:
        at: When, in seconds of the clock.
        attributes: Its attributes.
        dead_letters: How many messages are visible in its dead-letter queue; None without one, or where that cannot
            be read.
    """

    at: float
    attributes: QueueAttributes
    dead_letters: int | None

    @property
    def backlog(self) -> int:
        """All messages of the queue."""
        return self.attributes.visible + self.attributes.in_flight + self.attributes.delayed


class WatchedQueue:
    """One queue, and what was read of it.

    Args:
        queue: Its name, URL or ARN.
        transport: Reaches SQS.
        clock: Source of time.

    Attributes:
        name: Its name.
        url: Its URL; empty before the first reading.
        readings: The last readings, the newest last.
        trouble: Why the newest reading failed; empty if it did not.
    """

    def __init__(self, queue: str, transport: Transport, clock: Clock) -> None:
        self.name = queue_reference(queue).name
        self.url = ""
        self.readings: deque[Reading] = deque(maxlen=KEPT_READINGS)
        self.trouble = ""
        self._queue = queue
        self._transport = transport
        self._clock = clock
        self._dead_letter_url: str | None = None

    async def read(self) -> None:
        """Read once more.

        Raises:
            SqsError: The first reading failed. Later ones are noted as ``trouble``.
        """
        try:
            if not self.url:
                self.url = await self._transport.queue_url(self._queue)
            attributes = await self._transport.queue_attributes(self.url)
        except SqsError as error:
            if not self.readings:
                raise
            self.trouble = str(error)
            return
        self.trouble = ""
        dead_letters = await self._dead_letters(attributes)
        self.readings.append(Reading(self._clock.now(), attributes, dead_letters))

    async def _dead_letters(self, attributes: QueueAttributes) -> int | None:
        if attributes.dead_letter_arn is None:
            return None
        try:
            if self._dead_letter_url is None:
                self._dead_letter_url = await self._transport.queue_url(attributes.dead_letter_arn)
            return (await self._transport.queue_attributes(self._dead_letter_url)).visible
        except SqsError:
            # A queue may be read, and its dead-letter queue not.
            return None

    def change_a_minute(self, window_seconds: float = 60.0) -> float | None:
        """By how many messages the queue grew, or shrank, in a minute: over the last readings of that time.

        SQS tells how many messages there are, not how many came and went. None for less than two readings.

        Args:
            window_seconds: How far to look back.
        """
        if len(self.readings) < 2:
            return None
        newest = self.readings[-1]
        oldest = next(reading for reading in self.readings if newest.at - reading.at <= window_seconds)
        if oldest is newest:
            oldest = self.readings[-2]
        passed = newest.at - oldest.at
        return None if passed <= 0 else (newest.backlog - oldest.backlog) * 60 / passed


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw the last values as bars, from 0 to the largest.

    Args:
        values: The values, none below 0.
        width: How many to draw at most, one character each.
    """
    shown = list(values)[-width:]
    most = max(shown, default=0)
    if most <= 0:
        return _BARS[0] * len(shown)
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] for value in shown)
