"""One lease from its receive to the end of its block: what ``lease`` and ``async_lease`` share.

A session belongs to an event loop, and is used like this:

- :meth:`LeaseSession.receive` takes the messages. If it fails or is interrupted, everything is given back plainly: the
  failure rule is for work that failed, and none has begun.
- :meth:`LeaseSession.settle` settles some while the block runs.
- :meth:`LeaseSession.finish` settles what is left when the block ends, by :meth:`LeaseSession.last_settlements`.
- :meth:`LeaseSession.give_back` replaces it where the block will never end: its generator was dropped.

**What the end of a block makes of its messages**, as far as they were not settled within it:

| the block | named messages | all others |
| --- | --- | --- |
| ended | - | deleted |
| raised ``MessageFailed``, or a group of nothing else | by the failure rule | deleted |
| raised another ``Exception`` | - | by the failure rule |
| was interrupted (``KeyboardInterrupt``, cancellation, ...) | - | visible again at once |
| raised what this lease itself raised: ``SettlementError`` | - | visible again at once |

**What is not as asked is told.** Where the service refused a settlement, by :class:`SettlementError`. Where leases were
lost or lapsed, by a warning, or by :class:`LeasesLostError` if the user chose so. An exception of the block's own goes
on, with a note.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar

from sqs_lease.clock import Clock
from sqs_lease.core.events import LeaseEvent, Outcome, Settled
from sqs_lease.core.failure_rules import (
    Delete,
    Release,
    Settlement,
    exception_names,
    failed_by_exception,
    named_message_ids,
)
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.keeper.batch import Batch, EventListener, LeaseReport
from sqs_lease.keeper.keeper import Keeper, Leaving
from sqs_lease.keeper.lease_log import LeaseLog
from sqs_lease.keeper.listening import ListenerThread
from sqs_lease.keeper.options import LeaseOptions
from sqs_lease.keeper.receiver import Receiver, Reception
from sqs_lease.keeper.telemetry import LeaseSpan, open_telemetry_meter
from sqs_lease.sqs.transport import Transport
from sqs_lease.sqs.validation import queue_reference

logger = logging.getLogger(__name__)

GIVE_BACK_SECONDS: Final = 10.0
"""How long the end of an interrupted block waits for its messages to be released. What is left then lapses."""

LISTENER_SECONDS: Final = 1.0
"""How long the end of a block waits for a listener that is still busy."""

_NAMED_MESSAGES: Final = 3

OnLost: TypeAlias = Literal["warn", "raise"]
"""What the end of a block makes of leases that were lost or lapsed: a warning, or an error."""

Messages: TypeAlias = Message | str | Iterable[Message | str]
"""Messages of a batch: one or several, each itself or by its id."""

_T = TypeVar("_T")


class SettlementError(Exception):
    """The service refused to settle messages as asked: they were received, and will be received again.

    Attributes:
        queue: The queue's URL.
        details: What the service said of each message, by message id.
        counts: How many messages it said the same of, by what it said.
    """

    def __init__(self, queue: str, details: Mapping[str, str]) -> None:
        self.queue = queue
        self.details = dict(details)
        self.counts: Mapping[str, int] = Counter(details.values())
        said = "; ".join(f"{count} times: {text or 'no reason given'}" for text, count in self.counts.items())
        super().__init__(
            f"{len(details)} messages of {queue} were not settled as asked, and come back when their visibility "
            f"timeout ends: {_named(list(details))}. {said}. Check that the queue exists and can be reached, that "
            "the caller may sqs:DeleteMessage and sqs:ChangeMessageVisibility on it, and for dead_letter() that it has "
            "a dead-letter queue to which the caller may sqs:SendMessage"
        )


class LeasesLostError(Exception):
    """Other consumers may have worked on messages of a block that succeeded.

    Attributes:
        queue: The queue's URL.
        details: What the service said of each lease that was lost, by message id.
        uncertain: The ids of messages that were deleted after their leases had ended: SQS confirms that also where
            somebody else received them since.
        lapsed: How often a deadline passed before an extension was confirmed, over all messages.
    """

    def __init__(self, queue: str, details: Mapping[str, str], uncertain: Sequence[str], lapsed: int) -> None:
        self.queue = queue
        self.details = dict(details)
        self.uncertain = tuple(uncertain)
        self.lapsed = lapsed
        parts = []
        if details:
            parts.append(f"{len(details)} leases were lost ({_named(list(details))})")
        if uncertain:
            parts.append(f"{len(uncertain)} messages were deleted after their leases had ended ({_named(uncertain)})")
        if lapsed:
            parts.append(f"{lapsed} times a lease lapsed before it was extended")
        super().__init__(
            f"Of a batch of {queue}, {'; '.join(parts)}. Other consumers may have worked on these messages as well. "
            "Make the work idempotent, or raise the visibility timeout"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """What a user asks of a lease; see :func:`sqs_lease.lease` for each.

    Raises:
        ValueError: ``queue`` is not a queue name, URL or ARN, or ``on_lost`` is none of its values.
    """

    queue: str
    options: LeaseOptions
    on_event: EventListener | None = None
    on_lost: OnLost = "warn"

    def __post_init__(self) -> None:
        queue_reference(self.queue)
        if self.on_lost not in ("warn", "raise"):
            raise ValueError(f"on_lost must be 'warn' or 'raise', not {self.on_lost!r}")


class LeaseSession:
    """One lease. Coroutines run in the event loop that it is made for; other methods say where they may be called.

    Args:
        transport: Reaches SQS; the session closes it.
        settings: What was asked for.
        clock: Source of time; the machine's by default.
    """

    def __init__(self, transport: Transport, settings: LeaseSettings, *, clock: Clock | None = None) -> None:
        self.messages: tuple[Message, ...] = ()
        self._transport = transport
        self._settings = settings
        self._clock = clock
        self._lease_log = LeaseLog(settings.queue)
        self._keeper: Keeper | None = None
        self._batch: Batch | None = None
        self._span = LeaseSpan()
        self._error_type: str | None = None
        self._listener = None if settings.on_event is None else ListenerThread(settings.on_event, settings.queue)
        self._decided: dict[Receipt, Settlement] = {}  # what was asked for; only ever added to
        self._told: set[Receipt] = set()  # of which an error told already that they were refused
        self._raised: list[SettlementError] = []
        self._closed = False

    @property
    def queue(self) -> str:
        """The queue, as the user gave it; for texts, from any thread."""
        return self._settings.queue

    @property
    def span(self) -> LeaseSpan:
        """The lease's span; from any thread."""
        return self._span

    @property
    def batch(self) -> Batch:
        """The keeper's batch, once :meth:`receive` has ended."""
        if self._batch is None:
            raise RuntimeError(f"Nothing was received from {self.queue} yet")
        return self._batch

    # In the loop

    async def receive(self) -> None:
        """Receive the messages and hold them; :attr:`messages` has them then.

        When it fails, or is cancelled, what it received is visible again at once, and the session is over.

        Raises:
            SqsError: The queue cannot be used.
            ValueError: The queue's own visibility timeout is 0.
        """
        try:
            await self._receive()
        except BaseException:
            await to_its_end(self.give_back())
            raise

    async def _receive(self) -> None:
        options, transport = self._settings.options, self._transport
        queue_url = await transport.queue_url(self._settings.queue)
        policy = options.policy
        if policy.visibility is None:
            policy = policy.for_queue((await transport.queue_attributes(queue_url)).visibility_seconds)
        receiver = Receiver(transport, queue_url, visibility_seconds=policy.visibility_seconds, clock=self._clock)
        self._keeper = keeper = Keeper(transport, clock=self._clock, meter=open_telemetry_meter())
        batch = self._batch = keeper.open_batch(
            queue_url, policy=policy, on_failure=options.on_failure, on_event=self._tell
        )

        def hold(reception: Reception) -> None:
            batch.add(reception.messages, received_at=reception.received_at, sent_at=reception.sent_at)

        collected = await receiver.collect(
            options.max_messages, wait=options.wait_seconds, linger=options.linger_seconds, on_received=hold
        )
        self.messages = tuple(batch.messages())
        if (received_at := batch.oldest_received_at()) is not None:
            began_at = received_at + keeper.clock.wall() - keeper.clock.now()
            await to_its_end(self._span.begin(queue_url, self.messages, began_at))
        if collected.error is not None:
            logger.warning("Took %d messages only: %s", len(self.messages), collected.error)

    def _tell(self, event: LeaseEvent) -> None:
        if self._listener is not None:
            self._listener.tell(event)
        elif not isinstance(event, Settled):  # of those that were refused an error tells
            self._lease_log.happened(event)

    async def settle(self, settlements: Mapping[Receipt, Settlement]) -> None:
        """Settle some messages within the block. Those that were settled before stay so.

        On a FIFO queue this does not wait for a message that waits for an earlier one of its group.

        Raises:
            SettlementError: The service refused it for some of them; the others are settled.
        """
        for receipt, settlement in settlements.items():
            self._decided.setdefault(receipt, settlement)
        outcomes = await self.batch.settle(settlements)
        if (error := self._refusal(outcomes)) is not None:
            self._raised.append(error)
            raise error

    async def finish(self, settlements: Mapping[Receipt, Settlement], *, within: float | None = None) -> None:
        """Settle what is left at the end of the block, and close.

        Args:
            settlements: What :meth:`last_settlements` returned.
            within: How many seconds to wait for the outcomes; None waits for all.
        """
        try:
            # With those that were settled before and wait for their turn within their group.
            await self._settle_within({**settlements, **self._decided}, within)
        finally:
            await to_its_end(self._close())

    async def give_back(self) -> None:
        """Make visible again what is held and was not settled, and close. It does nothing when that was done before."""
        if self._closed:
            return
        try:
            if self._batch is not None:
                held = dict.fromkeys((lease.receipt for lease in self._batch.leases()), Release())
                await self._settle_within({**held, **self._decided}, GIVE_BACK_SECONDS)
        finally:
            await to_its_end(self._close())

    async def give_back_dropped(self) -> None:
        """Give back the messages of a lease that nothing refers to, and log it."""
        await self.give_back()
        logger.warning("A lease of %s was dropped before its block ended: its messages were given back", self.queue)

    async def _settle_within(self, settlements: Mapping[Receipt, Settlement], seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.batch.settle(settlements)
        except TimeoutError:
            logger.warning(
                "Not all messages of %s could be given back within %g s: the others are visible again when their "
                "visibility timeout ends",
                self.batch.queue_url,
                seconds,
            )

    async def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._lease_log.flush()
            if self._batch is not None:
                await self._span.end(self._batch.report(), self._error_type)
            try:
                if self._keeper is not None:
                    await self._keeper.close(Leaving.NOTHING)
            finally:
                await self._transport.aclose()

    # In the caller's thread

    def failing(
        self, messages: Iterable[Message], reasons: Mapping[str, str] | str, errors: Sequence[str] = ()
    ) -> dict[Receipt, Settlement]:
        """What the failure rule makes of messages; a rule that fails makes it a plain release.

        The rule runs in the caller's thread, where it may block: the leases are extended meanwhile.

        Args:
            messages: The messages.
            reasons: Why they failed: for all, or by message id.
            errors: The classes of the exception that failed them.
        """
        if isinstance(reasons, str):
            return self.batch.failing(reasons, [message.receipt for message in messages], errors=errors)
        settlements: dict[Receipt, Settlement] = {}
        for message in messages:
            settlements |= self.batch.failing(reasons[message.message_id], [message.receipt], errors=errors)
        return settlements

    def last_settlements(self, error: BaseException | None) -> dict[Receipt, Settlement]:
        """What becomes of the messages that the block leaves, by how it ended: see the module's table.

        Args:
            error: What the block raised; None if it ended well.
        """
        self._error_type = None if error is None else type(error).__qualname__
        left = [message for message in self.messages if message.receipt not in self._decided]
        receipts = [message.receipt for message in left]
        if error is None:
            return dict.fromkeys(receipts, Delete())
        if not isinstance(error, Exception) or any(error is ours for ours in self._raised):
            return dict.fromkeys(receipts, Release())
        failed = failed_by_exception(named_message_ids(error), [message.message_id for message in self.messages])
        # The type only: an exception's text may quote a message's body, and the reason is sent and logged.
        failing = self.failing(
            (message for message in left if message.message_id in failed), type(error).__name__, exception_names(error)
        )
        return {**dict.fromkeys(receipts, Delete()), **failing}

    def conclude(self, error: BaseException | None) -> None:
        """Tell what was not as asked, after :meth:`finish`.

        Args:
            error: What the block raised; it gets notes.

        Raises:
            SettlementError: The block ended well, and the service refused settlements.
            LeasesLostError: The block ended well, leases were lost or lapsed, and the user asked for this error.
        """
        problems: list[Exception] = []
        if (refused := self._refusal(self.batch.outcomes())) is not None:
            problems.append(refused)
        if (lost := self._losses()) is not None:
            if self._settings.on_lost == "warn":
                logger.warning("%s", lost)
            else:
                problems.append(lost)
        if error is None and problems:
            first, *others = problems
            for other in others:
                first.add_note(str(other))
            raise first
        for problem in problems:
            if error is not None:
                error.add_note(str(problem))
            if not isinstance(error, Exception):
                # Nobody may ever see an interruption's notes.
                logger.warning("%s", problem)

    @property
    def has_listener(self) -> bool:
        """Whether the user listens to events."""
        return self._listener is not None

    def end_span(self) -> None:
        """End the span, where the event loop died before it could; after the loop has ended."""
        if self._batch is not None:
            self._span.end_now(self._batch.report(), self._error_type)

    def end_listening(self, *, waits: bool = True) -> None:
        """Tell the user's listener nothing new.

        Args:
            waits: Whether to wait until it was told of the rest, for :data:`LISTENER_SECONDS` at most.
        """
        if self._listener is not None:
            self._listener.end(LISTENER_SECONDS if waits else 0.0)

    def _refusal(self, outcomes: Mapping[Receipt, Settled]) -> SettlementError | None:
        """The error for messages whose settlement was refused, without those that an earlier error named."""
        refused = [
            settled
            for settled in outcomes.values()
            if settled.outcome is Outcome.FAILED and settled.receipt not in self._told
        ]
        if not refused:
            return None
        self._told.update(settled.receipt for settled in refused)
        return SettlementError(
            self.batch.queue_url, {settled.receipt.message_id: settled.detail for settled in refused}
        )

    def _losses(self) -> LeasesLostError | None:
        ends = self.batch.outcomes().values()
        lost = {end.receipt.message_id: end.detail for end in ends if end.outcome is Outcome.LOST}
        uncertain = [end.receipt.message_id for end in ends if end.outcome is Outcome.UNCERTAIN]
        lapsed = self.batch.report().late
        if not lost and not uncertain and not lapsed:
            return None
        return LeasesLostError(self.batch.queue_url, lost, uncertain, lapsed)


class ReceivedMessages:
    """Messages that were received together, in that order: what all kinds of batches share."""

    def __init__(self, messages: Sequence[Message], queue_url: str) -> None:
        self._messages = tuple(messages)
        self._by_id = {message.message_id: message for message in messages}
        self._queue_url = queue_url

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def queue_url(self) -> str:
        """The queue that the messages were received from."""
        return self._queue_url

    def _chosen(self, messages: Messages) -> list[Message]:
        several = [messages] if isinstance(messages, Message | str) else messages
        ids = [message if isinstance(message, str) else message.message_id for message in several]
        unknown = [message_id for message_id in ids if message_id not in self._by_id]
        if unknown:
            raise KeyError(f"not in this batch of {self.queue_url}: {', '.join(map(str, unknown))}")
        return [self._by_id[message_id] for message_id in ids]


class SessionMessages(ReceivedMessages):
    """The messages of one session: what blocking and asynchronous batches share."""

    def __init__(self, session: LeaseSession) -> None:
        super().__init__(session.messages, session.batch.queue_url)
        self._session = session

    def _settlements(self, messages: Messages, settlement: Settlement) -> dict[Receipt, Settlement]:
        return dict.fromkeys((message.receipt for message in self._chosen(messages)), settlement)

    def _holds_for_certain(self, message: Message | str) -> Callable[[], bool]:
        (chosen,) = self._chosen(message)
        return lambda: self._session.batch.still_held(chosen.receipt)

    def _count(self) -> LeaseReport:
        return self._session.batch.report()


async def to_its_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to completion, even if the caller is cancelled meanwhile; then raise the cancellation."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            logger.error("What a cancellation waited for failed", exc_info=failure)
        raise cancelled
    return task.result()


def ended(queue: str) -> RuntimeError:
    """The error for settling messages after the end of their block."""
    return RuntimeError(
        f"The block of this lease of {queue} has ended, and its messages were settled then: settle them within it"
    )


def _named(ids: Sequence[str]) -> str:
    """The ids of some messages; only the first ones if there are many."""
    shown = ", ".join(ids[:_NAMED_MESSAGES])
    return shown if len(ids) <= _NAMED_MESSAGES else f"{shown} and {len(ids) - _NAMED_MESSAGES} more"
