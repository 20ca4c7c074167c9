"""Queues for tests of DAGs, which fill them before a run and inspect them after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqs_lease.clock import SystemClock
from sqs_lease.core.limits import DEFAULT_VISIBILITY_SECONDS
from sqs_lease.sqs.validation import MOST_NAME_CHARACTERS, queue_reference
from sqs_lease.testing.audit import AuditKind
from sqs_lease.testing.memory_queue import MessageState
from sqs_lease.testing.memory_sqs import MemorySqs


@dataclass(frozen=True, slots=True)
class LeasedQueue:
    """One queue. Made by :meth:`LeasedQueues.create`.

    Attributes:
        name: Its name.
        url: Its URL.
        dead_letter_url: The URL of its dead-letter queue.
    """

    name: str
    url: str
    dead_letter_url: str
    _sqs: MemorySqs

    def send(self, *bodies: str, **options: Any) -> None:
        """Send messages, one for each body; ``options`` are those of :meth:`MemorySqs.send`."""
        for body in bodies:
            self._sqs.send(self.url, body, **options)

    @property
    def visible(self) -> list[str]:
        """The bodies of the messages that could be received now, in the order in which they were sent."""
        return self._bodies(MessageState.VISIBLE)

    @property
    def invisible(self) -> list[str]:
        """The bodies of the messages that cannot be received now: leased, or given back with a delay."""
        return self._bodies(MessageState.IN_FLIGHT)

    @property
    def dead_letters(self) -> list[str]:
        """The bodies of the messages in the dead-letter queue, in the order in which they came."""
        return list(self._sqs.bodies(self.dead_letter_url).values())

    @property
    def deleted(self) -> int:
        """The number of deleted messages; those that went to the dead-letter queue count, too."""
        entries = self._sqs.trail().entries()
        return sum(entry.kind is AuditKind.DELETED and entry.queue_url == self.url for entry in entries)

    def _bodies(self, state: MessageState) -> list[str]:
        bodies = self._sqs.bodies(self.url)
        return [bodies[message_id] for message_id, now in self._sqs.contents(self.url).items() if now is state]


class LeasedQueues:
    """An in-memory SQS on the machine's own clock, with queues that a DAG under test takes from.

    Attributes:
        sqs: The service, for further needs of a test.
    """

    def __init__(self) -> None:
        self.sqs = MemorySqs(SystemClock())

    def create(
        self,
        name: str,
        *bodies: str,
        visibility_seconds: int = DEFAULT_VISIBILITY_SECONDS,
        max_receive_count: int = 10,
        message_group_id: str | None = None,
    ) -> LeasedQueue:
        """Create a queue with a dead-letter queue behind it, and send messages to it.

        Args:
            name: Its name, as in the DAG; with ``.fifo`` at its end it is a FIFO queue.
            bodies: The bodies of the first messages.
            visibility_seconds: The queue's own visibility timeout, 30 by default.
            max_receive_count: How often a message is received before it goes to the dead-letter queue; 10 by default.
            message_group_id: FIFO: the group of these messages.

        Raises:
            ValueError: The name is taken or is not a queue name, or a value is out of range.
            TypeError: A body is not a text.
        """
        queue_reference(name)
        stem, fifo = name.removesuffix(".fifo"), name.endswith(".fifo")
        end = "-dead-letters.fifo" if fifo else "-dead-letters"
        dead_letter_name = stem[: MOST_NAME_CHARACTERS - len(end)] + end
        dead_letter_url = self.sqs.create_queue(dead_letter_name, content_based_deduplication=fifo)
        url = self.sqs.create_queue(
            name,
            visibility_seconds=visibility_seconds,
            dead_letter_queue_url=dead_letter_url,
            max_receive_count=max_receive_count,
            content_based_deduplication=fifo,
        )
        queue = LeasedQueue(name, url, dead_letter_url, self.sqs)
        queue.send(*bodies, message_group_id=message_group_id)
        return queue
