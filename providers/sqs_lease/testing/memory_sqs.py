"""An in-memory Amazon SQS on a clock of the test's own, with the real service's semantics where emulators differ."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from threading import RLock
from typing import Any
from uuid import UUID

from sqs_lease.clock import Clock
from sqs_lease.core.calls import VisibilityChange
from sqs_lease.core.limits import (
    DEFAULT_VISIBILITY_SECONDS,
    MAX_BATCH_ENTRIES,
    MAX_DELAY_SECONDS,
    MAX_IN_FLIGHT,
    MAX_VISIBILITY_SECONDS,
    MAX_WAIT_SECONDS,
)
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.sqs.move_tasks import MAX_MOVES_PER_SECOND, MoveTask
from sqs_lease.sqs.transport import QueueAttributes
from sqs_lease.sqs.validation import queue_reference
from sqs_lease.testing import service_errors as errors
from sqs_lease.testing.audit import AuditTrail
from sqs_lease.testing.memory_fifo_queue import FifoQueue
from sqs_lease.testing.memory_move_tasks import MoveTasks
from sqs_lease.testing.memory_queue import (
    MemoryQueue,
    MessageState,
    QueueSettings,
    ServiceChoices,
    StoredMessage,
)
from sqs_lease.testing.memory_standard_queue import StandardQueue
from sqs_lease.testing.sent_messages import check_sent_message, check_token
from sqs_lease.testing.service_errors import MemorySqsError, ServiceError

_MOST_RECEIVES = 1000
_ACCOUNT = "123456789012"
_REGION = "us-east-1"


class MemorySqs:
    """The service. Queues are created here; code under test reaches them through a :class:`MemoryTransport`.

    It keeps to the real service where emulators do not:

    - Each receive gives a new handle. On a standard queue a superseded handle still changes the message's
      visibility, so it can end the next holder's lease; its delete is answered with success and deletes nothing.
    - On a standard queue a message can be extended and deleted after its visibility timeout ended, until it is
      received again. On a FIFO queue it cannot: ``The receipt handle has expired``.
    - A message that was made visible gives ``MessageNotInflight``. A queue's own visibility timeout may be 0: messages
      received without another one are visible at once.
    - An extension beyond 12 hours, counted from the receive, is rejected, not shortened.
    - A FIFO group is blocked while any of its messages is in flight; a released message comes first again.
    - A FIFO receive repeated with its ``ReceiveRequestAttemptId`` within 5 minutes returns the same messages
      again, unless any of them was changed or deleted.
    - With too many messages in flight, a standard queue answers ``OverLimit`` and a FIFO queue with nothing.
    - A message received more often than allowed goes to the dead-letter queue with its id and sent time.
    - A move task (redrive) puts it back as a new message, with another id, and runs until its last message is moved:
      see :mod:`sqs_lease.testing.memory_move_tasks`.
    - A standard queue is a fair queue for messages with groups: tenants that have much in flight come last.
    - A message has 1 MiB for its body and its attributes, Binary ones among them.

    It may be called from several threads. All times are of ``clock``; with a
    :class:`sqs_lease.testing.VirtualClock` nothing here takes real time.

    Args:
        clock: The service's clock.
        in_flight_limit: Most messages in flight in one queue; the service's 120 000 by default.
        choices: Choices that the real service leaves open.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        in_flight_limit: int = MAX_IN_FLIGHT,
        choices: ServiceChoices | None = None,
    ) -> None:
        self.clock = clock
        self._in_flight_limit = in_flight_limit
        self._choices = ServiceChoices() if choices is None else choices
        self._trail = AuditTrail()
        self._queues: dict[str, MemoryQueue] = {}
        self._sent = 0
        self._moves = MoveTasks(clock)
        self._lock = RLock()

    def create_queue(
        self,
        name: str,
        *,
        visibility_seconds: int = DEFAULT_VISIBILITY_SECONDS,
        delay_seconds: int = 0,
        retention_seconds: float | None = None,
        dead_letter_queue_url: str | None = None,
        max_receive_count: int | None = None,
        content_based_deduplication: bool = False,
    ) -> str:
        """Create a queue and return its URL.

        Args:
            name: Its name; a name that ends in ``.fifo`` makes a FIFO queue.
            visibility_seconds: Visibility timeout of messages received without one of their own, 30 by default.
            delay_seconds: Delay of each message that is sent without one of its own.
            retention_seconds: How long a message is kept after it was sent; None, the default, for ever.
            dead_letter_queue_url: The queue that takes messages received too often; needs ``max_receive_count``.
            max_receive_count: How often a message is received before it is moved there.
            content_based_deduplication: FIFO: the body stands in for a missing deduplication id.

        Raises:
            ValueError: A value is out of range, the name is taken or is not a queue name, or the dead-letter queue
                does not exist or is of the other kind.
        """
        if queue_reference(name).name != name:
            raise ValueError(f"{name!r} is a URL or an ARN: give the queue's name")
        fifo = name.endswith(".fifo")
        url = f"https://sqs.{_REGION}.amazonaws.com/{_ACCOUNT}/{name}"
        if url in self._queues:
            raise ValueError(f"queue {name!r} exists already")
        if not 0 <= visibility_seconds <= MAX_VISIBILITY_SECONDS:
            raise ValueError(f"visibility_seconds of queue {name!r} must be 0 to {MAX_VISIBILITY_SECONDS}")
        if not 0 <= delay_seconds <= MAX_DELAY_SECONDS:
            raise ValueError(f"delay_seconds of queue {name!r} must be 0 to {MAX_DELAY_SECONDS}")
        if (dead_letter_queue_url is None) != (max_receive_count is None):
            raise ValueError(f"queue {name!r}: give dead_letter_queue_url and max_receive_count, or neither")
        if max_receive_count is not None and not 1 <= max_receive_count <= _MOST_RECEIVES:
            raise ValueError(f"max_receive_count of queue {name!r} must be 1 to {_MOST_RECEIVES}")
        dead_letter = None
        if dead_letter_queue_url is not None:
            dead_letter = self._queues.get(dead_letter_queue_url)
            if dead_letter is None or dead_letter.fifo != fifo:
                raise ValueError(
                    f"the dead-letter queue of {name!r} must be an existing queue of the same kind, "
                    f"not {dead_letter_queue_url!r}"
                )
        settings = QueueSettings(
            name=name,
            url=url,
            arn=f"arn:aws:sqs:{_REGION}:{_ACCOUNT}:{name}",
            visibility_seconds=visibility_seconds,
            delay_seconds=delay_seconds,
            retention_seconds=retention_seconds,
            max_receive_count=max_receive_count,
            content_based_deduplication=content_based_deduplication,
            in_flight_limit=self._in_flight_limit,
            choices=self._choices,
        )
        kind = FifoQueue if fifo else StandardQueue
        self._queues[url] = kind(settings, self.clock, self._trail, dead_letter)
        return url

    def queue_url(self, name: str) -> str:
        """Return the URL of a queue.

        Raises:
            MemorySqsError: The queue does not exist.
        """
        for url, queue in self._queues.items():
            if queue.settings.name == name:
                return url
        raise MemorySqsError(errors.NO_SUCH_QUEUE)

    def send(
        self,
        queue_url: str,
        body: str,
        *,
        message_attributes: Mapping[str, Mapping[str, Any]] | None = None,
        message_group_id: str | None = None,
        deduplication_id: str | None = None,
        delay_seconds: int | None = None,
    ) -> str:
        """Send a message and return its id: within 5 minutes, the same one for the same deduplication id.

        Args:
            queue_url: The queue.
            body: The text, not empty.
            message_attributes: The sender's attributes in the shape of the SQS API; up to 1 MiB with the body.
            message_group_id: The message group; required on FIFO queues, the tenant of a fair queue on others.
            deduplication_id: FIFO only.
            delay_seconds: Standard only; the queue's own by default.

        Raises:
            TypeError: The body is not a text, or an attribute not a mapping.
            MemorySqsError: The service would refuse it.
        """
        with self._lock:
            queue = self._queue(queue_url)
            check_sent_message(body, message_attributes or {})
            if message_group_id is not None:
                check_token(message_group_id, "MessageGroupId")
            if delay_seconds is not None and not 0 <= delay_seconds <= MAX_DELAY_SECONDS:
                raise MemorySqsError(errors.out_of_range("DelaySeconds", delay_seconds, 0, MAX_DELAY_SECONDS))
            if queue.fifo:
                deduplication_id = self._checked_deduplication_id(
                    queue, body, message_group_id, deduplication_id, delay_seconds
                )
                earlier = queue.duplicate_of(deduplication_id)
                if earlier is not None:
                    return earlier
            elif deduplication_id is not None:
                raise MemorySqsError(errors.wrong_queue_type("MessageDeduplicationId"))
            message = self._new_message(body, dict(message_attributes or {}), message_group_id, deduplication_id)
            queue.put(message, delay_seconds=queue.settings.delay_seconds if delay_seconds is None else delay_seconds)
            return message.message_id

    def receive(
        self,
        queue_url: str,
        *,
        max_messages: int = 1,
        visibility_seconds: int | None = None,
        attempt_id: str | None = None,
        caller: str = "",
    ) -> list[Message]:
        """Receive messages that are visible now, without waiting.

        Args:
            queue_url: The queue.
            max_messages: 1 to 10.
            visibility_seconds: Their visibility timeout; the queue's own by default.
            attempt_id: ``ReceiveRequestAttemptId``, FIFO only.
            caller: The receiver's name in the audit trail.

        Raises:
            MemorySqsError: The service would refuse it.
        """
        if not 1 <= max_messages <= MAX_BATCH_ENTRIES:
            raise MemorySqsError(errors.out_of_range("MaxNumberOfMessages", max_messages, 1, MAX_BATCH_ENTRIES))
        if visibility_seconds is not None and not 0 <= visibility_seconds <= MAX_VISIBILITY_SECONDS:
            raise MemorySqsError(
                errors.out_of_range("VisibilityTimeout", visibility_seconds, 0, MAX_VISIBILITY_SECONDS)
            )
        with self._lock:
            return self._queue(queue_url).receive(
                max_messages=max_messages,
                visibility_seconds=visibility_seconds,
                attempt_id=attempt_id,
                caller=caller,
            )

    async def poll(
        self,
        queue_url: str,
        *,
        max_messages: int = 1,
        wait_seconds: float = MAX_WAIT_SECONDS,
        visibility_seconds: int | None = None,
        attempt_id: str | None = None,
        caller: str = "",
    ) -> list[Message]:
        """Receive by a long poll: as :meth:`receive`, but wait up to ``wait_seconds`` (0 to 20) for a first message.

        The running event loop's time and the service's clock must pass at the same rate, as they do
        under :func:`sqs_lease.testing.run_virtual` with the same clock. A poll that is cancelled takes nothing.
        """
        if not 0 <= wait_seconds <= MAX_WAIT_SECONDS:
            raise MemorySqsError(errors.out_of_range("WaitTimeSeconds", int(wait_seconds), 0, MAX_WAIT_SECONDS))
        ends_at = self.clock.now() + wait_seconds
        loop = asyncio.get_running_loop()
        while True:
            waiter: asyncio.Future[None] = loop.create_future()
            with self._lock:
                received = self.receive(
                    queue_url,
                    max_messages=max_messages,
                    visibility_seconds=visibility_seconds,
                    attempt_id=attempt_id,
                    caller=caller,
                )
                now = self.clock.now()
                if received or now >= ends_at:
                    return received
                queue = self._queue(queue_url)
                changes = (queue.next_change_at(), self._moves.next_move_at())
                queue.waiters[waiter] = None
            until = min([ends_at, *(change_at for change_at in changes if change_at is not None)])
            timer = loop.call_later(until - now, _wake, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                with self._lock:  # a call in another thread may be going over the waiters
                    queue.waiters.pop(waiter, None)

    def change_visibility(
        self, queue_url: str, changes: Sequence[VisibilityChange], *, caller: str = ""
    ) -> list[ServiceError | None]:
        """``ChangeMessageVisibilityBatch``: for each entry, in order, None when done, or the error.

        Raises:
            MemorySqsError: The service would refuse the whole batch.
        """
        with self._lock:
            queue = self._queue(queue_url)
            _check_entries(len(changes), "ChangeMessageVisibilityBatch")
            return [queue.change(change.receipt.handle, change.seconds, caller) for change in changes]

    def delete(self, queue_url: str, receipts: Sequence[Receipt], *, caller: str = "") -> list[ServiceError | None]:
        """``DeleteMessageBatch``: for each entry, in order, None when done, or the error.

        Raises:
            MemorySqsError: The service would refuse the whole batch.
        """
        with self._lock:
            queue = self._queue(queue_url)
            _check_entries(len(receipts), "DeleteMessageBatch")
            return [queue.delete(receipt.handle, caller) for receipt in receipts]

    def start_message_move_task(
        self, source_url: str, *, destination_url: str | None = None, max_per_second: int | None = None
    ) -> str:
        """Redrive: start to move the visible messages of a dead-letter queue, and return the task's handle.

        The first message is moved at once. A task without a destination fails at a message that was sent to the
        dead-letter queue directly, because that message has no queue to go back to.

        Args:
            source_url: The dead-letter queue.
            destination_url: The destination; by default each message goes back to the queue that it was moved from.
            max_per_second: How many messages are moved in a second, 1 to 500, which is also the default here.

        Raises:
            MemorySqsError: The service would refuse it.
        """
        with self._lock:
            source, destination = self._checked_move(source_url, destination_url, max_per_second)
            self._moves.advance()

            def target_of(message: StoredMessage) -> MemoryQueue | None:
                if destination is not None:
                    return destination
                return next((q for q in self._queues.values() if q.settings.arn == message.source_arn), None)

            def copy_of(message: StoredMessage) -> StoredMessage:
                return self._new_message(
                    message.body, message.message_attributes, message.message_group_id, message.deduplication_id
                )

            handle = self._moves.start(source, target_of, copy_of, max_per_second or MAX_MOVES_PER_SECOND)
            self._moves.advance()
            return handle

    def move_tasks(self, source_url: str) -> Sequence[MoveTask]:
        """Return the last ten move tasks of a queue, the newest first.

        Raises:
            MemorySqsError: The queue does not exist.
        """
        with self._lock:
            if source_url not in self._queues:
                raise MemorySqsError(errors.NO_SUCH_SOURCE)
            self._moves.advance()
            return self._moves.of(self._queues[source_url])

    def cancel_message_move_task(self, handle: str) -> None:
        """End a running move task: it stops moving messages, and is cancelled a second later.

        Raises:
            MemorySqsError: No running task has this handle.
        """
        with self._lock:
            self._moves.advance()
            self._moves.cancel(handle)

    def dead_letter_sources(self, queue_url: str) -> Sequence[str]:
        """Return the URLs of the queues that this is the dead-letter queue of.

        Raises:
            MemorySqsError: The queue does not exist.
        """
        with self._lock:
            dead_letters = self._queue(queue_url)
            return [url for url, queue in self._queues.items() if queue.dead_letter is dead_letters]

    def attributes(self, queue_url: str) -> QueueAttributes:
        """Return the queue's attributes; the counts are exact here.

        Raises:
            MemorySqsError: The queue does not exist.
        """
        with self._lock:
            queue = self._queue(queue_url)
            queue.catch_up()
            dead_letter = queue.dead_letter
            return QueueAttributes(
                arn=queue.settings.arn,
                visibility_seconds=queue.settings.visibility_seconds,
                fifo=queue.fifo,
                dead_letter_arn=None if dead_letter is None else dead_letter.settings.arn,
                max_receive_count=queue.settings.max_receive_count,
                visible=queue.count(MessageState.VISIBLE),
                in_flight=queue.count(MessageState.IN_FLIGHT),
                delayed=queue.count(MessageState.DELAYED),
            )

    def contents(self, queue_url: str) -> Mapping[str, MessageState]:
        """Return a queue's messages by id, in the order in which they came, each with its state.

        Raises:
            MemorySqsError: The queue does not exist.
        """
        with self._lock:
            queue = self._queue(queue_url)
            queue.catch_up()
            return {message.message_id: message.state for message in queue.messages()}

    def bodies(self, queue_url: str) -> Mapping[str, str]:
        """Return the bodies of a queue's messages by id, in the order in which they came.

        Raises:
            MemorySqsError: The queue does not exist.
        """
        with self._lock:
            queue = self._queue(queue_url)
            queue.catch_up()
            return {message.message_id: message.body for message in queue.messages()}

    def trail(self) -> AuditTrail:
        """The events of each message so far."""
        with self._lock:
            self._moves.advance()
            for queue in self._queues.values():
                queue.catch_up()
            return self._trail

    def _queue(self, queue_url: str) -> MemoryQueue:
        queue = self._queues.get(queue_url)
        if queue is None:
            raise MemorySqsError(errors.NO_SUCH_QUEUE)
        self._moves.advance()
        return queue

    def _checked_move(
        self, source_url: str, destination_url: str | None, max_per_second: int | None
    ) -> tuple[MemoryQueue, MemoryQueue | None]:
        source = self._queues.get(source_url)
        if source is None:
            raise MemorySqsError(errors.NO_SUCH_SOURCE)
        if all(queue.dead_letter is not source for queue in self._queues.values()):
            raise MemorySqsError(errors.NO_DEAD_LETTER_QUEUE)
        if max_per_second is not None and not 1 <= max_per_second <= MAX_MOVES_PER_SECOND:
            parameter = "MaxNumberOfMessagesPerSecond"
            raise MemorySqsError(errors.out_of_range(parameter, max_per_second, 1, MAX_MOVES_PER_SECOND))
        if destination_url is None:
            return source, None
        destination = self._queues.get(destination_url)
        if destination is None:
            raise MemorySqsError(errors.NO_SUCH_DESTINATION)
        if destination.fifo != source.fifo:
            raise MemorySqsError(errors.wrong_queue_type("DestinationArn"))
        return source, destination

    def _checked_deduplication_id(
        self,
        queue: MemoryQueue,
        body: str,
        message_group_id: str | None,
        deduplication_id: str | None,
        delay_seconds: int | None,
    ) -> str:
        if message_group_id is None:
            raise MemorySqsError(errors.MISSING_GROUP)
        if delay_seconds is not None:
            raise MemorySqsError(errors.wrong_queue_type("DelaySeconds"))
        if deduplication_id is not None:
            check_token(deduplication_id, "MessageDeduplicationId")
            return deduplication_id
        if not queue.settings.content_based_deduplication:
            raise MemorySqsError(errors.MISSING_DEDUPLICATION)
        return hashlib.sha256(body.encode()).hexdigest()

    def _new_message(
        self,
        body: str,
        message_attributes: Mapping[str, Mapping[str, Any]],
        message_group_id: str | None,
        deduplication_id: str | None,
    ) -> StoredMessage:
        self._sent += 1
        return StoredMessage(
            message_id=str(UUID(int=self._sent)),
            body=body,
            message_attributes=message_attributes,
            message_group_id=message_group_id,
            deduplication_id=deduplication_id,
            sequence=self._sent,
            sent_at=self.clock.now(),
            sent_milliseconds=int(self.clock.wall() * 1000),
        )


def _check_entries(count: int, operation: str) -> None:
    if count == 0:
        raise MemorySqsError(errors.empty_batch(operation))
    if count > MAX_BATCH_ENTRIES:
        raise MemorySqsError(errors.too_many_entries(count))


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
