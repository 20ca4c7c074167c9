"""The transport to the in-memory SQS: what the real transports are to the real service, with faults on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from botocore.exceptions import EndpointConnectionError, ReadTimeoutError

from sqs_lease.core.calls import EntryAnswer, VisibilityChange
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.sqs import validation
from sqs_lease.sqs.classification import error_from_code, error_from_exception
from sqs_lease.sqs.errors import SqsError, TransientError
from sqs_lease.sqs.requests import entry_answers, failed_call
from sqs_lease.sqs.transport import QueueAttributes
from sqs_lease.testing.faults import Fault, FaultRule, Operation, TransportCall, no_faults
from sqs_lease.testing.memory_sqs import MemorySqs
from sqs_lease.testing.service_errors import MemorySqsError, ServiceError

_T = TypeVar("_T")


class MemoryTransport:
    """A :class:`sqs_lease.sqs.transport.Transport` to a :class:`MemorySqs`.

    Errors have the codes and texts of the real service, or are the exceptions that botocore raises, and go
    through the same classification as those of the real transports. A call that is cancelled before the
    service acted is withdrawn; afterwards it stays carried out.

    Args:
        sqs: The service.
        faults: What goes wrong with each call; nothing by default. See :class:`RandomFaults`,
            :class:`ScriptedFaults` and :class:`Outages`, or write a function.
        name: Who calls, for the service's audit trail.

    Attributes:
        calls: The calls made so far, in order.
    """

    def __init__(self, sqs: MemorySqs, *, faults: FaultRule = no_faults, name: str = "") -> None:
        self.calls: list[TransportCall] = []
        self.faults = faults
        self._sqs = sqs
        self._name = name
        self._closed = False

    def count(self, operation: Operation) -> int:
        """How many calls of one operation were made so far."""
        return sum(call.operation is operation for call in self.calls)

    async def queue_url(self, queue: str) -> str:
        """As the protocol says."""
        reference = validation.queue_reference(queue)
        if reference.url is not None:
            return reference.url
        return await self._call(Operation.QUEUE_URL, queue, lambda _: self._sqs.queue_url(reference.name))

    async def queue_attributes(self, queue_url: str) -> QueueAttributes:
        """As the protocol says."""
        return await self._call(Operation.QUEUE_ATTRIBUTES, queue_url, lambda _: self._sqs.attributes(queue_url))

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
        fault = await self._go(Operation.RECEIVE, queue_url, max_messages)
        try:
            messages = await self._sqs.poll(
                queue_url,
                max_messages=max_messages,
                wait_seconds=wait_seconds,
                visibility_seconds=visibility_seconds,
                attempt_id=attempt_id,
                caller=self._name,
            )
        except MemorySqsError as refused:
            await self._come_back(Operation.RECEIVE, queue_url, fault)
            raise _as_sqs_error(refused.error, Operation.RECEIVE, queue_url) from None
        await self._come_back(Operation.RECEIVE, queue_url, fault)
        return messages

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
        return await self._call(
            Operation.SEND,
            queue_url,
            lambda _: self._sqs.send(
                queue_url,
                body,
                message_attributes=message_attributes,
                message_group_id=message_group_id,
                deduplication_id=deduplication_id,
            ),
        )

    async def aclose(self) -> None:
        """Calls made from now on fail."""
        self._closed = True

    async def _call(self, operation: Operation, queue_url: str, act: Callable[[Fault], _T], *, entries: int = 1) -> _T:
        fault = await self._go(operation, queue_url, entries)
        try:
            result = act(fault)
        except MemorySqsError as refused:
            await self._come_back(operation, queue_url, fault)
            raise _as_sqs_error(refused.error, operation, queue_url) from None
        await self._come_back(operation, queue_url, fault)
        return result

    async def _batch(
        self,
        operation: Operation,
        queue_url: str,
        receipts: Sequence[Receipt],
        act: Callable[[Sequence[int]], list[ServiceError | None]],
    ) -> Sequence[EntryAnswer]:
        if not receipts:
            return []
        errors: dict[int, ServiceError | None] = {}

        def act_on_the_others(fault: Fault) -> None:
            errors.update(fault.entry_errors)
            places = [place for place in range(len(receipts)) if place not in errors]
            if places:
                errors.update(zip(places, act(places), strict=True))

        try:
            await self._call(operation, queue_url, act_on_the_others, entries=len(receipts))
        except SqsError as error:
            return failed_call(receipts, error)
        return entry_answers(receipts, _batch_answer(errors))

    async def _go(self, operation: Operation, queue_url: str, entries: int) -> Fault:
        """The way to the service."""
        if self._closed:
            raise TransientError(f"the transport to {queue_url} is closed", queue=queue_url)
        call = TransportCall(operation, queue_url, entries, self._sqs.clock.now())
        self.calls.append(call)
        fault = self.faults(call)
        if fault.before_seconds:
            await asyncio.sleep(fault.before_seconds)
        if fault.request_lost:
            await self._wait(fault.after_seconds)
            raise _as_network_error(EndpointConnectionError(endpoint_url=queue_url), operation, queue_url)
        if fault.error is not None:
            await self._wait(fault.after_seconds)
            raise _as_sqs_error(fault.error, operation, queue_url)
        return fault

    async def _come_back(self, operation: Operation, queue_url: str, fault: Fault) -> None:
        """The way back."""
        await self._wait(fault.after_seconds)
        if fault.answer_lost:
            raise _as_network_error(ReadTimeoutError(endpoint_url=queue_url), operation, queue_url)

    async def _wait(self, seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)


def _batch_answer(errors: Mapping[int, ServiceError | None]) -> Mapping[str, Any]:
    """The answer of a batch call in the shape of the API."""
    return {
        "Successful": [{"Id": str(place)} for place, error in errors.items() if error is None],
        "Failed": [
            {"Id": str(place), "SenderFault": error.sender_fault, "Code": error.code, "Message": error.text}
            for place, error in errors.items()
            if error is not None
        ],
    }


def _as_sqs_error(error: ServiceError, operation: Operation, queue_url: str) -> SqsError:
    return error_from_code(error.code, error.text, operation=operation.value, queue=queue_url, status=error.status)


def _as_network_error(error: Exception, operation: Operation, queue_url: str) -> SqsError:
    classified = error_from_exception(error, operation=operation.value, queue=queue_url)
    if classified is None:
        raise AssertionError(f"an error of the network is not known as one: {error!r}")
    return classified
