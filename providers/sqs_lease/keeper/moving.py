"""Moving some messages of a queue to another one: the service itself can only move all of a dead-letter queue.

The rules:

- **Each message is looked at once.** All messages are received with a lease. Those that do not match are held until the
  end, so that they are not received again, and are then released.
- **A message is deleted only after SQS confirmed that it was sent.** It is sent only while its lease is certain. If
  the answer to a send is lost, it is sent again: a standard queue may then have it twice, and a FIFO queue drops the
  second one. A message that was sent and could not be deleted is deleted when it comes again.
- **Body, attributes and message group stay.** The message has another id and sent time, and its receive count begins
  anew. On a FIFO queue its deduplication id is its id in the dead-letter queue, as after SQS itself moved it there. Two
  messages may share any other deduplication id, and SQS would drop one of them while it says that it took both.
- **Order within message groups stays.** Messages of a FIFO queue are sent group by group, in order. If one
  cannot be sent, the messages behind it in its group are not sent. SQS gives out no message of a group while an
  earlier one is held, so the messages behind one that does not match cannot be looked at.
- **It ends.** It stops at ``max_messages`` or at the end of the queue. It leaves alone what was sent after it began:
  messages that it moved may fail again, and come back while it runs. For one visibility timeout from its start it waits
  for messages that others hold, because a mover that was killed may have held them. :attr:`MoveCounts.hidden` counts
  what was not seen.
- **A queue that cannot be sent to stops the messages for it**, and the whole move if it is the only destination.
- **Cancelled**, it stops sending, waits for the sends under way, releases what it holds and then raises.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from sqs_lease.clock import Clock
from sqs_lease.core.calls import Verdict
from sqs_lease.core.events import Outcome
from sqs_lease.core.failure_rules import Delete
from sqs_lease.core.messages import Message
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.keeper.batch import Batch, KeeperClosedError
from sqs_lease.keeper.keeper import Keeper
from sqs_lease.keeper.receiver import Receiver, Reception
from sqs_lease.sqs.errors import InvalidRequestError, SqsError
from sqs_lease.sqs.transport import Transport
from sqs_lease.sqs.validation import FIFO_SUFFIX

logger = logging.getLogger(__name__)

Choose: TypeAlias = Callable[[Sequence[Message]], Awaitable[Sequence[Message]]]
"""Tells which of some messages are moved, in their order."""

LAST_LOOK_SECONDS: Final = 5.0
"""How long to wait for one more message before the queue counts as looked through."""

GIVE_BACK_SECONDS: Final = 10.0
"""How long the end waits for sends under way, and then for the release of what is held. The rest lapses."""

DEFAULT_MAX_MESSAGES: Final = 10_000
"""How many messages are looked at, at most, unless told otherwise: those that do not match are all held at once."""

SEND_ATTEMPTS: Final = 5
"""How often a message is sent while the failure may pass."""

_FIRST_PAUSE_SECONDS: Final = 0.5
_SENDS_AT_ONCE: Final = 10
_RECEIVED_AT_ONCE: Final = 500
_SOURCE_ARN: Final = "DeadLetterQueueSourceArn"


@dataclass(slots=True)
class MoveCounts:
    """What was done so far.

    Attributes:
        looked_at: Messages received.
        matched: How many of them match, and are to be moved.
        moved: Those that were sent, and deleted afterwards.
        duplicated: Those that were sent but could not be deleted: they are in both queues.
        failed: Those that were not sent.
        hidden: Approximate number of messages that could not be looked at: others hold them, or they are behind held
            ones of their message group (FIFO).
        is_whole: Whether the queue was looked through; False where ``max_messages`` or ``max_moved`` ended it.
        failure: Why the first of the failed ones failed.
    """

    looked_at: int = 0
    matched: int = 0
    moved: int = 0
    duplicated: int = 0
    failed: int = 0
    hidden: int = 0
    is_whole: bool = False
    failure: str = ""


class Destinations:
    """Finds where messages go.

    Args:
        transport: Reaches SQS.
        destination_url: The queue for all; None sends each back to the queue that it came from.
        only_source_url: The only queue whose dead-letter queue this is, for messages that were sent there directly;
            None if there are several, or none is known.
    """

    def __init__(
        self, transport: Transport, *, destination_url: str | None = None, only_source_url: str | None = None
    ) -> None:
        self._transport = transport
        self._destination_url = destination_url
        self._only_source_url = only_source_url
        self._found: dict[str | None, str | SqsError] = {}

    async def of(self, message: Message) -> str | None:
        """Return the URL of the queue that a message goes to; None if nothing says which.

        Raises:
            SqsError: The queue cannot be used, or cannot be looked up now.
        """
        if self._destination_url is not None:
            return self._destination_url
        source_arn = message.attributes.get(_SOURCE_ARN)
        found = self._found.get(source_arn)
        if found is None:
            found = self._only_source_url if source_arn is None else await self._transport.queue_url(source_arn)
            if found is not None:
                self._found[source_arn] = found
        if isinstance(found, SqsError):
            raise found
        return found

    def give_up(self, message: Message, error: SqsError) -> bool:
        """Stop using the queue that a message goes to; return whether there may be others."""
        self._found[message.attributes.get(_SOURCE_ARN)] = error
        return self._destination_url is None and self._only_source_url is None


class MessageMover:
    """Moves messages once. It belongs to one event loop.

    Args:
        keeper: Holds the messages.
        queue_url: Where they are.
        policy: How they are held, with its visibility timeout.
        destinations: Where they go.
        choose: Which of them are moved.
        max_messages: How many to look at, at most.
        max_per_second: How many to send in a second, at most; None for no limit.
        max_moved: How many to move, at most; None for all that match. Those beyond that are held until the end, like
            those that do not match.
        counts: Updated while messages move, so that the caller can show progress; new counts by default.

    Attributes:
        counts: What was done so far.
    """

    def __init__(
        self,
        keeper: Keeper,
        queue_url: str,
        *,
        policy: RenewalPolicy,
        destinations: Destinations,
        choose: Choose,
        max_messages: int,
        max_per_second: int | None = None,
        max_moved: int | None = None,
        counts: MoveCounts | None = None,
    ) -> None:
        self.counts = MoveCounts() if counts is None else counts
        self._keeper = keeper
        self._transport = keeper.transport
        self._clock: Clock = keeper.clock
        self._queue_url = queue_url
        self._policy = policy
        self._destinations = destinations
        self._choose = choose
        self._max_messages = max_messages
        self._max_moved = sys.maxsize if max_moved is None else max_moved
        self._pace = _Pace(max_per_second, self._clock)
        self._sends = asyncio.Semaphore(_SENDS_AT_ONCE)
        self._stopping = asyncio.Event()
        self._error: SqsError | None = None
        self._sent: set[str] = set()
        self._deleted: set[str] = set()

    async def run(self) -> MoveCounts:
        """Look through the queue, and move what matches.

        Raises:
            SqsError: The queue cannot be received from, or a destination cannot be sent to; what was moved until then
                stays moved.
        """
        began_at = self._clock.wall()
        # Rounded up: a lease that lasts longer than believed harms nobody.
        seconds = math.ceil(self._policy.visibility_seconds)
        receiver = Receiver(self._transport, self._queue_url, visibility_seconds=seconds, clock=self._clock)
        # In a separate context: the keeper's calls may serve others, too.
        batch = Context().run(partial(self._keeper.open_batch, self._queue_url, policy=self._policy))

        def hold(reception: Reception) -> None:
            batch.add(reception.messages, received_at=reception.received_at, sent_at=reception.sent_at)

        seen: set[str] = set()
        # By then what a mover that was killed held is visible again.
        look_until = self._clock.now() + self._policy.visibility_seconds
        try:
            while (left := self._max_messages - self.counts.looked_at) > 0 and self.counts.matched < self._max_moved:
                collected = await receiver.collect(
                    min(left, _RECEIVED_AT_ONCE), wait=LAST_LOOK_SECONDS, on_received=hold
                )
                if collected.error is not None:
                    logger.warning("Took only %d messages: %s", len(collected.messages), collected.error)
                if not collected.messages:
                    held_by_others = await self._count_hidden(batch)
                    if held_by_others and self._clock.now() < look_until:
                        continue
                    self.counts.is_whole = True
                    break
                # A message whose lease lapsed may come again: it is held by its newer receipt, and not counted twice.
                new = [message for message in collected.messages if message.message_id not in seen]
                seen.update(message.message_id for message in new)
                self.counts.looked_at += len(new)
                for message in collected.messages:
                    if message.message_id in self._sent:
                        await self._delete(message, batch)
                matching = await self._choose([message for message in new if _is_older(message, began_at)])
                chosen = matching[: self._max_moved - self.counts.matched]
                self.counts.matched += len(chosen)
                await self._move_all(chosen, batch)
                if self._error is not None:
                    raise self._error
        finally:
            await self._give_back(batch)
        return self.counts

    async def _count_hidden(self, batch: Batch) -> int:
        """Count the messages that cannot be looked at now; return how many of them others hold."""
        attributes = await self._transport.queue_attributes(self._queue_url)
        held = batch.count_held()
        held_by_others = max(attributes.in_flight - held, 0)
        is_blocked = held > 0 and attributes.fifo
        self.counts.hidden = held_by_others + (attributes.visible if is_blocked else 0)
        return held_by_others

    async def _move_all(self, messages: Iterable[Message], batch: Batch) -> None:
        loop = asyncio.get_running_loop()
        moving = [loop.create_task(self._move_in_order(chain, batch)) for chain in self._chains(messages)]
        if not moving:
            return
        try:
            await asyncio.wait(moving)
        except asyncio.CancelledError:
            self._stopping.set()
            await asyncio.wait(moving, timeout=GIVE_BACK_SECONDS)
            for task in moving:
                task.cancel()
            raise
        for task in moving:
            task.result()

    def _chains(self, messages: Iterable[Message]) -> list[list[Message]]:
        """The messages, together where their order counts."""
        chains: dict[str, list[Message]] = {}
        for message in messages:
            group = message.message_group_id if self._queue_url.endswith(FIFO_SUFFIX) else message.message_id
            chains.setdefault(group or message.message_id, []).append(message)
        return list(chains.values())

    async def _move_in_order(self, messages: Sequence[Message], batch: Batch) -> None:
        for place, message in enumerate(messages):
            async with self._sends:
                await self._pause(self._pace.next_turn())
                if self._stopping.is_set():
                    return
                try:
                    moved = await self._move(message, batch)
                except (SqsError, ValueError) as error:
                    moved = False
                    self._note_failure(message, error)
            if not moved:
                # Those behind it in its group stay, too.
                self.counts.failed += len(messages) - place
                return

    def _note_failure(self, message: Message, error: Exception) -> None:
        self.counts.failure = self.counts.failure or str(error)
        if not isinstance(error, SqsError) or isinstance(error, InvalidRequestError):
            return
        # Not about this message alone: every other one for the same queue would fail in the same way.
        if error.verdict is not Verdict.REFUSED or not self._destinations.give_up(message, error):
            self._stopping.set()
            self._error = self._error or error

    async def _move(self, message: Message, batch: Batch) -> bool:
        """Send a message and delete it; return whether it was sent."""
        destination_url = await self._destinations.of(message)
        if destination_url is None:
            self.counts.failure = self.counts.failure or (
                "nothing says which queue it came from, because it was sent to the dead-letter queue directly (as "
                "dead_letter() does) and several queues share that: name the destination"
            )
            return False
        if not await self._send(destination_url, message, batch):
            self.counts.failure = self.counts.failure or "its lease ended before it was sent: it may be received again"
            return False
        self._sent.add(message.message_id)
        await self._delete(message, batch)
        return True

    async def _send(self, destination_url: str, message: Message, batch: Batch) -> bool:
        """Send a message, again after failures that may pass; return False where its lease ended before."""
        attempt = 0
        while batch.still_held(message.receipt):
            attempt += 1
            try:
                await self._transport.send(
                    destination_url,
                    message.body,
                    message_attributes=message.message_attributes,
                    message_group_id=message.message_group_id,
                    deduplication_id=message.message_id if destination_url.endswith(FIFO_SUFFIX) else None,
                )
            except SqsError as error:
                if error.verdict is Verdict.REFUSED or attempt == SEND_ATTEMPTS or self._stopping.is_set():
                    raise
                logger.info("Attempt %d of %d: %s", attempt, SEND_ATTEMPTS, error)
            else:
                return True
            await self._pause(_FIRST_PAUSE_SECONDS * 2.0 ** (attempt - 1))
        return False

    async def _delete(self, message: Message, batch: Batch) -> None:
        """Delete a message that was sent."""
        with suppress(KeeperClosedError):
            settled = await batch.settle({message.receipt: Delete()}, in_order=False)
            if settled[message.receipt].outcome is Outcome.DELETED:
                self._deleted.add(message.message_id)
        self.counts.moved = len(self._deleted)
        self.counts.duplicated = len(self._sent) - len(self._deleted)

    async def _pause(self, seconds: float) -> None:
        """Wait, unless sending was stopped."""
        if seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stopping.wait()

    async def _give_back(self, batch: Batch) -> None:
        try:
            async with asyncio.timeout(GIVE_BACK_SECONDS):
                await batch.release_all()
        except (TimeoutError, KeeperClosedError):
            logger.warning(
                "Not all messages of %s could be given back: the others are visible again when their visibility "
                "timeout ends",
                self._queue_url,
            )
        finally:
            self._keeper.drop(batch)


class _Pace:
    """Lets so many through in a second."""

    def __init__(self, per_second: int | None, clock: Clock) -> None:
        self._pause_seconds = 0.0 if per_second is None else 1.0 / per_second
        self._clock = clock
        self._free_at = clock.now()

    def next_turn(self) -> float:
        """Take the next turn, and return how long to wait for it, in seconds."""
        now = self._clock.now()
        turn_at = max(self._free_at, now)
        self._free_at = turn_at + self._pause_seconds
        return turn_at - now


def _is_older(message: Message, moment: float) -> bool:
    """Whether a message was sent before a moment, or nothing says when it was."""
    return message.sent_at is None or message.sent_at.timestamp() <= moment
