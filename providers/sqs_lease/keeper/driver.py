"""The driver of one queue's ledger: it makes the calls that fall due over a transport, side by side, and reports them.

The ledger decides everything: what to call, when, and how long to wait for the answer. The driver has the clock, the
tasks and the transport, and reports each call once, whatever its result. It stays awake only while something is due.

**After a stall** of the event loop another process may have taken the leases over and settled them: a triggerer that
stood still for long counts as gone. Airflow tells a triggerer so within about a second of its waking up. So a host may
ask for a pause before the next call (``quiet_after_stall_seconds``), which is cut to half of what the most urgent lease
has left.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from random import Random
from typing import Any, Final, Protocol

from sqs_lease.clock import Clock
from sqs_lease.core.calls import PASSING, Call, DeleteCall, EntryAnswer, ExtendCall, ForwardCall, ReleaseCall, Verdict
from sqs_lease.core.events import LeaseEvent, Lost, Settled
from sqs_lease.core.failure_rules import Settlement, printable
from sqs_lease.core.ledger import Ledger, Outlook
from sqs_lease.core.messages import Lease, Message, Receipt, count_of
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.keeper.event_loop_rounds import LEASES_IN_A_ROUND, Countdown
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.transport import Transport
from sqs_lease.sqs.validation import FIFO_SUFFIX, dead_letter_queue_url

logger = logging.getLogger(__name__)

CALLS_STARTED_AT_ONCE: Final = 1
"""Calls of a queue that begin in one round of the event loop: each takes a few milliseconds.

A round also takes in the answers to as many calls.
"""

LONGEST_SLEEP_SECONDS: Final = 30.0
"""Longest sleep: the event loop's timers stop while the machine is suspended, and the leases go on."""

STALL_SECONDS: Final = 10.0
"""A process that wakes up this late may have lost its leases: others may have taken it for dead."""

RESTART_SECONDS: Final = 1.0
"""The pause before the next call on a queue after an unexpected error."""

FAILING_SECONDS: Final = 60.0
"""The shortest time between two warnings in the log about failing calls on a queue."""

NO_DEAD_LETTERS_SECONDS: Final = 10.0
"""The time after which the driver asks again whether a queue has a dead-letter queue."""

REASON_ATTRIBUTE: Final = "sqs_lease_reason"
"""Message attribute of a dead-lettered message that says why it was put there."""

_ENDS: Final = (Settled, Lost)

_MAX_MESSAGE_ATTRIBUTES: Final = 10
_MAX_REASON_CHARACTERS: Final = 1_000
_MAX_MESSAGE_BYTES: Final = 1_048_576


class Owner(Protocol):
    """An owner of leases: it puts them into the driver, and is told their events. No method may raise."""

    number: int
    """The owner's number, unique: the messages of a group are in order within one owner's leases."""

    def happened(self, events: Sequence[LeaseEvent]) -> None:
        """Take in events of some of the owner's leases."""

    def extended(self, extensions: int) -> None:
        """Take in that one call confirmed this many extensions of the owner's leases (0 is possible)."""

    def handed_over(self, receipt: Receipt) -> None:
        """Take in that another owner holds this lease from now on."""

    async def content(self, receipt: Receipt) -> Message | None:
        """Return the message itself, to put it into a dead-letter queue; None if its content is not known.

        Raises:
            Exception: The content cannot be read now; a later call may succeed.
        """


class QueueDriver:
    """A driver: it makes the calls that one queue's ledger asks for, until stopped. Used by the keeper only.

    Args:
        transport: Makes the calls.
        queue_url: The queue.
        clock: Source of time.
        random: Source of jitter.
        call_timeout_seconds: Longest wait for the answer to one call.
        quiet_after_stall_seconds: See :class:`sqs_lease.keeper.keeper.Keeper`.
    """

    def __init__(
        self,
        transport: Transport,
        queue_url: str,
        *,
        clock: Clock,
        random: Random,
        call_timeout_seconds: float,
        quiet_after_stall_seconds: float,
    ) -> None:
        self._transport = transport
        self._queue_url = queue_url
        self._clock = clock
        self._call_timeout_seconds = call_timeout_seconds
        self._quiet_after_stall_seconds = quiet_after_stall_seconds
        self.is_fifo = queue_url.endswith(FIFO_SUFFIX)
        self._ledger = Ledger(random, fifo=self.is_fifo, call_timeout_seconds=call_timeout_seconds)
        self._owners: dict[Receipt, Owner] = {}
        self._leaving: dict[Owner, list[Receipt]] = {}  # owners that left, and which of their leases to forget
        self._calls: dict[asyncio.Task[None], Call] = {}
        self._unreported: set[int] = set()  # calls whose answers the ledger has not heard, by identity
        self._awaited: dict[Receipt, tuple[Countdown, ...]] = {}
        self._dead_letter_url: str | None = None
        self._no_dead_letters_until = -math.inf
        self._failure_named_at = -math.inf
        self._recovery_unnamed = False
        self._stopped = False
        self._loop = asyncio.get_running_loop()
        # The context in which it is made: that of a later caller may refer to all of that caller's objects.
        self._context = copy_context()
        self._soon: asyncio.Handle | None = None  # a look that is about to happen
        self._timer: asyncio.TimerHandle | None = None  # one that is planned
        self._wakes_by = math.inf  # before the first lease there is nothing to be late for
        self._calls_from = clock.now()

    # Requests of the keeper's batches

    def take(self, leases: Iterable[Lease], policy: RenewalPolicy, owner: Owner) -> None:
        """Hold leases, received a moment ago or taken over. A lease that another owner holds here changes its owner."""
        for lease in leases:
            former = self._owners.get(lease.receipt)
            if former in self._leaving:
                # Its owner gave it up, so the deadline and the doubts of that owner no longer count.
                self.forget(lease.receipt, former)
                former = None
            self._owners[lease.receipt] = owner
            if former is not None and former is not owner:
                former.handed_over(lease.receipt)
            self._ledger.hold(lease, policy, batch=owner.number)
        self._publish()
        self._kick()

    def holds(self, receipt: Receipt, owner: Owner) -> bool:
        """Return whether the lease is held for this owner."""
        return self._owners.get(receipt) is owner and receipt in self._ledger

    def lease(self, receipt: Receipt) -> Lease | None:
        """Return the lease with its deadline; None if it is no longer held."""
        return self._ledger.lease(receipt)

    def leases(self, receipts: Iterable[Receipt], owner: Owner) -> list[Lease]:
        """Return those of these leases that are held for an owner, with their current deadlines, in the same order."""
        held = (self._ledger.lease(receipt) for receipt in receipts if self._owners.get(receipt) is owner)
        return [lease for lease in held if lease is not None]

    def certain_until(self, receipts: Iterable[Receipt], owner: Owner) -> float | None:
        """See :meth:`Ledger.certain_until`, for those of these leases that are held for an owner."""
        return self._ledger.certain_until(receipt for receipt in receipts if self._owners.get(receipt) is owner)

    def outlook(self, receipts: Iterable[Receipt], owner: Owner) -> Outlook:
        """See :meth:`Ledger.outlook`, for those of these leases that are held for an owner."""
        return self._ledger.outlook(receipt for receipt in receipts if self._owners.get(receipt) is owner)

    def settle(
        self, settlements: Mapping[Receipt, Settlement], owner: Owner, *, in_order: bool, within_seconds: float
    ) -> None:
        """Begin to settle leases, as far as they are this owner's, which is told of each outcome.

        Args:
            settlements: The settlement of each message.
            owner: The owner of the leases.
            in_order: Whether the order within message groups of a FIFO queue is kept.
            within_seconds: How long they may wait for others to fill a call.
        """
        now = self._clock.now()
        for receipt, settlement in settlements.items():
            if self._owners.get(receipt) is owner:
                self._ledger.settle(receipt, settlement, now, in_order=in_order, within_seconds=within_seconds)
        self._publish()
        self._kick()

    def waits_for_work(self, receipt: Receipt) -> bool:
        """Return whether a delete waits for an earlier message of its group that is not decided yet."""
        return self._ledger.waits_for_work(receipt)

    def forget(self, receipt: Receipt, owner: Owner) -> None:
        """Stop tracking a lease, without a call, if it is this owner's."""
        if self._owners.get(receipt) is owner:
            self._ledger.forget(receipt)
            self._drop(receipt)

    def supersede(self, receipt: Receipt, owner: Owner) -> None:
        """Stop telling the owner about a receipt: a newer receipt of the message is about to take its place."""
        if self._owners.get(receipt) is owner:
            self._drop(receipt)

    def leave(self, owner: Owner, receipts: Iterable[Receipt]) -> None:
        """Stop tracking all leases of an owner, without a call, and tell it nothing more.

        Args:
            owner: The owner.
            receipts: Its leases. Many thousands are forgotten in slices, but before the next call.
        """
        self._leaving[owner] = list(receipts)
        self._forget_some()
        self._kick()

    def _forget_some(self) -> None:
        owner, receipts = next(iter(self._leaving.items()))
        for receipt in receipts[-LEASES_IN_A_ROUND:]:
            self.forget(receipt, owner)
        del receipts[-LEASES_IN_A_ROUND:]
        if not receipts:
            del self._leaving[owner]

    async def extend_now(self, receipts: Iterable[Receipt]) -> None:
        """Extend leases at once, and wait for the answers, whatever they are, for as long as a call may take."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._call_timeout_seconds):
                await self._answers_about([receipt for receipt in receipts if self._ledger.extend_now(receipt)])

    async def extend_until(self, receipts: Iterable[Receipt], until: float) -> None:
        """Extend leases once to last until a time; wait until that is confirmed, for as long as a call may take."""
        left = list(receipts)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._call_timeout_seconds):
                while left := [one for one in left if self._ledger.extend_until(one, until, self._clock.now())]:
                    await self._answers_about(left)

    async def _answers_about(self, receipts: Collection[Receipt]) -> None:
        """Wait until a call about each of these leases was answered, or the lease has ended."""
        answers = Countdown()
        alone = (answers,)
        for receipt in receipts:
            others = self._awaited.get(receipt)
            self._awaited[receipt] = alone if others is None else (*others, answers)
        answers.expect(len(receipts))
        self._kick()
        await answers.ended()

    async def stop(self) -> None:
        """Stop making calls. Calls under way get the time to be answered, and are then cancelled."""
        self._stopped = True
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        if self._calls:
            _, unanswered = await asyncio.wait(self._calls, timeout=self._call_timeout_seconds)
            for task in unanswered:
                task.cancel()

    # Looking at the ledger: in callbacks, not in a task. An event loop that ends cancels all of its tasks, and hosts
    # make their last calls after that.

    def _kick(self) -> None:
        """Look at the ledger in the next round of the event loop."""
        if self._soon is None and not self._stopped:
            self._soon = self._loop.call_soon(self._look, context=self._context)

    def _look(self) -> None:
        self._soon = None
        if self._stopped:
            return
        try:
            seconds = self._make_calls()
        except Exception:
            # Leases would lapse in silence.
            logger.critical(
                "The keeper of %s failed; it starts again in %g s", self._queue_url, RESTART_SECONDS, exc_info=True
            )
            seconds = RESTART_SECONDS
        self._look_again(seconds)

    def _look_again(self, seconds: float) -> None:
        """Look again after a time, or earlier when a call ends or a new lease comes."""
        if seconds <= 0:
            self._kick()
            return
        at = self._loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._wake, context=self._context)

    def _wake(self) -> None:
        self._timer = None
        self._kick()

    def _make_calls(self) -> float:
        """Make the calls that are due; return after how many seconds others are."""
        if self._leaving:
            self._forget_some()
            return 0.0
        now = self._clock.now()
        if now - self._wakes_by > STALL_SECONDS:
            self._calls_from = now + self._quiet_seconds(now)
        if now >= self._calls_from:
            for call in self._ledger.due(now, CALLS_STARTED_AT_ONCE):
                self._start(call)
        self._publish()
        due = self._ledger.next_due()
        seconds = LONGEST_SLEEP_SECONDS if due is None else min(max(due - now, 0.0), LONGEST_SLEEP_SECONDS)
        seconds = max(seconds, self._calls_from - now)
        self._wakes_by = now + seconds
        return seconds

    def _quiet_seconds(self, now: float) -> float:
        """How long to call nothing after a stall: half of what the most urgent lease has left, at most."""
        if not self._quiet_after_stall_seconds:
            return 0.0
        deadline = self._ledger.earliest_deadline(now)
        left = self._quiet_after_stall_seconds if deadline is None else (deadline - now) / 2
        return min(self._quiet_after_stall_seconds, left)

    def _start(self, call: Call) -> None:
        task = self._loop.create_task(self._perform(call), context=self._context)
        self._calls[task] = call
        self._unreported.add(id(call))
        task.add_done_callback(self._call_ended, context=self._context)

    def _call_ended(self, task: asyncio.Task[None]) -> None:
        call = self._calls.pop(task)
        if id(call) in self._unreported:
            # Cancelled before its first step, as by an event loop that ends: nothing was sent.
            text = "cancelled before it was sent"
            self._answered(call, [EntryAnswer(receipt, Verdict.UNAVAILABLE, text=text) for receipt in call.receipts])
        self._kick()

    # Calls

    async def _perform(self, call: Call) -> None:
        answers: Sequence[EntryAnswer] = ()
        timeout_seconds = self._ledger.timeout_seconds(call)
        try:
            async with asyncio.timeout(timeout_seconds):
                answers = list(await self._send(call))
        except asyncio.CancelledError:
            # Whatever the call did: the last calls must not find these leases under way for ever.
            self._answered(call, ())
            raise
        except TimeoutError:
            text = f"no answer within {timeout_seconds:.1f} s"
            answers = [EntryAnswer(receipt, Verdict.TRANSIENT, text=text) for receipt in call.receipts]
        except Exception as error:  # noqa: BLE001 - named in the log, though not each time
            # Whatever a transport raises, the ledger must learn of it, or the leases would stay under way for ever.
            text = f"{type(error).__name__} in the transport"
            answers = [EntryAnswer(receipt, Verdict.TRANSIENT, text=text) for receipt in call.receipts]
            self._name_failure(call, answers, error)
        self._answered(call, answers)

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
        try:
            message = await owner.content(call.receipt) if owner is not None else None
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a source may fail in any way, and work again later
            text = f"the message's content cannot be read now ({type(error).__name__})"
            return EntryAnswer(call.receipt, Verdict.UNAVAILABLE, text=text)
        if message is None:
            return EntryAnswer(call.receipt, Verdict.REFUSED, text="the message's content cannot be read again")
        try:
            url = await self._dead_letter_queue()
            if url is None:
                text = "the queue has no dead-letter queue: give it a redrive policy, or choose another failure rule"
                return EntryAnswer(call.receipt, Verdict.REFUSED, text=text)
            fifo = url.endswith(FIFO_SUFFIX)
            await self._transport.send(
                url,
                message.body,
                message_attributes=_with_reason(message, call.reason),
                # On a standard queue the group is the tenant of a fair queue.
                message_group_id=message.message_group_id or (message.message_id if fifo else None),
                # The same for each try, so that a repeated forward puts no second copy into a FIFO queue.
                deduplication_id=message.message_id if fifo else None,
            )
        except SqsError as error:
            self._dead_letter_url = None  # it may be another one by the next time
            return EntryAnswer(call.receipt, error.verdict, text=str(error))
        except ValueError as error:
            return EntryAnswer(call.receipt, Verdict.REFUSED, text=str(error))
        return EntryAnswer(call.receipt, Verdict.DONE)

    async def _dead_letter_queue(self) -> str | None:
        if self._dead_letter_url is None:
            if self._clock.now() < self._no_dead_letters_until:
                return None
            attributes = await self._transport.queue_attributes(self._queue_url)
            if attributes.dead_letter_arn is None:
                self._no_dead_letters_until = self._clock.now() + NO_DEAD_LETTERS_SECONDS
                return None
            self._dead_letter_url = dead_letter_queue_url(self._queue_url, attributes.dead_letter_arn)
        return self._dead_letter_url

    def _answered(self, call: Call, answers: Sequence[EntryAnswer]) -> None:
        self._unreported.discard(id(call))
        concerned = set(call.receipts)
        # The ledger hears it first: nothing that an owner does may keep leases under way.
        self._ledger.report(call, [answer for answer in answers if answer.receipt in concerned], self._clock.now())
        self._name_failure(call, answers)
        if isinstance(call, ExtendCall):
            self._tell_of_extensions(call, answers)
        self._publish()

    def _tell_of_extensions(self, call: ExtendCall, answers: Sequence[EntryAnswer]) -> None:
        confirmed = {answer.receipt for answer in answers if answer.verdict is Verdict.DONE}
        counts: dict[Owner, int] = {}
        for receipt in call.receipts:
            if (owner := self._owners.get(receipt)) is not None:
                counts[owner] = counts.get(owner, 0) + (receipt in confirmed)
            self._heard_of(receipt)
        for owner, extensions in counts.items():
            owner.extended(extensions)

    def _name_failure(self, call: Call, answers: Sequence[EntryAnswer], error: BaseException | None = None) -> None:
        """Log that calls on the queue fail, at most once a minute, and that they succeed again.

        ``error`` is an unexpected error: it is logged with its traceback.
        """
        bad = [answer for answer in answers if answer.verdict in PASSING]
        now = self._clock.now()
        if not bad:
            if answers and self._recovery_unnamed:
                self._recovery_unnamed = False
                logger.info("Calls on %s are answered again", self._queue_url)
        elif now - self._failure_named_at > FAILING_SECONDS:
            # At most once a minute even if every other call succeeds.
            self._failure_named_at, self._recovery_unnamed = now, True
            logger.warning(
                "%s of %s of %s failed, and is tried again: %s",
                _verb(call),
                count_of(len(bad)),
                self._queue_url,
                bad[0].text or bad[0].code or bad[0].verdict.value,
                exc_info=error,
            )

    def _publish(self) -> None:
        """Tell the owners the events of their leases."""
        told: dict[Owner, list[LeaseEvent]] = {}
        for event in self._ledger.take_events():
            receipt = event.receipt
            owner = self._owners.get(receipt)
            if isinstance(event, _ENDS) and receipt not in self._ledger:
                self._drop(receipt)
            if owner is not None and owner not in self._leaving:
                told.setdefault(owner, []).append(event)
        for owner, events in told.items():
            owner.happened(events)

    def _drop(self, receipt: Receipt) -> None:
        """Stop tracking a lease, and wake all that wait for its extension."""
        self._owners.pop(receipt, None)
        self._heard_of(receipt)

    def _heard_of(self, receipt: Receipt) -> None:
        for answers in self._awaited.pop(receipt, ()):
            answers.count()


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


def _with_reason(message: Message, reason: str) -> Mapping[str, Mapping[str, Any]]:
    """The message's attributes and why it is dead-lettered, where the service's limits leave room for it.

    SQS allows ten attributes, and 1 MiB for the body and the attributes together. A message that was dead-lettered
    before, and redriven, has an older reason: it is not the reason of this time.
    """
    attributes = {name: value for name, value in message.message_attributes.items() if name != REASON_ATTRIBUTE}
    shown = printable(reason[:_MAX_REASON_CHARACTERS])
    if len(attributes) >= _MAX_MESSAGE_ATTRIBUTES or not shown:
        return attributes
    room = _MAX_MESSAGE_BYTES - _message_bytes(message.body, attributes) - len(REASON_ATTRIBUTE) - len("String")
    shown = shown.encode()[: max(room, 0)].decode(errors="ignore")
    return {**attributes, REASON_ATTRIBUTE: {"DataType": "String", "StringValue": shown}} if shown else attributes


def _message_bytes(body: str, attributes: Mapping[str, Mapping[str, Any]]) -> int:
    """The size of a message as SQS counts it: the body, and name, type and value of each attribute."""
    size = len(body.encode())
    for name, attribute in attributes.items():
        for part in (name, *attribute.values()):
            size += len(part if isinstance(part, bytes) else str(part).encode())
    return size
