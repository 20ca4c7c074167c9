"""The transport to the in-memory SQS, with faults on the way; it corresponds to the real transports."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from botocore.exceptions import EndpointConnectionError, ReadTimeoutError

from sqs_lease.core.calls import EntryAnswer, VisibilityChange
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.sqs import validation
from sqs_lease.sqs.classification import error_from_code, error_from_exception
from sqs_lease.sqs.errors import SqsError, TransientError
from sqs_lease.sqs.move_tasks import MoveTask
from sqs_lease.sqs.requests import entry_answers, failed_call
from sqs_lease.sqs.transport import QueueAttributes
from sqs_lease.testing.faults import Fault, FaultRule, Operation, TransportCall, no_faults
from sqs_lease.testing.memory_sqs import MemorySqs
from sqs_lease.testing.service_errors import MemorySqsError, ServiceError

_T = TypeVar("_T")


class MemoryTransport:
    """A :class:`sqs_lease.sqs.move_tasks.RedriveTransport` to a :class:`MemorySqs`.

    Errors have the codes and texts of the real service, or are the exceptions that botocore raises, and go
    through the same classification as those of the real transports. A call that is cancelled before the
    service acted is withdrawn, unless its fault says that it is unstoppable; afterwards it stays carried out.

    Args:
        sqs: The service.
        faults: The faults of calls; no faults by default. See :mod:`sqs_lease.testing.faults`, or write a function.
        name: The caller's name in the service's audit trail.

    Attributes:
        calls: The calls made so far, in order.
        is_in_memory: True: the messages are not real, so that tests of sensors may receive.
    """

    is_in_memory = True

    def __init__(self, sqs: MemorySqs, *, faults: FaultRule = no_faults, name: str = "") -> None:
        self.calls: list[TransportCall] = []
        self.faults = faults
        self._sqs = sqs
        self._name = name
        self._closed = False
        # Kept, because the event loop itself has only weak references to tasks.
        self._unstoppable: set[asyncio.Task[Any]] = set()

    def count(self, operation: Operation) -> int:
        """Return how many calls of one operation were made so far."""
        return sum(call.operation is operation for call in self.calls)

    async def queue_url(self, queue: str) -> str:
        """As the protocol says."""
        reference = validation.queue_reference(queue)
        if reference.url is not None:
            return reference.url

        async def act() -> str:
            return self._sqs.queue_url(reference.name)

        return await self._call(Operation.QUEUE_URL, queue, act)

    async def queue_attributes(self, queue_url: str) -> QueueAttributes:
        """As the protocol says."""

        async def act() -> QueueAttributes:
            return self._sqs.attributes(queue_url)

        return await self._call(Operation.QUEUE_ATTRIBUTES, queue_url, act)

    async def receive(
        self,
        queue_url: str,
        *,
        max_messages: int,
        wait_seconds: int,
        visibility_seconds: int | None,
        attempt_id: str | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> Sequence[Message]:
        """As the protocol says."""
        validation.check_receive(
            queue_url,
            max_messages=max_messages,
            wait_seconds=wait_seconds,
            visibility_seconds=visibility_seconds,
            attempt_id=attempt_id,
        )
        if on_sent is not None:
            on_sent()

        async def act() -> list[Message]:
            return await self._sqs.poll(
                queue_url,
                max_messages=max_messages,
                wait_seconds=wait_seconds,
                visibility_seconds=visibility_seconds,
                attempt_id=attempt_id,
                caller=self._name,
            )

        return await self._call(Operation.RECEIVE, queue_url, act, entries=max_messages)

    async def change_visibility(self, queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        """As the protocol says."""
        validation.check_batch(changes, queue_url)
        for change in changes:
            validation.check_visibility(change.seconds, f"changing the visibility of {change.receipt} of {queue_url}")

        def act(places: Sequence[int]) -> list[ServiceError | None]:
            chosen = [changes[place] for place in places]
            return self._sqs.change_visibility(queue_url, chosen, caller=self._name)

        receipts = [change.receipt for change in changes]
        return await self._batch(Operation.CHANGE_VISIBILITY, queue_url, receipts, act)

    async def delete(self, queue_url: str, receipts: Sequence[Receipt]) -> Sequence[EntryAnswer]:
        """As the protocol says."""
        validation.check_batch(receipts, queue_url)

        def act(places: Sequence[int]) -> list[ServiceError | None]:
            return self._sqs.delete(queue_url, [receipts[place] for place in places], caller=self._name)

        return await self._batch(Operation.DELETE, queue_url, receipts, act)

    async def send(
        self,
        queue_url: str,
        body: str,
        *,
        message_attributes: Mapping[str, Mapping[str, Any]] | None = None,
        message_group_id: str | None = None,
        deduplication_id: str | None = None,
    ) -> str:
        """As the protocol says."""
        validation.check_send(queue_url, body, message_group_id=message_group_id, deduplication_id=deduplication_id)

        async def act() -> str:
            return self._sqs.send(
                queue_url,
                body,
                message_attributes=message_attributes,
                message_group_id=message_group_id,
                deduplication_id=deduplication_id,
            )

        return await self._call(Operation.SEND, queue_url, act)

    async def start_move_task(
        self, source_arn: str, *, destination_arn: str | None = None, max_per_second: int | None = None
    ) -> str:
        """As the protocol says."""

        async def act() -> str:
            destination_url = None if destination_arn is None else arn_url(destination_arn)
            return self._sqs.start_message_move_task(
                arn_url(source_arn), destination_url=destination_url, max_per_second=max_per_second
            )

        return await self._call(Operation.START_MOVE_TASK, source_arn, act)

    async def move_tasks(self, source_arn: str) -> Sequence[MoveTask]:
        """As the protocol says."""

        async def act() -> Sequence[MoveTask]:
            return self._sqs.move_tasks(arn_url(source_arn))

        return await self._call(Operation.LIST_MOVE_TASKS, source_arn, act)

    async def cancel_move_task(self, source_arn: str, handle: str) -> None:
        """As the protocol says."""

        async def act() -> None:
            self._sqs.cancel_message_move_task(handle)

        await self._call(Operation.CANCEL_MOVE_TASK, source_arn, act)

    async def dead_letter_sources(self, queue_url: str) -> Sequence[str]:
        """As the protocol says."""

        async def act() -> Sequence[str]:
            return self._sqs.dead_letter_sources(queue_url)

        return await self._call(Operation.DEAD_LETTER_SOURCES, queue_url, act)

    async def aclose(self) -> None:
        """Close: later calls fail."""
        self._closed = True

    async def _call(
        self, operation: Operation, queue_url: str, act: Callable[[], Awaitable[_T]], *, entries: int = 1
    ) -> _T:
        call, fault = self._begin(operation, queue_url, entries)
        return await self._carry_out(call, fault, act)

    async def _batch(
        self,
        operation: Operation,
        queue_url: str,
        receipts: Sequence[Receipt],
        act: Callable[[Sequence[int]], list[ServiceError | None]],
    ) -> Sequence[EntryAnswer]:
        if not receipts:
            return []
        call, fault = self._begin(operation, queue_url, len(receipts))
        errors: dict[int, ServiceError | None] = dict(fault.entry_errors)

        async def act_on_the_others() -> None:
            places = [place for place in range(len(receipts)) if place not in errors]
            if places:
                errors.update(zip(places, act(places), strict=True))

        try:
            await self._carry_out(call, fault, act_on_the_others)
        except SqsError as error:
            return failed_call(receipts, error)
        return entry_answers(receipts, _batch_answer(errors))

    def _begin(self, operation: Operation, queue_url: str, entries: int) -> tuple[TransportCall, Fault]:
        if self._closed:
            raise TransientError(f"the transport to {queue_url} is closed", queue=queue_url)
        call = TransportCall(operation, queue_url, entries, self._sqs.clock.now())
        self.calls.append(call)
        return call, self.faults(call)

    async def _carry_out(self, call: TransportCall, fault: Fault, act: Callable[[], Awaitable[_T]]) -> _T:
        exchange = self._exchange(call, fault, act)
        if not fault.unstoppable:
            return await exchange
        task = asyncio.get_running_loop().create_task(exchange)
        self._unstoppable.add(task)
        task.add_done_callback(self._ended)
        # Unlike an await of the task itself, this does not cancel it when the caller is cancelled.
        await asyncio.wait([task])
        return task.result()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._unstoppable.discard(task)
        if not task.cancelled():
            task.exception()  # otherwise asyncio logs it as never retrieved if the caller has gone

    async def _exchange(self, call: TransportCall, fault: Fault, act: Callable[[], Awaitable[_T]]) -> _T:
        """Send the request, let the service act, and return the answer."""
        await _wait(fault.before_seconds)
        refusal = fault.error
        results: list[_T] = []
        if not (fault.unreachable or fault.request_lost) and (refusal is None or fault.carried_out):
            try:
                results.append(await act())
            except MemorySqsError as refused:
                refusal = refused.error
        await _wait(fault.after_seconds)
        if fault.unreachable:
            raise _as_network_error(EndpointConnectionError(endpoint_url=call.queue_url), call)
        if fault.request_lost or fault.answer_lost:
            raise _as_network_error(ReadTimeoutError(endpoint_url=call.queue_url), call)
        if refusal is not None:
            raise error_from_code(
                refusal.code,
                refusal.text,
                operation=call.operation.value,
                queue=call.queue_url,
                status=refusal.status,
            )
        return results[0]


def arn_url(arn: str) -> str:
    """The URL of a queue of a :class:`MemorySqs`, from its ARN."""
    queue = validation.queue_reference(arn)
    return f"https://sqs.{queue.region}.amazonaws.com/{queue.account}/{queue.name}"


async def _wait(seconds: float) -> None:
    if seconds:
        await asyncio.sleep(seconds)


def _batch_answer(errors: Mapping[int, ServiceError | None]) -> Mapping[str, Any]:
    """Return the answer of a batch call in the shape of the API."""
    return {
        "Successful": [{"Id": str(place)} for place, error in errors.items() if error is None],
        "Failed": [
            {"Id": str(place), "SenderFault": error.sender_fault, "Code": error.code, "Message": error.text}
            for place, error in errors.items()
            if error is not None
        ],
    }


def _as_network_error(error: Exception, call: TransportCall) -> SqsError:
    classified = error_from_exception(error, operation=call.operation.value, queue=call.queue_url)
    if classified is None:
        raise AssertionError(f"the classification does not know this network error: {error!r}")
    return classified
