"""Receiving: collections of up to N messages by concurrent long polls, which hand over each poll's messages at once.

A collection waits up to ``wait`` for the first message, then up to ``linger`` for more. Each poll's messages go to
``on_received`` at once, so that a keeper extends the first ones while others are still on their way. The rules:

- **Never more than asked for.** The ``max_messages`` of all polls in flight never exceed what is missing. Until
  messages come there is one poll. Each answer with messages doubles the polls, up to ten; an empty answer or an error
  brings them back to one.
- **No lease is old when it arrives.** A lease counts from when its poll was sent. So a poll waits no longer than a
  third of the visibility timeout, 20 s, and what is left of ``wait`` or ``linger``. A poll waits whole seconds, rounded
  up, so a collection can take up to one second, and the time of an answer, longer.
- **One receipt for each message.** A standard queue may deliver a message twice within one collection. The delivery
  with the higher receive count is the newer one. The receiver hands it over like any message: *its receipt replaces
  the receipt of the same message id handed over before*. The old receipt must no longer be extended, released or
  deleted (:class:`sqs_lease.keeper.keeper.Batch` sees to that). The receiver drops a delivery that is older than the
  one it handed over.
- **Lost answers of FIFO queues are asked for again.** Each poll of a FIFO queue has a ``ReceiveRequestAttemptId``. When
  its answer is lost (a time-out, a torn connection, a 500), the receiver repeats the poll with the same id. It does so
  within the five minutes for which the service remembers the id, and for up to ten seconds after the waiting ended. A
  poll that was certainly not carried out (503, no connection, throttling) took no messages, so nothing is repeated.
  The messages of a lost answer of a standard queue become visible again after their visibility timeout; nothing can
  fetch them earlier.
- **No busy loop.** An endpoint or proxy may answer long polls empty at once. After such an answer the receiver waits
  for about the rest of one second before the next poll, and never beyond the end of the collection.
- **Errors.** While there is time, the receiver repeats polls after errors that may pass (lost answers, no service, no
  connection, throttling) with jittered exponential back-off. When the time is up it raises the error if nothing was
  received, and returns it in :attr:`Collected.error` otherwise. ``OverLimit`` ends the collection in the same way, at
  once. Errors that stay (denied, no such queue, ...) are always raised, at once. So is an exception of ``on_received``.
  Before it raises anything, the receiver awaits the polls in flight and hands over what they bring.

**Stopping.** :meth:`Receiver.stop` stops polling, awaits the polls in flight (each ends after its wait and the
transport's time for an answer) and returns what there is. **Cancelling** a collection does the same and then raises
``CancelledError``: by then every message that the service gave was handed over, and no poll is open that could take a
message which the caller releases. The receiver never cancels a poll that was sent: a cancelled HTTP call may have been
carried out, and its messages would stay invisible, without a holder, until their visibility timeout ends. It drops
polls that still wait for a connection. A caller that cannot wait cancels a *second* time: that abandons the polls in
flight, and their messages.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

from sqs_lease.clock import Clock, SystemClock
from sqs_lease.core.calls import Verdict
from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.core.limits import (
    MAX_BATCH_ENTRIES,
    MAX_IN_FLIGHT,
    MAX_WAIT_SECONDS,
    RECEIVE_ATTEMPT_SECONDS,
)
from sqs_lease.core.messages import Message
from sqs_lease.keeper.options import DEFAULT_LINGER_SECONDS
from sqs_lease.sqs.errors import OverLimitError, SqsError
from sqs_lease.sqs.transport import Transport
from sqs_lease.sqs.validation import FIFO_SUFFIX, check_queue_url, check_visibility, check_whole_number

logger = logging.getLogger(__name__)

MAX_POLLS: Final = 10
"""The most long polls that one collection has in flight."""

LOST_ANSWER_SECONDS: Final = 10.0
"""How long a collection asks again for the lost answers of a FIFO queue, counted from the end of its waiting."""

_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 10.0

# After an answer that came empty much too early: one poll a second, a few more in the last one.
_EMPTY_PERIOD_SECONDS: Final = 1.0
_SHORTEST_EMPTY_PAUSE_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Reception:
    """The messages of one poll.

    Attributes:
        messages: The messages, at least one.
        received_at: When the poll was sent, on the receiver's clock; for a repeated poll, the first time. The service's
            12 hours begin then or later.
        sent_at: When the poll was sent the last time. The messages' visibility timeout begins then or later.
    """

    messages: tuple[Message, ...]
    received_at: float
    sent_at: float


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of a collection.

    Attributes:
        messages: The messages received, each once, with its newest receipt, in the order of arrival.
        error: The error because of which there may be more messages than these: one that may pass or ``OverLimit``,
            which ended the collection, or one by which an answer of a FIFO queue was lost for good; else None.
    """

    messages: tuple[Message, ...]
    error: SqsError | None = None


ReceptionListener: TypeAlias = Callable[[Reception], None]


class Receiver:
    """A receiver for one queue over a transport; one collection after the other, or several at once.

    Args:
        transport: Makes the calls.
        queue_url: The queue's URL.
        visibility_seconds: The visibility timeout of the messages received, in whole seconds, 1 to 43 200.
        longest_poll_seconds: The longest wait of a poll, 0 to 20; 20 by default. Stopping may take as long.
        clock: The source of time; the machine's by default. Reception times are readings of its ``now``.
        random: The source of jitter and attempt ids; a fresh one by default.

    Raises:
        ValueError: ``queue_url`` is not a queue URL, or ``visibility_seconds`` is out of range.
    """

    def __init__(
        self,
        transport: Transport,
        queue_url: str,
        *,
        visibility_seconds: int,
        longest_poll_seconds: int = MAX_WAIT_SECONDS,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        check_queue_url(queue_url)
        check_visibility(visibility_seconds, f"receiving from {queue_url}", minimum=1)
        self.queue_url = queue_url
        self._transport = transport
        self._visibility_seconds = visibility_seconds
        # No lease is old when it arrives: see the module's docstring.
        self._longest_poll_seconds = min(longest_poll_seconds, max(visibility_seconds // 3, 1))
        self._clock: Clock = SystemClock() if clock is None else clock
        self._random = Random() if random is None else random
        self._collections: set[_Collection] = set()
        self._stopped = False

    async def collect(
        self,
        max_messages: int,
        *,
        wait: Duration,
        linger: Duration = DEFAULT_LINGER_SECONDS,
        on_received: ReceptionListener,
    ) -> Collected:
        """Collect messages; the module's docstring has the rules, also for errors and cancellation.

        Args:
            max_messages: The most messages to collect, 1 to 120 000.
            wait: How long to wait for a first message; 0 looks once.
            linger: How long to wait for more after the first ones; 1 s by default, 0 takes what the first answer
                brings.
            on_received: Called in the event loop with each poll's messages. It must not block. If it raises, polling
                stops, it still gets the messages of polls in flight, and then its first exception is raised.

        Returns:
            The messages received: no messages if none came within ``wait``, or after :meth:`stop`.

        Raises:
            ValueError: An argument is out of range.
            SqsError: See the module's docstring.
        """
        # SQS allows at most this many messages of a queue in flight.
        check_whole_number(max_messages, "max_messages", 1, MAX_IN_FLIGHT, f"receiving from {self.queue_url}")
        collection = _Collection(
            self._transport,
            self.queue_url,
            visibility_seconds=self._visibility_seconds,
            longest_poll_seconds=self._longest_poll_seconds,
            clock=self._clock,
            random=self._random,
            max_messages=max_messages,
            wait_seconds=seconds_of(wait, name="wait"),
            linger_seconds=seconds_of(linger, name="linger"),
            on_received=on_received,
        )
        if self._stopped:
            return Collected(())
        self._collections.add(collection)
        try:
            return await collection.run()
        finally:
            self._collections.discard(collection)

    def stream(self, room: Callable[[], int], on_received: ReceptionListener) -> Stream:
        """Receive for as long as a consumer lives: see :class:`Stream`.

        Args:
            room: Called in the event loop: how many more messages are wanted now; 0 for none.
            on_received: See :meth:`collect`.
        """
        stream = Stream(
            self._transport,
            self.queue_url,
            visibility_seconds=self._visibility_seconds,
            longest_poll_seconds=self._longest_poll_seconds,
            clock=self._clock,
            random=self._random,
            room=room,
            on_received=on_received,
        )
        self._collections.add(stream)
        if self._stopped:
            stream.stop()
        return stream

    def stop(self) -> None:
        """Stop polling, now and later. Each collection under way ends when its polls in flight are answered."""
        self._stopped = True
        for collection in self._collections:
            collection.stop()


@dataclass(slots=True, eq=False)
class _Poll:
    """One poll: about to be sent, in flight, or lost and about to be repeated with its ``attempt_id``."""

    max_messages: int
    attempt_id: str | None
    wait_seconds: int = 0
    asked_at: float = 0.0
    first_sent_at: float | None = None
    sent_at: float = 0.0
    sent: bool = False
    error: SqsError | None = None


class _Collection:
    """The state of one call of :meth:`Receiver.collect`."""

    def __init__(
        self,
        transport: Transport,
        queue_url: str,
        *,
        visibility_seconds: int,
        longest_poll_seconds: int,
        clock: Clock,
        random: Random,
        max_messages: int,
        wait_seconds: float,
        linger_seconds: float,
        on_received: ReceptionListener,
    ) -> None:
        self._transport = transport
        self._queue_url = queue_url
        self._fifo = queue_url.endswith(FIFO_SUFFIX)
        self._visibility_seconds = visibility_seconds
        self._longest_poll_seconds = longest_poll_seconds
        self._clock = clock
        self._random = random
        self._max_messages = max_messages
        self._linger_seconds = linger_seconds
        self._on_received = on_received
        self._ends_at = clock.now() + wait_seconds
        self._messages: dict[str, Message] = {}
        self._polls: dict[asyncio.Task[None], _Poll] = {}
        self._lost: list[_Poll] = []
        self._concurrency = 1
        self._polled = False
        self._was_answered = False
        self._closing = False
        self._stopped = False
        self._wake = asyncio.Event()
        # Until when to wait after an answer that came empty too early.
        self._calm_until = -math.inf
        # Errors: the last one that may pass, how often in a row and since when; the one of a lost answer which did not
        # come again; and the one that ends the collection.
        self._passing: SqsError | None = None
        self._given_up: SqsError | None = None
        self._failures = 0
        self._failed_at = -math.inf
        self._resume_at = -math.inf
        self._fatal: BaseException | None = None

    async def run(self) -> Collected:
        try:
            while self._advance():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._seconds_to_next_step()):
                        await self._wake.wait()
        except asyncio.CancelledError:
            await self._drain()
            if self._fatal is not None:
                logger.exception("Receiving from %s failed, and was cancelled", self._queue_url, exc_info=self._fatal)
            raise
        if self._fatal is not None:
            raise self._fatal
        if self._passing is not None and not self._messages and not self._stopped:
            raise self._passing
        return Collected(tuple(self._messages.values()), self._passing or self._given_up)

    def stop(self) -> None:
        self._stopped = True
        self._close()

    # Deciding

    def _advance(self) -> bool:
        """Start and drop the polls that are due; return whether there is anything left to wait for."""
        self._wake.clear()
        now = self._clock.now()
        self._forget_what_cannot_be_repeated(now)
        while (poll := self._next_poll(now)) is not None:
            self._start(poll, now)
        self._drop_unsent(now)
        return bool(self._polls) or self._seconds_to_next_step() is not None

    def _next_poll(self, now: float) -> _Poll | None:
        paused = now < self._resume_at or now < self._calm_until
        if self._closing or paused or len(self._polls) >= self._concurrency:
            return None
        if self._lost:
            return self._lost.pop(0)
        reserved = sum(poll.max_messages for poll in self._polls.values())
        missing = self._missing() - reserved
        if missing <= 0 or (self._polled and now >= self._ends_at):
            return None
        attempt_id = f"{self._random.getrandbits(128):032x}" if self._fifo else None
        return _Poll(min(missing, MAX_BATCH_ENTRIES), attempt_id)

    def _missing(self) -> int:
        """How many more messages are wanted, without those that polls in flight may bring."""
        return self._max_messages - len(self._messages)

    def _seconds_to_next_step(self) -> float | None:
        """How long until something is due even without an answer to a poll; None if only answers matter."""
        if self._closing:
            return None
        now = self._clock.now()
        steps = []
        if now < self._calm_until:
            steps.append(self._calm_until)
        if now < self._resume_at and (self._lost or self._resume_at < self._ends_at):
            steps.append(self._resume_at)
        steps += [until for poll in self._polls.values() if not poll.sent and now < (until := self._unsent_until(poll))]
        return min(steps) - now if steps and min(steps) < math.inf else None

    def _forget_what_cannot_be_repeated(self, now: float) -> None:
        """Give up lost answers that the service would not give again, or that no time is left for."""
        given_up = [poll for poll in self._lost if max(now, self._resume_at) >= self._repeatable_until(poll)]
        for poll in given_up:
            self._lost.remove(poll)
            if now < self._visible_again_at(poll):
                self._given_up = poll.error

    def _repeatable_until(self, poll: _Poll) -> float:
        first_sent_at = poll.asked_at if poll.first_sent_at is None else poll.first_sent_at
        ends_at = self._ends_at + LOST_ANSWER_SECONDS
        return min(first_sent_at + RECEIVE_ATTEMPT_SECONDS, self._visible_again_at(poll), ends_at)

    def _visible_again_at(self, poll: _Poll) -> float:
        """When the messages of a lost answer are visible to all again, at the latest."""
        return poll.sent_at + poll.wait_seconds + self._visibility_seconds

    def _unsent_until(self, poll: _Poll) -> float:
        """Until when a poll may wait for a connection: for ever until messages came, then to the end of lingering."""
        if poll.first_sent_at is not None:
            return self._repeatable_until(poll)
        return self._ends_at if self._messages else math.inf

    def _close(self) -> None:
        self._closing = True
        self._wake.set()

    # Polling

    def _start(self, poll: _Poll, now: float) -> None:
        poll.wait_seconds = max(math.ceil(min(self._longest_poll_seconds, self._ends_at - now)), 0)
        poll.asked_at = poll.sent_at = now
        poll.sent = False
        self._polled = True
        task = asyncio.get_running_loop().create_task(self._poll(poll), name=f"sqs-lease poll {self._queue_url}")
        self._polls[task] = poll
        task.add_done_callback(self._finished)

    async def _poll(self, poll: _Poll) -> None:
        def on_sent() -> None:
            poll.sent = True
            poll.sent_at = self._clock.now()
            if poll.first_sent_at is None:
                poll.first_sent_at = poll.sent_at

        try:
            messages = await self._transport.receive(
                self._queue_url,
                max_messages=poll.max_messages,
                wait_seconds=poll.wait_seconds,
                visibility_seconds=self._visibility_seconds,
                attempt_id=poll.attempt_id,
                on_sent=on_sent,
            )
        except SqsError as error:
            self._failed(poll, error)
            return
        # Nothing is awaited between the answer and handing it over, so nothing can come in between.
        self._was_answered = True
        self._passing = None
        self._failures = 0
        if messages:
            self._concurrency = min(self._concurrency * 2, MAX_POLLS)
            self._calm_until = -math.inf
            self._hand_over(poll, messages)
        else:
            self._concurrency = 1
            self._calm_down(poll)

    def _calm_down(self, poll: _Poll) -> None:
        """Wait before the next poll if this one came back empty much sooner than it should have waited."""
        now = self._clock.now()
        took_seconds = now - poll.sent_at
        if took_seconds >= min(poll.wait_seconds / 2, _EMPTY_PERIOD_SECONDS):
            return
        pause = (_EMPTY_PERIOD_SECONDS - took_seconds) * (0.75 + self._random.random() / 2)
        left = max(self._ends_at - now, 0.0)
        # A second before the end is not the end yet: lingering is as short as that.
        self._calm_until = now + min(pause, max(left / 2, _SHORTEST_EMPTY_PAUSE_SECONDS), left)

    def _finished(self, task: asyncio.Task[None]) -> None:
        del self._polls[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            # A defect of the transport or of the listener. Messages of other polls are still handed over.
            if self._fatal is None:
                self._fatal = error
            else:
                logger.error("Receiving from %s failed once more while it ended", self._queue_url, exc_info=error)
            self._closing = True
        self._wake.set()

    def _hand_over(self, poll: _Poll, messages: Sequence[Message]) -> None:
        new: dict[str, Message] = {}
        dropped: list[Message] = []
        for message in messages:
            known = new.get(message.message_id) or self._messages.get(message.message_id)
            if known is not None and message.receive_count < known.receive_count:
                dropped.append(message)
            else:
                new[message.message_id] = message
        if dropped:
            named = ", ".join(str(message.receipt) for message in dropped)
            logger.info("Dropped %s: they came after newer deliveries of the same messages", named)
        if not new:
            return
        self._note(new)
        received_at = poll.asked_at if poll.first_sent_at is None else poll.first_sent_at
        self._on_received(Reception(tuple(new.values()), received_at, poll.sent_at))

    def _note(self, new: Mapping[str, Message]) -> None:
        """Take in what was received, before it is handed over."""
        if not self._messages:
            self._ends_at = self._clock.now() + self._linger_seconds
        self._messages.update(new)

    def _is_fatal(self, error: SqsError) -> bool:
        """Whether an error ends the collection, and is raised."""
        return error.verdict is Verdict.REFUSED

    def _ends_with(self, error: SqsError) -> bool:
        """Whether an error that may pass ends the collection all the same."""
        return isinstance(error, OverLimitError)

    def _failed(self, poll: _Poll, error: SqsError) -> None:
        if self._is_fatal(error):
            self._fatal = self._fatal or error
            self._close()
            return
        self._passing = error
        if self._ends_with(error):
            self._close()
            return
        now = self._clock.now()
        self._concurrency = 1
        # Polls that were in flight together fail together: that is one failure.
        if poll.asked_at >= self._failed_at:
            self._failures += 1
            pause = min(_FIRST_PAUSE_SECONDS * 2.0 ** (self._failures - 1), _LONGEST_PAUSE_SECONDS)
            self._resume_at = now + pause * (1 + self._random.random()) / 2
            logger.warning("Receiving failed %d times in a row: %s", self._failures, error)
        self._failed_at = now
        if poll.attempt_id is None or poll.first_sent_at is None:
            return
        # A repetition that was not carried out does not find the lost answer, but leaves it where it is.
        if poll.error is not None or error.verdict is Verdict.TRANSIENT:
            poll.error = poll.error or error
            self._lost.append(poll)

    # Ending

    def _drop_unsent(self, now: float) -> None:
        """Cancel polls that wait for a connection when their time is over: the service has not seen them."""
        for task, poll in self._polls.items():
            if not poll.sent and (self._closing or now >= self._unsent_until(poll)):
                self._given_up = poll.error or self._given_up
                task.cancel()

    async def _drain(self) -> None:
        """Await the polls in flight; abandon them if cancelled while doing so."""
        self._closing = True
        self._drop_unsent(self._clock.now())
        try:
            while self._polls:
                await asyncio.wait(self._polls)
        except asyncio.CancelledError:
            logger.warning(
                "Receiving from %s was cancelled twice: %d polls are abandoned, and messages that they bring stay "
                "invisible for their visibility timeout of %d s",
                self._queue_url,
                len(self._polls),
                self._visibility_seconds,
            )
            for task in self._polls:
                task.cancel()
            raise


class Stream(_Collection):
    """A receive that goes on until it is stopped; made by :meth:`Receiver.stream`.

    It differs from a collection in this. How many messages are missing is asked before each poll. After an error it
    polls again, with the same pauses, as long as it was answered once: a policy may be corrected while a consumer
    lives, but a queue that cannot be used from the start is told at once. Of what was received it keeps nothing.
    """

    def __init__(
        self,
        transport: Transport,
        queue_url: str,
        *,
        visibility_seconds: int,
        longest_poll_seconds: int,
        clock: Clock,
        random: Random,
        room: Callable[[], int],
        on_received: ReceptionListener,
    ) -> None:
        super().__init__(
            transport,
            queue_url,
            visibility_seconds=visibility_seconds,
            longest_poll_seconds=longest_poll_seconds,
            clock=clock,
            random=random,
            max_messages=0,
            wait_seconds=math.inf,
            linger_seconds=0.0,
            on_received=on_received,
        )
        self._room = room

    def look(self) -> None:
        """Ask for the room again: there may be more of it."""
        self._wake.set()

    def _advance(self) -> bool:
        super()._advance()
        return bool(self._polls) or not self._closing

    def _missing(self) -> int:
        return self._room()

    def _note(self, new: Mapping[str, Message]) -> None:
        """Keep nothing."""

    def _is_fatal(self, error: SqsError) -> bool:
        return error.verdict is Verdict.REFUSED and not self._was_answered

    def _ends_with(self, error: SqsError) -> bool:
        return False
