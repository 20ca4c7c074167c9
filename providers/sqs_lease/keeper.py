"""The keeper: extends leases over a transport until they are settled; one serves many batches and queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TypeAlias

from sqs_lease.clock import Clock
from sqs_lease.core.events import LeaseEvent, Settled
from sqs_lease.core.leases import Lease
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.core.settlements import FailureRule, Settlement
from sqs_lease.sqs.transport import Transport

EventListener: TypeAlias = Callable[[LeaseEvent], None]
MessageSource: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, Message]]]


class Leaving(Enum):
    """What a keeper does with the leases it still holds when it is closed."""

    EXTEND = "extend"
    """One last extension, so that another process has time to take over: nothing is released."""

    RELEASE = "release"
    """Visible again at once: nobody will take over."""

    NOTHING = "nothing"
    """Not a call more: the deadlines stand as they are."""


@dataclass(frozen=True, slots=True)
class LeaseReport:
    """Counts of one batch so far; every lease is in exactly one of the counts by outcome, or still held."""

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
    """API calls made for them (shared calls count for each batch that took part)."""
    late: int
    """Leases whose deadline passed at some time before an extension was confirmed."""


class Keeper:
    """Holds leases of any number of batches and queues over one transport.

    Use it as an asynchronous context manager, or call :meth:`close` when done. All methods must be called
    from the event loop it was started in.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        call_timeout_seconds: float = 10.0,
    ) -> None: ...

    def hold(
        self,
        queue_url: str,
        *,
        policy: RenewalPolicy,
        on_failure: FailureRule | None = None,
        on_event: EventListener | None = None,
        message_source: MessageSource | None = None,
    ) -> HeldBatch:
        """Open an empty batch on a queue; no call is made until leases are put into it.

        Args:
            queue_url: The queue's URL.
            policy: When to extend; its visibility must be known (:meth:`RenewalPolicy.for_queue`).
            on_failure: What becomes of failed messages; visible again at once by default.
            on_event: Called in the event loop for each event of the batch's leases; it must not block.
            message_source: Gives message contents by id for dead-lettering leases that were adopted without them.
        """
        raise NotImplementedError

    async def close(self, leaving: Leaving = Leaving.EXTEND) -> None:
        """Stop: finish calls under way, then treat what is still held as ``leaving`` says."""


class HeldBatch:
    """The leases taken together for one run, while the keeper holds them."""

    queue_url: str

    def add(self, messages: Iterable[Message], *, received_at: float) -> None:
        """Hold messages that were just received by a call sent at ``received_at`` (the keeper's clock)."""

    def adopt(self, leases: Iterable[Lease], messages: Iterable[Message] = ()) -> None:
        """Hold leases that were held elsewhere, and extend them at once; times are of the keeper's clock."""

    def leases(self) -> Sequence[Lease]:
        """The leases still held, in the order they were put in, with their deadlines as confirmed so far."""
        raise NotImplementedError

    def holds(self, receipt: Receipt) -> bool:
        """Whether the lease is still held: neither settled nor lost."""
        raise NotImplementedError

    async def settle(self, settlements: Mapping[Receipt, Settlement]) -> Mapping[Receipt, Settled]:
        """Settle leases and wait for the outcome of each; settling one twice gives its outcome again."""
        raise NotImplementedError

    async def succeed(self, receipts: Iterable[Receipt] | None = None) -> Mapping[Receipt, Settled]:
        """Their work succeeded: delete them (None: all that are still held)."""
        raise NotImplementedError

    async def fail(self, reason: str, receipts: Iterable[Receipt] | None = None) -> Mapping[Receipt, Settled]:
        """Their work failed for good: settle them by the batch's failure rule (None: all that are still held)."""
        raise NotImplementedError

    async def extend_now(self) -> None:
        """Extend every lease still held, at once, whatever the policy says: the last act before another takes over."""

    def forget(self) -> None:
        """Hold no longer and call nothing: somebody else does now."""

    def report(self) -> LeaseReport:
        """Counts so far."""
        raise NotImplementedError
