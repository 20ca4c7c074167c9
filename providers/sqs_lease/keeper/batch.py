"""A batch of leases while a keeper holds it: what was put in, how each lease ended, and what is asked for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, TypeAlias

from sqs_lease.clock import Clock
from sqs_lease.core.events import Ending, Lapsed, LeaseEvent, Lost, Outcome, Refused, Settled
from sqs_lease.core.failure_rules import Delete, FailureRule, Release, Settlement
from sqs_lease.core.group_order import hold_back
from sqs_lease.core.messages import Lease, Message, Receipt
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.keeper.driver import QueueDriver


class Meter(Protocol):
    """Counts what happens to the leases of a keeper. Called in the keeper's event loop; it must not block or raise."""

    def extended(self, queue_url: str, leases: int) -> None:
        """A call was answered and confirmed so many extensions."""

    def late(self, queue_url: str) -> None:
        """A deadline passed before an extension was confirmed."""

    def ended(self, queue_url: str, outcome: Outcome, settling_seconds: float | None) -> None:
        """A lease ended.

        Args:
            queue_url: The queue.
            outcome: How.
            settling_seconds: From the decision to settle it to the service's confirmation; None where there was no
                decision: it was lost while its work went on.
        """


class Unmetered:
    """Counts nothing: what a keeper has when nobody asks."""

    def extended(self, queue_url: str, leases: int) -> None:
        """Not counted."""

    def late(self, queue_url: str) -> None:
        """Not counted."""

    def ended(self, queue_url: str, outcome: Outcome, settling_seconds: float | None) -> None:
        """Not counted."""


logger = logging.getLogger(__name__)

EventListener: TypeAlias = Callable[[LeaseEvent], None]
_End: TypeAlias = tuple[Outcome, str]  # how a lease ended: a Settled without its receipt
MessageSource: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, Message]]]


class KeeperClosedError(RuntimeError):
    """The keeper was closed (or failed) before a settlement came to its end; the message comes back by itself."""


@dataclass(frozen=True, slots=True)
class LeaseReport:
    """Counts of one batch so far. A lease is held still, was handed over, or is in one count by its outcome."""

    received: int
    held: int
    deleted: int
    released: int
    dead_lettered: int
    expired: int
    lost: int
    failed: int
    extensions: int
    """Confirmed extensions, counted per message."""
    extension_calls: int
    """API calls made to extend; a call that several batches shared counts for each of them."""
    late: int
    """How often a deadline passed before an extension was confirmed."""


@dataclass(slots=True, eq=False)
class _Wait:
    """Somebody who waits for the end of some leases."""

    awaited: set[Receipt]
    done: asyncio.Future[None]
    outcomes: dict[Receipt, Settled] = field(default_factory=dict)

    def ended(self, settled: Settled) -> None:
        if settled.receipt in self.awaited:
            self.awaited.remove(settled.receipt)
            self.outcomes[settled.receipt] = settled
            if not self.awaited and not self.done.done():
                self.done.set_result(None)


class Batch:
    """The leases taken together for one run, while the keeper holds them. Made by :meth:`Keeper.open_batch`."""

    def __init__(
        self,
        queue_url: str,
        *,
        driver: QueueDriver,
        policy: RenewalPolicy,
        visibility_seconds: float,
        on_failure: FailureRule,
        on_event: EventListener | None,
        message_source: MessageSource | None,
        random: Random,
        clock: Clock,
        meter: Meter,
    ) -> None:
        self.queue_url = queue_url
        self._driver = driver
        self._policy = policy
        self._visibility_seconds = visibility_seconds
        self._on_failure = on_failure
        self._on_event = on_event
        self._message_source = message_source
        self._random = random
        self._clock = clock
        self._meter = meter
        self._fifo = queue_url.endswith(".fifo")
        self._leases: dict[str, Lease] = {}  # by message id: the newest reception of each message, as it was put in
        self._messages: dict[Receipt, Message] = {}
        self._ended: dict[Receipt, _End] = {}
        self._ends: dict[_End, _End] = {}  # leases that ended alike share one value: most of a batch do
        self._waits: list[_Wait] = []
        self._settling_since: dict[Receipt, float] = {}
        self._forgotten = False
        self.extensions = 0  # confirmed so far, counted per message
        self._extension_calls = 0
        self._late = 0

    # Holding

    def add(self, messages: Iterable[Message], *, received_at: float, sent_at: float | None = None) -> None:
        """Hold messages that were just received; times are of the keeper's clock.

        A message that the batch holds already is held by its new receipt alone: the older one is void.

        Args:
            messages: The messages, received with the policy's visibility timeout.
            received_at: When the call that brought them was sent first: the service's 12 hours count from no
                earlier.
            sent_at: When it was sent last, if it was repeated (FIFO): the visibility timeout counts from no earlier.
        """
        deadline = (received_at if sent_at is None else sent_at) + self._visibility_seconds
        for message in messages:
            lease = Lease(message.receipt, received_at, deadline, message.receive_count, message.message_group_id)
            self._put(lease, message, at_once=False)

    def adopt(self, leases: Iterable[Lease], messages: Iterable[Message] = ()) -> None:
        """Hold leases that were held elsewhere, and extend them at once; times are of the keeper's clock."""
        by_receipt = {message.receipt: message for message in messages}
        for lease in leases:
            self._put(lease, by_receipt.get(lease.receipt), at_once=True)

    def _put(self, lease: Lease, message: Message | None, *, at_once: bool) -> None:
        held = self._leases.get(lease.receipt.message_id)
        if held is not None and (older := held.receipt) != lease.receipt:
            self._driver.forget([older])
            if any(older in wait.awaited for wait in self._waits):
                self._end(Settled(older, Outcome.LOST, "the message was received again"))
            self._messages.pop(older, None)
            self._ended.pop(older, None)
        self._leases[lease.receipt.message_id] = lease
        if message is not None:
            self._messages[lease.receipt] = message
        self._driver.take(lease, self._policy, self, at_once=at_once)

    def messages(self) -> Sequence[Message]:
        """The messages still held whose content is known, in the order they were put in."""
        contents = (self._messages.get(lease.receipt) for lease in self.leases())
        return [message for message in contents if message is not None]

    def drop_contents(self) -> None:
        """Keep the leases alone: the messages' contents are asked of the batch's source if they are wanted again."""
        self._messages.clear()

    def leases(self) -> Sequence[Lease]:
        """The leases still held, in the order they were put in, with their deadlines as confirmed so far."""
        leases = (self._driver.lease(lease.receipt) for lease in self._leases.values())
        return [lease for lease in leases if lease is not None]

    def holds(self, receipt: Receipt) -> bool:
        """Whether the lease is still held: neither settled nor lost."""
        return self._is_ours(receipt) and self._driver.holds(receipt)

    def count_held(self) -> int:
        """How many leases are still held."""
        return 0 if self._forgotten else len(self._leases) - len(self._ended)

    def oldest_received_at(self) -> float | None:
        """When the oldest lease still held was received, by the keeper's clock; None where none is held.

        Leases are put in by age, so this looks no further than to the first one that is held.
        """
        if not self.count_held():
            return None
        return next((lease.received_at for lease in self._leases.values() if self._driver.holds(lease.receipt)), None)

    def certain_until(self) -> float | None:
        """Until when every lease still held lasts at least; None where there is none, or where one has lapsed."""
        leases = self.leases()
        if not leases or any(lease.doubtful for lease in leases):
            return None
        return min(lease.deadline for lease in leases)

    def message_ids(self) -> Collection[str]:
        """The ids of all messages that were put in, in that order, held still or not."""
        return self._leases.keys()

    def _is_ours(self, receipt: Receipt) -> bool:
        lease = self._leases.get(receipt.message_id)
        return lease is not None and lease.receipt == receipt

    async def extend_now(self) -> None:
        """Extend every lease still held, at once, whatever the policy says: the last act before another takes over."""
        await self._driver.extend_now([lease.receipt for lease in self.leases()])

    def forget(self) -> None:
        """Hold no longer and call nothing: somebody else does. Who waits for a settlement is told that none comes."""
        self._forgotten = True
        self._driver.forget([lease.receipt for lease in self._leases.values()])
        for wait in self._waits:
            if not wait.done.done():
                wait.done.set_exception(
                    KeeperClosedError(f"The keeper of {self.queue_url} ended before the settlement")
                )

    # Settling

    async def settle(
        self, settlements: Mapping[Receipt, Settlement], *, ordered: bool = True
    ) -> Mapping[Receipt, Settled]:
        """Settle leases and wait for the outcome of each.

        Settling one twice gives its first outcome again, and so does settling one that was lost. On a FIFO
        queue a message behind one that was not done is released instead of deleted (core/group_order.py), unless
        ``ordered`` is false.

        Raises:
            KeyError: A receipt is not of this batch.
            KeeperClosedError: The keeper was closed, or the batch handed over, before the end.
        """
        unknown = [receipt for receipt in settlements if not self._is_ours(receipt)]
        if unknown:
            raise KeyError(f"not in this batch of {self.queue_url}: {', '.join(map(str, unknown))}")
        pending = [receipt for receipt in settlements if receipt not in self._ended]
        if pending and self._forgotten:
            raise KeeperClosedError(f"{len(pending)} messages of {self.queue_url} are not held here any more")
        outcomes = {
            receipt: Settled(receipt, *self._ended[receipt]) for receipt in settlements if receipt in self._ended
        }
        now = self._clock.now()
        for receipt in pending:
            self._settling_since.setdefault(receipt, now)
        if self._fifo and ordered:
            settlements = hold_back(settlements, self._leases.values(), self._outcome_of)
        if not pending:
            return outcomes
        # One future a call and not one a receipt: hundreds of batches of hundreds may end at the same moment.
        wait = _Wait(set(pending), asyncio.get_running_loop().create_future())
        self._waits.append(wait)
        try:
            self._driver.settle({receipt: settlements[receipt] for receipt in pending})
            await wait.done
        finally:
            self._waits.remove(wait)
        return outcomes | wait.outcomes

    def _outcome_of(self, receipt: Receipt) -> Outcome | None:
        ended = self._ended.get(receipt)
        return None if ended is None else ended[0]

    async def succeed(self, receipts: Iterable[Receipt] | None = None) -> Mapping[Receipt, Settled]:
        """Their work succeeded: delete them (None: all that are still held)."""
        return await self.settle(dict.fromkeys(self._chosen(receipts), Delete()))

    async def fail(
        self, reason: str, receipts: Iterable[Receipt] | None = None, *, errors: Sequence[str] = ()
    ) -> Mapping[Receipt, Settled]:
        """Their work failed for good: settle them by the batch's failure rule (None: all that are still held).

        Args:
            reason: Why, for people; it becomes a message attribute of what is dead-lettered.
            receipts: Leases of this batch.
            errors: The classes of the exception that ended the work, for rules that choose by them: see
                :meth:`FailureRule.matching`.

        Raises:
            KeyError: A receipt is not of this batch.
            KeeperClosedError: The keeper was closed, or the batch handed over, before the end.
        """
        rule = self._on_failure.matching(errors)
        settlements: dict[Receipt, Settlement] = {}
        for receipt in self._chosen(receipts):
            lease = self._driver.lease(receipt)
            count = 1 if lease is None else lease.receive_count
            settlements[receipt] = rule.settlement(receive_count=count, reason=reason, random=self._random)
        return await self.settle(settlements)

    async def release_all(self) -> Mapping[Receipt, Settled]:
        """Make all that is still held visible at once, whatever the failure rule: its work is not at fault."""
        return await self.settle(dict.fromkeys(self._chosen(None), Release()))

    def _chosen(self, receipts: Iterable[Receipt] | None) -> list[Receipt]:
        return [lease.receipt for lease in self.leases()] if receipts is None else list(receipts)

    # What the driver tells

    def happened(self, event: LeaseEvent) -> None:
        """Take in what happened to one of the batch's leases. The driver calls this."""
        match event:
            case Settled():
                self._end(event)
            case Lost(receipt=receipt, detail=detail):
                self._end(Settled(receipt, Outcome.LOST, detail))
            case Lapsed():
                self._late += 1
                self._meter.late(self.queue_url)
        if self._on_event is None:
            _log(event, self.queue_url)
            return
        try:
            self._on_event(event)
        except Exception:
            # A listener's error is its own: the other leases must go on.
            logger.exception("A listener failed on %s of %s", type(event).__name__, event.receipt)

    def _end(self, settled: Settled) -> None:
        end = (settled.outcome, settled.detail)
        self._ended[settled.receipt] = self._ends.setdefault(end, end)
        since = self._settling_since.pop(settled.receipt, None)
        self._meter.ended(self.queue_url, settled.outcome, None if since is None else self._clock.now() - since)
        for wait in self._waits:
            wait.ended(settled)

    def extended(self, extensions: int) -> None:
        """Count a call that extended some of the batch's leases. The driver calls this."""
        self._extension_calls += 1
        self.extensions += extensions
        self._meter.extended(self.queue_url, extensions)

    async def content(self, receipt: Receipt) -> Message | None:
        """The message itself, if it was put in with the lease or the batch's source has it."""
        if (message := self._messages.get(receipt)) is not None or self._message_source is None:
            return message
        return (await self._message_source([receipt.message_id])).get(receipt.message_id)

    def outcomes(self) -> Mapping[Receipt, Settled]:
        """How the leases that ended did so."""
        return {receipt: Settled(receipt, *end) for receipt, end in self._ended.items()}

    def report(self) -> LeaseReport:
        """Counts so far."""
        counts = dict.fromkeys(Outcome, 0)
        for outcome, _ in self._ended.values():
            counts[outcome] += 1
        return LeaseReport(
            received=len(self._leases),
            held=len(self.leases()),
            deleted=counts[Outcome.DELETED],
            released=counts[Outcome.RELEASED],
            dead_lettered=counts[Outcome.DEAD_LETTERED],
            expired=counts[Outcome.EXPIRED],
            lost=counts[Outcome.LOST],
            failed=counts[Outcome.FAILED],
            extensions=self.extensions,
            extension_calls=self._extension_calls,
            late=self._late,
        )


def _log(event: LeaseEvent, queue_url: str) -> None:
    """Log what happened to a lease that nobody listens for."""
    match event:
        case Lost(receipt=receipt, detail=detail):
            logger.warning("Lost the lease of %s of %s: %s", receipt, queue_url, detail)
        case Lapsed(receipt=receipt, overdue_seconds=overdue):
            logger.warning("The lease of %s of %s lapsed %.1f s ago", receipt, queue_url, overdue)
        case Ending(receipt=receipt):
            logger.warning("The lease of %s of %s cannot be extended any further", receipt, queue_url)
        case Refused(receipt=receipt, detail=detail):
            logger.error("Extending %s of %s was refused: %s", receipt, queue_url, detail)
