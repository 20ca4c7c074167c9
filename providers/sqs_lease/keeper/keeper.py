"""The keeper, which extends leases over a transport until they are settled; one serves many batches and queues."""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context, copy_context
from dataclasses import dataclass
from enum import Enum
from functools import partial
from random import Random
from types import TracebackType
from typing import Self

from sqs_lease.clock import Clock, SystemClock
from sqs_lease.core.failure_rules import FailureRule, release
from sqs_lease.core.ledger import CALL_TIMEOUT_SECONDS
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.keeper.batch import Batch, EventListener, KeeperClosedError, MessageSource, Meter, Unmetered
from sqs_lease.keeper.driver import QueueDriver
from sqs_lease.keeper.event_loop_rounds import RoundLimiter
from sqs_lease.sqs.transport import Transport

logger = logging.getLogger(__name__)


class Leaving(Enum):
    """The ways in which a keeper that is closed treats the leases it still holds."""

    EXTEND = "extend"
    """Extend once more, so that another process has time to take over: nothing is released."""

    RELEASE = "release"
    """Make the messages visible at once: no process will take over."""

    NOTHING = "nothing"
    """Make no call: the deadlines stay as they are."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The number of batches and leases of one queue in a keeper. ``oldest_received_at`` is by the keeper's clock."""

    queue_url: str
    batches: int
    leases: int
    oldest_received_at: float


class Keeper:
    """A holder of leases of any number of batches and queues, over one transport.

    Use it as an asynchronous context manager, or call :meth:`close` when done. All methods must be called
    from the event loop in which it was made. It does not close the transport.

    Args:
        transport: Where the calls go.
        clock: Source of time; the machine's by default.
        random: Source of jitter; a fresh one by default.
        call_timeout_seconds: Longest wait for the answer to one call, 10 s by default; extensions wait
            less when their lease is about to end.
        meter: Counts events of leases; nothing is counted by default.
        quiet_after_stall_seconds: How long the keeper makes no calls after its process stood still for more than ten
            seconds, so that its host can first tell it which leases others hold by now; less if a lease would end
            meanwhile. 0, the default: it goes on at once.
        context: The context of its calls; by default, for each queue, that of the caller that opens its first batch.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        call_timeout_seconds: float = CALL_TIMEOUT_SECONDS,
        meter: Meter | None = None,
        quiet_after_stall_seconds: float = 0.0,
        context: Context | None = None,
    ) -> None:
        self.clock: Clock = SystemClock() if clock is None else clock
        self.transport = transport
        self._random = Random() if random is None else random
        self._call_timeout_seconds = call_timeout_seconds
        self._meter: Meter = Unmetered() if meter is None else meter
        self._quiet_after_stall_seconds = quiet_after_stall_seconds
        self._drivers: dict[str, QueueDriver] = {}
        self._batches: dict[Batch, None] = {}
        self._opened = 0  # batches so far
        self._rounds = RoundLimiter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = context
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def open_batch(
        self,
        queue_url: str,
        *,
        policy: RenewalPolicy,
        on_failure: FailureRule | None = None,
        on_event: EventListener | None = None,
        message_source: MessageSource | None = None,
        batch_id: str | None = None,
    ) -> Batch:
        """Open an empty batch on a queue; no call is made until leases are put into it.

        Args:
            queue_url: The queue's URL.
            policy: When to extend; its visibility must be known (:meth:`RenewalPolicy.for_queue`).
            on_failure: How to settle failed messages; visible again at once by default.
            on_event: Called in the event loop for each event of the batch's leases; it must not block.
            message_source: Returns messages by their ids, to dead-letter leases that were adopted without
                them; ids that it does not know are missing in its answer.
            batch_id: The id of the batch, unique across processes: :meth:`Batch.adopt` refuses leases that were
                written for another batch. None, the default: the id of the leases that are adopted first, or a random
                one.

        Raises:
            KeeperClosedError: The keeper was closed.
            RuntimeError: No event loop runs in this thread, or another one than that of the keeper's first batch.
            ValueError: The policy's visibility timeout is not known.
        """
        if self._closed:
            raise KeeperClosedError(f"The keeper was closed: it cannot hold messages of {queue_url}")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError(
                f"The keeper runs in another event loop: it cannot hold messages of {queue_url} from here"
            )
        if (driver := self._drivers.get(queue_url)) is None:
            made = partial(
                QueueDriver,
                self.transport,
                queue_url,
                clock=self.clock,
                random=self._random,
                call_timeout_seconds=self._call_timeout_seconds,
                quiet_after_stall_seconds=self._quiet_after_stall_seconds,
            )
            context = copy_context() if self._context is None else self._context
            driver = self._drivers[queue_url] = context.run(made)
        self._opened += 1
        batch = Batch(
            queue_url,
            self._opened,
            driver=driver,
            policy=policy,
            on_failure=release() if on_failure is None else on_failure,
            on_event=on_event,
            message_source=message_source,
            random=self._random,
            clock=self.clock,
            meter=self._meter,
            rounds=self._rounds,
            batch_id=batch_id,
            on_end=self._ended,
        )
        self._batches[batch] = None
        return batch

    def holdings(self) -> list[Holding]:
        """Return what is held now, by queue."""
        holdings: dict[str, Holding] = {}
        for batch in self._batches:
            oldest = batch.oldest_received_at()
            if oldest is not None:
                held = holdings.get(batch.queue_url, Holding(batch.queue_url, 0, 0, oldest))
                holdings[batch.queue_url] = Holding(
                    batch.queue_url,
                    held.batches + 1,
                    held.leases + batch.count_held(),
                    min(held.oldest_received_at, oldest),
                )
        return list(holdings.values())

    def drop(self, batch: Batch) -> None:
        """Stop tracking a batch; its held leases are forgotten without a call."""
        batch.forget()

    def _ended(self, batch: Batch) -> None:
        self._batches.pop(batch, None)

    async def close(self, leaving: Leaving = Leaving.EXTEND) -> None:
        """Stop: treat held leases as ``leaving`` says, give calls under way time to be answered, and end.

        Stop receiving first: an open long poll of this process would receive a released message at once.
        Waits at most two call time-outs.
        """
        self._closed = True
        if leaving is not Leaving.NOTHING:
            extending = leaving is Leaving.EXTEND
            last = [batch.extend_now() if extending else batch.release_all() for batch in self._batches]
            try:
                async with asyncio.timeout(self._call_timeout_seconds):
                    # A batch that is dropped meanwhile ends its own calls, not those of the others.
                    await asyncio.gather(*last, return_exceptions=True)
            except TimeoutError:
                logger.warning("Closing the keeper: not all calls were answered in time; those leases run out")
        await asyncio.gather(*(driver.stop() for driver in self._drivers.values()))
        for batch in tuple(self._batches):
            batch.end()
