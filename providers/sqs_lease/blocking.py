"""Leases for synchronous code: ``with lease(...) as batch``, kept by a background thread while the block runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.core.events import Outcome, Settled
from sqs_lease.core.failure_rules import FailureRule, MessageFailed, Release, exception_names, failed_by_exception
from sqs_lease.core.limits import MAX_IN_FLIGHT
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.core.specs import resolve_policy
from sqs_lease.keeper.batch import Batch, EventListener, LeaseReport
from sqs_lease.keeper.keeper import Keeper, Leaving
from sqs_lease.keeper.loop_thread import LoopThread
from sqs_lease.keeper.receiver import Receiver
from sqs_lease.sqs import client as boto3_client
from sqs_lease.sqs.boto3 import Boto3Transport
from sqs_lease.sqs.errors import TransientError
from sqs_lease.sqs.transport import QueueAttributes, Transport
from sqs_lease.sqs.validation import check_whole_number, queue_reference

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
Messages: TypeAlias = Message | str | Iterable[Message | str]
"""Messages of a batch: one or several, each itself or by its id."""


@contextmanager
def lease(
    queue: str,
    *,
    max_messages: int = 10,
    wait: Duration = 20.0,
    linger: Duration = 0.0,
    policy: RenewalPolicy | str | None = None,
    visibility: Duration | None = None,
    on_failure: FailureRule | None = None,
    on_event: EventListener | None = None,
    client: SQSClient | None = None,
) -> Iterator[LeasedBatch]:
    """Receive a batch of messages and keep it invisible to others until the block ends.

    ::

        with lease("orders", max_messages=100) as batch:
            for message in batch:
                load(message.body)

    At the end of the block the messages are deleted. If the block raises, they are given back by
    ``on_failure`` instead, and the exception goes on; with
    :class:`MessageFailed <sqs_lease.core.failure_rules.MessageFailed>` only the messages that it names. Single messages
    can be settled earlier with :meth:`LeasedBatch.succeed` and :meth:`LeasedBatch.fail`. A block that is interrupted
    (``KeyboardInterrupt`` and other exceptions that are no ``Exception``) gives all back at once, whatever
    ``on_failure`` says. If the process dies, so does the thread: messages are visible again when their last extension
    ends.

    Args:
        queue: The queue's name, ARN or URL.
        max_messages: Most messages to receive; 10 by default.
        wait: How long to wait for a first message; 20 s by default. With none, the batch is empty.
        linger: How long to wait for more once one came; 0, the default, takes what the first answer brought.
        policy: When to extend: a renewal policy or its name; ``Growing`` by default.
        visibility: The visibility timeout to receive with, 1 s to 12 hours; the queue's own by default.
        on_failure: What becomes of failed messages; visible again at once by default.
        on_event: Told of leases that are lost, lapse or near their end. Called in the background thread;
            it must not block.
        client: An SQS client of boto3, which the lease closes; by default one with boto3's usual credentials
            and region, and the timeouts of :func:`sqs_lease.sqs.client.client_config`.

    Yields:
        The batch, empty if no message came.

    Raises:
        ValueError: An argument is out of range.
        sqs_lease.sqs.errors.SqsError: The queue cannot be used; the text names it and says what to do.
    """
    resolved = resolve_policy(policy, visibility=visibility)
    queue_reference(queue)
    check_whole_number(max_messages, "max_messages", 1, MAX_IN_FLIGHT, f"leasing from {queue}")
    for name, duration in (("wait", wait), ("linger", linger)):
        seconds_of(duration, name=name)
    host = LoopThread(f"sqs-lease {queue}")
    try:
        held = _Held(open_transport(client))
        try:
            yield from _leased(host, held, queue, resolved, on_failure, on_event, max_messages, wait, linger)
        finally:
            host.run(held.close())
    finally:
        host.stop()


def queue_attributes(queue: str, *, timeout: Duration = 30.0, client: SQSClient | None = None) -> QueueAttributes:
    """Read what a queue says of itself, such as how many messages it has.

    Args:
        queue: The queue's name, ARN or URL.
        timeout: How long that may take in all, repeated calls included; 30 s by default.
        client: As for :func:`lease`; it is closed.

    Raises:
        ValueError: ``queue`` is none.
        sqs_lease.sqs.errors.SqsError: The queue cannot be read; the text names it and says what to do.
    """
    queue_reference(queue)
    seconds = seconds_of(timeout, name="timeout")
    transport = open_transport(client)

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


def open_transport(client: SQSClient | None) -> Transport:
    """Reach SQS over a client, which the transport closes; None takes one with boto3's usual credentials and region."""
    return Boto3Transport(boto3_client.make_client() if client is None else client)


def _leased(
    host: LoopThread,
    held: _Held,
    queue: str,
    policy: RenewalPolicy,
    on_failure: FailureRule | None,
    on_event: EventListener | None,
    max_messages: int,
    wait: Duration,
    linger: Duration,
) -> Iterator[LeasedBatch]:
    try:
        host.run(held.receive(queue, policy, on_failure, on_event, max_messages, wait, linger))
        yield LeasedBatch(host, held.batch)
    except Exception as error:
        ended_by = error
        host.run(held.end(lambda batch: _ended_by(ended_by, batch)))
        raise
    except BaseException:
        # Interrupted: the work is not at fault, so the messages are not dead-lettered or delayed for it.
        host.run(held.end(Batch.release_all))
        raise
    else:
        host.run(held.end(Batch.succeed))


async def _ended_by(error: Exception, batch: Batch) -> Mapping[Receipt, Settled]:
    """Settle what a block leaves that raised."""
    held = {lease.receipt.message_id: lease.receipt for lease in batch.leases()}
    named = error.message_ids if isinstance(error, MessageFailed) else None
    # Those that were settled before are none of its business any more.
    failed = failed_by_exception(named, batch.message_ids()) & held.keys()
    # The type only: an exception's text may quote a message's body, and the reason is sent and logged.
    reason, errors = type(error).__name__, exception_names(error)
    outcomes = await batch.fail(reason, [held[message_id] for message_id in failed], errors=errors)
    return {**outcomes, **await batch.succeed()}


class LeasedBatch:
    """The messages of one :func:`lease`, in the order they were received.

    They can be settled within its block only; the messages themselves and :meth:`report` stay.
    """

    def __init__(self, host: LoopThread, batch: Batch) -> None:
        self._host = host
        self._batch = batch
        self._messages = tuple(batch.messages())
        self._receipts = {message.message_id: message.receipt for message in self._messages}

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def queue_url(self) -> str:
        """The queue that the messages were received from."""
        return self._batch.queue_url

    def still_held(self, message: Message | str) -> bool:
        """Whether a message is still ours: not settled, and not lost to somebody else.

        Worth asking before work that must not be done twice.

        Raises:
            KeyError: It is not of this batch.
        """
        (receipt,) = self._chosen(message)
        return self._in_thread(lambda: self._batch.holds(receipt))

    def succeed(self, messages: Messages) -> None:
        """These are done: delete them now.

        Args:
            messages: Messages of this batch, or their ids.

        Raises:
            KeyError: One is not of this batch.
        """
        self._host.run(self._batch.succeed(self._chosen(messages)))

    def fail(self, messages: Messages, reason: str, *, errors: Sequence[str] = ()) -> None:
        """These failed for good: settle them by the failure rule now.

        Args:
            messages: Messages of this batch, or their ids.
            reason: Why, for people; it becomes a message attribute of what is dead-lettered.
            errors: The classes of the exception that failed them, where the work was done elsewhere: see
                :meth:`FailureRule.matching <sqs_lease.core.failure_rules.FailureRule.matching>`.

        Raises:
            KeyError: One is not of this batch.
        """
        self._host.run(self._batch.fail(reason, self._chosen(messages), errors=errors))

    def release(self, messages: Messages) -> None:
        """The work of these is not at fault, and not done: make them visible again now, whatever the failure rule.

        Those that are settled already stay so.

        Args:
            messages: Messages of this batch, or their ids.

        Raises:
            KeyError: One is not of this batch.
        """
        self._host.run(self._batch.settle(dict.fromkeys(self._chosen(messages), Release())))

    def fail_each(self, reasons: Mapping[str, str]) -> None:
        """These failed for good, each for a reason of its own: settle them by the failure rule now.

        Args:
            reasons: By message id; see :meth:`fail`.

        Raises:
            KeyError: One is not of this batch.
        """
        receipts = self._chosen(reasons)

        async def fail() -> None:
            # Together: their calls are batched, whatever the reason of each.
            await asyncio.gather(
                *(
                    self._batch.fail(reason, [receipt])
                    for receipt, reason in zip(receipts, reasons.values(), strict=True)
                )
            )

        self._host.run(fail())

    def report(self) -> LeaseReport:
        """Counts so far; after the block, what became of all."""
        return self._in_thread(self._batch.report)

    def _chosen(self, messages: Messages) -> list[Receipt]:
        several = [messages] if isinstance(messages, Message | str) else messages
        ids = [message if isinstance(message, str) else message.message_id for message in several]
        unknown = [message_id for message_id in ids if message_id not in self._receipts]
        if unknown:
            raise KeyError(f"not in this batch of {self.queue_url}: {', '.join(map(str, unknown))}")
        return [self._receipts[message_id] for message_id in ids]

    def _in_thread(self, ask: Callable[[], _T]) -> _T:
        async def answer() -> _T:
            return ask()

        # When the thread has ended, nobody else looks at the batch.
        return ask() if self._host.is_stopped else self._host.run(answer())


class _Held:
    """What lives in the thread's event loop: the transport, the keeper and its one batch."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._keeper: Keeper | None = None
        self.batch: Batch

    async def receive(
        self,
        queue: str,
        policy: RenewalPolicy,
        on_failure: FailureRule | None,
        on_event: EventListener | None,
        max_messages: int,
        wait: Duration,
        linger: Duration,
    ) -> None:
        queue_url = await self._transport.queue_url(queue)
        if policy.visibility is None:
            policy = policy.for_queue((await self._transport.queue_attributes(queue_url)).visibility_seconds)
        receiver = Receiver(self._transport, queue_url, visibility_seconds=int(policy.visibility_seconds))
        self._keeper = Keeper(self._transport)
        batch = self.batch = self._keeper.open_batch(queue_url, policy=policy, on_failure=on_failure, on_event=on_event)
        collected = await receiver.collect(
            max_messages,
            wait=wait,
            linger=linger,
            on_received=lambda reception: batch.add(
                reception.messages, received_at=reception.received_at, sent_at=reception.sent_at
            ),
        )
        if collected.error is not None:
            logger.warning("Took %d messages only: %s", len(collected.messages), collected.error)

    async def end(self, settle: Callable[[Batch], Awaitable[Mapping[Receipt, Settled]]]) -> None:
        """Settle what is still held, and say what could not be."""
        if self._keeper is None:
            return
        for settled in (await settle(self.batch)).values():
            if settled.outcome in (Outcome.LOST, Outcome.FAILED):
                logger.warning(
                    "%s of %s was not settled (%s): %s",
                    settled.receipt,
                    self.batch.queue_url,
                    settled.outcome.value,
                    settled.detail,
                )

    async def close(self) -> None:
        if self._keeper is not None:
            await self._keeper.close(Leaving.NOTHING)
        await self._transport.aclose()
