"""Leases for synchronous code: ``with lease(...) as batch``, kept by a background thread while the block runs.

For asyncio programs there is :mod:`sqs_lease.asynchronous`. What both share is in :mod:`sqs_lease.keeper.session`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.core.failure_rules import Delete, Expire, FailureRule, Release
from sqs_lease.core.messages import Message
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.keeper.batch import EventListener, LeaseReport
from sqs_lease.keeper.loop_thread import LoopThread, LoopThreadError
from sqs_lease.keeper.options import DEFAULT_LINGER_SECONDS, DEFAULT_MAX_MESSAGES, DEFAULT_WAIT_SECONDS, LeaseOptions
from sqs_lease.keeper.session import (
    GIVE_BACK_SECONDS,
    LeaseSession,
    LeaseSettings,
    Messages,
    OnLost,
    ReceivedMessages,
    SessionMessages,
    ended,
)
from sqs_lease.sqs import client as boto3_client
from sqs_lease.sqs.boto3 import Boto3Transport
from sqs_lease.sqs.errors import TransientError
from sqs_lease.sqs.move_tasks import RedriveTransport
from sqs_lease.sqs.transport import QueueAttributes
from sqs_lease.sqs.validation import queue_reference

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

    At the end of the block the messages are deleted. If the block raises, they are given back by
    ``on_failure`` instead, and the exception goes on; with
    :class:`MessageFailed <sqs_lease.core.failure_rules.MessageFailed>` only the messages that it names. Single messages
    can be settled earlier with :meth:`LeasedBatch.succeed` and :meth:`LeasedBatch.fail`. A block that is interrupted
    (``KeyboardInterrupt`` and others that are not an ``Exception``) gives all back at once, whatever ``on_failure``
    says. So does a generator that is dropped while it is suspended in the block, and a receive that fails or is
    interrupted before the block is entered. If the process dies, so does the thread: messages are visible again when
    their last extension ends.

    Args:
        queue: The queue's name, ARN or URL.
        max_messages: Most messages to receive; 10 by default.
        wait: How long to wait for a first message; 20 s by default. With none, the batch is empty.
        linger: How long to wait for more once one came; 1 s by default. 0 takes what the first answer brought, which
            is up to 10 messages.
        policy: When to extend: a renewal policy or its name; ``Growing`` by default.
        visibility: The visibility timeout to receive with, 1 s to 12 hours, rounded up to whole seconds; the queue's
            own by default.
        on_failure: What becomes of failed messages; visible again at once by default. A rule that raises makes it
            that, too.
        on_event: Called in a separate thread when a lease ends, is lost, lapses or nears its end; without it, the
            important events are logged. It may block, raise, or ask the batch: no lease stops for it. Its first
            error is logged.
        on_lost: What the end of a block that succeeded makes of leases that were lost or lapsed: ``"warn"``, the
            default, logs one warning with the counts; ``"raise"`` raises ``LeasesLostError``. Where the block raises,
            ``"raise"`` adds a note to its exception.
        client: An SQS client of boto3, which the lease closes; by default one with boto3's usual credentials, the
            region of the queue's URL or ARN, or else boto3's usual one, and the timeouts of
            :func:`sqs_lease.sqs.client.client_config`.

    Returns:
        A context manager for one ``with`` statement. It gives a :class:`LeasedBatch`, empty if no message came.

    Raises:
        ValueError: An argument is out of range.
        TypeError: An argument is of another type.

    The ``with`` statement raises ``sqs_lease.sqs.errors.SqsError`` where the queue cannot be used, and, at the end of a
    block that succeeded, ``SettlementError`` where the service refused to delete messages. The texts name the queue and
    say what to do.
    """
    options = LeaseOptions.of(
        max_messages=max_messages,
        wait=wait,
        linger=linger,
        policy=policy,
        visibility=visibility,
        on_failure=on_failure,
    )
    settings = LeaseSettings(queue=queue, options=options, on_event=on_event, on_lost=on_lost)
    return LeaseBlock(settings, client)


def queue_attributes(queue: str, *, timeout: Duration = 30.0, client: SQSClient | None = None) -> QueueAttributes:
    """Read what a queue says of itself, such as how many messages it has.

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


class LeaseBlock(AbstractContextManager["OwnLeasedBatch"]):
    """One lease, for one ``with`` statement. Made by :func:`lease`."""

    def __init__(self, settings: LeaseSettings, client: SQSClient | None) -> None:
        self._settings = settings
        self._client = client
        self._open: _OpenLease | None = None
        self._entered: object = None  # the span that is current within the block

    def __enter__(self) -> OwnLeasedBatch:
        if self._open is not None:
            raise RuntimeError(f"This lease of {self._settings.queue} was used already: call lease() for each block")
        transport = open_transport(self._client, self._settings.queue)
        self._open = _OpenLease(LeaseSession(transport, self._settings))
        self._open.receive()
        self._entered = self._open.session.span.enter()
        return OwnLeasedBatch(self._open)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._open is not None:
            entered, self._entered = self._entered, None
            self._open.session.span.leave(entered)
            self._open.leave(error)

    def give_back(self) -> bool:
        """End the lease now: what was not settled is visible again at once, whatever the failure rule.

        For hosts that know that the block will never end, because the generator that it is in was given up. A block
        that is left afterwards by an exception does nothing more; one that ends well raises an error.

        Returns:
            Whether the lease was open until now.
        """
        return self._open is not None and self._open.give_back()


class _OpenLease:
    """A session in a separate thread, which lives as long as a block or its batch refers to it.

    Neither the thread nor the session refers to it: when it is garbage and was not ended, they give back and end.
    """

    def __init__(self, session: LeaseSession) -> None:
        self.session = session
        self._host = LoopThread(f"sqs-lease {session.queue}")
        self._process = os.getpid()
        self._thread = threading.get_ident()
        self._has_ended = False
        self._dropped = weakref.finalize(self, _give_back_dropped, self._host, session)
        # An interpreter that ends does not wait for it.
        self._dropped.atexit = False

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or is ending because it was dropped.

        The garbage collector calls the finalizer first, and closes a suspended generator, which leaves its block, then.
        """
        return self._has_ended or not self._dropped.alive

    def receive(self) -> None:
        try:
            self._host.run(self.session.receive())
        except BaseException:
            # Also when it was interrupted just after it had received.
            self.give_back()
            raise

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine of the session within the block."""
        if self.is_over:
            coroutine.close()
            raise ended(self.session.queue)
        return self._host.run(coroutine)

    def ask(self, question: Callable[[], _T]) -> _T:
        """Ask the session something, within the block or after it."""

        async def answer() -> _T:
            return question()

        try:
            return self._host.run(answer())
        except LoopThreadError:
            if not self._host.is_stopped:
                raise
            # The loop has ended, so no other thread uses what the question reads.
            return question()

    def leave(self, error: BaseException | None) -> None:
        """Settle what the block leaves, and end."""
        if self._process != os.getpid() or sys.is_finalizing():
            # The leases belong to another process, or the interpreter ends and cannot call: they lapse.
            return
        if self.is_over:
            if error is None:
                raise RuntimeError(f"The lease of {self.session.queue} was given back before its block ended")
            return
        if isinstance(error, GeneratorExit) and threading.get_ident() != self._thread:
            # The garbage collector may close a generator in any thread, also in this lease's own: none must wait here.
            self._dropped()
            return
        interrupted = error is not None and not isinstance(error, Exception)
        try:
            settlements = self.session.last_settlements(error)
            self._host.run(self.session.finish(settlements, within=GIVE_BACK_SECONDS if interrupted else None))
        except BaseException as failure:
            if error is None or not isinstance(failure, Exception):
                self.session.conclude(failure)
                raise
            error.add_note(f"The messages of {self.session.queue} were not settled: {failure}")
            logger.exception("The messages of %s were not settled", self.session.queue)
        finally:
            self._end()
        self.session.conclude(error)

    def give_back(self) -> bool:
        """Give back what was not settled, and end, if the lease has not ended yet; return whether that was so."""
        if self.is_over:
            return False
        self._end()
        return True

    def _end(self) -> None:
        self._has_ended = True
        self._dropped.detach()
        try:
            # When the session was not finished, by an interruption.
            with suppress(LoopThreadError):
                self._host.run(self.session.give_back())
        finally:
            self._host.stop()
            self.session.end_span()
            self.session.end_listening()


def _give_back_dropped(host: LoopThread, session: LeaseSession) -> None:
    """Give back a lease that nothing refers to, without waiting for it."""
    session.end_listening(waits=False)
    host.end_after(session.give_back_dropped())


class LeasedBatch(ReceivedMessages, ABC):
    """The messages of one :func:`lease`, in the order they were received.

    They can be settled within its block only; the messages themselves and :meth:`report` stay. Any thread of the
    process may call these methods.

    What the service refuses raises ``SettlementError`` at the call, once for each message. If that leaves the block,
    the messages that are not settled yet are visible again at once: their work is not at fault.
    """

    @abstractmethod
    def still_held(self, message: Message | str) -> bool:
        """Whether a message is certainly ours: it was not settled, and its lease did not lapse or get lost.

        Worth asking before work that must not be done twice. False says that somebody else *may* have it.

        Raises:
            KeyError: It is not of this batch.
        """

    @abstractmethod
    def succeed(self, messages: Messages) -> None:
        """These are done: delete them now.

        On a FIFO queue a message is deleted when those before it in its group are settled, and given back where one of
        them is. This does not wait for that.

        Args:
            messages: Messages of this batch, or their ids.

        Raises:
            KeyError: One is not of this batch.
            SettlementError: The service refused to delete some of them.
            RuntimeError: The block has ended.
        """

    @abstractmethod
    def fail(self, messages: Messages, reason: str, *, errors: Sequence[str] = ()) -> None:
        """These failed for good: settle them by the failure rule now.

        Args:
            messages: Messages of this batch, or their ids.
            reason: Why, for people; it becomes a message attribute of what is dead-lettered.
            errors: The classes of the exception that failed them, where the work was done elsewhere: see
                :meth:`FailureRule.matching <sqs_lease.core.failure_rules.FailureRule.matching>`.

        Raises:
            KeyError: One is not of this batch.
            SettlementError: The service refused it for some of them.
            RuntimeError: The block has ended.
        """

    @abstractmethod
    def release(self, messages: Messages) -> None:
        """The work of these is not at fault, and not done: make them visible again now, whatever the failure rule.

        Those that are settled already stay so.

        Args:
            messages: Messages of this batch, or their ids.

        Raises:
            KeyError: One is not of this batch.
            SettlementError: The service refused it for some of them.
            RuntimeError: The block has ended.
        """

    @abstractmethod
    def fail_each(self, reasons: Mapping[str, str]) -> None:
        """Settle messages that failed for good by the failure rule now, each with its own reason.

        Args:
            reasons: By message id; see :meth:`fail`.

        Raises:
            KeyError: One is not of this batch.
            SettlementError: The service refused it for some of them.
            RuntimeError: The block has ended.
        """

    @abstractmethod
    def report(self) -> LeaseReport:
        """Counts so far; after the block, what became of all."""


class OwnLeasedBatch(SessionMessages, LeasedBatch):
    """The messages of a lease that this process holds: what :func:`lease` gives."""

    def __init__(self, lease: _OpenLease) -> None:
        super().__init__(lease.session)
        self._lease = lease

    @property
    def is_open(self) -> bool:
        """Whether the block goes on, so that what is held may still be settled in any way."""
        return not self._lease.is_over

    def still_held(self, message: Message | str) -> bool:
        """See :meth:`LeasedBatch.still_held`."""
        return self._lease.ask(self._holds_for_certain(message))

    def succeed(self, messages: Messages) -> None:
        """See :meth:`LeasedBatch.succeed`."""
        self._lease.run(self._session.settle(self._settlements(messages, Delete())))

    def fail(self, messages: Messages, reason: str, *, errors: Sequence[str] = ()) -> None:
        """See :meth:`LeasedBatch.fail`."""
        settlements = self._session.failing(self._chosen(messages), reason, errors)
        self._lease.run(self._session.settle(settlements))

    def release(self, messages: Messages) -> None:
        """See :meth:`LeasedBatch.release`."""
        self._lease.run(self._session.settle(self._settlements(messages, Release())))

    def fail_each(self, reasons: Mapping[str, str]) -> None:
        """See :meth:`LeasedBatch.fail_each`."""
        self._lease.run(self._session.settle(self._session.failing(self._chosen(reasons), reasons)))

    def report(self) -> LeaseReport:
        """See :meth:`LeasedBatch.report`."""
        return self._lease.ask(self._count)

    def expire(self, messages: Messages) -> None:
        """Stop extending messages whose work may or may not go on: they become visible when their leases lapse.

        Messages that are already settled stay settled.

        Args:
            messages: Messages of this batch, or their ids.

        Raises:
            KeyError: One is not of this batch.
            RuntimeError: The block has ended.
        """
        self._lease.run(self._session.settle(self._settlements(messages, Expire())))

    def certain_seconds(self) -> float | None:
        """How long all held messages stay invisible from now on if no further extension succeeds, in seconds.

        None if no message is held, or if a lease has lapsed.
        """
        return self._lease.ask(self._session.batch.certain_seconds)
