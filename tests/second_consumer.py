"""Another consumer of a queue, which polls all the time and remembers what it was given, and when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import monotonic, time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

POLL_SECONDS = 1
LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Reception:
    """A message that the consumer was given.

    Attributes:
        body: Its body.
        at: When, in seconds since the epoch.
    """

    body: str
    at: float


class SecondConsumer:
    """Polls one queue in a thread, from the moment when the first consumer has all of its messages.

    Args:
        sqs: A client of its own.
        queue_url: The queue.
        messages: How many messages the first consumer takes.
        marks: A directory for an empty file, named like its body, for each message that it was given.

    Attributes:
        receptions: The messages that it was given.
        polls: How many polls were answered.
        is_polling: Whether it has seen that the first consumer has all messages: before, it would wait for that.
    """

    def __init__(self, sqs: SQSClient, queue_url: str, messages: int, *, marks: Path | None = None) -> None:
        self.receptions: list[Reception] = []
        self.polls = 0
        self.is_polling = False
        self._sqs = sqs
        self._queue_url = queue_url
        self._messages = messages
        self._marks = marks
        self._stopped = Event()

    def received(self, messages: int, deadline_seconds: float = 60.0) -> list[Reception]:
        """Wait until it was given so many messages: what is visible reaches it a little later.

        Args:
            messages: How many are expected.
            deadline_seconds: How long to wait at most.

        Returns:
            The messages that it was given so far: fewer when the time is up, or more.
        """
        ends_at = monotonic() + deadline_seconds
        while len(self.receptions) < messages and monotonic() < ends_at and not self._stopped.wait(0.05):
            pass
        return list(self.receptions)

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Poll until the block ends."""
        thread = Thread(target=self._poll, name=f"second consumer of {self._queue_url}")
        thread.start()
        try:
            yield
        finally:
            self.stop()
            thread.join()

    def stop(self) -> None:
        """Poll no more; the end of the block waits for the poll under way.

        For several consumers at once, whose last polls would otherwise be waited for one after the other.
        """
        self._stopped.set()

    def _poll(self) -> None:
        while not self._stopped.is_set() and self._in_flight() < self._messages:
            self._stopped.wait(LOOK_SECONDS)
        self.is_polling = True
        while not self._stopped.is_set():
            answer = self._sqs.receive_message(
                QueueUrl=self._queue_url,
                WaitTimeSeconds=POLL_SECONDS,
                MaxNumberOfMessages=10,
                # As long as SQS allows, so that it is given each message once, however slow the machine is.
                VisibilityTimeout=43_200,
            )
            self.polls += 1
            receptions = [Reception(message["Body"], time()) for message in answer.get("Messages", [])]
            self.receptions += receptions
            if self._marks is not None:
                for reception in receptions:
                    (self._marks / reception.body).touch()

    def _in_flight(self) -> int:
        answer = self._sqs.get_queue_attributes(
            QueueUrl=self._queue_url, AttributeNames=["ApproximateNumberOfMessagesNotVisible"]
        )
        return int(answer["Attributes"]["ApproximateNumberOfMessagesNotVisible"])
