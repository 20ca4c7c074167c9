"""The trigger of the sensor's task: waits for messages, holds them, publishes them and ends the task.

As its last act it extends the leases by the hand-off timeout and publishes two XComs of its task: ``lease`` for the
keeper, and ``return_value``, the messages without their receipt handles. Then it ends the task as successful from the
triggerer, without another worker slot. Nothing of the batch stays in this process (:mod:`sqs_lease.airflow.handover`).

When it ends before that (the triggerer stops, a user acts on the task, Airflow does not take the XComs), it releases
its messages. A trigger that resumes after its process was killed first reads whether the one before it had published.

:class:`Collector` does the receiving, here and in a task's own process (``worker.py``). Messages that pass the filter
go into the batch at once, and are held. The others are settled at once by the ``unmatched`` rule; they never were part
of the batch, so on a FIFO queue they do not hold back messages of their group.

A message that Airflow cannot publish would fail the whole batch, and one on which the filter raises an error may or may
not match. Both are unusable: each is settled by itself, by the keeper's ``on_failure`` rule. It fails in the same way
each time that it is received, so it is never released without a delay. On a FIFO queue it is a failed message: messages
behind it in its group are released and come after it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, Final, Self, TypeAlias, TypeVar

from airflow.sdk.configuration import conf
from airflow.triggers.base import TaskSkippedEvent, TaskSuccessEvent, TriggerEvent

from sqs_lease.airflow.airflow_api.requests import (
    PATIENCE_SECONDS,
    RETURN_VALUE_KEY,
    CommsError,
    NoAnswerError,
    RunOfTask,
    publish,
    pull,
)
from sqs_lease.airflow.connection import AwsConnection
from sqs_lease.airflow.filters import MessageFilter, OpenFilter, UnmatchedRule, decode_unmatched
from sqs_lease.airflow.handover import HANDED_KEY, LEASE_KEY, HandedLease, PayloadError, adopt, hand_on, warn_if_plain
from sqs_lease.airflow.links import LINK_KEY
from sqs_lease.airflow.payload import (
    INLINE_BYTES,
    BatchValue,
    find_refused,
    load_lease,
    publishable,
    published_bytes,
    remove_files,
    why_unpublishable,
)
from sqs_lease.airflow.triggers.shared import (
    LeaseTrigger,
    TriggererKeepers,
    last_calls,
)
from sqs_lease.core import policies
from sqs_lease.core.calls import Verdict
from sqs_lease.core.failure_rules import DeadLetter, FailureRule, Release, Settlement, backoff, expire, release
from sqs_lease.core.messages import Lease, Message, Receipt
from sqs_lease.core.policies import Growing, RenewalPolicy
from sqs_lease.core.specs import decode_failure_rule, decode_policy, encode_failure_rule
from sqs_lease.keeper.batch import Batch, EventListener, KeeperClosedError
from sqs_lease.keeper.endings import cancelled_once
from sqs_lease.keeper.keeper import Keeper
from sqs_lease.keeper.open_queue import without_dead_letter_queue
from sqs_lease.keeper.options import LeaseOptions
from sqs_lease.keeper.receiver import Receiver, Reception
from sqs_lease.keeper.telemetry import trace_of, traceparent_here
from sqs_lease.sqs.console import console_link
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.validation import FIFO_SUFFIX

logger = logging.getLogger(__name__)

TIMED_OUT: Final = "timed out"
"""Status of the event when no message came in time."""

FAILED_FOR_GOOD: Final = "failed for good"
"""Status of the event when no retry would help."""

FAILED: Final = "failed"
"""Status of the event when a retry may help."""


class SqsLeaseReceiveTrigger(LeaseTrigger):
    """The trigger that receives one batch.

    Args:
        options: The arguments of :class:`ReceiveOptions`.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.options = ReceiveOptions(**options)
        self._batch: Batch | None = None  # until it was handed on
        self._stored: HandedLease | None = None
        self._is_written = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, for Airflow."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"options": asdict(self.options)}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for messages and end the task: with them, skipped, or by resuming it to fail."""
        keepers = await self._begin()
        try:
            if await self._was_handed_on(keepers):
                yield TaskSuccessEvent()
                return
            collector = await self._received(keepers)
        except SqsError as error:
            for_good = error.verdict is Verdict.REFUSED
            yield await self._failure(FAILED_FOR_GOOD if for_good else FAILED, str(error))
            return
        except ValueError as error:
            yield await self._failure(FAILED_FOR_GOOD, f"queue {self.options.queue}: {error}")
            return
        if collector is None:
            if self.options.skip_when_expired:
                logger.info("No message of %s came in time: skipping", self.options.queue)
                yield TaskSkippedEvent()
            else:
                yield await self._failure(TIMED_OUT, f"no message of {self.options.queue} came in time")
            return
        try:
            await self._hand_on(collector)
        except PayloadError as error:
            # Given back here, because the trigger ends seconds later.
            await self._give_back()
            yield await self._failure(FAILED, str(error))
            return
        yield TaskSuccessEvent()

    async def _let_go(self) -> None:
        """Release messages that were received but not handed on."""
        await self._give_back()

    async def _give_back(self) -> None:
        batch, self._batch = self._batch, None
        stored, self._stored = self._stored, None
        if batch is not None:
            await last_calls(batch, batch.release_all())
            if stored is not None:
                await remove_files(stored)

    async def _received(self, keepers: TriggererKeepers) -> Collector | None:
        """Receive; when cancelled, wait for the polls under way, because only this trigger holds their messages."""
        receiving = keepers.loop.create_task(self._receive(keepers))
        try:
            return await asyncio.shield(receiving)
        except asyncio.CancelledError:
            await cancelled_once(receiving)
            raise

    async def _receive(self, keepers: TriggererKeepers) -> Collector | None:
        """Receive until there is a batch; return None when the time is up without one."""
        connection, queue = AwsConnection(**self.options.connection), self.options.queue
        # On a busy machine a new triggerer gets no answer about a connection for half a minute.
        ends_at = min(keepers.clock.wall() + PATIENCE_SECONDS, self.options.expires_at)
        keeper = await self._use_until(ends_at, keepers, connection, queue)
        collector = await Collector.open(self.options, keeper, self._task, self._happened, traceparent_here())
        self._batch = collector.batch
        return collector if await collector.collect(self.options.expires_at) else None

    async def _hand_on(self, collector: Collector) -> None:
        """Extend the leases once, publish them and their messages, and forget them.

        Once the leases are written, they are no longer this trigger's: if it is cancelled then, it may have been moved
        to another triggerer, which finds them. Messages that Airflow does not take are given back.
        """
        try:
            while not await self._is_published(collector):
                pass
        except asyncio.CancelledError:
            if not self._is_written:
                raise
            self._batch = None
            collector.batch.forget()
            raise
        self._batch = None
        collector.batch.forget()

    async def _is_published(self, collector: Collector) -> bool:
        """Publish the batch; or settle the messages that Airflow does not take, and return False."""
        try:
            await self._publish(*await collector.hand_on())
        except Exception as error:
            if isinstance(error, NoAnswerError | PayloadError) or self.options.payload is not None:
                raise
            refused = await find_refused(collector.batch.messages(), partial(publish, self._task, RETURN_VALUE_KEY))
            if not refused or not await collector.settle_refused(refused):
                raise
            return False
        return True

    async def _publish(self, handed: HandedLease, lease: Mapping[str, Any], published: BatchValue) -> None:
        task, self._stored = self._task, handed
        # The leases come first: from here on a trigger that resumes finds the batch, see _was_handed_on(). The values
        # are XComs of their own, because TaskSuccessEvent(xcoms=...) encodes them twice, and tasks cannot be mapped
        # over them (Airflow 3.3.2).
        # It counts as written from the request on: if this trigger is cancelled before the answer, it may be.
        self._is_written = True
        await publish(task, LEASE_KEY, lease)
        mapped_length = handed.messages if self.options.mapped_over else None
        await publish(task, RETURN_VALUE_KEY, published, mapped_length=mapped_length)
        # Only now, because a batch whose messages Airflow does not take is given back here: the task's next try would
        # give it back once more, and take it from the consumer that has received it since. For the same reason an error
        # here, after which it may have been written, must not have the batch given back.
        try:
            await publish(replace(task, task_id=self.options.keeper_task_id), HANDED_KEY, lease, patience_seconds=0)
        except CommsError as error:
            logger.warning("A try of this task after a user cleared it may not find these messages: %s", error)
        if self.options.queue != handed.queue_url and (link := console_link(handed.queue_url)):
            # The queue was given by its name or ARN, so the task itself could not know the link.
            await self._publish_link(link)

    async def _was_handed_on(self, keepers: TriggererKeepers) -> bool:
        """Whether this try had handed its batch on before its process was killed.

        If only the leases were published, or a part of the messages (see :func:`find_refused`), or if a lease has
        lapsed, the batch is given back instead.

        Airflow deletes a task's XComs when its next try begins, so the XComs that are there are of this try.
        """
        try:
            lease, published = await pull(self._task, LEASE_KEY), await pull(self._task, RETURN_VALUE_KEY)
            handed = None if lease is None else await load_lease(lease, self._task)
        except (CommsError, PayloadError) as error:
            logger.warning("Whether this task had received messages before cannot be read; receiving: %s", error)
            return False
        if handed is None:
            return False
        leases = handed.written.leases_now(keepers.clock, handed.queue_url)
        is_whole = isinstance(published, Mapping) or (
            isinstance(published, Sequence) and len(published) == handed.messages
        )
        if is_whole and not any(lease.doubtful for lease in leases):
            logger.info("This task had handed %d messages on before its triggerer was lost", len(leases))
            return True
        keeper = await self._use(keepers, handed.connection, handed.queue_url)
        self._batch = keeper.open_batch(handed.queue_url, policy=handed.policy, on_event=self._happened)
        self._stored = handed
        logger.warning("This task had received %d messages, and could not hand them on: receiving again", len(leases))
        await adopt(self._batch, leases, keepers.rounds)
        try:
            # Before the release: the next trigger, if this one is killed as well, must not release them once more.
            await publish(self._task, LEASE_KEY, None)
        except CommsError as error:
            logger.warning("It cannot be written that they are given back: %s", error)
        await self._give_back()
        return False

    async def _publish_link(self, link: str) -> None:
        try:
            await publish(self._task, LINK_KEY, link, patience_seconds=0)
        except CommsError as error:
            logger.warning("The link to the queue cannot be published: %s", error)

    async def _failure(self, status: str, error: str) -> TriggerEvent:
        logger.error("%s", error)
        await self._deferral_was_noticed()
        return TriggerEvent({"status": status, "error": error})  # type: ignore[no-untyped-call]


LAST_SETTLEMENTS_SECONDS: Final = 10.0
"""How long the end of a collection waits for the settlement of other messages; the rest comes back by itself."""

_SLOW_RELEASE: Final = backoff()
"""The shortest delays for unusable messages: 10 s, 20 s, ... up to 15 minutes."""

_CANNOT_BE_USED: Final = "cannot be used, or wait for one of those"

_NAMED_IN_LOG: Final = 5
"""How many messages one line of the log names."""


Published: TypeAlias = tuple[HandedLease, dict[str, Any], BatchValue]
"""A batch for its keeper, the same as plain values, and the return value of the receiving task."""


class Collector:
    """The receive of one batch, which is held until it is handed on. Made by :meth:`open`.

    Attributes:
        queue_url: The queue.
        policy: The renewal policy, with its visibility timeout.
        batch: The batch.
    """

    def __init__(
        self,
        options: ReceiveOptions,
        keeper: Keeper,
        receiving: RunOfTask,
        queue_url: str,
        policy: RenewalPolicy,
        opened_filter: OpenFilter | None,
        on_event: EventListener,
        received_in: str,
    ) -> None:
        self.queue_url = queue_url
        self.policy = policy
        self.batch = keeper.open_batch(queue_url, policy=policy, on_event=on_event, batch_id=options.batch_id)
        self._options = options
        self._lease = options.lease()
        self._keeper = keeper
        self._clock = keeper.clock
        self._receiver = self._open_receiver()
        self._filter = opened_filter
        self._unmatched_rule: UnmatchedRule = (
            expire() if options.unmatched is None else decode_unmatched(options.unmatched)
        )
        self._receiving = receiving
        self._received_in = received_in
        self._random = Random()
        self._sorting: set[asyncio.Task[None]] = set()
        self._settling: set[asyncio.Task[None]] = set()
        self._unusable: dict[str, list[str]] = {}  # message ids by the reason, since the last log line
        self._bytes_left: int | None = None
        self._stopped = False

    @classmethod
    async def open(
        cls, options: ReceiveOptions, keeper: Keeper, receiving: RunOfTask, on_event: EventListener, received_in: str
    ) -> Self:
        """Look up the queue, and decide how to hold its messages.

        Args:
            options: The options of the batch.
            keeper: Holds the received messages.
            receiving: The task that receives.
            on_event: Called with each event of the batch's leases.
            received_in: The task's span, as W3C trace context.

        Raises:
            SqsError: The queue cannot be used.
            ValueError: An option is out of range, ``queue`` is not a queue name, URL or ARN, or a rule may dead-letter
                and the queue has no dead-letter queue.
        """
        queue_url = await keeper.transport.queue_url(options.queue)
        attributes = await keeper.transport.queue_attributes(queue_url)
        if attributes.dead_letter_arn is None and (option := options.dead_lettering()):
            raise ValueError(without_dead_letter_queue(options.queue, option))
        policy = with_visibility(options.lease().policy, attributes.visibility_seconds)
        if (risk := takeover_risk(policy)) is not None:
            logger.warning("Leases of %s are at risk: %s", queue_url, risk)
        opened = None if options.filter is None else await OpenFilter.open(MessageFilter(**options.filter))
        return cls(options, keeper, receiving, queue_url, policy, opened, on_event, received_in)

    async def collect(self, wait_until: float) -> bool:
        """Receive until the batch has messages, or the time is up.

        Receiving stops when the batch is as large as XComs may be. Up to ten polls may be on their way then. Their
        messages belong to the batch too, because giving them back would raise their receive counts.

        Args:
            wait_until: Until when to wait for a first message that matches, in seconds since the epoch.

        Returns:
            Whether the batch has messages.

        Raises:
            SqsError: The queue cannot be received from.
        """
        aside = self._keeper.open_batch(self.queue_url, policy=self.policy)

        def on_received(reception: Reception) -> None:
            self._received(reception, aside)

        try:
            while not self._stopped:
                # A stopped receiver cannot be started again, so each round has one of its own.
                self._receiver = self._open_receiver()
                self._bytes_left = self._options.most_bytes
                collected = await self._receiver.collect(
                    self._lease.max_messages,
                    wait=max(wait_until - self._clock.wall(), 0.0),
                    linger=self._lease.linger_seconds,
                    on_received=on_received,
                )
                await self._sorted()
                if collected.error is not None:
                    logger.warning("Took only %d messages: %s", len(collected.messages), collected.error)
                if self.batch.count_held():
                    return True
                if self._clock.wall() >= wait_until:
                    return False
            return False
        finally:
            # Messages received before an error, or before the end, are held or settled like all others.
            await self._sorted()
            if self._filter is not None:
                self._filter.close()
            if self._settling:
                await asyncio.wait(self._settling, timeout=LAST_SETTLEMENTS_SECONDS)
            self._keeper.drop(aside)
            self._log_unusable()

    async def hand_on(self) -> Published:
        """Extend every lease once by the hand-off timeout, and make the batch publishable.

        The batch is held until it was published, so that messages that Airflow refuses can be given back.

        Raises:
            PayloadError: The batch cannot be stored.
        """
        contents = {message.receipt: message for message in self.batch.messages()}
        seconds = self._options.handoff_timeout_seconds
        written = await hand_on(self.batch, self.policy, seconds, self._clock, hold_on=True)
        messages = [contents[lease.receipt] for lease in written.leases]
        connection = AwsConnection(**self._options.connection)
        trace = await trace_of(messages, self._received_in)
        handed = HandedLease(self.queue_url, self.policy, connection, written, len(messages), trace=trace)
        logger.info("Received %d messages of %s", len(messages), self.queue_url)
        handed, lease, value = await publishable(self._options.payload, handed, messages, self._receiving)
        warn_if_plain(lease)
        return handed, lease, value

    async def settle_refused(self, refused: Collection[str]) -> bool:
        """Settle messages that Airflow refused, like messages that are known to be unpublishable.

        Args:
            refused: Their ids.

        Returns:
            Whether others are left.
        """
        why = "Airflow refused it, and took others; the API server's log may say more"
        settlements = self._settlements(self.batch.messages(), lambda one: why if one.message_id in refused else None)
        self._log_unusable()
        await self._settle(self.batch, settlements, _CANNOT_BE_USED)
        return self.batch.count_held() > 0

    def stop(self) -> None:
        """Stop receiving: a collection under way ends with its messages so far, when its polls are answered."""
        self._stopped = True
        self._receiver.stop()

    def _open_receiver(self) -> Receiver:
        # Rounded up: it does no harm if a lease lasts longer than its policy assumes.
        visibility_seconds = math.ceil(self.policy.visibility_seconds)
        return Receiver(
            self._keeper.transport, self.queue_url, visibility_seconds=visibility_seconds, clock=self._clock
        )

    def _received(self, reception: Reception, aside: Batch) -> None:
        if self._filter is None:
            self._take(partial(_hold, reception), reception.messages, aside, {})
        else:
            sorting = self._sort(self._filter, reception, aside)
            task = asyncio.get_running_loop().create_task(sorting)
            self._sorting.add(task)
            task.add_done_callback(self._sorting.discard)

    async def _sort(self, opened_filter: OpenFilter, reception: Reception, aside: Batch) -> None:
        # Held meanwhile, because a user's function may take longer than the visibility timeout.
        unsorted = self._keeper.open_batch(self.queue_url, policy=self.policy)
        _hold(reception, unsorted, reception.messages)
        answers = await opened_filter.answers(reception.messages)
        hold = partial(_hold_on, unsorted.leases())
        self._keeper.drop(unsorted)
        answered = list(zip(reception.messages, answers, strict=True))
        undecided = {message.receipt: answer for message, answer in answered if isinstance(answer, str)}
        passed = [message for message, answer in answered if answer is not False]
        others = [message for message, answer in answered if answer is False]
        self._take(hold, passed, aside, undecided)
        if others:
            reason = "it does not match message_filtering of the task that received it"
            settlements = {
                message.receipt: self._settlement(self._unmatched_rule, message, reason) for message in others
            }
            self._settle_aside(hold, others, settlements, aside, "do not match")

    def _take(
        self,
        hold: Callable[[Batch, Sequence[Message]], None],
        messages: Sequence[Message],
        aside: Batch,
        undecided: Mapping[Receipt, str],
    ) -> None:
        """Hold the usable messages, and settle the others; ``why_not`` has the filter's errors."""
        settlements = self._settlements(
            messages, lambda message: undecided.get(message.receipt) or self._why_unpublishable(message)
        )
        taken = [message for message in messages if message.receipt not in settlements]
        hold(self.batch, taken)
        if self._bytes_left is not None:
            self._bytes_left -= sum(map(published_bytes, taken))
            if self._bytes_left <= 0:
                self._receiver.stop()
        if settlements:
            others = [message for message in messages if message.receipt in settlements]
            self._settle_aside(hold, others, settlements, aside, _CANNOT_BE_USED)

    def _settlements(
        self, messages: Sequence[Message], why_not: Callable[[Message], str | None]
    ) -> dict[Receipt, Settlement]:
        """Decide on messages that cannot be used, and on a FIFO queue on those behind them."""
        settlements: dict[Receipt, Settlement] = {}
        waiting_groups: set[str | None] = set()
        for message in messages:
            settlement: Settlement
            if (why := why_not(message)) is not None:
                self._unusable.setdefault(why, []).append(message.message_id)
                settlement = self._settlement(self._lease.on_failure, message, why)
                if isinstance(settlement, Release):
                    settlement = self._slowed(message, settlement)
            elif message.message_group_id in waiting_groups:
                settlement = self._slowed(message, Release())
            else:
                continue
            settlements[message.receipt] = settlement
            if self.queue_url.endswith(FIFO_SUFFIX) and not isinstance(settlement, DeadLetter):
                waiting_groups.add(message.message_group_id)
        return settlements

    def _why_unpublishable(self, message: Message) -> str | None:
        why = why_unpublishable(message, stored=self._options.payload is not None)
        return None if why is None else f"Airflow cannot publish it: {why}"

    def _slowed(self, message: Message, settlement: Release) -> Release:
        """Return a release with at least a delay that grows with the receive count."""
        slow = self._settlement(_SLOW_RELEASE, message, "")
        return slow if isinstance(slow, Release) and slow.delay_seconds > settlement.delay_seconds else settlement

    def _settlement(self, rule: UnmatchedRule, message: Message, reason: str) -> Settlement:
        return rule.settlement(receive_count=message.receive_count, reason=reason, random=self._random)

    def _log_unusable(self) -> None:
        unusable, self._unusable = self._unusable, {}
        for why, message_ids in unusable.items():
            logger.error(
                "%d messages of %s cannot be used, and were settled by themselves: %s (%s)",
                len(message_ids),
                self.queue_url,
                why,
                ", ".join(message_ids[:_NAMED_IN_LOG]),
            )

    async def _sorted(self) -> None:
        """Wait until all received messages are held or being settled."""
        while self._sorting:
            await asyncio.wait(self._sorting)

    def _settle_aside(
        self,
        hold: Callable[[Batch, Sequence[Message]], None],
        messages: Sequence[Message],
        settlements: Mapping[Receipt, Settlement],
        aside: Batch,
        what: str,
    ) -> None:
        """Begin to settle messages that do not go into the batch."""
        hold(aside, messages)
        settling = asyncio.get_running_loop().create_task(self._settle(aside, settlements, what))
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)

    async def _settle(self, aside: Batch, settlements: Mapping[Receipt, Settlement], what: str) -> None:
        # A message that was received again meanwhile is settled by its newer receipt.
        held = {receipt: settlement for receipt, settlement in settlements.items() if aside.holds(receipt)}
        try:
            # Tasks do not work on these messages, so the order of their group does not matter.
            outcomes = await aside.settle(held, in_order=False)
        except KeeperClosedError:
            return
        counts = Counter(settled.outcome.value for settled in outcomes.values())
        logger.info(
            "%d messages of %s %s: %s",
            len(settlements),
            self.queue_url,
            what,
            ", ".join(f"{count} {outcome}" for outcome, count in counts.items()),
        )


def _hold(reception: Reception, batch: Batch, messages: Sequence[Message]) -> None:
    batch.add(messages, received_at=reception.received_at, sent_at=reception.sent_at)


def _hold_on(leases: Sequence[Lease], batch: Batch, messages: Sequence[Message]) -> None:
    """Hold messages that were held during the filter; those with leases lost meanwhile are left out."""
    held = {lease.receipt: lease for lease in leases}
    messages = [message for message in messages if message.receipt in held]
    batch.adopt([held[message.receipt] for message in messages], messages)


TAKEOVER_MARGIN_SECONDS: Final = 30.0
"""How long a takeover takes beyond Airflow's threshold on free processors: heartbeats, the start of triggers."""

LOADED_TAKEOVER_MARGIN_SECONDS: Final = 120.0
"""The same on busy processors: 111 s were seen on two processors at a load of 15 (Airflow 3.3.2, 141 s in all)."""

_Policy = TypeVar("_Policy", bound=RenewalPolicy)


class ShortVisibilityWarning(UserWarning):
    """Warning that a lease can run out while another triggerer takes over: its visibility timeout is too short."""


def takeover_seconds(margin_seconds: float = TAKEOVER_MARGIN_SECONDS) -> float:
    """Return how long a lease is not extended when its triggerer dies, at this installation's settings.

    Airflow gives the triggers to another triggerer after ``[triggerer] triggerer_health_check_threshold`` (30 s by
    default). The next heartbeats and the start of the triggers follow before a lease is extended again. Measured: 21
    to 40 s altogether on free processors, 73 to 141 s on busy ones.

    Args:
        margin_seconds: How long it takes beyond the threshold.
    """
    threshold = conf.getfloat("triggerer", "triggerer_health_check_threshold", fallback=30.0)
    return float(threshold) + margin_seconds


def default_visibility_seconds(policy: RenewalPolicy) -> int:
    """Return the shortest visibility timeout that leaves enough time for a takeover on a busy machine."""
    return policies.default_visibility_seconds(policy, takeover_seconds(LOADED_TAKEOVER_MARGIN_SECONDS))


def with_visibility(policy: _Policy, queue_seconds: float = 0.0) -> _Policy:
    """Return the policy with a visibility timeout, by default one that survives a takeover on a busy machine.

    Args:
        policy: The policy; one with a visibility timeout of its own is returned as it is.
        queue_seconds: The queue's own visibility timeout, which is taken if it is longer than the default.
    """
    return policies.with_visibility(policy, takeover_seconds(LOADED_TAKEOVER_MARGIN_SECONDS), queue_seconds)


def takeover_risk(policy: RenewalPolicy) -> str | None:
    """Return a warning that leases could run out during a takeover; None if they outlive it, or are never extended.

    It assumes a takeover on free processors, because users may choose a shorter timeout than the default on purpose.

    Args:
        policy: The policy, with its visibility timeout.
    """
    left, needed = policies.seconds_left_at_worst(policy), takeover_seconds()
    if left is None or left >= needed - 1e-9:
        return None
    return (
        f"a visibility timeout of {policy.visibility_seconds:g} s with {type(policy).__name__} leaves {left:g} s at "
        f"worst when a triggerer dies, but another one needs up to {needed:g} s to take over ([triggerer] "
        f"triggerer_health_check_threshold and {TAKEOVER_MARGIN_SECONDS:g} s): others could receive the messages while "
        f"the DAG works on them. Leave visibility out, or use Growing with at least "
        f"{policies.default_visibility_seconds(Growing(), needed)} s"
    )


@dataclass(frozen=True, slots=True)
class ReceiveOptions:
    """The options of one receive, as the plain values that Airflow stores for a trigger.

    Attributes:
        queue: The queue's URL, name or ARN.
        batch_id: Names the batch for its keeper.
        connection: The fields of the :class:`AwsConnection`.
        policy: The renewal policy, as :func:`~sqs_lease.core.specs.encode_policy` gives it.
        max_messages: Most messages.
        linger_seconds: How long to wait for more after the first.
        expires_at: Until when to wait for a first message, in seconds since the epoch.
        skip_when_expired: Whether the task is then skipped instead of failed.
        keeper_task_id: The keeper's task in the same run.
        handoff_timeout_seconds: How long the batch is held for the keeper.
        mapped_over: Whether a task is expanded over the messages.
        payload: Where messages and leases are stored; None publishes them as XComs.
        filter: The arguments of a ``MessageFilter``; None takes every message.
        unmatched: The rule for messages that do not match, as ``encode_unmatched()`` gives it; None leaves them alone.
        on_failure: The keeper's rule for failed messages, as ``encode_failure_rule()`` gives it, for messages that
            Airflow cannot publish.
    """

    queue: str
    batch_id: str
    connection: dict[str, Any]
    policy: dict[str, Any]
    max_messages: int
    linger_seconds: float
    expires_at: float
    skip_when_expired: bool
    keeper_task_id: str
    handoff_timeout_seconds: float
    mapped_over: bool
    payload: str | None = None
    filter: dict[str, Any] | None = None
    unmatched: dict[str, Any] | None = None
    on_failure: dict[str, Any] = field(default_factory=lambda: encode_failure_rule(release()))

    @property
    def most_bytes(self) -> int | None:
        """The size at which the batch ends, in bytes; None if it is stored."""
        return INLINE_BYTES if self.payload is None else None

    def lease(self) -> LeaseOptions:
        """Return how messages are received and held, also unmatched ones; ``on_failure`` is for unusable ones.

        Raises:
            ValueError: An option is out of range.
            TypeError: One is of another type.
        """
        return LeaseOptions.of(
            max_messages=self.max_messages,
            linger=self.linger_seconds,
            policy=decode_policy(self.policy),
            on_failure=decode_failure_rule(self.on_failure),
        )

    def dead_lettering(self) -> str:
        """Return the name of an option by whose rule messages may be dead-lettered; empty without one."""
        if decode_failure_rule(self.on_failure).may_dead_letter:
            return "on_failure"
        unmatched = None if self.unmatched is None else decode_unmatched(self.unmatched)
        return "unmatched" if isinstance(unmatched, FailureRule) and unmatched.may_dead_letter else ""
