"""Leases for asyncio programs: ``async with async_lease(...) as batch``, kept on the program's own event loop.

It is the twin of :mod:`sqs_lease.blocking`: the same arguments, rules, counts and errors. No thread runs a loop for it;
the calls of the boto3 client run in threads, as they would block.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from sqs_lease import blocking
from sqs_lease.core.durations import Duration
from sqs_lease.core.failure_rules import Delete, FailureRule, Release
from sqs_lease.core.messages import Message
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.keeper.batch import EventListener, LeaseReport
from sqs_lease.keeper.options import DEFAULT_LINGER_SECONDS, DEFAULT_MAX_MESSAGES, DEFAULT_WAIT_SECONDS, LeaseOptions
from sqs_lease.keeper.session import (
    GIVE_BACK_SECONDS,
    LeaseSession,
    LeaseSettings,
    Messages,
    OnLost,
    SessionMessages,
    ended,
    to_its_end,
)

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


def async_lease(
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
) -> AsyncLeaseBlock:
    """Receive a batch of messages in an asyncio program, and keep it invisible to others until the block ends.

    ::

        async with async_lease("orders", max_messages=100) as batch:
            for message in batch:
                await load(message.body)

    It is :func:`sqs_lease.lease` for ``async with``: all that is said there holds. The leases are extended on the
    program's own event loop, so work that blocks the loop for longer than a lease lasts loses it: use
    ``asyncio.to_thread`` for such work, or ``lease``.

    A block that is cancelled gives all back at once, whatever ``on_failure`` says. It takes up to 10 s for that, also
    if it is cancelled again meanwhile. A cancellation that comes when a block has ended well, while its messages are
    deleted, goes on when they are.

    Args:
        queue: The queue's name, ARN or URL.
        max_messages: Most messages to receive; 10 by default.
        wait: How long to wait for a first message; 20 s by default. With none, the batch is empty.
        linger: How long to wait for more once one came; 1 s by default.
        policy: When to extend: a renewal policy or its name; ``Growing`` by default.
        visibility: The visibility timeout to receive with, 1 s to 12 hours, rounded up to whole seconds; the queue's
            own by default.
        on_failure: What becomes of failed messages; visible again at once by default.
        on_event: Called when a lease ends, is lost, lapses or nears its end: in a separate thread, as by
            ``lease``.
        on_lost: ``"warn"``, the default, or ``"raise"``: see ``lease``.
        client: An SQS client of boto3, which the lease closes; by default the one that ``lease`` makes.

    Returns:
        A context manager for one ``async with`` statement. It gives an :class:`AsyncLeasedBatch`, empty if no message
        came.

    Raises:
        ValueError: An argument is out of range.
        TypeError: An argument is of another type.
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

    async def open_session() -> LeaseSession:
        # In a thread: boto3 reads files to make a client.
        return LeaseSession(await asyncio.to_thread(blocking.open_transport, client, queue), settings)

    return AsyncLeaseBlock(settings, open_session)


class AsyncLeaseBlock(AbstractAsyncContextManager["AsyncLeasedBatch"]):
    """One lease, for one ``async with`` statement. Made by :func:`async_lease`."""

    def __init__(self, settings: LeaseSettings, open_session: Callable[[], Coroutine[Any, Any, LeaseSession]]) -> None:
        self._settings = settings
        self._open_session = open_session
        self._is_used = False
        self._open: _OpenLease | None = None
        self._entered: object = None  # the span that is current within the block

    async def __aenter__(self) -> AsyncLeasedBatch:
        if self._is_used:
            raise RuntimeError(
                f"This lease of {self._settings.queue} was used already: call async_lease() for each block"
            )
        self._is_used = True
        self._open = _OpenLease(await self._open_session())
        await self._open.receive()
        self._entered = self._open.session.span.enter()
        return AsyncLeasedBatch(self._open)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._open is not None:
            entered, self._entered = self._entered, None
            self._open.session.span.leave(entered)
            await self._open.leave(error)


class _OpenLease:
    """A session on the program's loop, for as long as a block or its batch refers to it."""

    def __init__(self, session: LeaseSession) -> None:
        self.session = session
        self._loop = asyncio.get_running_loop()
        self._is_over = False
        self._dropped = weakref.finalize(self, _give_back_dropped, self._loop, session)
        self._dropped.atexit = False

    async def receive(self) -> None:
        try:
            # In a separate context: the keeper's tasks live as long as the block, and would keep alive whatever the
            # program's context variables refer to.
            await self._loop.create_task(self.session.receive(), context=Context())
        except BaseException:
            self._is_over = True
            self._dropped.detach()
            # Also when it was cancelled just after it had received.
            await to_its_end(self._given_back())
            raise

    async def settle(self, work: Coroutine[Any, Any, None]) -> None:
        """Settle messages within the block."""
        if self._is_over or asyncio.get_running_loop() is not self._loop:
            work.close()
            if self._is_over:
                raise ended(self.session.queue)
            raise RuntimeError(
                f"This lease of {self.session.queue} belongs to another event loop: settle its messages there, from "
                "other threads by asyncio.run_coroutine_threadsafe()"
            )
        await work

    def ask(self, question: Callable[[], _T]) -> _T:
        """Ask the session something, from any thread."""
        if self._is_over or not self._loop.is_running() or _running_loop() is self._loop:
            return question()

        async def answer() -> _T:
            return question()

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result()

    async def leave(self, error: BaseException | None) -> None:
        """Settle what the block leaves, and end."""
        if self._is_over:
            return
        self._is_over = True
        self._dropped.detach()
        interrupted = error is not None and not isinstance(error, Exception)
        try:
            settlements = self.session.last_settlements(error)
            await to_its_end(self.session.finish(settlements, within=GIVE_BACK_SECONDS if interrupted else None))
        except BaseException as failure:
            if error is None or not isinstance(failure, Exception):
                self.session.conclude(failure)
                raise
            error.add_note(f"The messages of {self.session.queue} were not settled: {failure}")
            logger.exception("The messages of %s were not settled", self.session.queue)
        finally:
            await to_its_end(self._listened())
        self.session.conclude(error)

    async def _given_back(self) -> None:
        try:
            await self.session.give_back()
        finally:
            await self._listened()

    async def _listened(self) -> None:
        if self.session.has_listener:
            await asyncio.to_thread(self.session.end_listening)


def _give_back_dropped(loop: asyncio.AbstractEventLoop, session: LeaseSession) -> None:
    """Give back a lease that nothing refers to. The garbage collector may call this in any thread."""
    work: list[asyncio.Task[None]] = []

    def begin() -> None:
        work.append(loop.create_task(session.give_back_dropped()))
        work[0].add_done_callback(lambda _: work.clear())

    session.end_listening(waits=False)
    # A closed loop cannot call: the leases lapse.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(begin, context=Context())


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class AsyncLeasedBatch(SessionMessages):
    """The messages of one :func:`async_lease`, in the order they were received.

    They can be settled within its block only; the messages themselves and :meth:`report` stay. What
    :class:`sqs_lease.LeasedBatch` says of settlements, order and errors holds here, too.
    """

    def __init__(self, lease: _OpenLease) -> None:
        super().__init__(lease.session)
        self._lease = lease

    def still_held(self, message: Message | str) -> bool:
        """Whether a message is certainly ours: it was not settled, and its lease did not lapse or get lost.

        Raises:
            KeyError: It is not of this batch.
        """
        return self._lease.ask(self._holds_for_certain(message))

    async def succeed(self, messages: Messages) -> None:
        """These are done: delete them now.

        Args:
            messages: Messages of this batch, or their ids.

        Raises:
            KeyError: One is not of this batch.
            SettlementError: The service refused to delete some of them.
            RuntimeError: The block has ended, or belongs to another event loop.
        """
        await self._lease.settle(self._session.settle(self._settlements(messages, Delete())))

    async def fail(self, messages: Messages, reason: str, *, errors: Sequence[str] = ()) -> None:
        """These failed for good: settle them by the failure rule now.

        Args:
            messages: Messages of this batch, or their ids.
            reason: Why, for people; it becomes a message attribute of what is dead-lettered.
            errors: The classes of the exception that failed them, where the work was done elsewhere: see
                :meth:`FailureRule.matching <sqs_lease.core.failure_rules.FailureRule.matching>`.

        Raises:
            KeyError: One is not of this batch.
            SettlementError: The service refused it for some of them.
            RuntimeError: The block has ended, or belongs to another event loop.
        """
        await self._lease.settle(self._session.settle(self._session.failing(self._chosen(messages), reason, errors)))

    async def release(self, messages: Messages) -> None:
        """The work of these is not at fault, and not done: make them visible again now, whatever the failure rule.

        Those that are settled already stay so.

        Args:
            messages: Messages of this batch, or their ids.

        Raises:
            KeyError: One is not of this batch.
            SettlementError: The service refused it for some of them.
            RuntimeError: The block has ended, or belongs to another event loop.
        """
        await self._lease.settle(self._session.settle(self._settlements(messages, Release())))

    async def fail_each(self, reasons: Mapping[str, str]) -> None:
        """Settle messages that failed for good by the failure rule now, each with its own reason.

        Args:
            reasons: By message id; see :meth:`fail`.

        Raises:
            KeyError: One is not of this batch.
            SettlementError: The service refused it for some of them.
            RuntimeError: The block has ended, or belongs to another event loop.
        """
        await self._lease.settle(self._session.settle(self._session.failing(self._chosen(reasons), reasons)))

    def report(self) -> LeaseReport:
        """Counts so far; after the block, what became of all."""
        return self._lease.ask(self._count)
