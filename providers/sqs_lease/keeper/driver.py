"""Drives the ledger of one queue over a transport: makes the calls that fall due, side by side, and reports them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final, Protocol

from sqs_lease.clock import Clock
from sqs_lease.core.calls import Call, DeleteCall, EntryAnswer, ExtendCall, ForwardCall, ReleaseCall, Verdict
from sqs_lease.core.events import LeaseEvent, Lost, Settled
from sqs_lease.core.failure_rules import Settlement, printable
from sqs_lease.core.ledger import Ledger
from sqs_lease.core.messages import Lease, Message, Receipt
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.transport import Transport

logger = logging.getLogger(__name__)

MAX_CALLS_IN_FLIGHT: Final = 32
"""Calls of one queue under way at once; more would only wait for connections, and a call must not wait once decided."""

CALLS_STARTED_AT_ONCE: Final = 1
"""Calls of a queue begun before the event loop gets to do other things: each takes it some milliseconds.

What it does in one go are the calls that all queues begin, and the answers to as many.
"""

LONGEST_SLEEP_SECONDS: Final = 30.0
"""The event loop's timers stand still while the machine is suspended, leases do not: look again now and then."""

STALL_SECONDS: Final = 10.0
"""A process that woke up so much later than it meant to may not be the holder any more: others took it for dead."""

RECOVERY_SECONDS: Final = 3.0
"""How long such a process calls nothing, so that its host can tell it first what it still holds.

Airflow tells a triggerer that stood still within about a second which of its triggers run elsewhere by now. To extend a
lease that the new holder has released meanwhile would hide its message again.
"""

REASON_ATTRIBUTE: Final = "sqs_lease_reason"
"""Message attribute of a dead-lettered message that says why it was put there."""

_MAX_MESSAGE_ATTRIBUTES: Final = 10
_MAX_REASON_CHARACTERS: Final = 1_000


class Owner(Protocol):
    """Who put a lease into the driver and is told what becomes of it."""

    def happened(self, event: LeaseEvent) -> None:
        """Something happened to one of the owner's leases."""

    def extended(self, extensions: int) -> None:
        """One call confirmed this many extensions of the owner's leases (0: it confirmed none)."""

    async def content(self, receipt: Receipt) -> Message | None:
        """The message itself, to put it into a dead-letter queue; None if it cannot be had."""


class QueueDriver:
    """Performs what one queue's ledger asks for, until stopped. Used by the keeper only."""

    def __init__(
        self, transport: Transport, queue_url: str, *, clock: Clock, random: Random, call_timeout_seconds: float
    ) -> None:
        self._transport = transport
        self._queue_url = queue_url
        self._clock = clock
        self._call_timeout_seconds = call_timeout_seconds
        self._ledger = Ledger(random)
        self._owners: dict[Receipt, Owner] = {}
        self._calls: dict[asyncio.Task[None], Call] = {}
        self._awaited: dict[Receipt, asyncio.Future[None]] = {}
        self._wake = asyncio.Event()
        self._dead_letter_url: str | None = None
        self._stopped = False
        self._loop_task: asyncio.Task[None] | None = None
        self._kick()

    # What the keeper's batches ask for

    def take(self, lease: Lease, policy: RenewalPolicy, owner: Owner, *, at_once: bool) -> None:
        """Hold a lease; ``at_once`` extends it now because somebody else held it before."""
        self._owners[lease.receipt] = owner
        if at_once:
            self._ledger.adopt(lease, policy)
        else:
            self._ledger.hold(lease, policy)
        self._publish()
        self._kick()

    def holds(self, receipt: Receipt) -> bool:
        """Whether the lease is held."""
        return receipt in self._ledger

    def lease(self, receipt: Receipt) -> Lease | None:
        """The lease as it stands; None when it is no longer held."""
        return self._ledger.lease(receipt)

    def settle(self, settlements: Mapping[Receipt, Settlement]) -> None:
        """Begin to settle leases; the owner is told of each outcome."""
        now = self._clock.now()
        for receipt, settlement in settlements.items():
            self._ledger.settle(receipt, settlement, now)
        self._publish()
        self._kick()

    def forget(self, receipts: Iterable[Receipt]) -> None:
        """Hold these leases no longer, without a call."""
        for receipt in receipts:
            self._ledger.forget(receipt)
            self._owners.pop(receipt, None)
            self._awaited.pop(receipt, None)

    async def extend_now(self, receipts: Iterable[Receipt]) -> None:
        """Extend leases at once and wait until each was answered, whatever the answer, but not for ever."""
        loop = asyncio.get_running_loop()
        awaited = [
            self._awaited.setdefault(receipt, loop.create_future())
            for receipt in receipts
            if self._ledger.extend_now(receipt)
        ]
        self._kick()
        if awaited:
            await asyncio.wait(awaited, timeout=self._call_timeout_seconds)

    async def stop(self) -> None:
        """Make no more calls; those under way are given their time to be answered, then cancelled."""
        self._stopped = True
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.wait([self._loop_task])
        if self._calls:
            _, unanswered = await asyncio.wait(self._calls, timeout=self._call_timeout_seconds)
            for task in unanswered:
                task.cancel()

    # The loop

    def _kick(self) -> None:
        """Have the loop look at what changed.

        It is started again if it was cancelled by somebody else: an event loop that ends cancels all of its tasks,
        and hosts make their last calls after that.
        """
        self._wake.set()
        if not self._stopped and (self._loop_task is None or self._loop_task.done()):
            self._loop_task = asyncio.get_running_loop().create_task(self._run(), name=f"sqs-lease {self._queue_url}")
            self._loop_task.add_done_callback(self._ended)

    async def _run(self) -> None:
        calls_from = wakes_by = self._clock.now()
        while True:
            self._wake.clear()
            now = self._clock.now()
            if now - wakes_by > STALL_SECONDS:
                calls_from = now + RECOVERY_SECONDS
            free = MAX_CALLS_IN_FLIGHT - len(self._calls)
            if free > 0 and now >= calls_from:
                for call in self._ledger.due(now, min(free, CALLS_STARTED_AT_ONCE)):
                    self._start(call)
            self._publish()
            sleep_seconds = max(self._sleep_seconds(now), calls_from - now)
            wakes_by = now + sleep_seconds
            with suppress(TimeoutError):
                async with asyncio.timeout(sleep_seconds):
                    await self._wake.wait()

    def _sleep_seconds(self, now: float) -> float:
        """How long nothing is due; a call that ends, or a new lease, wakes the loop earlier."""
        due = self._ledger.next_due()
        if due is None or len(self._calls) >= MAX_CALLS_IN_FLIGHT:
            return LONGEST_SLEEP_SECONDS
        return min(max(due - now, 0.0), LONGEST_SLEEP_SECONDS)

    def _start(self, call: Call) -> None:
        task = asyncio.get_running_loop().create_task(self._perform(call))
        self._calls[task] = call
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._calls.pop(task, None)
        self._wake.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The loop never ends by itself; should it fail, leases would lapse in silence."""
        if task.cancelled():
            # Who asked for something between the loop's cancellation and its end found it still alive.
            if self._wake.is_set():
                self._kick()
        elif (error := task.exception()) is not None:
            logger.critical(
                "The keeper of %s failed; its leases are not extended any more", self._queue_url, exc_info=error
            )

    # Calls

    async def _perform(self, call: Call) -> None:
        answers: Sequence[EntryAnswer] = ()
        try:
            async with asyncio.timeout(self._timeout_seconds(call)):
                answers = await self._send(call)
        except asyncio.CancelledError:
            # Carried out or not: whoever makes the last calls must not find the leases under way for ever.
            self._answered(call, ())
            raise
        except TimeoutError:
            logger.warning("%s of %d messages of %s got no answer", _verb(call), len(call.receipts), self._queue_url)
        except Exception:
            # Whatever a transport does, the ledger must hear of it, or the leases would stay under way for ever.
            logger.exception("%s of %d messages of %s failed", _verb(call), len(call.receipts), self._queue_url)
        self._answered(call, answers)

    def _timeout_seconds(self, call: Call) -> float:
        """How long to wait for an answer: an extension must leave time to try again within the lease."""
        if not isinstance(call, ExtendCall):
            return self._call_timeout_seconds
        leases = [self._ledger.lease(receipt) for receipt in call.receipts]
        remaining = min((lease.deadline - call.asked_at for lease in leases if lease is not None), default=math.inf)
        return min(max(remaining / 2, 1.0), self._call_timeout_seconds)

    async def _send(self, call: Call) -> Sequence[EntryAnswer]:
        match call:
            case ExtendCall() | ReleaseCall():
                return await self._transport.change_visibility(self._queue_url, call.changes)
            case DeleteCall():
                return await self._transport.delete(self._queue_url, call.receipts)
            case ForwardCall():
                return [await self._forward(call)]

    async def _forward(self, call: ForwardCall) -> EntryAnswer:
        owner = self._owners.get(call.receipt)
        message = await owner.content(call.receipt) if owner is not None else None
        if message is None:
            return EntryAnswer(call.receipt, Verdict.REFUSED, text="the message's content cannot be had any more")
        try:
            url = await self._dead_letter_queue()
            if url is None:
                text = "the queue has no dead-letter queue: give it a redrive policy, or choose another failure rule"
                return EntryAnswer(call.receipt, Verdict.REFUSED, text=text)
            fifo = url.endswith(".fifo")
            await self._transport.send(
                url,
                message.body,
                message_attributes=_with_reason(message.message_attributes, call.reason),
                message_group_id=(message.message_group_id or message.message_id) if fifo else None,
                # The same for each try, so that a repeated forward puts no second copy into a FIFO queue.
                deduplication_id=message.message_id if fifo else None,
            )
        except SqsError as error:
            return EntryAnswer(call.receipt, error.verdict, text=str(error))
        return EntryAnswer(call.receipt, Verdict.DONE)

    async def _dead_letter_queue(self) -> str | None:
        if self._dead_letter_url is None:
            attributes = await self._transport.queue_attributes(self._queue_url)
            if attributes.dead_letter_arn is None:
                return None
            self._dead_letter_url = await self._transport.queue_url(attributes.dead_letter_arn)
        return self._dead_letter_url

    def _answered(self, call: Call, answers: Sequence[EntryAnswer]) -> None:
        if isinstance(call, ExtendCall):
            confirmed = {answer.receipt for answer in answers if answer.verdict is Verdict.DONE}
            counts: dict[Owner, int] = {}
            for receipt in call.receipts:
                if (owner := self._owners.get(receipt)) is not None:
                    counts[owner] = counts.get(owner, 0) + (receipt in confirmed)
                if (awaited := self._awaited.pop(receipt, None)) is not None and not awaited.done():
                    awaited.set_result(None)
            for owner, extensions in counts.items():
                owner.extended(extensions)
        self._ledger.report(call, answers, self._clock.now())
        self._publish()

    def _publish(self) -> None:
        """Tell the owners what happened."""
        for event in self._ledger.take_events():
            ended = isinstance(event, Settled | Lost)
            owner = self._owners.pop(event.receipt, None) if ended else self._owners.get(event.receipt)
            if owner is not None:
                owner.happened(event)


def _verb(call: Call) -> str:
    match call:
        case ExtendCall():
            return "Extending"
        case ReleaseCall():
            return "Releasing"
        case DeleteCall():
            return "Deleting"
        case ForwardCall():
            return "Dead-lettering"


def _with_reason(attributes: Mapping[str, Mapping[str, Any]], reason: str) -> Mapping[str, Mapping[str, Any]]:
    """The message's attributes and why it is dead-lettered, where the service's limit of ten leaves room for it."""
    shown = printable(reason[:_MAX_REASON_CHARACTERS])
    if len(attributes) >= _MAX_MESSAGE_ATTRIBUTES or not shown:
        return attributes
    return {**attributes, REASON_ATTRIBUTE: {"DataType": "String", "StringValue": shown}}
