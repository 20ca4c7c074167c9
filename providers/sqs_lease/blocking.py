"""Leases for synchronous code: ``with lease(...) as batch``, kept by a background thread while the block runs.

For asyncio programs there is :mod:`sqs_lease.asynchronous`. Their common part is :mod:`sqs_lease.keeper.session`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait as wait_for
from contextlib import AbstractContextManager, contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.core.failure_rules import Delete, FailureRule, Release, Settlement
from sqs_lease.core.functions import require_function
from sqs_lease.core.limits import MAX_WAIT_SECONDS
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.inbox import Inbox
from sqs_lease.keeper import consuming
from sqs_lease.keeper.batch import EventListener, LeaseReport
from sqs_lease.keeper.consuming import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    MOST_BATCHES,
    STOP_SECONDS,
    Consuming,
    Work,
    check_done,
    class_and_place,
)
from sqs_lease.keeper.listening import Listener, ListenerThread, check_listener
from sqs_lease.keeper.loop_thread import LoopThread, LoopThreadError
from sqs_lease.keeper.open_queue import OpenQueue
from sqs_lease.keeper.options import DEFAULT_LINGER_SECONDS, DEFAULT_MAX_MESSAGES, DEFAULT_WAIT_SECONDS, LeaseOptions
from sqs_lease.keeper.plain_leases import WrittenBatch
from sqs_lease.keeper.session import (
    GIVE_BACK_SECONDS,
    LISTENER_SECONDS,
    LeaseSession,
    LeaseSettings,
    Messages,
    OnLost,
    ReceivedMessages,
    SessionMessages,
    SettlementError,
    ended,
)
from sqs_lease.sqs import client as boto3_client
from sqs_lease.sqs.boto3 import Boto3Transport
from sqs_lease.sqs.errors import SqsError, TransientError
from sqs_lease.sqs.move_tasks import RedriveTransport
from sqs_lease.sqs.transport import QueueAttributes
from sqs_lease.sqs.validation import check_whole_number, queue_reference

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


def lease(
    queue: str,
    *,
    max_messages: int = DEFAULT_MAX_MESSAGES,
    wait: Duration = DEFAULT_WAIT_SECONDS,
    linger: Duration = DEFAULT_LINGER_SECONDS,
    policy: RenewalPolicy | str | None = None,
    visibility: Duration | None = None,
    on_failure: FailureRule | None = None,
    on_event: EventListener | None = None,
    on_lost: OnLost = "warn",
    client: SQSClient | None = None,
) -> LeaseBlock:
    """Receive a batch of messages and keep it invisible to others until the block ends.

    ::

        with lease("orders", max_messages=100) as batch:
            for message in batch:
                load(message.body)

    At the end of the block the messages are deleted. If the block raises, they are given back by ``on_failure``
    instead, and the exception is raised again; with
    :class:`MessageFailed <sqs_lease.core.failure_rules.MessageFailed>` only the messages that it names. Single messages
    can be settled earlier with :meth:`LeasedBatch.succeed` and :meth:`LeasedBatch.fail`.

    A block that is interrupted (``KeyboardInterrupt`` and others that are not an ``Exception``) gives all back at once,
    without ``on_failure``. So does a generator that is dropped while it is suspended in the block, and a receive that
    fails or is interrupted before the block is entered. If the process dies, so does the thread: messages are visible
    again when their last extension ends. SIGTERM is such a death, unless the program turns it into an exception; a
    :class:`Consumer` handles it.

    Args:
        queue: The queue's name, ARN or URL.
        max_messages: Most messages to receive; 10 by default.
        wait: How long to wait for a first message; 20 s by default. With none, the batch is empty.
        linger: How long to wait for more after the first; 1 s by default. 0 takes only the messages of the first
            answer, up to 10.
        policy: When to extend: a renewal policy or its name; ``Growing`` by default.
        visibility: The visibility timeout to receive with, 1 s to 12 hours, rounded up to whole seconds; the queue's
            own by default.
        on_failure: The rule for failed messages; visible again at once by default, and also if the rule raises.
        on_event: Called in a separate thread when a lease ends, is lost, lapses or nears its end; without it, the
            important events are logged. It may block, raise, or call methods of the batch: leases go on meanwhile. Its
            first error is logged.
        on_lost: The action at the end of a block that succeeded, if leases were lost or lapsed: ``"warn"``, the
            default, logs one warning with the counts; ``"raise"`` raises ``LeasesLostError``. If the block raises,
            ``"raise"`` adds a note to its exception.
        client: An SQS client of boto3, which the lease closes; by default one with boto3's usual credentials, the
            region of the queue's URL or ARN, or else boto3's usual one, and the timeouts of
            :func:`sqs_lease.sqs.client.client_config`.

    Returns:
        A context manager for one ``with`` statement. It gives a :class:`LeasedBatch`, empty if no message came.

    Raises:
        ValueError: An argument is out of range.
        TypeError: An argument is of another type.

    The ``with`` statement raises ``sqs_lease.sqs.errors.SqsError`` if the queue cannot be used, and ``ValueError`` if
    its settings do not fit: ``on_failure`` may dead-letter, and it has no dead-letter queue; or its visibility timeout
    is 0, and ``visibility`` is not set. At the end of a block that succeeded it raises ``SettlementError`` if SQS
    refused to delete messages. The texts name the queue and the remedy.
    """
    options = LeaseOptions.of(
        max_messages=max_messages,
        wait=wait,
        linger=linger,
        policy=policy,
        visibility=visibility,
        on_failure=on_failure,
    )
    settings = LeaseSettings(queue=queue, options=options, on_lost=on_lost)
    return lease_block(settings, on_event=on_event, client=client)


def lease_block(
    settings: LeaseSettings,
    *,
    on_event: EventListener | None = None,
    client: SQSClient | None = None,
    batch: type[OwnLeasedBatch] | None = None,
) -> LeaseBlock:
    """Return one lease, as :func:`lease` does, for settings that were checked before.

    Args:
        settings: The settings.
        on_event: See :func:`lease`.
        client: See :func:`lease`.
        batch: The class of the batch, for hosts that settle in their own way.
    """
    return LeaseBlock(
        settings, on_event, lambda: _Connection(settings, client), closes_queue=True, batch=batch or OwnLeasedBatch
    )


def queue_attributes(queue: str, *, timeout: Duration = 30.0, client: SQSClient | None = None) -> QueueAttributes:
    """Read a queue's attributes, such as its number of messages.

    Args:
        queue: The queue's name, ARN or URL.
        timeout: How long that may take in all, repeated calls included; 30 s by default.
        client: As for :func:`lease`; it is closed.

    Raises:
        ValueError: ``queue`` is not a queue name, URL or ARN.
        sqs_lease.sqs.errors.SqsError: The queue cannot be read; the text names it and says what to do.
    """
    queue_reference(queue)
    seconds = seconds_of(timeout, name="timeout")
    transport = open_transport(client, queue)

    async def read() -> QueueAttributes:
        try:
            async with asyncio.timeout(seconds):
                return await transport.queue_attributes(await transport.queue_url(queue))
        except TimeoutError as error:
            raise TransientError(
                f"Reading the attributes of queue {queue} took longer than {seconds:g} s. "
                "Try again; if it persists, check the network, the client's endpoint and its credentials.",
                queue=queue,
                code="Timeout",
                text=f"no answer within {seconds:g} s",
            ) from error
        finally:
            await transport.aclose()

    host = LoopThread(f"sqs-lease {queue}")
    try:
        return host.run(read())
    finally:
        host.stop()


def open_transport(client: SQSClient | None, queue: str) -> RedriveTransport:
    """Reach SQS over a client, which the transport closes.

    Args:
        client: The client; None makes one as :func:`lease` says.
        queue: The queue's name, ARN or URL.

    Raises:
        sqs_lease.sqs.errors.SqsError: No client can be made; the text names the queue and says what to do.
    """
    return Boto3Transport(boto3_client.make_client(queue=queue) if client is None else client)


class _Connection:
    """Client, keeper and their thread; the leases of one block, or of one consumer, share them."""

    def __init__(
        self, settings: LeaseSettings, client: SQSClient | None, *, longest_poll_seconds: int = MAX_WAIT_SECONDS
    ) -> None:
        transport = open_transport(client, settings.queue)
        self.host = LoopThread(f"sqs-lease {settings.queue}")
        self.queue = OpenQueue(transport, settings.queue, settings.options, longest_poll_seconds=longest_poll_seconds)


class LeaseBlock(AbstractContextManager["OwnLeasedBatch"]):
    """One lease, for one ``with`` statement. Made by :func:`lease` and :meth:`Consumer.lease`."""

    def __init__(
        self,
        settings: LeaseSettings,
        on_event: EventListener | None,
        opened: Callable[[], _Connection],
        *,
        closes_queue: bool,
        batch: type[OwnLeasedBatch],
    ) -> None:
        self._settings = settings
        check_listener(on_event)
        self._on_event = on_event
        self._opened = opened
        self._closes_queue = closes_queue
        self._batch = batch
        self._open: _OpenLease | None = None
        self._entered: object = None  # the span that is current within the block
        self._is_passed_on = False

    if not TYPE_CHECKING:  # type checkers refuse it by themselves

        def __iter__(self) -> NoReturn:
            raise TypeError(
                f"This lease of {self._settings.queue} has received nothing yet: write `with lease(...) as batch:`, "
                "and loop over the batch"
            )

    def __enter__(self) -> OwnLeasedBatch:
        if self._open is not None:
            raise RuntimeError(f"This lease of {self._settings.queue} was used already: call lease() for each block")
        self._open = _OpenLease(self._opened(), self._settings, self._on_event, closes_queue=self._closes_queue)
        self._open.receive()
        self._entered = self._open.session.span.enter()
        return self._batch(self._open)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()
        if self._open is None:
            return
        if self._is_passed_on:
            self._open.session.conclude(error)
        else:
            self._open.leave(error)

    def leave(self) -> None:
        """Leave the block, and hold its messages until :meth:`settle`: for hosts that know when the work is done."""
        if self._open is not None:
            entered, self._entered = self._entered, None
            self._open.session.span.leave(entered)

    def settle(self, error: BaseException | None) -> list[Exception]:
        """Settle as the end of the block would, and end the lease; do nothing if it has ended before.

        Args:
            error: The exception that ended the work; None if it succeeded.

        Returns:
            The problems, as the errors that the end of a block raises; also those of :meth:`pass_on` before.
        """
        if self._open is None:
            return []
        return self._open.session.problems() if self._is_passed_on else self._open.end_by(error)

    def pass_on(self, error: BaseException, seconds: float) -> WrittenBatch | None:
        """Pass messages of failed work on to the next attempt, and end the lease.

        Messages that were settled within the block, and those that ``MessageFailed`` does not name, are settled.

        Args:
            error: The exception that ended the work.
            seconds: How long each lease is to last for the next holder.

        Returns:
            The leases for the next holder; None if the lease has ended before. Refusals of settlements are told by the
            end of the block, or by :meth:`settle`.
        """
        written = None if self._open is None else self._open.pass_on(error, seconds)
        self._is_passed_on = written is not None
        return written

    def give_back(self) -> bool:
        """End the lease now: unsettled messages are visible again at once, without the failure rule.

        It is for hosts that know that the block will not end in time. A block that ends by an exception afterwards does
        nothing more; one that ends well raises an error.

        Returns:
            Whether the lease was open until now.
        """
        return self._open is not None and self._open.give_back()


class _OpenLease:
    """A session in a separate thread, which lives as long as a block or its batch refers to it.

    Neither the thread nor the session refers to it: if it is garbage collected before its end, they give back and end.
    """

    def __init__(
        self, opened: _Connection, settings: LeaseSettings, on_event: EventListener | None, *, closes_queue: bool
    ) -> None:
        # Only this refers to the listener: it may refer to this very lease, which could then not be collected.
        self._listener = None if on_event is None else Listener(on_event)
        listening = None if self._listener is None else ListenerThread(self._listener, settings.queue)
        self.session = LeaseSession(opened.queue, settings, listening, closes_queue=closes_queue)
        self._opened = opened  # a consumer that is dropped lives as long as its leases
        self._host = opened.host
        self._closes_queue = closes_queue
        self._settling = Inbox(self._host.post, self.session.begin_all)
        self._process = os.getpid()
        self._thread = threading.get_ident()
        self._has_ended = False
        self._is_given_back = False
        self._dropped = weakref.finalize(self, _give_back_dropped, self._host, self.session, ends_thread=closes_queue)
        # The end of the interpreter must not wait for it.
        self._dropped.atexit = False

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or is ending because it was dropped.

        The garbage collector first calls the finalizer. Then it closes a suspended generator, which leaves its block.
        """
        return self._has_ended or not self._dropped.alive

    def receive(self) -> None:
        try:
            self._host.run(self.session.receive())
        except BaseException:
            # Also if it was interrupted just after it had received.
            self.give_back()
            raise

    def settle(self, settlements: Mapping[Receipt, Settlement]) -> None:
        """Settle messages within the block, without waiting; raise refusals since the last call."""
        if self.is_over:
            raise ended(self.session.queue)
        self.session.decide(settlements)
        self._settling.put(settlements)
        self.session.raise_refused()

    def flush(self) -> None:
        """Wait until all settlements are confirmed; raise refusals."""
        if self.is_over:
            raise ended(self.session.queue)
        self._host.run(self.session.flush())
        self.session.raise_refused()

    def ask(self, question: Callable[[], _T]) -> _T:
        """Ask the session something, within the block or after it."""

        async def answer() -> _T:
            return question()

        try:
            return self._host.run(answer())
        except LoopThreadError:
            if not self._host.is_stopped:
                raise
            # The loop has ended, so other threads no longer use the session.
            return question()

    def leave(self, error: BaseException | None) -> None:
        """Settle the rest of the block, and end."""
        if self._process != os.getpid() or sys.is_finalizing():
            # The leases belong to another process, or the interpreter ends, so that calls are impossible: they lapse.
            return
        if self.is_over:
            if error is None and self._is_given_back:
                raise RuntimeError(f"The lease of {self.session.queue} was given back before its block ended")
            return
        if isinstance(error, GeneratorExit) and threading.get_ident() != self._thread:
            # The garbage collector may close a generator in any thread, also in this lease's own, so do not wait here.
            self._dropped()
            return
        try:
            self._finish(error)
        except BaseException as failure:
            self.session.end_failed(failure)
            if error is None or not isinstance(failure, Exception):
                # The outcomes of the messages are known only when all has ended.
                self._end()
                self.session.conclude(failure)
                raise
            error.add_note(f"The messages of {self.session.queue} were not settled: {failure}")
            logger.exception("The messages of %s were not settled", self.session.queue)
        finally:
            self._end()
        self.session.conclude(error)

    def _finish(self, error: BaseException | None) -> None:
        interrupted = error is not None and not isinstance(error, Exception)
        settlements = self.session.last_settlements(error)
        self._host.run(self.session.finish(settlements, within=GIVE_BACK_SECONDS if interrupted else None))

    def end_by(self, error: BaseException | None) -> list[Exception]:
        """Settle the rest by the end of the work, and end; return the problems."""
        if self._process != os.getpid() or sys.is_finalizing() or self.is_over:
            return []
        try:
            self._finish(error)
        except Exception as failure:
            logger.exception("The messages of %s were not settled", self.session.queue)
            self.session.end_failed(failure)
            return [failure]
        finally:
            self._end()
        return self.session.problems()

    def pass_on(self, error: BaseException, seconds: float) -> WrittenBatch | None:
        """Settle messages that are done, pass the rest on, and end."""
        if self._process != os.getpid() or sys.is_finalizing() or self.is_over:
            return None
        try:
            left = self.session.last_settlements(error)
            done = {receipt: settlement for receipt, settlement in left.items() if isinstance(settlement, Delete)}
            return self._host.run(self.session.pass_on(done, seconds))
        finally:
            self._end()

    def give_back(self) -> bool:
        """Give back unsettled messages and end, unless the lease has ended before; return whether it was open."""
        if self.is_over:
            return False
        self._is_given_back = True
        self._end()
        return True

    def _end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._dropped.detach()
        try:
            # An interruption may have left the session unfinished.
            with suppress(LoopThreadError):
                self._host.run(self.session.give_back())
        finally:
            if self._closes_queue:
                self._host.stop()
            self.session.end_span()
            self.session.end_listening()


def _give_back_dropped(host: LoopThread, session: LeaseSession, *, ends_thread: bool) -> None:
    """Give back a lease without references, without waiting for the end."""
    session.end_listening(waits=False)
    if ends_thread:
        host.end_after(session.give_back_dropped())
    else:
        # If the consumer of the lease was closed before, its leases lapse.
        with suppress(LoopThreadError):
            host.start(session.give_back_dropped())


class LeasedBatch(ReceivedMessages, ABC):
    """The messages of one :func:`lease`, in the order they were received.

    They can be settled within its block only; the messages themselves and :meth:`report` stay. Any thread of the
    process may call these methods.

    Settling does not wait. SQS settles ten messages by one call, so messages that are settled one by one are gathered
    for a tenth of a second at most. :meth:`flush` waits until all are confirmed, and so does the end of the block. A
    refusal of SQS raises ``SettlementError``, once for each message, at the next call or at the end of the block. If
    that error leaves the block, unsettled messages are visible again at once: their work is not at fault.
    """

    @abstractmethod
    def still_held(self, message: Message | str) -> bool:
        """Whether this process certainly holds a message: it is not settled, and its lease did not lapse or get lost.

        Call it before work that must not be done twice. False says that another consumer *may* have the message.

        Raises:
            KeyError: It is not of this batch.
        """

    @abstractmethod
    def succeed(self, messages: Messages) -> None:
        """Delete messages now, because their work is done.

        On a FIFO queue a message is deleted when those before it in its group are settled, and given back if one of
        them is given back. This does not wait for that.

        Args:
            messages: Messages of this batch, or their ids.

        Raises:
            KeyError: One is not of this batch.
            SettlementError: The service refused to settle some messages before.
            RuntimeError: The block has ended.
        """

    @abstractmethod
    def fail(self, messages: Messages, reason: str, *, errors: Sequence[str] = ()) -> None:
        """Settle messages that failed for good by the failure rule now.

        Args:
            messages: Messages of this batch, or their ids.
            reason: The reason, for people; it becomes a message attribute of dead-lettered messages.
            errors: The classes of the exception that failed them, if the work was done elsewhere: see
                :meth:`FailureRule.matching <sqs_lease.core.failure_rules.FailureRule.matching>`.

        Raises:
            TypeError: A reason is not a text, or another argument is of another type.
            KeyError: One is not of this batch.
            SettlementError: The service refused to settle some messages before.
            RuntimeError: The block has ended.
        """

    @abstractmethod
    def release(self, messages: Messages) -> None:
        """Make messages visible again now, without the failure rule, because they were not processed.

        Messages that are settled already stay so.

        Args:
            messages: Messages of this batch, or their ids.

        Raises:
            KeyError: One is not of this batch.
            SettlementError: The service refused to settle some messages before.
            RuntimeError: The block has ended.
        """

    @abstractmethod
    def fail_each(self, reasons: Mapping[str, str]) -> None:
        """Settle messages that failed for good by the failure rule now, each with its own reason.

        Args:
            reasons: By message id; see :meth:`fail`.

        Raises:
            TypeError: A reason is not a text, or another argument is of another type.
            KeyError: One is not of this batch.
            SettlementError: The service refused to settle some messages before.
            RuntimeError: The block has ended.
        """

    @abstractmethod
    def flush(self) -> None:
        """Wait until SQS has confirmed all settlements so far.

        It does not wait for a message of a FIFO queue that is behind another one that is still worked on.

        Raises:
            SettlementError: The service refused to settle some messages.
            RuntimeError: The block has ended.
        """

    @abstractmethod
    def report(self) -> LeaseReport:
        """Return the counts that SQS has confirmed so far, and after the block all; :meth:`flush` waits for them."""


class OwnLeasedBatch(SessionMessages, LeasedBatch):
    """The messages of a lease that this process holds, as :func:`lease` gives them."""

    def __init__(self, lease: _OpenLease) -> None:
        super().__init__(lease.session)
        self._lease = lease

    @property
    def is_open(self) -> bool:
        """Whether the block goes on, so that held messages may still be settled in any way."""
        return not self._lease.is_over

    def still_held(self, message: Message | str) -> bool:
        """See :meth:`LeasedBatch.still_held`."""
        return self._lease.ask(self._holds_for_certain(message))

    def succeed(self, messages: Messages) -> None:
        """See :meth:`LeasedBatch.succeed`."""
        self._lease.settle(self._settlements(messages, Delete()))

    def fail(self, messages: Messages, reason: str, *, errors: Sequence[str] = ()) -> None:
        """See :meth:`LeasedBatch.fail`."""
        self._lease.settle(self._failing(messages, reason, errors))

    def release(self, messages: Messages) -> None:
        """See :meth:`LeasedBatch.release`."""
        self._lease.settle(self._settlements(messages, Release()))

    def fail_each(self, reasons: Mapping[str, str]) -> None:
        """See :meth:`LeasedBatch.fail_each`."""
        self._lease.settle(self._failing_each(reasons))

    def flush(self) -> None:
        """See :meth:`LeasedBatch.flush`."""
        self._lease.flush()

    def report(self) -> LeaseReport:
        """See :meth:`LeasedBatch.report`."""
        return self._lease.ask(self._count)


class Consumer(AbstractContextManager["Consumer"]):
    """A consumer of a queue, for as long as a program runs, with one client, one keeper and one thread.

    ::

        with Consumer("orders", max_messages=100) as consumer:
            consumer.run(load, concurrency=10)

    It gives single messages (:meth:`run`), batches (:meth:`run_batches`), or one lease after the other (:meth:`lease`).
    Leases are extended while the work goes on, and settled at its end, as by :func:`lease`: failure rules, FIFO order
    and interruptions are the same. The client is opened at the first use, so a process may fork before that.

    Args:
        queue: The queue's name, ARN or URL.
        max_messages: Most messages that are held at once, waiting for a worker or worked on; 10 by default. Messages
            that wait are invisible to other consumers: for long work, choose the number that is worked on at once.
            As many again, ten at least, may be in flight until the service has deleted them.
        wait: How long a lease waits for a first message; 20 s by default. :meth:`run` waits until it is stopped.
        linger: How long a lease waits for more after the first; 1 s by default.
        policy: See :func:`lease`.
        visibility: See :func:`lease`. The queue's own is read once.
        on_failure: See :func:`lease`.
        on_event: See :func:`lease`.
        on_lost: See :func:`lease`. With ``"raise"``, :meth:`run` stops at the first lease that is lost or lapses, and
            raises ``LeasesLostError``.
        client: An SQS client of boto3, which the consumer closes; by default the one that :func:`lease` makes.

    Raises:
        ValueError: An argument is out of range.
        TypeError: An argument is of another type.
    """

    def __init__(
        self,
        queue: str,
        *,
        max_messages: int = DEFAULT_MAX_MESSAGES,
        wait: Duration = DEFAULT_WAIT_SECONDS,
        linger: Duration = DEFAULT_LINGER_SECONDS,
        policy: RenewalPolicy | str | None = None,
        visibility: Duration | None = None,
        on_failure: FailureRule | None = None,
        on_event: EventListener | None = None,
        on_lost: OnLost = "warn",
        client: SQSClient | None = None,
    ) -> None:
        options = LeaseOptions.of(
            max_messages=max_messages,
            wait=wait,
            linger=linger,
            policy=policy,
            visibility=visibility,
            on_failure=on_failure,
        )
        self._settings = LeaseSettings(queue=queue, options=options, on_lost=on_lost)
        check_listener(on_event)
        self._on_event = on_event
        self._client = client
        self._opening = threading.Lock()
        self._opened: _Connection | None = None
        self._dropped: weakref.finalize[..., _Connection] | None = None
        self._is_running = False
        self._is_closed = False
        # Not an Event: a signal handler that stops may interrupt code that holds the Event's lock.
        self._is_stopping = False
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._on_stop: Callable[[], object] = _nothing

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def lease(self) -> LeaseBlock:
        """Return one lease of the queue, for one ``with`` statement, like :func:`lease`, over the consumer's client.

        Any number of threads may have leases at the same time.
        """
        return LeaseBlock(self._settings, self._on_event, self._open, closes_queue=False, batch=OwnLeasedBatch)

    def run(
        self, handle: Callable[[Message], object], *, concurrency: int = 1, stop_within: Duration = STOP_SECONDS
    ) -> LeaseReport:
        """Work on one message after the other until :meth:`stop`, SIGTERM or SIGINT.

        A message is deleted when ``handle`` returns, and settled by ``on_failure`` when it raises an ``Exception``. The
        exception's class and place are logged, but not its text, which may quote the message. On a FIFO queue, messages
        of one group are worked on one after the other; if one goes back, those behind it go back without work.

        Errors of receives after the first answer are logged, and it polls again with growing pauses up to 10 s. In the
        main thread, signals are handled: the first one stops, and the next one has its usual effect.

        Args:
            handle: Works on a message. It is called in this thread, and in others if ``concurrency`` is above 1. A
                coroutine function (for ``AsyncConsumer``) and a generator are refused: the call alone does not work.
            concurrency: How many messages are worked on at once, 1 to ``max_messages``; 1 by default.
            stop_within: How long work that has begun may go on when the consumer stops; 20 s by default. Waiting
                messages are visible again at once; messages of unfinished work after this time.

        Returns:
            Counts of all messages.

        Raises:
            ValueError: ``concurrency`` or ``stop_within`` is out of range, or the queue's settings do not fit: see
                :func:`lease`.
            TypeError: ``handle`` is not a function, or one that does not do its work when it is called.
            sqs_lease.sqs.errors.SqsError: The queue cannot be used; only before its first answer.
            LeasesLostError: See ``on_lost``.
            RuntimeError: The consumer was stopped or closed, or runs already.
        """
        require_function(handle, "handle", instead="use AsyncConsumer")
        with self._running(concurrency, self._settings.options.max_messages, stop_within) as (opened, seconds):
            works: SimpleQueue[Work | None] = SimpleQueue()
            listener = None if self._on_event is None else Listener(self._on_event)
            listening = None if listener is None else ListenerThread(listener, self._settings.queue)
            consumption = Consuming(opened.queue, self._settings, listening, works.put, concurrency=concurrency)
            ends = Inbox(opened.host.post, consumption.ended)

            def work_until_stopped() -> None:
                while (work := works.get()) is not None:
                    if self._is_stopping or not consumption.claim(work):
                        continue
                    settlement: Settlement = Release()
                    try:
                        check_done(handle(work.message))
                        settlement = Delete()
                    except Exception as error:  # noqa: BLE001 - it is logged, and the failure rule settles the message
                        settlement = consumption.failed(work, error)
                    finally:
                        ends.put((work, settlement))

            def end_workers(_: object) -> None:
                for _ in range(concurrency):
                    works.put(None)

            result = opened.host.start(consumption.run(stop_within_seconds=seconds))
            result.add_done_callback(end_workers)
            self._on_stop = lambda: opened.host.post(consumption.stop)
            if self._is_stopping:
                self._on_stop()
            try:
                self._work(work_until_stopped, concurrency, _nothing)
                return result.result()
            finally:
                if not result.done():
                    # After an interruption, all messages are given back without waiting for work.
                    opened.host.post(consumption.give_up)
                    wait_for([result])
                if listening is not None:
                    listening.end(LISTENER_SECONDS)

    def run_batches(
        self, handle: Callable[[LeasedBatch], object], *, concurrency: int = 1, stop_within: Duration = STOP_SECONDS
    ) -> None:
        """Work on one batch after the other until :meth:`stop`, SIGTERM or SIGINT.

        Each batch is a lease of its own, which ends like one of :func:`lease`. An exception of ``handle`` is logged, by
        its class, and the next batch follows; after a batch that the service refused to settle, it pauses first.

        Args:
            handle: Works on a batch, which is never empty. See :meth:`run`.
            concurrency: How many batches are worked on at once, 1 to 32; 1 by default. Each has up to ``max_messages``.
            stop_within: See :meth:`run`.

        Raises:
            ValueError: ``concurrency`` or ``stop_within`` is out of range, or the queue's settings do not fit: see
                :func:`lease`.
            TypeError: ``handle`` is not a function, or one that does not do its work when it is called.
            sqs_lease.sqs.errors.SqsError: The queue cannot be used; only before its first answer.
            RuntimeError: The consumer was stopped or closed, or runs already.
        """
        require_function(handle, "handle", instead="use AsyncConsumer")
        blocks: dict[LeaseBlock, threading.Thread] = {}  # those that are worked on, and by which thread
        was_answered = threading.Event()

        def work_until_stopped() -> None:
            pause_seconds = FIRST_PAUSE_SECONDS
            while not self._is_stopping:
                block = self.lease()
                batch: OwnLeasedBatch | None = None
                try:
                    with block as batch:
                        # Added after the receive: a receive ends by itself, and its polls need an open lease.
                        blocks[block] = threading.current_thread()
                        was_answered.set()
                        if batch and self._is_stopping:
                            batch.release(list(batch))
                        elif batch:
                            check_done(handle(batch))
                except SqsError as error:
                    if not was_answered.is_set():
                        raise
                    logger.warning("Receiving from %s failed: %s", self._settings.queue, error)
                except SettlementError as error:
                    # Without a pause, a caller who may not delete would work through the whole queue, again and again.
                    logger.error("A batch was not settled: %s", error)  # noqa: TRY400 - the trace says nothing more
                except Exception as error:
                    if batch is None and not self._is_stopping:
                        raise  # the lease could not begin, and no other one can: it is not the work that failed
                    what = class_and_place(error)
                    logger.error("The work on a batch of %s failed: %s", self._settings.queue, what)  # noqa: TRY400
                    if batch is None or not batch.report().failed:
                        continue
                else:
                    pause_seconds = FIRST_PAUSE_SECONDS
                    continue
                finally:
                    blocks.pop(block, None)
                with suppress(Empty):
                    self._woken.get(timeout=pause_seconds)
                pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)

        def give_back() -> None:
            for block in tuple(blocks):
                logger.warning("The work on a batch of %s did not end in time: it is given back", self._settings.queue)
                block.give_back()

        def give_back_without_waiting(threads: Sequence[threading.Thread]) -> None:
            self.stop()
            give_back()
            for thread in threads:
                # One that receives ends by itself, and its poll may still take messages.
                if thread not in blocks.values():
                    thread.join(2 * GIVE_BACK_SECONDS)

        with self._running(concurrency, MOST_BATCHES, stop_within) as (opened, seconds):
            late = threading.Timer(seconds, give_back)
            late.daemon = True
            to_start = [late]

            def on_stop() -> None:
                opened.host.post(opened.queue.stop_receiving)
                # Two threads, or a thread and a signal handler, may do this at the same time.
                with suppress(IndexError):
                    to_start.pop().start()

            self._on_stop = on_stop
            if self._is_stopping:
                on_stop()
            try:
                for thread in self._work(work_until_stopped, concurrency, give_back_without_waiting):
                    # The thread's batch is settled by then, or given back.
                    thread.join(seconds + 2 * GIVE_BACK_SECONDS)
            finally:
                self.stop()
                late.cancel()

    def stop(self) -> None:
        """Stop: :meth:`run` and :meth:`run_batches` return when their work has ended. Any thread or signal may call it.

        A stopped consumer no longer receives.
        """
        if not self._is_stopping:
            self._is_stopping = True
            for _ in range(MOST_BATCHES):
                self._woken.put(None)
            with suppress(LoopThreadError):
                self._on_stop()

    def close(self) -> None:
        """Stop, and close the client and the thread. Leases of :meth:`lease` that are still open lapse.

        While :meth:`run` or :meth:`run_batches` goes on in another thread, this does not wait: they close all at their
        end, because they still have messages to settle.
        """
        self._is_closed = True
        self.stop()
        if not self._is_running:
            self._close()

    def _close(self) -> None:
        with self._opening:
            opened, self._opened = self._opened, None
        if opened is not None:
            if self._dropped is not None:
                self._dropped.detach()
            try:
                with suppress(LoopThreadError):
                    opened.host.run(opened.queue.close())
            finally:
                opened.host.stop(
                    f"the consumer of {self._settings.queue} was closed. Messages of leases that were open are visible "
                    "again when their visibility timeout ends"
                )

    def _open(self) -> _Connection:
        with self._opening:
            if self._is_closed:
                raise RuntimeError(f"The consumer of {self._settings.queue} was closed: make another one")
            if self._opened is None:
                seconds = consuming.LONGEST_POLL_SECONDS
                opened = self._opened = _Connection(self._settings, self._client, longest_poll_seconds=seconds)
                self._dropped = weakref.finalize(opened, _close_dropped, opened.host, opened.queue)
                # The end of the interpreter must not wait for it.
                self._dropped.atexit = False
            return self._opened

    @contextmanager
    def _running(self, concurrency: int, most: int, stop_within: Duration) -> Iterator[tuple[_Connection, float]]:
        """Run in this thread, stopped by signals; yield the open queue, and how long work may go on at the end."""
        check_whole_number(concurrency, "concurrency", 1, most, f"consuming {self._settings.queue}")
        seconds = seconds_of(stop_within, name="stop_within")
        if self._is_running or self._is_stopping:
            raise RuntimeError(f"The consumer of {self._settings.queue} runs already, or was stopped: make another one")
        self._is_running = True
        try:
            opened = self._open()
            with stopped_by_signals(self.stop):
                yield opened, seconds
        finally:
            self._is_running = False
            self._on_stop = _nothing
            if self._is_closed:
                self._close()

    def _work(
        self,
        work_until_stopped: Callable[[], None],
        concurrency: int,
        interrupted: Callable[[Sequence[threading.Thread]], object],
    ) -> Sequence[threading.Thread]:
        """Work in this thread and in others; return those. An exception that ends one ends all, and is raised here.

        Args:
            work_until_stopped: Works in one thread.
            concurrency: The number of threads.
            interrupted: Called with the others if an exception ends this one.
        """
        errors: list[BaseException] = []

        def work() -> None:
            try:
                work_until_stopped()
            except BaseException as error:  # noqa: BLE001 - raised by the caller's thread
                errors.append(error)
                self.stop()

        threads = [
            # Daemon threads, so that endless work does not keep the consumer or the interpreter from ending.
            threading.Thread(target=work, name=f"sqs-lease worker {self._settings.queue}", daemon=True)
            for _ in range(concurrency - 1)
        ]
        for thread in threads:
            thread.start()
        try:
            work_until_stopped()
        except BaseException:
            interrupted(threads)
            raise
        if errors:
            raise errors[0]
        return threads


def _close_dropped(host: LoopThread, queue: OpenQueue) -> None:
    """Close the client of a dropped consumer, and all of its leases, without waiting for the end."""
    host.end_after(queue.close())


def _nothing(*_: object) -> None:
    """Do nothing."""


@contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call a function at the first SIGTERM or SIGINT, in the main thread; the next one has its usual effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        restore()
        logger.info("Stopping at signal %d", number)
        stop()

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    before: dict[int, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        # An ignored signal stays ignored, and a handler that was not set from Python could not be restored.
        if handler not in (signal.SIG_IGN, None):
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
