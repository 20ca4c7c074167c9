"""A batch of leases while a keeper holds it: its messages, the settlements requested, the end of each lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol, TypeAlias

from sqs_lease.clock import Clock
from sqs_lease.core.events import Ending, Lapsed, LeaseEvent, Lost, Outcome, Refused, Settled
from sqs_lease.core.failure_rules import DeadLetter, Delete, Expire, FailureRule, Release, Settlement, release
from sqs_lease.core.ledger import Outlook
from sqs_lease.core.messages import Lease, Message, Receipt, count_of
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.keeper.driver import QueueDriver
from sqs_lease.keeper.event_loop_rounds import LEASES_IN_A_ROUND, Countdown, RoundLimiter
from sqs_lease.keeper.plain_leases import WrittenBatch
from sqs_lease.keeper.plug_ins import PlugIns, guarded


class Meter(Protocol):
    """A counter of events of a keeper's leases. Called in the keeper's event loop; it must not block or raise."""

    def held(self, queue_url: str, change: int) -> None:
        """Add to the number of leases held now; ``change`` may be negative."""

    def batches(self, queue_url: str, change: int) -> None:
        """Add to the number of batches that hold leases now; ``change`` may be negative."""

    def extended(self, queue_url: str, leases: int) -> None:
        """Count a call that was answered, with the number of extensions that it confirmed."""

    def late(self, queue_url: str) -> None:
        """Count a deadline that passed before an extension was confirmed."""

    def ended(self, queue_url: str, outcome: Outcome, settling_seconds: float | None) -> None:
        """Count a lease that ended.

        Args:
            queue_url: The queue.
            outcome: How it ended.
            settling_seconds: The time from the decision to settle it to the service's confirmation; None without a
                decision: it was lost while its work went on.
        """


class Unmetered:
    """A meter that counts nothing: the default of a keeper."""

    def held(self, queue_url: str, change: int) -> None:
        """Do nothing."""

    def batches(self, queue_url: str, change: int) -> None:
        """Do nothing."""

    def extended(self, queue_url: str, leases: int) -> None:
        """Do nothing."""

    def late(self, queue_url: str) -> None:
        """Do nothing."""

    def ended(self, queue_url: str, outcome: Outcome, settling_seconds: float | None) -> None:
        """Do nothing."""


logger = logging.getLogger(__name__)

EventListener: TypeAlias = Callable[[LeaseEvent], None]
MessageSource: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, Message]]]

_NAMED_IN_LOG: Final = 5
"""Most messages that one line of the log names."""


class KeeperClosedError(RuntimeError):
    """An error: the keeper was closed (or failed) before a settlement ended; the message comes back by itself."""


@dataclass(frozen=True, slots=True)
class LeaseReport:
    """Counts of one batch so far. A lease is still held, was handed over, or is in one count by its outcome."""

    received: int
    held: int
    deleted: int
    released: int
    dead_lettered: int
    expired: int
    lost: int
    failed: int
    """Leases that SQS did not settle as asked: their messages come back. Failed work is not counted here."""
    extensions: int
    """Confirmed extensions, counted per message."""
    extension_calls: int
    """API calls made to extend; a call that several batches shared counts for each of them."""
    late: int
    """How often a deadline passed before an extension was confirmed."""
    uncertain: int
    """Messages deleted after their leases had ended: another consumer may have received them all the same."""


@dataclass(slots=True, eq=False)
class _Wait:
    """A caller's wait for the end of some leases."""

    countdown: Countdown
    outcomes: dict[Receipt, Settled] = field(default_factory=dict)
    error: str = ""

    def learn(self, settled: Settled) -> None:
        """Take in that one of the leases ended."""
        self.outcomes[settled.receipt] = settled
        self.countdown.count()

    def fail(self, error: str) -> None:
        """End the wait with an error: the leases will not end here."""
        self.error = self.error or error
        self.countdown.end()

    async def ended(self) -> None:
        """Wait for the end of all of them.

        Raises:
            KeeperClosedError: They will not end here.
        """
        await self.countdown.ended()
        if self.error:
            raise KeeperClosedError(self.error)


class Batch:
    """The leases taken together for one run, while the keeper holds them. Made by :meth:`Keeper.open_batch`."""

    def __init__(
        self,
        queue_url: str,
        number: int,
        *,
        driver: QueueDriver,
        policy: RenewalPolicy,
        on_failure: FailureRule,
        on_event: EventListener | None,
        message_source: MessageSource | None,
        random: Random,
        clock: Clock,
        meter: Meter,
        rounds: RoundLimiter,
        batch_id: str | None,
        on_end: Callable[[Batch], None],
    ) -> None:
        self.queue_url = queue_url
        self.number = number
        self._driver = driver
        self._plug_ins = PlugIns(queue_url)
        self._policy = guarded(policy, self._plug_ins, clock)
        self._visibility_seconds = policy.visibility_seconds
        self._on_failure = on_failure
        self._on_event = on_event
        self._message_source = message_source
        self._random = random
        self._clock = clock
        # None if nothing is counted: a call for each message would cost time.
        self._meter = None if isinstance(meter, Unmetered) else meter
        self._rounds = rounds
        self._batch_id = batch_id
        self._on_end = on_end
        self._leases: dict[str, Lease] = {}  # by message id: the newest reception of each message, as it was put in
        self._messages: dict[Receipt, Message] = {}
        # The ends of leases. Leases that ended alike share one value, as most of a batch do.
        self._outcomes: dict[Receipt, tuple[Outcome, str]] = {}
        self._shared: dict[tuple[Outcome, str], tuple[Outcome, str]] = {}
        self._waits: dict[Receipt, tuple[_Wait, ...]] = {}
        self._settling_since: dict[Receipt, float] = {}  # for the meter
        self._handed_over: set[Receipt] = set()  # to another batch of the keeper
        self._forgotten = False
        self._metered = 0  # leases that the meter knows to be held
        self.extensions = 0  # confirmed so far, counted per message
        self.extension_calls = 0  # made so far
        self.late = 0  # deadlines that passed so far

    # Holding

    def add(self, messages: Sequence[Message], *, received_at: float, sent_at: float | None = None) -> None:
        """Hold messages that were just received; times are of the keeper's clock.

        A message that the batch holds already is held by its newer receipt alone: the older one is void.

        Args:
            messages: The messages, received with the policy's visibility timeout.
            received_at: When the call that brought them was first sent: the service's 12 hours begin then or later.
            sent_at: When it was last sent, if it was repeated (FIFO): the visibility timeout begins then or later.

        Raises:
            KeeperClosedError: The keeper was closed, or the batch dropped: no lease would be extended.
        """
        deadline = (received_at if sent_at is None else sent_at) + self._visibility_seconds
        self._put(
            [Lease(one.receipt, received_at, deadline, one.receive_count, one.message_group_id) for one in messages],
            messages,
        )

    def adopt(self, written: WrittenBatch | Iterable[Lease], messages: Iterable[Message] = ()) -> None:
        """Hold leases that another holder passed on, or left behind when it died. This makes no call.

        The policy says when each lease is extended next. One that may have ended meanwhile is in doubt: it is extended
        at once while its work goes on, deleted if that succeeds, and never released. Another batch of this keeper
        that still holds one of them gives it up to this one.

        Args:
            written: The result of :meth:`pass_on`, here or in another process; or leases with times of this keeper's
                clock.
            messages: The messages, as far as their contents are known.

        Raises:
            ValueError: It is of another batch than this one.
            KeeperClosedError: The keeper was closed, or the batch dropped: no lease would be extended.
        """
        if isinstance(written, WrittenBatch):
            if self._batch_id not in (None, written.batch_id):
                raise ValueError(
                    f"These leases of {self.queue_url} were written for batch {written.batch_id}, and this is batch "
                    f"{self._batch_id}: they have another holder"
                )
            self._batch_id = written.batch_id
            written = written.leases_now(self._clock, self.queue_url)
        self._put(list(written), messages)

    async def pass_on(self, seconds: float, *, hold_on: bool = False) -> WrittenBatch:
        """Stop holding: extend shorter leases once, and return the held leases for the next holder to adopt.

        The batch is forgotten by that: no lease of it is extended or settled here any more, and pending settlements
        fail with :class:`KeeperClosedError`. Write the result down; :meth:`adopt` takes it, in any process. If no
        holder follows, the messages are visible after ``seconds``.

        Args:
            seconds: How long each lease is to last from now on. A lease that lasts longer keeps its deadline. A lease
                that could not be extended within the time for one call keeps the deadline that was confirmed.
            hold_on: Hold the leases, by their policy again, until :meth:`forget` is called: for a caller that may find
                that the result cannot be written down, and then gives them back. False by default.
        """
        until = self._clock.now() + seconds
        try:
            async with asyncio.TaskGroup() as extending:
                async for receipts in self._in_slices(self._receipts()):
                    held = [receipt for receipt in receipts if self._is_held(receipt)]
                    extending.create_task(self._driver.extend_until(held, until))
            written = WrittenBatch.of(self.batch_id, self.leases(), self._clock)
            if hold_on:
                async for receipts in self._in_slices(self._receipts()):
                    self._driver.take(self._driver.leases(receipts, self), self._policy, self)
        except BaseException:
            # Cancelled: they are held on, by their policy again.
            self._driver.take(self.leases(), self._policy, self)
            raise
        if not hold_on:
            self.forget()
        return written

    @property
    def batch_id(self) -> str:
        """The id of this batch, unique across processes."""
        if self._batch_id is None:
            self._batch_id = f"{self._random.getrandbits(128):032x}"
        return self._batch_id

    def _measure(self) -> None:
        """Tell the meter the change in the number of leases held, and whether the batch began or ceased to hold any."""
        held, metered = self.count_held(), self._metered
        if held == metered:
            return
        self._metered = held
        if (meter := self._meter) is None:
            return
        self._plug_ins.call("meter", lambda: meter.held(self.queue_url, held - metered), None)
        if bool(held) != bool(metered):
            self._plug_ins.call("meter", lambda: meter.batches(self.queue_url, 1 if held else -1), None)

    def _put(self, leases: Sequence[Lease], messages: Iterable[Message]) -> None:
        if self._forgotten:
            raise KeeperClosedError(f"The keeper of {self.queue_url} ended: it cannot hold more messages")
        contents = {message.receipt: message for message in messages}
        taken: list[Lease] = []
        outdated: list[Receipt] = []
        for lease in leases:
            held = self._leases.get(lease.receipt.message_id)
            if held is not None and (older := held.receipt) != lease.receipt:
                if held.receive_count > lease.receive_count:
                    outdated.append(lease.receipt)
                    continue
                self._driver.supersede(older, self)
                if older in self._waits:
                    self._note_end(Settled(older, Outcome.LOST, "the message was received again"))
                self._messages.pop(older, None)
                self._outcomes.pop(older, None)
            elif lease.receipt in self._outcomes:
                continue  # it has ended here: nothing is extended after it was settled
            self._handed_over.discard(lease.receipt)
            self._leases[lease.receipt.message_id] = lease
            if (message := contents.get(lease.receipt)) is not None:
                self._messages[lease.receipt] = message
            taken.append(lease)
        self._driver.take(taken, self._policy, self)
        if outdated:
            logger.info(
                "Received again since, and not held by their older receipts: %s of %s: %s",
                count_of(len(outdated)),
                self.queue_url,
                _named(outdated),
            )
        self._measure()

    def messages(self) -> Sequence[Message]:
        """Return the messages still held that have a known content, in the order they were put in."""
        contents = (self._messages.get(lease.receipt) for lease in self.leases())
        return [message for message in contents if message is not None]

    def leases(self) -> Sequence[Lease]:
        """Return the leases still held, in the order they were put in, with their deadlines as confirmed so far."""
        return [] if self._forgotten else self._driver.leases(self._receipts(), self)

    def holds(self, receipt: Receipt) -> bool:
        """Return whether the lease is still extended: neither settled nor known to be lost; it may have lapsed."""
        return self._is_ours(receipt) and self._is_held(receipt)

    def still_held(self, receipt: Receipt) -> bool:
        """Return whether certainly no other consumer has the message: its lease never lapsed, and has not ended."""
        lease = self._driver.lease(receipt) if self.holds(receipt) else None
        return lease is not None and not lease.doubtful and self._clock.now() < lease.deadline

    def count_held(self) -> int:
        """Return how many leases are still held."""
        return 0 if self._forgotten else len(self._leases) - len(self._outcomes) - len(self._handed_over)

    def oldest_received_at(self) -> float | None:
        """Return when the oldest lease still held was received, by the keeper's clock; None if no lease is held.

        Leases are put in by age, so the first one that is held is the oldest.
        """
        if not self.count_held():
            return None
        held = (lease for lease in self._leases.values() if self._is_held(lease.receipt))
        return next((lease.received_at for lease in held), None)

    def certain_until(self) -> float | None:
        """Return the time until which every held lease lasts at least; None if no lease is held, or one has lapsed."""
        return None if self._forgotten else self._driver.certain_until(self._receipts(), self)

    def certain_seconds(self) -> float | None:
        """Return how long every held lease lasts at least, from now; None as for :meth:`certain_until`."""
        until = self.certain_until()
        return None if until is None else until - self._clock.now()

    async def outlook(self) -> Outlook:
        """Return the next times of the leases still held; times are of the keeper's clock."""
        receipts = [] if self._forgotten else self._receipts()
        return Outlook.of_all([self._driver.outlook(some, self) async for some in self._in_slices(receipts)])

    def message_ids(self) -> Collection[str]:
        """Return the ids of all messages that were put in, in that order, still held or not."""
        return self._leases.keys()

    def _is_ours(self, receipt: Receipt) -> bool:
        lease = self._leases.get(receipt.message_id)
        return lease is not None and lease.receipt == receipt

    def _is_held(self, receipt: Receipt) -> bool:
        return not self._forgotten and self._driver.holds(receipt, self)

    async def extend_now(self) -> None:
        """Extend every held lease at once, whatever the policy says: the last call before another holder takes over."""
        async with asyncio.TaskGroup() as extending:
            async for receipts in self._in_slices(self._receipts()):
                held = [receipt for receipt in receipts if self._is_held(receipt)]
                extending.create_task(self._driver.extend_now(held))

    def forget(self) -> None:
        """Stop tracking the leases, without a call: another holder has them. Waiting settlements fail."""
        if self.count_held():
            self._driver.leave(self, self._receipts())
        # Nothing more is told. A listener mostly refers to what has the batch, so that this and its messages would stay
        # until the garbage collector finds the circle.
        self._on_event = None
        self.end()

    def end(self) -> None:
        """End the batch after its driver was stopped. Waiting settlements fail."""
        self._forgotten = True
        for wait in {id(wait): wait for waits in self._waits.values() for wait in waits}.values():
            wait.fail(f"The keeper of {self.queue_url} ended before the settlement")
        self._waits.clear()
        self._measure()
        self._on_end(self)

    def _receipts(self) -> list[Receipt]:
        return [lease.receipt for lease in self._leases.values()]

    async def _in_slices(self, receipts: Sequence[Receipt]) -> AsyncIterator[Sequence[Receipt]]:
        """Yield the receipts in slices, so that the event loop can do other work in between."""
        for start in range(0, len(receipts), LEASES_IN_A_ROUND):
            part = receipts[start : start + LEASES_IN_A_ROUND]
            await self._rounds.take(len(part))
            yield part

    # Settling

    async def settle(
        self, settlements: Mapping[Receipt, Settlement], *, in_order: bool = True, within_seconds: float = 0.0
    ) -> Mapping[Receipt, Settled]:
        """Settle leases and wait for their outcomes.

        Settling a lease twice gives its first outcome again, and settling a lost lease gives its loss. On a FIFO queue
        a delete waits until all earlier messages of its group have ended, and becomes a release if one of them was
        returned (:mod:`sqs_lease.core.group_order`). This method does not wait for deletes behind a message whose work
        goes on: they happen later, and :meth:`outcomes` has them then.

        Args:
            settlements: The settlement of each message.
            in_order: Whether that order is kept; True by default.
            within_seconds: How long they may wait for others to fill a call of ten; 0, the default, does not wait.

        A caller that is cancelled while it begins many thousands of settlements leaves the rest undecided.

        Returns:
            The outcomes, without those of messages that wait for the work on an earlier one.

        Raises:
            KeyError: A receipt is not of this batch.
            KeeperClosedError: The keeper was closed, or the batch handed over, before the end.
        """
        receipts = list(settlements)
        unknown: list[Receipt] = []
        async for some in self._in_slices(receipts):
            unknown += [receipt for receipt in some if not self._is_ours(receipt)]
        if unknown:
            raise KeyError(f"not in this batch of {self.queue_url}: {', '.join(map(str, unknown))}")
        wait = _Wait(Countdown())
        try:
            async for some in self._in_slices(receipts):
                self._begin_settling(some, settlements, wait, in_order=in_order, within_seconds=within_seconds)
            if self._driver.is_fifo:
                async for some in self._in_slices(receipts):
                    for receipt in some:
                        if receipt in self._waits and self._driver.waits_for_work(receipt):
                            self._stop_waiting(receipt, wait)
                            wait.countdown.count()
            await wait.ended()
        except BaseException:
            for receipt in receipts:
                self._stop_waiting(receipt, wait)
            raise
        return wait.outcomes

    def _begin_settling(
        self,
        receipts: Sequence[Receipt],
        settlements: Mapping[Receipt, Settlement],
        wait: _Wait,
        *,
        in_order: bool,
        within_seconds: float,
    ) -> None:
        now = self._clock.now()
        alone = (wait,)
        begun: dict[Receipt, Settlement] = {}
        for receipt in receipts:
            if (end := self._outcomes.get(receipt)) is not None:
                wait.outcomes[receipt] = Settled(receipt, *end)
                continue
            if self._meter is not None:
                self._settling_since.setdefault(receipt, now)
            others = self._waits.get(receipt)
            self._waits[receipt] = alone if others is None else (*others, wait)
            begun[receipt] = settlements[receipt]
        wait.countdown.expect(len(begun))
        if begun and (self._forgotten or not self._handed_over.isdisjoint(begun)):
            raise KeeperClosedError(
                f"{count_of(len(begun))} of {self.queue_url}: no longer held here. They were passed on; or the keeper "
                "or the consumer was closed, and they are visible again when their visibility timeout ends"
            )
        self._driver.settle(begun, self, in_order=in_order, within_seconds=within_seconds)

    def begin(self, settlements: Mapping[Receipt, Settlement], *, within_seconds: float = 0.0) -> None:
        """Begin to settle leases without waiting: :meth:`outcomes` has their ends later.

        Leases that ended, are being settled or are held elsewhere stay as they are.

        Args:
            settlements: The settlement of each message.
            within_seconds: See :meth:`settle`.
        """
        if self._meter is not None:
            now = self._clock.now()
            for receipt in settlements:
                self._settling_since.setdefault(receipt, now)
        self._driver.settle(settlements, self, in_order=True, within_seconds=within_seconds)

    def _stop_waiting(self, receipt: Receipt, wait: _Wait) -> None:
        waits = self._waits.get(receipt, ())
        if wait not in waits:
            return
        if left := tuple(one for one in waits if one is not wait):
            self._waits[receipt] = left
        else:
            del self._waits[receipt]

    async def succeed(self, receipts: Iterable[Receipt] | None = None) -> Mapping[Receipt, Settled]:
        """Delete messages, because their work succeeded (None: all that are still held)."""
        return await self.settle(dict.fromkeys(await self._chosen(receipts), Delete()))

    async def fail(
        self, reason: str, receipts: Iterable[Receipt] | None = None, *, errors: Sequence[str] = ()
    ) -> Mapping[Receipt, Settled]:
        """Settle messages by the batch's failure rule, because their work failed for good (None: all still held).

        Args:
            reason: The reason, for people; it becomes a message attribute of a dead-lettered message.
            receipts: Leases of this batch.
            errors: The classes of the exception that ended the work, for rules that choose by them: see
                :meth:`FailureRule.matching`.

        Raises:
            KeyError: A receipt is not of this batch.
            KeeperClosedError: The keeper was closed, or the batch handed over, before the end.
        """
        rule = self._rule_for(errors)
        failing: dict[Receipt, Settlement] = {}
        async for some in self._in_slices(await self._chosen(receipts)):
            failing |= {receipt: self._failed_one(rule, reason, receipt) for receipt in some}
        return await self.settle(failing)

    def failing(
        self, reason: str, receipts: Iterable[Receipt], *, errors: Sequence[str] = ()
    ) -> dict[Receipt, Settlement]:
        """Return the settlements of failed messages by the batch's failure rule; a release at once if the rule raises.

        Args:
            reason: See :meth:`fail`.
            receipts: Leases of this batch.
            errors: See :meth:`fail`.
        """
        rule = self._rule_for(errors)
        return {receipt: self._failed_one(rule, reason, receipt) for receipt in receipts}

    def _rule_for(self, errors: Sequence[str]) -> FailureRule:
        return self._plug_ins.call("failure rule", lambda: self._on_failure.matching(errors), release())

    def _failed_one(self, rule: FailureRule, reason: str, receipt: Receipt) -> Settlement:
        lease = self._driver.lease(receipt)
        count = 1 if lease is None else lease.receive_count

        def ask() -> Settlement:
            settlement = rule.settlement(receive_count=count, reason=reason, random=self._random)
            if not isinstance(settlement, Release | Expire | DeadLetter | Delete):
                raise TypeError(f"a failure rule must return a settlement such as Release(), not {settlement!r}")
            return settlement

        instead: Settlement = Release()
        return self._plug_ins.call("failure rule", ask, instead)

    async def release_all(self) -> Mapping[Receipt, Settled]:
        """Make all held messages visible at once, whatever the failure rule says: their work is not at fault."""
        return await self.settle(dict.fromkeys(await self._chosen(None), Release()))

    async def _chosen(self, receipts: Iterable[Receipt] | None) -> list[Receipt]:
        if receipts is not None:
            return list(receipts)
        held: list[Receipt] = []
        async for some in self._in_slices(self._receipts()):
            held += [receipt for receipt in some if self._is_held(receipt)]
        return held

    # Reports from the driver

    def happened(self, events: Sequence[LeaseEvent]) -> None:
        """Take in events of some of the batch's leases. The driver calls this."""
        for event in events:
            match event:
                case Settled():
                    self._note_end(event)
                case Lost(receipt=receipt, detail=detail):
                    self._note_end(Settled(receipt, Outcome.LOST, detail))
                case Lapsed():
                    self.late += 1
                    if (meter := self._meter) is not None:
                        self._plug_ins.call("meter", lambda: meter.late(self.queue_url), None)
        self._measure()
        if self._on_event is None:
            _log(events, self.queue_url)
        else:
            self._tell_listener(events, self._on_event)

    def _tell_listener(self, events: Sequence[LeaseEvent], listener: EventListener) -> None:
        for event in events:
            if isinstance(event, Ending):
                # The keeper's clock means nothing to a listener.
                told: LeaseEvent = Ending(event.receipt, event.ends_at - self._clock.now() + self._clock.wall())
            else:
                told = event
            try:
                listener(told)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - as PlugIns.call does, which would cost more than the event
                self._plug_ins.failed("listener", error)

    def _note_end(self, settled: Settled) -> None:
        end = (settled.outcome, settled.detail)
        self._outcomes[settled.receipt] = self._shared.setdefault(end, end)
        if (meter := self._meter) is not None:
            since = self._settling_since.pop(settled.receipt, None)
            seconds = None if since is None else self._clock.now() - since
            self._plug_ins.call("meter", lambda: meter.ended(self.queue_url, settled.outcome, seconds), None)
        for wait in self._waits.pop(settled.receipt, ()):
            wait.learn(settled)

    def handed_over(self, receipt: Receipt) -> None:
        """Take in that another batch holds a lease from now on. The driver calls this."""
        self._handed_over.add(receipt)
        for wait in self._waits.pop(receipt, ()):
            wait.fail(f"Another batch of {self.queue_url} took {receipt} over")
        self._measure()

    def extended(self, extensions: int) -> None:
        """Count a call that extended some of the batch's leases. The driver calls this."""
        self.extension_calls += 1
        self.extensions += extensions
        if (meter := self._meter) is not None:
            self._plug_ins.call("meter", lambda: meter.extended(self.queue_url, extensions), None)

    async def content(self, receipt: Receipt) -> Message | None:
        """Return the message itself, if it was put in with the lease or the batch's source has it; else None.

        Raises:
            Exception: The source failed.
        """
        if (message := self._messages.get(receipt)) is not None or self._message_source is None:
            return message
        try:
            return (await self._message_source([receipt.message_id])).get(receipt.message_id)
        except (Exception, SystemExit) as error:
            self._plug_ins.failed("message source", error)
            raise

    def outcomes(self) -> Mapping[Receipt, Settled]:
        """Return the ends of the leases that have ended."""
        return {receipt: Settled(receipt, *end) for receipt, end in self._outcomes.items()}

    def report(self) -> LeaseReport:
        """Return the counts so far."""
        counts = dict.fromkeys(Outcome, 0)
        for outcome, _ in self._outcomes.values():
            counts[outcome] += 1
        return LeaseReport(
            received=len(self._leases),
            held=self.count_held(),
            deleted=counts[Outcome.DELETED],
            released=counts[Outcome.RELEASED],
            dead_lettered=counts[Outcome.DEAD_LETTERED],
            expired=counts[Outcome.EXPIRED],
            lost=counts[Outcome.LOST],
            failed=counts[Outcome.FAILED],
            extensions=self.extensions,
            extension_calls=self.extension_calls,
            late=self.late,
            uncertain=counts[Outcome.UNCERTAIN],
        )


def _log(events: Sequence[LeaseEvent], queue_url: str) -> None:
    """Log the events of leases without a listener: one line for each kind and reason."""
    alike: dict[tuple[type, str], list[LeaseEvent]] = {}
    for event in events:
        if not isinstance(event, Settled) or event.outcome in (Outcome.LOST, Outcome.FAILED):
            detail = getattr(event, "detail", "")
            alike.setdefault((type(event), detail), []).append(event)
    for (kind, detail), several in alike.items():
        level, happened = _LOGGED[kind]
        named = _named([event.receipt for event in several])
        reason = f": {detail}" if detail else ""
        logger.log(level, "%s (%d of %s)%s: %s", happened, len(several), queue_url, reason, named)


def _named(receipts: Sequence[Receipt]) -> str:
    named = ", ".join(map(str, receipts[:_NAMED_IN_LOG]))
    return f"{named} and {len(receipts) - _NAMED_IN_LOG} more" if len(receipts) > _NAMED_IN_LOG else named


_LOGGED: Final[Mapping[type, tuple[int, str]]] = {
    Lost: (logging.WARNING, "Leases were lost while their work goes on; another consumer may have the messages"),
    Lapsed: (
        logging.WARNING,
        "Leases lapsed before an extension was confirmed; another consumer may receive the messages",
    ),
    Ending: (logging.WARNING, "Leases cannot be extended any further"),
    Refused: (logging.ERROR, "SQS refuses to extend leases"),
    Settled: (logging.ERROR, "Messages could not be settled as asked"),
}
