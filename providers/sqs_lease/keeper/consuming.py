"""Consumption of a queue for as long as a program runs: the part that blocking and asyncio consumers share.

A :class:`Consuming` lives in an event loop. It receives as workers become free, holds the messages, and settles each
one by the end of its work. Workers are threads or tasks, which take the messages from :attr:`give`:

    receive -> waits (unclaimed) -> a worker claims it -> its work ends -> settled, with others by calls of ten

- **At most ``max_messages`` are in hand**, waiting or worked on. It receives again when there is room for ten, or when
  no more messages are offered than there are workers.
- **At most as many again (ten at least) are being settled.** Messages whose work has ended are in flight until the
  service has deleted them, and come again if the program dies. A message that the service refuses to delete stays in
  flight until its lease ends. While deletes fail or are refused, a consumer would otherwise work through the
  whole queue, and then repeat all of it, until every message is in the dead-letter queue.
- **A message that waits and lapses, or is lost, is not worked on**: another consumer may have it.
- **The order of message groups (FIFO queues)**: a message waits until the work on the earlier ones of its group has
  ended. When one of them goes back to the queue, those behind it go back, too, and are not worked on.
- **Stopping**: no more work begins. Waiting messages are visible again as soon as the polls in flight have ended: an
  open poll of this consumer would receive them at once. Work that has begun may end, for a bounded time; after that its
  messages are given back as well.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from heapq import heappop, heappush
from typing import Final

from sqs_lease.core.events import Lapsed, LeaseEvent, Lost, Outcome, Settled
from sqs_lease.core.failure_rules import DeadLetter, Delete, Expire, Release, Settlement, exception_names
from sqs_lease.core.limits import MAX_BATCH_ENTRIES
from sqs_lease.core.messages import Message, Receipt, count_of
from sqs_lease.keeper.batch import Batch, LeaseReport
from sqs_lease.keeper.lease_log import LeaseLog
from sqs_lease.keeper.listening import ListenerThread
from sqs_lease.keeper.open_queue import OpenQueue
from sqs_lease.keeper.receiver import Reception, Stream
from sqs_lease.keeper.session import GATHERED_SECONDS, GIVE_BACK_SECONDS, LeaseSettings, LeasesLostError
from sqs_lease.sqs.validation import FIFO_SUFFIX

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 10.0
"""The first and the longest pause after a receive that failed: each is twice as long as the one before."""

LONGEST_POLL_SECONDS: Final = 5
"""The longest poll of a consumer. Stopping may take this long, because a poll that was sent is never cancelled."""

MOST_BATCHES: Final = 32
"""Most batches that are worked on at once: each receives by long polls, which have half of a client's connections."""

STOP_SECONDS: Final = 20.0
"""How long work that has begun may go on when a consumer stops. Containers are killed 30 s after SIGTERM, mostly."""

_COUNTED_BY_BATCH: Final = ("extensions", "extension_calls", "late")

_TROUBLE: Final = (Outcome.LOST, Outcome.UNCERTAIN)


@dataclass(slots=True, eq=False)
class Work:
    """One message, from its receive to the end of its work."""

    message: Message
    batch: Batch


@dataclass(slots=True)
class _Trouble:
    """Leases that other consumers may have had as well."""

    lost: dict[str, str] = field(default_factory=dict)
    uncertain: list[str] = field(default_factory=list)
    lapsed: int = 0


class Consuming:
    """A consumer: it receives, holds and settles messages until it is stopped.

    Args:
        queue: The queue.
        settings: The user's settings; ``max_messages`` is the most messages in hand at once.
        listening: Tells the user's listener; None without one.
        give: Called in the loop with each message that a worker may claim now.
        concurrency: The number of workers.
    """

    def __init__(
        self,
        queue: OpenQueue,
        settings: LeaseSettings,
        listening: ListenerThread | None,
        give: Callable[[Work], object],
        *,
        concurrency: int,
    ) -> None:
        self._queue = queue
        self._settings = settings
        self._listening = listening
        self._give = give
        self._concurrency = concurrency
        self._lease_log = LeaseLog(settings.queue)
        self._is_fifo = False
        self._stream: Stream | None = None
        self._works: dict[Receipt, Work] = {}  # in hand
        self._unclaimed: dict[Receipt, Work] = {}  # of those, the ones that workers may claim
        # By message group: the message that a worker may claim, or works on, and those that wait behind it.
        self._lines: dict[str, deque[Work]] = {}
        self._left: dict[Batch, int] = {}  # the number of messages of a receive that have not ended
        self._held = 0  # the sum of those: in hand, and being settled
        # The times when messages are visible again that the service refused to settle: a heap.
        self._in_flight: list[float] = []
        self._in_flight_timer: asyncio.TimerHandle | None = None
        self._received_messages = 0
        self._ended: Counter[Outcome] = Counter()
        self._counts: Counter[str] = Counter()
        self._trouble = _Trouble()
        self._stopping = False
        self._stopped_at = 0.0
        self._gives_up = False
        self._changed = asyncio.Event()

    # From any thread

    def claim(self, work: Work) -> bool:
        """Take a message to work on it; False if it goes back, or went."""
        # One step of the interpreter, so that only one of a worker and the loop gets it.
        return not self._stopping and self._unclaimed.pop(work.message.receipt, None) is work

    def failed(self, work: Work, error: BaseException) -> Settlement:
        """Log an error that ended the work on a message, and ask the failure rule, in the worker's thread."""
        receipt = work.message.receipt
        logger.error("The work on %s of %s failed: %s", receipt, self._settings.queue, class_and_place(error))
        return work.batch.failing(type(error).__name__, [receipt], errors=exception_names(error))[receipt]

    # In the loop

    async def run(self, *, stop_within_seconds: float) -> LeaseReport:
        """Consume until :meth:`stop`, or until the queue cannot be used.

        Args:
            stop_within_seconds: How long work may go on after :meth:`stop`.

        Returns:
            Counts of all messages.

        Raises:
            SqsError: The queue could not be used from the start.
            LeasesLostError: Leases were lost or lapsed, and the user asked for this error.
        """
        await self._queue.open()
        self._is_fifo = self._queue.queue_url.endswith(FIFO_SUFFIX)
        self._stream = self._queue.receiver.stream(self._room, self._received)
        if self._stopping:
            self._stream.stop()
        try:
            await self._stream.run()
            self._give_back_waiting()
            left = stop_within_seconds - (asyncio.get_running_loop().time() - self._stopped_at)
            await self._wait(lambda: self._gives_up or not self._works, max(left, 0.0))
        finally:
            await self._end()
        if self._settings.on_lost == "raise" and (lost := self._losses()) is not None:
            raise lost
        return self.report()

    def stop(self) -> None:
        """Stop receiving and beginning work, and give back the messages that wait."""
        if not self._stopping:
            self._stopping, self._stopped_at = True, asyncio.get_running_loop().time()
        if self._stream is not None:
            self._stream.stop()

    def give_up(self) -> None:
        """Stop, and also give back the messages that are worked on, without waiting."""
        self._gives_up = True
        self.stop()
        self._changed.set()

    def ended(self, ends: Iterable[tuple[Work, Settlement]]) -> None:
        """Settle messages whose work has ended."""
        begun: dict[Batch, dict[Receipt, Settlement]] = {}
        for work, settlement in ends:
            receipt = work.message.receipt
            if self._works.pop(receipt, None) is not work:
                continue  # it was given back, or lost, meanwhile
            begun.setdefault(work.batch, {})[receipt] = settlement
            if self._lines and work.message.message_group_id is not None:
                self._go_on(work, begun, goes_back=not isinstance(settlement, Delete | DeadLetter))
        for batch, settlements in begun.items():
            batch.begin(settlements, within_seconds=GATHERED_SECONDS)
        self._changed.set()
        if self._stream is not None:
            self._stream.look()

    def report(self) -> LeaseReport:
        """Return the counts of all messages so far."""
        ended = {outcome.name.lower(): count for outcome, count in self._ended.items()}
        counts = Counter(ended)
        counts["received"] = self._received_messages
        counts["held"] = self._held
        for name in _COUNTED_BY_BATCH:
            counts[name] = self._counts[name] + sum(getattr(batch, name) for batch in self._left)
        return LeaseReport(**{each.name: counts[each.name] for each in fields(LeaseReport)})

    def _room(self) -> int:
        most = self._settings.options.max_messages
        in_flight = self._held + len(self._in_flight)
        room = min(most - len(self._works), most + max(most, MAX_BATCH_ENTRIES) - in_flight)
        if room >= min(MAX_BATCH_ENTRIES, most):
            return room
        # It does not ask whether any is unclaimed: a free worker may claim one late, and without notice.
        offered = len(self._works) - sum(len(line) - 1 for line in self._lines.values())
        return room if offered <= self._concurrency else 0

    def _received(self, reception: Reception) -> None:
        settings = self._settings
        batch: Batch = self._queue.keeper.open_batch(
            self._queue.queue_url,
            policy=self._queue.policy,
            on_failure=settings.options.on_failure,
            on_event=lambda event: self._happened(batch, event),
        )
        self._left[batch] = len(reception.messages)
        self._held += len(reception.messages)
        self._received_messages += len(reception.messages)
        batch.add(reception.messages, received_at=reception.received_at, sent_at=reception.sent_at)
        for message in reception.messages:
            work = self._works[message.receipt] = Work(message, batch)
            group = message.message_group_id if self._is_fifo else None
            if group is None:
                self._offer(work)
            elif (line := self._lines.get(group)) is None:
                self._lines[group] = deque([work])
                self._offer(work)
            else:
                line.append(work)

    def _give_back_waiting(self) -> None:
        waiting = [self._unclaimed.pop(receipt, None) for receipt in tuple(self._unclaimed)]
        self.ended((work, Release()) for work in waiting if work is not None)

    def _offer(self, work: Work) -> None:
        self._unclaimed[work.message.receipt] = work
        self._give(work)

    def _go_on(self, work: Work, begun: dict[Batch, dict[Receipt, Settlement]], *, goes_back: bool) -> None:
        """Let the next message of a group have its turn, or give back all that wait in its line."""
        group = work.message.message_group_id or ""
        line = self._lines.get(group)
        if line is None or line[0] is not work:
            return  # it waited in line itself
        line.popleft()
        while line:
            following = line[0]
            if not goes_back:
                self._offer(following)
                return
            line.popleft()
            self._works.pop(following.message.receipt, None)
            begun.setdefault(following.batch, {})[following.message.receipt] = Release()
        del self._lines[group]

    def _happened(self, batch: Batch, event: LeaseEvent) -> None:
        outcome = event.outcome if isinstance(event, Settled) else None
        if self._listening is not None:
            self._listening.tell(event)
        elif outcome is not Outcome.DELETED:
            self._lease_log.happened(event)
        if outcome is None or outcome in _TROUBLE:
            self._note_trouble(event)
        if outcome is None:
            if isinstance(event, Lapsed | Lost):
                # Later: the ledger is in the middle of its answer.
                asyncio.get_running_loop().call_soon(self._do_not_begin, event.receipt)
            if not isinstance(event, Lost):
                return
            outcome = Outcome.LOST
        self._ended[outcome] += 1
        self._held -= 1
        if isinstance(event, Settled) and event.hidden_seconds:
            self._stays_in_flight(event.hidden_seconds)
        if self._stream is not None:
            self._stream.look()
        left = self._left[batch] = self._left[batch] - 1
        if not left:
            del self._left[batch]
            for name in _COUNTED_BY_BATCH:
                self._counts[name] += getattr(batch, name)
            self._queue.keeper.drop(batch)
            self._changed.set()

    def _stays_in_flight(self, seconds: float) -> None:
        """Count a message that was not settled until it is visible again."""
        heappush(self._in_flight, asyncio.get_running_loop().time() + seconds)
        if not self._stopping:
            self._await_visible()

    def _are_visible_again(self) -> None:
        loop = asyncio.get_running_loop()
        while self._in_flight and self._in_flight[0] <= loop.time():
            heappop(self._in_flight)
        self._await_visible()
        if self._stream is not None:
            self._stream.look()

    def _await_visible(self) -> None:
        if self._in_flight_timer is not None:
            self._in_flight_timer.cancel()
            self._in_flight_timer = None
        if self._in_flight:
            loop = asyncio.get_running_loop()
            self._in_flight_timer = loop.call_at(self._in_flight[0], self._are_visible_again)

    def _do_not_begin(self, receipt: Receipt) -> None:
        """Take in that another consumer may have a message: if its work has not begun, it never begins."""
        work = self._works.get(receipt)
        if work is None:
            return
        if self._unclaimed.pop(receipt, None) is work:
            self.ended([(work, Expire())])
            return
        line = self._lines.get(work.message.message_group_id or "") if self._is_fifo else None
        if line is not None and work in line and work is not line[0]:
            # With those behind it. The line stays, for the work at its head goes on.
            back = [line.pop() for _ in range(len(line) - line.index(work))]
            self.ended((each, Expire() if each is work else Release()) for each in reversed(back))

    def _note_trouble(self, event: LeaseEvent) -> None:
        trouble, message_id = self._trouble, event.receipt.message_id
        match event:
            case Lapsed():
                trouble.lapsed += 1
            case Lost(detail=detail) | Settled(outcome=Outcome.LOST, detail=detail):
                trouble.lost[message_id] = detail
            case Settled(outcome=Outcome.UNCERTAIN):
                trouble.uncertain.append(message_id)
            case _:
                return
        if self._settings.on_lost == "raise":
            self.stop()
        else:
            trouble.lost.clear()
            trouble.uncertain.clear()

    def _losses(self) -> LeasesLostError | None:
        trouble = self._trouble
        if not (trouble.lost or trouble.uncertain or trouble.lapsed):
            return None
        return LeasesLostError(self._queue.queue_url, trouble.lost, trouble.uncertain, trouble.lapsed)

    async def _end(self) -> None:
        """Give back the messages still in hand, and wait until all are settled, for a bounded time."""
        self.stop()
        if self._in_flight_timer is not None:
            self._in_flight_timer.cancel()
        self._give_back_waiting()
        if self._works:
            logger.warning(
                "The work on %s of %s did not end in time: visible again now, although the work may go on",
                count_of(len(self._works)),
                self._settings.queue,
            )
            self.ended([(work, Release()) for work in self._works.values()])
        await self._wait(lambda: not self._left, GIVE_BACK_SECONDS)
        if self._left:
            logger.warning(
                "Not all messages of %s could be settled in time: the others are visible again when their visibility "
                "timeout ends",
                self._settings.queue,
            )
        self._lease_log.flush()

    async def _wait(self, is_so: Callable[[], bool], seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not is_so():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return


_UNDONE: Final = (Future, map, filter)


class UndoneWorkError(TypeError):
    """An error: a function returned its work undone, so its messages are failed and not deleted."""


def check_done(returned: object) -> None:
    """Fail work that is not done when its function returns, such as the coroutine that a lambda returned.

    Raises:
        UndoneWorkError: It is not done.
    """
    is_undone = inspect.isawaitable(returned) or inspect.isasyncgen(returned) or inspect.isgenerator(returned)
    if is_undone or isinstance(returned, _UNDONE):
        kind = type(returned).__name__
        raise UndoneWorkError(f"handle returned its work undone, as a {kind}: it must return when the work is done")


def class_and_place(error: BaseException) -> str:
    """Describe an exception by its class and where it was raised. Its text is left out: it may quote a message."""
    if isinstance(error, UndoneWorkError):
        return str(error)
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    frames = traceback.extract_tb(error.__traceback__)
    return f"{name} ({frames[-1].filename}:{frames[-1].lineno})" if frames else name
