"""A standard queue of :class:`sqs_lease.testing.MemorySqs`."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from sqs_lease.clock import Clock
from sqs_lease.core.messages import Message
from sqs_lease.testing import service_errors as errors
from sqs_lease.testing.audit import AuditTrail
from sqs_lease.testing.memory_queue import MemoryQueue, MessageState, QueueSettings, StoredMessage
from sqs_lease.testing.service_errors import MemorySqsError, ServiceError

_NOISY_MESSAGES = 30
_NOISY_SHARE = 0.1


@dataclass(slots=True, eq=False)
class _Tenant:
    """The messages of one message group, or those without a group: the visible ones, and how many are in flight."""

    visible: deque[tuple[int, StoredMessage, int]] = field(default_factory=deque)
    """Place in the order of all, message, and its version then: the entry of a message that has changed is void."""
    in_flight: int = 0
    offered: bool = False


class StandardQueue(MemoryQueue):
    """A standard queue: messages come in the order in which they became visible; the real service promises no order.

    It is a fair queue if messages have groups: a tenant with 30 messages and more than a tenth of all messages in
    flight comes after the others.
    """

    fifo = False

    def __init__(
        self, settings: QueueSettings, clock: Clock, trail: AuditTrail, dead_letter: MemoryQueue | None
    ) -> None:
        super().__init__(settings, clock, trail, dead_letter)
        self._tenants: dict[str | None, _Tenant] = {}
        # Tenants that have visible messages, by the place of their first one.
        self._offers: list[tuple[int, _Tenant]] = []
        self._places = 0

    def duplicate_of(self, deduplication_id: str | None) -> None:
        """Return None, because a standard queue does not deduplicate."""

    def _receive(
        self, now: float, max_messages: int, visibility_seconds: int, attempt_id: str | None, caller: str
    ) -> list[Message]:
        if attempt_id is not None:
            raise MemorySqsError(errors.wrong_queue_type("ReceiveRequestAttemptId"))
        room = self.settings.in_flight_limit - self.count(MessageState.IN_FLIGHT)
        if room <= 0:
            raise MemorySqsError(errors.OVER_LIMIT)
        most = min(max_messages, room)
        received: list[Message] = []
        put_off: list[tuple[int, _Tenant]] = []
        while self._offers and len(received) < most:
            place, tenant = heapq.heappop(self._offers)
            if self._is_noisy(tenant):
                put_off.append((place, tenant))
                continue
            tenant.offered = False
            self._take_first(tenant, now, visibility_seconds, caller, received)
            self._offer_tenant(tenant)
        for _, tenant in put_off:
            tenant.offered = False
            while tenant.visible and len(received) < most:
                self._take_first(tenant, now, visibility_seconds, caller, received)
            self._offer_tenant(tenant)
        return received

    def _is_noisy(self, tenant: _Tenant) -> bool:
        if tenant.in_flight < _NOISY_MESSAGES or tenant is self._tenants.get(None):
            return False
        return tenant.in_flight > _NOISY_SHARE * self.count(MessageState.IN_FLIGHT)

    def _take_first(
        self, tenant: _Tenant, now: float, visibility_seconds: int, caller: str, received: list[Message]
    ) -> None:
        _, message, version = tenant.visible.popleft()
        if version == message.version and not self._dead_letter_if_due(message, now):
            received.append(self._take(message, now, visibility_seconds, caller))

    def _offer_tenant(self, tenant: _Tenant) -> None:
        if tenant.visible and not tenant.offered:
            tenant.offered = True
            heapq.heappush(self._offers, (tenant.visible[0][0], tenant))

    def _tenant_of(self, message: StoredMessage) -> _Tenant:
        return self._tenants.setdefault(message.message_group_id, _Tenant())

    def _change_refused(self, message: StoredMessage, *, stale: bool) -> ServiceError | None:
        choices = self.settings.choices
        if message.state is MessageState.VISIBLE:
            if stale or message.released or not choices.extends_after_expiry:
                return errors.NOT_IN_FLIGHT
        elif stale and not choices.superseded_handle_changes:
            return errors.NOT_AVAILABLE
        return None

    def _delete_refused(self, message: StoredMessage, *, stale: bool) -> None:
        """Return None, because deletes always succeed, even if they do not delete."""

    def _file(self, message: StoredMessage) -> None:
        """Do nothing, because messages are found by id only."""

    def _unfile(self, message: StoredMessage) -> None:
        """Do nothing, because its entry among the visible ones is void by its version."""

    def _offer(self, message: StoredMessage) -> None:
        tenant = self._tenant_of(message)
        self._places += 1
        tenant.visible.append((self._places, message, message.version))
        self._offer_tenant(tenant)

    def _started_flight(self, message: StoredMessage) -> None:
        self._tenant_of(message).in_flight += 1

    def _end_of_flight(self, message: StoredMessage) -> None:
        self._tenant_of(message).in_flight -= 1
