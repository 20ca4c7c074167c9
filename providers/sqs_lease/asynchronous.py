"""Leases for asyncio programs: ``async with async_lease(...) as batch``, kept on the program's own event loop.

It is the twin of :mod:`sqs_lease.blocking`: the same arguments, rules, counts and errors. It needs no thread with a
loop; only the calls of the boto3 client run in threads, because they block.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import Context
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from sqs_lease import blocking
from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.core.failure_rules import Delete, FailureRule, Release, Settlement
from sqs_lease.core.functions import require_function
from sqs_lease.core.limits import MAX_WAIT_SECONDS
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.core.policies import RenewalPolicy
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
from sqs_lease.keeper.endings import cancelled_once, end_of
from sqs_lease.keeper.listening import Listener, ListenerThread, check_listener
from sqs_lease.keeper.open_queue import OpenQueue
from sqs_lease.keeper.options import DEFAULT_LINGER_SECONDS, DEFAULT_MAX_MESSAGES, DEFAULT_WAIT_SECONDS, LeaseOptions
from sqs_lease.keeper.session import (
    GIVE_BACK_SECONDS,
    LISTENER_SECONDS,
    LeaseSession,
    LeaseSettings,
    Messages,
    OnLost,
    SessionMessages,
    SettlementError,
    ended,
    to_its_end,
)
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.validation import check_whole_number

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

    It is :func:`sqs_lease.lease` for ``async with``; the documentation there applies. The leases are extended on the
    program's own event loop, so work that blocks the loop for longer than a lease lasts loses it: use
    ``asyncio.to_thread`` for such work, or ``lease``.

    A block that is cancelled gives all messages back at once, without ``on_failure``. It takes up to 10 s for that,
    also if it is cancelled again meanwhile. If the cancellation comes after a block has ended well, while its messages
    are being deleted, it is raised when they are.

    Args:
        queue: The queue's name, ARN or URL.
        max_messages: Most messages to receive; 10 by default.
        wait: How long to wait for a first message; 20 s by default. With none, the batch is empty.
        linger: How long to wait for more after the first; 1 s by default.
        policy: When to extend: a renewal policy or its name; ``Growing`` by default.
        visibility: The visibility timeout to receive with, 1 s to 12 hours, rounded up to whole seconds; the queue's
            own by default.
        on_failure: The rule for failed messages; visible again at once by default.
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
    settings = LeaseSettings(queue=queue, options=options, on_lost=on_lost)

    async def open_queue() -> OpenQueue:
        return await _opened(settings, client)

    return AsyncLeaseBlock(settings, on_event, open_queue, closes_queue=True)


async def _opened(
    settings: LeaseSettings, client: SQSClient | None, *, longest_poll_seconds: int = MAX_WAIT_SECONDS
) -> OpenQueue:
    # In a thread, because boto3 reads files to make a client.
    transport = await asyncio.to_thread(blocking.open_transport, client, settings.queue)
    return OpenQueue(transport, settings.queue, settings.options, longest_poll_seconds=longest_poll_seconds)


class AsyncLeaseBlock(AbstractAsyncContextManager["AsyncLeasedBatch"]):
    """One lease, for one ``async with`` statement. Made by :func:`async_lease` and :meth:`AsyncConsumer.lease`."""

    def __init__(
        self,
        settings: LeaseSettings,
        on_event: EventListener | None,
        open_queue: Callable[[], Coroutine[Any, Any, OpenQueue]],
        *,
        closes_queue: bool,
    ) -> None:
        self._settings = settings
        check_listener(on_event)
        self._on_event = on_event
        self._open_queue = open_queue
        self._closes_queue = closes_queue
        self._is_used = False
        self._open: _OpenLease | None = None
        self._entered: object = None  # the span that is current within the block

    async def __aenter__(self) -> AsyncLeasedBatch:
        if self._is_used:
            raise RuntimeError(
                f"This lease of {self._settings.queue} was used already: call async_lease() for each block"
            )
        self._is_used = True
        queue = await self._open_queue()
        self._open = _OpenLease(queue, self._settings, self._on_event, closes_queue=self._closes_queue)
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
    """A session on the program's loop, which lives as long as a block or its batch refers to it."""

    def __init__(
        self, queue: OpenQueue, settings: LeaseSettings, on_event: EventListener | None, *, closes_queue: bool
    ) -> None:
        # Only this refers to the listener: it may refer to this very lease, which could then not be collected.
        self._listener = None if on_event is None else Listener(on_event)
        listening = None if self._listener is None else ListenerThread(self._listener, settings.queue)
        self.session = LeaseSession(queue, settings, listening, closes_queue=closes_queue)
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._is_over = False
        self._dropped = weakref.finalize(self, _give_back_dropped, self._loop, self.session)
        self._dropped.atexit = False

    async def receive(self) -> None:
        # In a separate context: the keeper's tasks live as long as the block, and would keep the objects of the
        # program's context variables alive.
        receiving = self._loop.create_task(self.session.receive(), context=Context())
        try:
            await asyncio.shield(receiving)
        except BaseException:
            # Cancelled only once: a second cancellation would abandon polls, and the messages that they bring.
            await cancelled_once(receiving)
            # Also if it was cancelled just after it had received.
            await to_its_end(self.give_back())
            raise

    async def give_back(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._dropped.detach()
        try:
            await self.session.give_back()
        finally:
            await self._listened()

    def settle(self, settlements: Mapping[Receipt, Settlement]) -> None:
        """Settle messages within the block, without waiting; raise refusals since the last call."""
        self._check_place()
        self.session.decide(settlements)
        self.session.begin_all([settlements])
        self.session.raise_refused()

    async def flush(self) -> None:
        """Wait until all settlements are confirmed; raise refusals."""
        self._check_place()
        await self.session.flush()
        self.session.raise_refused()

    def _check_place(self) -> None:
        if self._is_over:
            raise ended(self.session.queue)
        if self._process != os.getpid():
            raise RuntimeError(
                f"This lease of {self.session.queue} is held by process {self._process}, and this is a forked child: "
                "settle its messages there"
            )
        if _running_loop() is not self._loop:
            raise RuntimeError(
                f"This lease of {self.session.queue} belongs to another event loop: settle its messages there, from "
                "other threads by asyncio.run_coroutine_threadsafe()"
            )

    def ask(self, question: Callable[[], _T]) -> _T:
        """Ask the session something, from any thread."""
        is_child = self._process != os.getpid()
        if self._is_over or is_child or not self._loop.is_running() or _running_loop() is self._loop:
            return question()

        async def answer() -> _T:
            return question()

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result()

    async def leave(self, error: BaseException | None) -> None:
        """Settle the rest of the block, and end."""
        if self._is_over or self._process != os.getpid():
            # In a forked child the leases belong to another process.
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

    async def _listened(self) -> None:
        if self.session.has_listener:
            await asyncio.to_thread(self.session.end_listening)


def _give_back_dropped(loop: asyncio.AbstractEventLoop, session: LeaseSession) -> None:
    """Give back a lease without references. The garbage collector may call this in any thread."""
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

    They can be settled within its block only; the messages themselves and :meth:`report` stay. Settlements, order and
    errors are those of :class:`sqs_lease.LeasedBatch`.
    """

    def __init__(self, lease: _OpenLease) -> None:
        super().__init__(lease.session)
        self._lease = lease

    def still_held(self, message: Message | str) -> bool:
        """Whether this process certainly holds a message: it is not settled, and its lease did not lapse or get lost.

        Raises:
            KeyError: It is not of this batch.
        """
        return self._lease.ask(self._holds_for_certain(message))

    async def succeed(self, messages: Messages) -> None:
        """Delete messages now, because their work is done.

        Args:
            messages: Messages of this batch, or their ids.

        Raises:
            KeyError: One is not of this batch.
            SettlementError: The service refused to settle some messages before.
            RuntimeError: The block has ended, or belongs to another event loop.
        """
        self._lease.settle(self._settlements(messages, Delete()))

    async def fail(self, messages: Messages, reason: str, *, errors: Sequence[str] = ()) -> None:
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
            RuntimeError: The block has ended, or belongs to another event loop.
        """
        self._lease.settle(self._failing(messages, reason, errors))

    async def release(self, messages: Messages) -> None:
        """Make messages visible again now, without the failure rule, because they were not processed.

        Messages that are settled already stay so.

        Args:
            messages: Messages of this batch, or their ids.

        Raises:
            KeyError: One is not of this batch.
            SettlementError: The service refused to settle some messages before.
            RuntimeError: The block has ended, or belongs to another event loop.
        """
        self._lease.settle(self._settlements(messages, Release()))

    async def fail_each(self, reasons: Mapping[str, str]) -> None:
        """Settle messages that failed for good by the failure rule now, each with its own reason.

        Args:
            reasons: By message id; see :meth:`fail`.

        Raises:
            TypeError: A reason is not a text, or another argument is of another type.
            KeyError: One is not of this batch.
            SettlementError: The service refused to settle some messages before.
            RuntimeError: The block has ended, or belongs to another event loop.
        """
        self._lease.settle(self._failing_each(reasons))

    async def flush(self) -> None:
        """Wait until SQS has confirmed all settlements so far: see :meth:`sqs_lease.LeasedBatch.flush`.

        Raises:
            SettlementError: The service refused to settle some messages.
            RuntimeError: The block has ended, or belongs to another event loop.
        """
        await self._lease.flush()

    def report(self) -> LeaseReport:
        """Return the counts so far; after the block, those of all messages."""
        return self._lease.ask(self._count)


class AsyncConsumer(AbstractAsyncContextManager["AsyncConsumer"]):
    """A consumer of a queue, for as long as an asyncio program runs, with one client and one keeper.

    ::

        async with AsyncConsumer("orders", max_messages=100) as consumer:
            await consumer.run(load, concurrency=10)

    It is :class:`sqs_lease.Consumer` for coroutines; the documentation there applies. Leases are extended on the
    program's own event loop, so work must not block it for longer than a lease lasts. It belongs to the loop in which
    it is first used.

    Args:
        queue: The queue's name, ARN or URL.
        max_messages: See :class:`sqs_lease.Consumer`.
        wait: See :class:`sqs_lease.Consumer`.
        linger: See :class:`sqs_lease.Consumer`.
        policy: See :func:`sqs_lease.lease`.
        visibility: See :func:`sqs_lease.lease`.
        on_failure: See :func:`sqs_lease.lease`.
        on_event: See :func:`sqs_lease.lease`.
        on_lost: See :class:`sqs_lease.Consumer`.
        client: See :class:`sqs_lease.Consumer`.

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
        self._opening = asyncio.Lock()
        self._queue: OpenQueue | None = None
        self._is_running = False
        self._is_closed = False
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None  # while it runs
        self._on_stop: Callable[[], object] = _nothing

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def lease(self) -> AsyncLeaseBlock:
        """Return one lease of the queue, for one ``async with`` statement. Any number may be open at the same time."""
        return AsyncLeaseBlock(self._settings, self._on_event, self._open, closes_queue=False)

    async def run(
        self,
        handle: Callable[[Message], Awaitable[object]],
        *,
        concurrency: int = 1,
        stop_within: Duration = STOP_SECONDS,
    ) -> LeaseReport:
        """Work on one message after the other until :meth:`stop`, SIGTERM or SIGINT.

        It is :meth:`sqs_lease.Consumer.run` for coroutines. When this is cancelled, work is cancelled, and all held
        messages are given back.

        Args:
            handle: Works on a message: a coroutine function. A function that is none blocks the event loop while it
                works, and is warned about.
            concurrency: How many messages are worked on at once, 1 to ``max_messages``; 1 by default.
            stop_within: See :meth:`sqs_lease.Consumer.run`. Work that still goes on then is cancelled.

        Returns:
            Counts of all messages.

        Raises:
            ValueError: See :meth:`sqs_lease.Consumer.run`; the same for the following.
            TypeError: ``handle`` is not a function, or it is a generator.
            sqs_lease.sqs.errors.SqsError: See above.
            LeasesLostError: See above.
            RuntimeError: See above.
        """
        done_by = _Handling(handle, self._settings.queue).done
        async with self._running(concurrency, self._settings.options.max_messages, stop_within) as (queue, seconds):
            works: asyncio.Queue[Work] = asyncio.Queue()
            listener = None if self._on_event is None else Listener(self._on_event)
            listening = None if listener is None else ListenerThread(listener, self._settings.queue)
            consumption = Consuming(queue, self._settings, listening, works.put_nowait, concurrency=concurrency)

            async def work_until_cancelled() -> None:
                while not _is_cancelled():
                    # Work that never awaits would otherwise go through all messages in hand without a turn of the loop,
                    # which extends the leases of those that wait, settles, and stops.
                    await asyncio.sleep(0)
                    work = await works.get()
                    if not consumption.claim(work):
                        continue
                    settlement: Settlement = Release()
                    try:
                        await done_by(handle(work.message))
                        settlement = Delete()
                    except Exception as error:  # noqa: BLE001 - it is logged, and the failure rule settles the message
                        settlement = consumption.failed(work, error)
                    except asyncio.CancelledError as error:
                        if _is_cancelled():
                            raise
                        settlement = consumption.failed(work, error)
                    finally:
                        consumption.ended([(work, settlement)])

            self._on_stop = consumption.stop
            result = asyncio.get_running_loop().create_task(
                consumption.run(stop_within_seconds=seconds), context=Context()
            )
            workers = [asyncio.get_running_loop().create_task(work_until_cancelled()) for _ in range(concurrency)]
            try:
                await asyncio.wait([result, *workers], return_when=asyncio.FIRST_COMPLETED)
                if not result.done():
                    # An exception that ends a worker, SystemExit for example, ends all.
                    consumption.give_up()
            except asyncio.CancelledError:
                consumption.give_up()
                raise
            finally:
                await end_of(result)
                for worker in workers:
                    await cancelled_once(worker)
                if listening is not None:
                    await to_its_end(asyncio.to_thread(listening.end, LISTENER_SECONDS))
            for worker in workers:
                if not worker.cancelled() and (failure := worker.exception()) is not None:
                    raise failure
            return result.result()

    async def run_batches(
        self,
        handle: Callable[[AsyncLeasedBatch], Awaitable[object]],
        *,
        concurrency: int = 1,
        stop_within: Duration = STOP_SECONDS,
    ) -> None:
        """Work on one batch after the other until :meth:`stop`: see :meth:`sqs_lease.Consumer.run_batches`.

        Args:
            handle: Works on a batch, which is never empty: a coroutine function.
            concurrency: How many batches are worked on at once, 1 to 32; 1 by default.
            stop_within: See :meth:`run`.

        Raises:
            ValueError: See :meth:`sqs_lease.Consumer.run_batches`; the same for the following.
            TypeError: See :meth:`run`.
            sqs_lease.sqs.errors.SqsError: See above.
            RuntimeError: See above.
        """
        done_by = _Handling(handle, self._settings.queue).done
        was_answered = False

        async def work_until_stopped() -> None:
            nonlocal was_answered
            pause_seconds = FIRST_PAUSE_SECONDS
            while not self._stopping.is_set():
                batch: AsyncLeasedBatch | None = None
                try:
                    async with self.lease() as batch:
                        was_answered = True
                        if batch and self._stopping.is_set():
                            await batch.release(list(batch))
                        elif batch:
                            await done_by(handle(batch))
                except SqsError as error:
                    if not was_answered:
                        raise
                    logger.warning("Receiving from %s failed: %s", self._settings.queue, error)
                except SettlementError as error:
                    # Without a pause, a caller who may not delete would work through the whole queue, again and again.
                    logger.error("A batch was not settled: %s", error)  # noqa: TRY400 - the trace says nothing more
                except (Exception, asyncio.CancelledError) as error:
                    if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                        raise
                    if batch is None and isinstance(error, Exception) and not self._stopping.is_set():
                        raise  # the lease could not begin, and no other one can: it is not the work that failed
                    # The end of the block settled the batch.
                    what = class_and_place(error)
                    logger.error("The work on a batch of %s failed: %s", self._settings.queue, what)  # noqa: TRY400
                    if batch is None or not batch.report().failed:
                        continue
                else:
                    pause_seconds = FIRST_PAUSE_SECONDS
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_seconds):
                        await self._stopping.wait()
                pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)

        async with self._running(concurrency, MOST_BATCHES, stop_within) as (queue, seconds):
            loop = asyncio.get_running_loop()
            workers = [loop.create_task(work_until_stopped()) for _ in range(concurrency)]

            def cancel() -> None:
                for worker in workers:
                    worker.cancel()

            def on_stop() -> None:
                queue.stop_receiving()
                loop.call_later(seconds, cancel)

            self._on_stop = on_stop
            try:
                await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
                self.stop()
                await asyncio.wait(workers)
            finally:
                self.stop()
                for worker in workers:
                    await cancelled_once(worker)
            for worker in workers:
                if not worker.cancelled() and (failure := worker.exception()) is not None:
                    raise failure

    def stop(self) -> None:
        """Stop: :meth:`run` and :meth:`run_batches` return when their work has ended. Any thread may call it.

        A stopped consumer no longer receives.
        """
        loop = self._loop
        if loop is not None and _running_loop() is not loop:
            # A loop that is closed has ended its work.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self.stop)
        elif not self._stopping.is_set():
            self._stopping.set()
            self._on_stop()

    async def aclose(self) -> None:
        """Stop, and close the client. Leases of :meth:`lease` that are still open lapse.

        While :meth:`run` or :meth:`run_batches` goes on in another task, this does not wait: they close the client at
        their end, because they still have messages to settle.
        """
        self._is_closed = True
        self.stop()
        if not self._is_running:
            await self._close()

    async def _close(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            await to_its_end(queue.close())

    async def _open(self) -> OpenQueue:
        async with self._opening:
            if self._is_closed:
                raise RuntimeError(f"The consumer of {self._settings.queue} was closed: make another one")
            if self._queue is None:
                seconds = consuming.LONGEST_POLL_SECONDS
                self._queue = await _opened(self._settings, self._client, longest_poll_seconds=seconds)
            return self._queue

    @asynccontextmanager
    async def _running(
        self, concurrency: int, most: int, stop_within: Duration
    ) -> AsyncIterator[tuple[OpenQueue, float]]:
        """Run in this loop, stopped by signals; return the open queue, and how long work may go on at the end."""
        check_whole_number(concurrency, "concurrency", 1, most, f"consuming {self._settings.queue}")
        seconds = seconds_of(stop_within, name="stop_within")
        if self._is_running or self._stopping.is_set():
            raise RuntimeError(f"The consumer of {self._settings.queue} runs already, or was stopped: make another one")
        self._is_running = True
        loop = self._loop = asyncio.get_running_loop()
        try:
            queue = await self._open()
            with blocking.stopped_by_signals(lambda: loop.call_soon_threadsafe(self.stop)):
                yield queue, seconds
        finally:
            self._is_running = False
            self._loop = None
            self._on_stop = _nothing
            if self._is_closed:
                await self._close()


class _Handling:
    """The calls of a user's function that works on messages.

    Raises:
        TypeError: It is not a function, or it is a generator, whose work would not be done.
    """

    def __init__(self, handle: object, queue: str) -> None:
        require_function(handle, "handle", may_await=True)
        self._queue = queue
        self._blocks = False

    async def done(self, returned: object) -> None:
        """Wait until the work is done that a call returned.

        Raises:
            UndoneWorkError: It would not be done by that.
        """
        if inspect.isawaitable(returned):
            returned = await returned
        elif not self._blocks:
            self._blocks = True
            logger.warning(
                "The function that works on %s is not a coroutine function: leases are not extended while it blocks "
                "the event loop. Use Consumer, or asyncio.to_thread",
                self._queue,
            )
        check_done(returned)


def _is_cancelled() -> bool:
    """Whether the current task was cancelled. If not, a CancelledError came from the work, and is its failure."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _nothing() -> None:
    """Do nothing."""
