"""A standard queue of :class:`sqs_lease.testing.MemorySqs`."""

from __future__ import annotations

from collections import deque

from sqs_lease.clock import Clock
from sqs_lease.core.messages import Message
from sqs_lease.testing import service_errors as errors
from sqs_lease.testing.audit import AuditTrail
from sqs_lease.testing.memory_queue import MemoryQueue, MessageState, QueueSettings, StoredMessage
from sqs_lease.testing.service_errors import MemorySqsError, ServiceError


class StandardQueue(MemoryQueue):
    """Messages come out in the order in which they became visible; the real service promises no order."""

    fifo = False

    def __init__(
        self, settings: QueueSettings, clock: Clock, trail: AuditTrail, dead_letter: MemoryQueue | None
    ) -> None:
        super().__init__(settings, clock, trail, dead_letter)
        self._visible: deque[tuple[StoredMessage, int]] = deque()

    def _receive(
        self, now: float, max_messages: int, visibility_seconds: int, attempt_id: str | None, caller: str
    ) -> list[Message]:
        if attempt_id is not None:
            raise MemorySqsError(errors.wrong_queue_type("ReceiveRequestAttemptId"))
        room = self.settings.in_flight_limit - self.count(MessageState.IN_FLIGHT)
        if room <= 0:
            raise MemorySqsError(errors.OVER_LIMIT)
        received: list[Message] = []
        while self._visible and len(received) < min(max_messages, room):
            message, version = self._visible.popleft()
            if version == message.version and not self._dead_letter_if_due(message, now):
                received.append(self._take(message, now, visibility_seconds, caller))
        return received

    def _change_refused(self, message: StoredMessage, *, stale: bool) -> ServiceError | None:
        choices = self.settings.choices
        if message.state is MessageState.VISIBLE:
            if stale or message.released or not choices.extends_after_expiry:
                return errors.NOT_IN_FLIGHT
        elif stale and not choices.superseded_handle_changes:
            return errors.NOT_AVAILABLE
        return None

    def _delete_refused(self, message: StoredMessage, *, stale: bool) -> None:
        """Deleting always succeeds, whether or not it deletes."""

    def _file(self, message: StoredMessage) -> None:
        """Messages are found by id only."""

    def _unfile(self, message: StoredMessage) -> None:
        """Its entry among the visible ones is void by its version."""

    def _offer(self, message: StoredMessage) -> None:
        self._visible.append((message, message.version))

    def _started_flight(self, message: StoredMessage) -> None:
        """Its entry among the visible ones is void by its version."""

    def _end_of_flight(self, message: StoredMessage) -> None:
        """Nobody waits for it."""
