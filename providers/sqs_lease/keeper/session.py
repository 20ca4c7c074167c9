"""One lease from its receive to the end of its block: the part that ``lease`` and ``async_lease`` share.

A session belongs to an event loop, and is used like this:

- :meth:`LeaseSession.receive` takes the messages. If it fails or is interrupted, all messages are visible again at
  once: the failure rule is for work that failed, and no work has begun.
- :meth:`LeaseSession.settle` settles some while the block runs, without waiting: SQS settles ten messages by one call,
  so those that are settled one by one are gathered for :data:`GATHERED_SECONDS`. :meth:`LeaseSession.flush` waits.
- :meth:`LeaseSession.finish` settles the other messages when the block ends, by :meth:`LeaseSession.last_settlements`.
- :meth:`LeaseSession.give_back` replaces it if the block will never end, because its generator was dropped.

**The end of a block settles its messages**, as far as they were not settled within it:

| the block | named messages | all others |
| --- | --- | --- |
| ended | - | deleted |
| raised ``MessageFailed``, or a group of nothing else | by the failure rule | deleted |
| raised another ``Exception`` | - | by the failure rule |
| was interrupted (``KeyboardInterrupt``, cancellation, ...) | - | visible again at once |
| raised what this lease itself raised: ``SettlementError`` | - | visible again at once |

**An interruption while the block's end settles** (a second Ctrl-C, a cancellation) waits: settlements that were
decided are carried out for up to :data:`GIVE_BACK_SECONDS`, and then the interruption goes on.

**The user learns of each problem.** If the service refused a settlement, or did not confirm it before the end, a
:class:`SettlementError` is raised at the next call, or at the end of the block. If leases were lost or lapsed, a
warning is logged, or :class:`LeasesLostError` is raised if the user chose so. An exception of the block's own goes on,
with a note.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, TypeVar

from sqs_lease.core.events import LeaseEvent, Outcome, Settled
from sqs_lease.core.failure_rules import (
    Delete,
    Release,
    Settlement,
    check_reason,
    checked_names,
    exception_names,
    failed_by_exception,
    ids_of,
    named_message_ids,
    shown_id,
)
from sqs_lease.core.messages import Message, Receipt, count_of
from sqs_lease.keeper.batch import Batch, EventListener, LeaseReport
from sqs_lease.keeper.endings import end_of
from sqs_lease.keeper.lease_log import LeaseLog
from sqs_lease.keeper.listening import ListenerThread
from sqs_lease.keeper.open_queue import OpenQueue
from sqs_lease.keeper.options import LeaseOptions
from sqs_lease.keeper.plain_leases import WrittenBatch
from sqs_lease.keeper.receiver import Reception
from sqs_lease.keeper.telemetry import LeaseSpan
from sqs_lease.sqs.validation import queue_reference

logger = logging.getLogger(__name__)

GIVE_BACK_SECONDS: Final = 10.0
"""How long the end of an interrupted block waits for the release of its messages. The others then lapse."""

GATHERED_SECONDS: Final = 0.1
"""How long a message that is settled within its block waits for others, so that one call settles ten."""

LISTENER_SECONDS: Final = 1.0
"""How long the end of a block waits for a listener that is still busy."""

_NAMED_MESSAGES: Final = 3

_NOT_CONFIRMED: Final = "the block ended before SQS had confirmed it"

OnLost: TypeAlias = Literal["warn", "raise"]
"""The consequence, at the end of a block, of leases that were lost or lapsed: a warning, or an error."""

Messages: TypeAlias = Message | str | Iterable[Message | str]
"""Messages of a batch: one or several, each itself or by its id."""

_T = TypeVar("_T")


class SettlementError(Exception):
    """An error: the service refused to settle messages as requested, so they will be received again.

    Attributes:
        queue: The queue's URL.
        details: The service's text for each message, by message id.
        counts: The number of messages with the same text, by text.
    """

    def __init__(self, queue: str, details: Mapping[str, str]) -> None:
        self.queue = queue
        self.details = dict(details)
        self.counts: Mapping[str, int] = Counter(details.values())
        said = "; ".join(
            f"{count_of(count, 'time')}: {text.removesuffix('.') or 'no reason given'}"
            for text, count in self.counts.items()
        )
        super().__init__(
            f"{count_of(len(details))} of {queue} {_was(details)} not settled as asked: {_named(list(details))}. They "
            "come back: at once if the dead-letter queue refused them, or else when their visibility timeout ends. "
            f"{said}. Check that the queue exists and can be reached, that "
            "the caller may sqs:DeleteMessage and sqs:ChangeMessageVisibility on it, and for dead_letter() that it has "
            "a dead-letter queue to which the caller may sqs:SendMessage"
        )


class LeasesLostError(Exception):
    """An error: other consumers may have worked on messages of a block that succeeded.

    Attributes:
        queue: The queue's URL.
        details: The service's text for each lost lease, by message id.
        uncertain: The ids of messages that were deleted after their leases had ended: SQS confirms such a delete even
            if another consumer has received the message since.
        lapsed: How often a deadline passed before an extension was confirmed, over all messages.
    """

    def __init__(self, queue: str, details: Mapping[str, str], uncertain: Sequence[str], lapsed: int) -> None:
        self.queue = queue
        self.details = dict(details)
        self.uncertain = tuple(uncertain)
        self.lapsed = lapsed
        parts = []
        if details:
            parts.append(f"{count_of(len(details), 'lease')} {_was(details)} lost ({_named(list(details))})")
        if uncertain:
            after = "its lease had" if len(uncertain) == 1 else "their leases had"
            parts.append(
                f"{count_of(len(uncertain))} {_was(uncertain)} deleted after {after} ended ({_named(uncertain)})"
            )
        if lapsed:
            parts.append(f"{count_of(lapsed, 'time')} a lease lapsed before it was extended")
        super().__init__(
            f"Of a batch of {queue}, {'; '.join(parts)}. Other consumers may have worked on these messages as well. "
            "Make the work idempotent, or raise the visibility timeout"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """The settings that a user gives a lease; see :func:`sqs_lease.lease` for each.

    Raises:
        ValueError: ``queue`` is not a queue name, URL or ARN, or ``on_lost`` is not one of its values.
    """

    queue: str
    options: LeaseOptions
    on_event: EventListener | None = None
    on_lost: OnLost = "warn"
    adopts: tuple[WrittenBatch, tuple[Message, ...]] | None = None
    """Leases that another holder passed on, with their messages, instead of a receive; for hosts."""

    def __post_init__(self) -> None:
        queue_reference(self.queue)
        if self.on_lost not in ("warn", "raise"):
            raise ValueError(f"on_lost must be 'warn' or 'raise', not {self.on_lost!r}")


class LeaseSession:
    """One lease. Coroutines run in the event loop that it is made for; headings say where other methods may be called.

    Args:
        queue: The queue, opened or not.
        settings: The user's settings.
        listening: Tells the user's listener; None without one.
        closes_queue: Whether the queue is closed with the session.
    """

    def __init__(
        self, queue: OpenQueue, settings: LeaseSettings, listening: ListenerThread | None, *, closes_queue: bool
    ) -> None:
        self.messages: tuple[Message, ...] = ()
        self._open_queue = queue
        self._settings = settings
        self._closes_queue = closes_queue
        self._lease_log = LeaseLog(settings.queue)
        self._batch: Batch | None = None
        self._span = LeaseSpan(queue.keeper.clock)
        self._error_type: str | None = None
        self._listener = listening
        self._decided: dict[Receipt, Settlement] = {}  # the settlements requested; entries are only added
        self._refused: deque[Settled] = deque()  # settlements not carried out, which the user was not told of yet
        self._unconfirmed: dict[Receipt, Settled] = {}  # leases that were not settled when the session was closed
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

        If it fails, or is cancelled, the received messages are visible again at once, and the session is over.

        Raises:
            SqsError: The queue cannot be used.
            ValueError: The queue's settings do not fit: see :meth:`OpenQueue.open`.
        """
        try:
            await self._receive()
        except BaseException:
            await to_its_end(self.give_back())
            raise

    async def _receive(self) -> None:
        options, queue = self._settings.options, self._open_queue
        await queue.open()
        keeper = queue.keeper
        batch = self._batch = keeper.open_batch(
            queue.queue_url, policy=queue.policy, on_failure=options.on_failure, on_event=self._tell
        )

        def hold(reception: Reception) -> None:
            batch.add(reception.messages, received_at=reception.received_at, sent_at=reception.sent_at)

        error: Exception | None = None
        if (adopts := self._settings.adopts) is not None:
            batch.adopt(*adopts)
        else:
            collected = await queue.receiver.collect(
                options.max_messages, wait=options.wait_seconds, linger=options.linger_seconds, on_received=hold
            )
            error = collected.error
        self.messages = tuple(batch.messages())
        if (received_at := batch.oldest_received_at()) is not None:
            began_at = received_at + keeper.clock.wall() - keeper.clock.now()
            await to_its_end(self._span.begin(queue.queue_url, self.messages, began_at))
        if error is not None:
            logger.warning("Took %s only: %s", count_of(len(self.messages)), error)

    def _tell(self, event: LeaseEvent) -> None:
        if isinstance(event, Settled) and event.outcome is Outcome.FAILED:
            self._refused.append(event)
        if self._listener is not None:
            self._listener.tell(event)
        elif not isinstance(event, Settled):  # an error names the refused ones
            self._lease_log.happened(event)

    def begin_all(self, settlements: Sequence[Mapping[Receipt, Settlement]]) -> None:
        """Begin to settle messages that :meth:`decide` took in."""
        if not self._closed:
            # As first decided, not as last requested: the loop may wake once for several decisions about one message.
            together = {receipt: self._decided[receipt] for each in settlements for receipt in each}
            self.batch.begin(together, within_seconds=GATHERED_SECONDS)

    async def flush(self) -> None:
        """Wait until all settlements within the block are confirmed.

        On a FIFO queue this does not wait for a message that waits for an earlier one of its group.
        """
        await self.batch.settle(self._decided)

    async def finish(self, settlements: Mapping[Receipt, Settlement], *, within: float | None = None) -> None:
        """Settle the remaining messages at the end of the block, and close.

        Args:
            settlements: The result of :meth:`last_settlements`.
            within: How many seconds to wait for the outcomes; None waits for all. If this is cancelled, it goes on for
                :data:`GIVE_BACK_SECONDS` at most.
        """
        try:
            # Together with earlier settlements that wait for their turn within their group.
            self.decide(settlements)
            await self._settle_within(self._decided, within)
        finally:
            await to_its_end(self._close())

    async def pass_on(self, settlements: Mapping[Receipt, Settlement], seconds: float) -> WrittenBatch:
        """Settle some messages and those that were settled before, pass the others on, and close.

        Args:
            settlements: The settlement of some messages.
            seconds: See :meth:`Batch.pass_on <sqs_lease.keeper.batch.Batch.pass_on>`.
        """
        try:
            self.decide(settlements)
            await self._settle_within(self._decided, None)
            return await self.batch.pass_on(seconds)
        finally:
            await to_its_end(self._close())

    async def give_back(self) -> None:
        """Make the messages that are held and not settled visible again, and close. A second call does nothing."""
        if self._closed:
            return
        try:
            if self._batch is not None:
                self.decide(dict.fromkeys((lease.receipt for lease in self._batch.leases()), Release()))
                await self._settle_within(self._decided, GIVE_BACK_SECONDS)
        finally:
            await to_its_end(self._close())

    async def give_back_dropped(self) -> None:
        """Give back the messages of a lease that no object refers to, and log it."""
        await self.give_back()
        logger.warning("A lease of %s was dropped before its block ended: its messages were given back", self.queue)

    async def _settle_within(self, settlements: Mapping[Receipt, Settlement], seconds: float | None) -> None:
        settling = asyncio.get_running_loop().create_task(self.batch.settle(settlements))
        try:
            await asyncio.wait([settling], timeout=seconds)
        except asyncio.CancelledError:
            await to_its_end(_at_most(settling, GIVE_BACK_SECONDS))
            raise
        finally:
            if not settling.done():
                settling.cancel()
                await end_of(settling)
                logger.warning(
                    "Not all messages of %s could be settled in time: the others are visible again when their "
                    "visibility timeout ends",
                    self.batch.queue_url,
                )
            failure = None if settling.cancelled() else settling.exception()
        if failure is not None:
            raise failure

    async def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._lease_log.flush()
        if (batch := self._batch) is not None:
            for lease in batch.leases():
                asked = lease.receipt in self._decided
                outcome = Outcome.FAILED if asked else Outcome.EXPIRED
                self._unconfirmed[lease.receipt] = Settled(lease.receipt, outcome, _NOT_CONFIRMED)
            self._refused += [end for end in self._unconfirmed.values() if end.outcome is Outcome.FAILED]
            await self._span.end(self.report(), self._error_type)
            self._open_queue.keeper.drop(batch)
        if self._closes_queue:
            await self._open_queue.close()

    # In the caller's thread

    def decide(self, settlements: Mapping[Receipt, Settlement]) -> None:
        """Take in the settlements of some messages. An earlier settlement of a message stays."""
        for receipt, settlement in settlements.items():
            self._decided.setdefault(receipt, settlement)

    def raise_refused(self) -> None:
        """Raise an error for the settlements that the service refused since the last call.

        Raises:
            SettlementError: It refused to settle some messages as requested.
        """
        if (error := self._refusal()) is not None:
            self._raised.append(error)
            raise error

    def report(self) -> LeaseReport:
        """Return the counts so far; after the end, each message is in one count by its outcome."""
        report = self.batch.report()
        if not self._unconfirmed:
            return report
        ends = Counter(end.outcome for end in self._unconfirmed.values())
        failed, expired = report.failed + ends[Outcome.FAILED], report.expired + ends[Outcome.EXPIRED]
        return replace(report, held=0, failed=failed, expired=expired)

    def failing(
        self, messages: Iterable[Message], reasons: Mapping[str, str] | str, errors: Sequence[str] = ()
    ) -> dict[Receipt, Settlement]:
        """Return the settlements of messages by the failure rule; a release at once if the rule raises.

        The rule runs in the caller's thread, where it may block: the leases are extended meanwhile.

        Args:
            messages: The messages.
            reasons: The reason for the failure: one for all, or one per message id.
            errors: The classes of the exception that failed them.
        """
        if isinstance(reasons, str):
            return self.batch.failing(reasons, [message.receipt for message in messages], errors=errors)
        settlements: dict[Receipt, Settlement] = {}
        for message in messages:
            settlements |= self.batch.failing(reasons[message.message_id], [message.receipt], errors=errors)
        return settlements

    def last_settlements(self, error: BaseException | None) -> dict[Receipt, Settlement]:
        """Return the settlements of the messages that the block left, by how it ended: see the module's table.

        Args:
            error: The exception that the block raised; None if it ended well.
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

    def end_failed(self, failure: BaseException) -> None:
        """Note the failure of the settling at the end of the block, for the span."""
        self._error_type = self._error_type or type(failure).__qualname__

    def conclude(self, error: BaseException | None) -> None:
        """Tell the user of problems, after :meth:`finish`.

        Args:
            error: The exception that the block raised, to which notes are added; None if it ended well.

        Raises:
            SettlementError: The block ended well, and the service refused settlements.
            LeasesLostError: The block ended well, leases were lost or lapsed, and the user asked for this error.
        """
        problems = self.problems()
        if error is None and problems:
            first, *others = problems
            for other in others:
                first.add_note(str(other))
            raise first
        for problem in problems:
            if error is not None:
                error.add_note(str(problem))
            if not isinstance(error, Exception):
                # An interruption's notes may never be seen.
                logger.warning("%s", problem)

    def problems(self) -> list[Exception]:
        """Return the errors that the user was not told of yet, after :meth:`finish`.

        Lost leases are logged instead, unless the user asked for an error.
        """
        problems: list[Exception] = []
        if (refused := self._refusal()) is not None:
            problems.append(refused)
        if (lost := self._losses()) is not None:
            if self._settings.on_lost == "warn":
                logger.warning("%s", lost)
            else:
                problems.append(lost)
        return problems

    def is_decided(self, receipt: Receipt) -> bool:
        """Return whether a message was settled within the block."""
        return receipt in self._decided

    def still_held(self, receipt: Receipt) -> bool:
        """Return whether a message is certainly ours; one that was settled, or is about to be, is not."""
        return receipt not in self._decided and self.batch.still_held(receipt)

    @property
    def has_listener(self) -> bool:
        """Whether the user listens to events."""
        return self._listener is not None

    def end_span(self) -> None:
        """End the span if the event loop died before it could; call it after the loop has ended."""
        if self._batch is not None:
            self._span.end_now(self.report(), self._error_type)

    def end_listening(self, *, waits: bool = True) -> None:
        """Stop passing new events to the user's listener.

        Args:
            waits: Whether to wait until it has had the earlier events, for :data:`LISTENER_SECONDS` at most.
        """
        if self._listener is not None:
            self._listener.end(LISTENER_SECONDS if waits else 0.0)

    def _refusal(self) -> SettlementError | None:
        """Return the error for settlements that were not carried out, without those that an earlier error named."""
        refused: dict[str, str] = {}
        while self._refused:
            settled = self._refused.popleft()
            refused[settled.receipt.message_id] = settled.detail
        return SettlementError(self.batch.queue_url, refused) if refused else None

    def _losses(self) -> LeasesLostError | None:
        ends = self.batch.outcomes().values()
        lost = {end.receipt.message_id: end.detail for end in ends if end.outcome is Outcome.LOST}
        uncertain = [end.receipt.message_id for end in ends if end.outcome is Outcome.UNCERTAIN]
        lapsed = self.batch.report().late
        if not lost and not uncertain and not lapsed:
            return None
        return LeasesLostError(self.batch.queue_url, lost, uncertain, lapsed)


class ReceivedMessages:
    """Messages that were received together, in that order: the base of all kinds of batches."""

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
        ids = ids_of(messages)
        unknown = [message_id for message_id in ids if message_id not in self._by_id]
        if unknown:
            raise KeyError(f"not in this batch of {self.queue_url}: {', '.join(map(shown_id, unknown))}")
        return [self._by_id[message_id] for message_id in ids]


class SessionMessages(ReceivedMessages):
    """The messages of one session: the base of blocking and asynchronous batches."""

    def __init__(self, session: LeaseSession) -> None:
        super().__init__(session.messages, session.batch.queue_url)
        self._session = session

    def _settlements(self, messages: Messages, settlement: Settlement) -> dict[Receipt, Settlement]:
        return dict.fromkeys((message.receipt for message in self._chosen(messages)), settlement)

    def _failing(self, messages: Messages, reason: str, errors: Sequence[str]) -> dict[Receipt, Settlement]:
        check_reason(reason)
        return self._session.failing(self._chosen(messages), reason, checked_names(errors))

    def _failing_each(self, reasons: Mapping[str, str]) -> dict[Receipt, Settlement]:
        if not isinstance(reasons, Mapping):
            raise TypeError(f"fail_each takes a mapping of message ids to reasons, not a {type(reasons).__name__}")
        for reason in reasons.values():
            check_reason(reason)
        return self._session.failing(self._chosen(list(reasons)), reasons)

    def _holds_for_certain(self, message: Message | str) -> Callable[[], bool]:
        if len(chosen := self._chosen(message)) != 1:
            raise TypeError(f"still_held takes one message or its id, not {len(chosen)}: ask for each message")
        receipt = chosen[0].receipt
        return lambda: self._session.still_held(receipt)

    def _count(self) -> LeaseReport:
        return self._session.report()


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
            logger.error("A task failed that ran on after a cancellation", exc_info=failure)
        raise cancelled
    return task.result()


async def _at_most(work: asyncio.Task[Any], seconds: float) -> None:
    await asyncio.wait([work], timeout=seconds)


def ended(queue: str) -> RuntimeError:
    """Make the error for settling messages after the end of their block."""
    return RuntimeError(
        f"The block of this lease of {queue} has ended, and its messages were settled then: settle them within it"
    )


def _was(several: Sized) -> str:
    return "was" if len(several) == 1 else "were"


def _named(ids: Sequence[str]) -> str:
    """Return the ids of some messages as a text; only the first ones if there are many."""
    shown = ", ".join(ids[:_NAMED_MESSAGES])
    return shown if len(ids) <= _NAMED_MESSAGES else f"{shown} and {len(ids) - _NAMED_MESSAGES} more"
