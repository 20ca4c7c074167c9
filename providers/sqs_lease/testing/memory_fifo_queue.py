"""A FIFO queue of :class:`sqs_lease.testing.MemorySqs`: message groups, their locks, and repeated receives."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from sqs_lease.clock import Clock
from sqs_lease.core.limits import RECEIVE_ATTEMPT_SECONDS
from sqs_lease.core.messages import Message
from sqs_lease.testing import service_errors as errors
from sqs_lease.testing.audit import AuditKind, AuditTrail
from sqs_lease.testing.memory_queue import MemoryQueue, MessageState, QueueSettings, StoredMessage
from sqs_lease.testing.service_errors import ServiceError

_DEDUPLICATION_SECONDS: Final = 300


@dataclass(slots=True, eq=False)
class _Group:
    """A message group: its messages by sequence number, and how many of them are in flight."""

    messages: OrderedDict[int, StoredMessage] = field(default_factory=OrderedDict)
    in_flight: int = 0
    offered: bool = False


@dataclass(slots=True, eq=False)
class _Attempt:
    """The result of a receive with an attempt id, with the versions of its messages at that time."""

    made_at: float
    messages: list[tuple[StoredMessage, int]]


class FifoQueue(MemoryQueue):
    """A FIFO queue: messages come in order within their group, but not while one of the group is in flight."""

    fifo = True

    def __init__(
        self, settings: QueueSettings, clock: Clock, trail: AuditTrail, dead_letter: MemoryQueue | None
    ) -> None:
        super().__init__(settings, clock, trail, dead_letter)
        self._groups: dict[str | None, _Group] = {}
        # Groups that are not held back, by the sequence number of their first message.
        self._free: list[tuple[int, _Group]] = []
        self._attempts: OrderedDict[str, _Attempt] = OrderedDict()
        # Deduplication id -> (when it came, message id), oldest first.
        self._deduplicated: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def duplicate_of(self, deduplication_id: str | None) -> str | None:
        """Return the id of a message with this deduplication id of the last 5 minutes; None without one."""
        oldest_kept = self._clock.now() - _DEDUPLICATION_SECONDS
        while self._deduplicated and next(iter(self._deduplicated.values()))[0] < oldest_kept:
            self._deduplicated.popitem(last=False)
        earlier = None if deduplication_id is None else self._deduplicated.get(deduplication_id)
        return None if earlier is None else earlier[1]

    def _receive(
        self, now: float, max_messages: int, visibility_seconds: int, attempt_id: str | None, caller: str
    ) -> list[Message]:
        if attempt_id is not None:
            replayed = self._replay(now, attempt_id, visibility_seconds, caller)
            if replayed:
                return replayed
        room = self.settings.in_flight_limit - self.count(MessageState.IN_FLIGHT)
        most = min(max_messages, room)
        taken: list[StoredMessage] = []
        received: list[Message] = []
        while self._free and len(received) < most:
            first, group = heapq.heappop(self._free)
            group.offered = False
            if not self._is_free(group):
                continue
            if next(iter(group.messages)) != first:
                self._offer_group(group)
                continue
            # At most as many as are wanted: the next round replaces those that were dead-lettered.
            for message in list(islice(group.messages.values(), most - len(received))):
                if message.state is not MessageState.VISIBLE:
                    break
                if not self._dead_letter_if_due(message, now):
                    received.append(self._take(message, now, visibility_seconds, caller))
                    taken.append(message)
            self._offer_group(group)
        if attempt_id is not None and taken:
            self._attempts.pop(attempt_id, None)
            self._attempts[attempt_id] = _Attempt(now, [(message, message.version) for message in taken])
        return received

    def _replay(self, now: float, attempt_id: str, visibility_seconds: int, caller: str) -> list[Message]:
        """Return the messages of an earlier receive with this id again, if they are all unchanged."""
        while self._attempts:
            oldest = next(iter(self._attempts))
            if now - self._attempts[oldest].made_at <= RECEIVE_ATTEMPT_SECONDS:
                break
            del self._attempts[oldest]
        attempt = self._attempts.get(attempt_id)
        if attempt is None or any(message.version != version for message, version in attempt.messages):
            return []
        again: list[Message] = []
        for message, _ in attempt.messages:
            # The 12 hours count from the first receive, which is the stricter reading of the documentation.
            self._hide(message, now + visibility_seconds)
            self._log(now, AuditKind.REPLAYED, message, message.handle, caller, until=message.visible_at)
            again.append(self._as_received(message))
        attempt.messages = [(message, message.version) for message, _ in attempt.messages]
        return again

    def _change_refused(self, message: StoredMessage, *, stale: bool) -> ServiceError | None:
        if message.state is MessageState.VISIBLE and message.released and not stale:
            return errors.NOT_IN_FLIGHT
        if stale or message.state is MessageState.VISIBLE:
            return errors.NOT_AVAILABLE
        return None

    def _delete_refused(self, message: StoredMessage, *, stale: bool) -> ServiceError | None:
        if stale or message.state is MessageState.VISIBLE:
            return errors.HANDLE_EXPIRED
        return None

    def _file(self, message: StoredMessage) -> None:
        if message.deduplication_id is not None:
            self._deduplicated[message.deduplication_id] = (self._clock.now(), message.message_id)
        self._groups.setdefault(message.message_group_id, _Group()).messages[message.sequence] = message

    def _unfile(self, message: StoredMessage) -> None:
        group = self._groups[message.message_group_id]
        del group.messages[message.sequence]
        if group.messages:
            self._offer_group(group)
        else:
            del self._groups[message.message_group_id]

    def _offer(self, message: StoredMessage) -> None:
        self._offer_group(self._groups[message.message_group_id])

    def _started_flight(self, message: StoredMessage) -> None:
        self._groups[message.message_group_id].in_flight += 1

    def _end_of_flight(self, message: StoredMessage) -> None:
        self._groups[message.message_group_id].in_flight -= 1

    def _offer_group(self, group: _Group) -> None:
        if not group.offered and self._is_free(group):
            group.offered = True
            heapq.heappush(self._free, (next(iter(group.messages)), group))

    @staticmethod
    def _is_free(group: _Group) -> bool:
        if group.in_flight or not group.messages:
            return False
        return next(iter(group.messages.values())).state is MessageState.VISIBLE
