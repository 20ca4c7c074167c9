"""What the transports over AWS clients share: all of the protocol but the one line that calls the client.

Capacity: half of the client's connections is for long polls, half for everything else. A long poll
occupies a connection for up to 20 s; without the split, polls would keep extensions waiting until leases end.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from sqs_lease.core.calls import EntryAnswer, Verdict, VisibilityChange
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.sqs import requests
from sqs_lease.sqs.classification import error_from_exception
from sqs_lease.sqs.client import ANSWER_SECONDS
from sqs_lease.sqs.errors import EndpointError, SqsError, TransientError, WrongRegionError
from sqs_lease.sqs.transport import QueueAttributes
from sqs_lease.sqs.validation import (
    QueueReference,
    check_batch,
    check_queue_url,
    check_receive,
    check_send,
    check_visibility,
    queue_reference,
)

logger = logging.getLogger(__name__)

READ_ATTEMPTS: Final = 3
"""How often a call that only reads is made before its transient failure is raised."""

_READ_PAUSE_SECONDS: Final = 0.5

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many calls may be with the client at once: long polls, and everything else."""

    polls: asyncio.Semaphore
    calls: asyncio.Semaphore

    @classmethod
    def of(cls, connections: int) -> Capacity:
        """Split a client's connections in halves."""
        polls = max(connections // 2, 1)
        return cls(asyncio.Semaphore(polls), asyncio.Semaphore(max(connections - polls, 1)))


class ClientTransport(ABC):
    """A :class:`sqs_lease.sqs.transport.Transport` over a client of the AWS API.

    Subclasses give :meth:`_open`, :meth:`_call` and :meth:`_close`. It must be used from one event loop only.
    It owns its client: :meth:`aclose` (or leaving it as an asynchronous context manager) closes the client.
    """

    def __init__(self) -> None:
        self._random = Random()
        self._client: Any = None
        self._methods: dict[str, str] = {}
        self._capacity: Capacity | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    @abstractmethod
    async def _open(self) -> Any:
        """Return the client, ready for use. Called once."""

    @abstractmethod
    async def _call(
        self, method: Callable[..., Any], parameters: Mapping[str, Any], free: Callable[[], None]
    ) -> Mapping[str, Any]:
        """Make one call and return its answer.

        Args:
            method: The client's method.
            parameters: Its keyword arguments.
            free: To be called once, in the event loop, when the call occupies a connection no more; that is
                later than a cancellation where the call goes on in a thread.

        Raises:
            Exception: Whatever the client raises.
        """

    @abstractmethod
    async def _close(self) -> None:
        """Close the client, used or not. Called once."""

    async def __aenter__(self) -> Self:
        await self._opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def queue_url(self, queue: str) -> str:
        """See :meth:`sqs_lease.sqs.transport.Transport.queue_url`."""
        reference = queue_reference(queue)
        await self._check_region(reference, queue)
        if reference.url is not None:
            return reference.url

        async def read() -> str:
            answer = await self._perform("GetQueueUrl", requests.queue_url_request(reference), queue)
            return str(_read(lambda: answer["QueueUrl"], "GetQueueUrl", queue))

        return await self._repeated(read)

    async def queue_attributes(self, queue_url: str) -> QueueAttributes:
        """See :meth:`sqs_lease.sqs.transport.Transport.queue_attributes`."""
        await self._check_region(check_queue_url(queue_url), queue_url)

        async def read() -> QueueAttributes:
            parameters = requests.queue_attributes_request(queue_url)
            answer = await self._perform("GetQueueAttributes", parameters, queue_url)
            return _read(lambda: requests.queue_attributes(answer), "GetQueueAttributes", queue_url)

        return await self._repeated(read)

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
        """See :meth:`sqs_lease.sqs.transport.Transport.receive`."""
        check_receive(
            queue_url,
            max_messages=max_messages,
            wait_seconds=wait_seconds,
            visibility_seconds=visibility_seconds,
            attempt_id=attempt_id,
        )
        await self._check_region(check_queue_url(queue_url), queue_url)
        parameters = requests.receive_request(
            queue_url,
            max_messages=max_messages,
            wait_seconds=wait_seconds,
            visibility_seconds=visibility_seconds,
            attempt_id=attempt_id,
        )
        answer = await self._perform(
            "ReceiveMessage", parameters, queue_url, wait_seconds=wait_seconds, on_sent=on_sent
        )
        return _read(lambda: requests.received_messages(answer), "ReceiveMessage", queue_url)

    async def change_visibility(self, queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        """See :meth:`sqs_lease.sqs.transport.Transport.change_visibility`."""
        check_batch(changes, queue_url)
        for change in changes:
            check_visibility(change.seconds, f"changing {change.receipt} of {queue_url}")
        sent = [change for change in changes if change.receipt.handle]
        answers = await self._batch(
            "ChangeMessageVisibilityBatch",
            queue_url,
            [change.receipt for change in sent],
            requests.change_visibility_request(queue_url, sent),
        )
        return _in_order([change.receipt for change in changes], answers)

    async def delete(self, queue_url: str, receipts: Sequence[Receipt]) -> Sequence[EntryAnswer]:
        """See :meth:`sqs_lease.sqs.transport.Transport.delete`."""
        check_batch(receipts, queue_url)
        sent = [receipt for receipt in receipts if receipt.handle]
        answers = await self._batch("DeleteMessageBatch", queue_url, sent, requests.delete_request(queue_url, sent))
        return _in_order(receipts, answers)

    async def send(
        self,
        queue_url: str,
        body: str,
        *,
        message_attributes: Mapping[str, Mapping[str, Any]] | None = None,
        message_group_id: str | None = None,
        deduplication_id: str | None = None,
    ) -> str:
        """See :meth:`sqs_lease.sqs.transport.Transport.send`."""
        check_send(queue_url, body, message_group_id=message_group_id, deduplication_id=deduplication_id)
        await self._check_region(check_queue_url(queue_url), queue_url)
        parameters = requests.send_request(
            queue_url,
            body,
            message_attributes=message_attributes,
            message_group_id=message_group_id,
            deduplication_id=deduplication_id,
        )
        answer = await self._perform("SendMessage", parameters, queue_url, secrets=[body])
        return str(_read(lambda: answer["MessageId"], "SendMessage", queue_url))

    async def aclose(self) -> None:
        """See :meth:`sqs_lease.sqs.transport.Transport.aclose`."""
        if not self._closed:
            self._closed = True
            await self._close()

    async def _batch(
        self, operation: str, queue_url: str, receipts: Sequence[Receipt], parameters: Mapping[str, Any]
    ) -> Sequence[EntryAnswer]:
        if not receipts:
            return []
        try:
            await self._check_region(check_queue_url(queue_url), queue_url)
            handles = [receipt.handle for receipt in receipts]
            answer = await self._perform(operation, parameters, queue_url, secrets=handles)
        except SqsError as error:
            return requests.failed_call(receipts, error)
        return requests.entry_answers(receipts, answer)

    async def _repeated(self, read: Callable[[], Awaitable[_T]]) -> _T:
        """Make a call that changes nothing, again if it failed on the way."""
        for attempt in range(1, READ_ATTEMPTS):
            try:
                return await read()
            except SqsError as error:
                if error.verdict not in {Verdict.TRANSIENT, Verdict.THROTTLED}:
                    raise
                logger.info("Attempt %d of %d: %s", attempt, READ_ATTEMPTS, error)
            await asyncio.sleep(_READ_PAUSE_SECONDS * attempt * (0.5 + self._random.random()))
        return await read()

    async def _perform(
        self,
        operation: str,
        parameters: Mapping[str, Any],
        queue: str,
        *,
        wait_seconds: int = 0,
        on_sent: Callable[[], None] | None = None,
        secrets: Iterable[str] = (),
    ) -> Mapping[str, Any]:
        """Make a call once there is a connection for it; what the client raises becomes an ``SqsError``."""
        capacity = await self._opened()
        method = getattr(self._client, self._methods[operation])
        semaphore = capacity.polls if operation == "ReceiveMessage" else capacity.calls
        seconds = wait_seconds + ANSWER_SECONDS
        await semaphore.acquire()
        if on_sent is not None:
            on_sent()
        try:
            # A limit of our own: the client given may have botocore's default read timeout of 60 s.
            async with asyncio.timeout(seconds):
                return await self._call(method, parameters, semaphore.release)
        except TimeoutError as error:
            raise TransientError(
                f"{operation} on queue {queue}: no answer within {seconds:g} s. "
                "Try again; if it persists, check the network and the client's endpoint.",
                queue=queue,
                code="Timeout",
                text=f"no answer within {seconds:g} s",
            ) from error
        except Exception as error:
            described = error_from_exception(error, operation=operation, queue=queue, secrets=secrets)
            if described is None:
                raise
            # Not chained: botocore's text can quote whole receipt handles, and a traceback would print it.
            raise described from None

    async def _opened(self) -> Capacity:
        if self._closed:
            raise RuntimeError("the transport was closed: no more calls can be made over it")
        if self._capacity is None:
            async with self._opening:
                if self._capacity is None:
                    self._client = await self._open()
                    meta = self._client.meta
                    self._methods = {operation: name for name, operation in meta.method_to_api_mapping.items()}
                    self._capacity = Capacity.of(meta.config.max_pool_connections)
        return self._capacity

    async def _check_region(self, reference: QueueReference, queue: str) -> None:
        await self._opened()
        region: str = self._client.meta.region_name
        if reference.region not in {None, region}:
            raise WrongRegionError(
                f"Queue {queue} is in region {reference.region}, but the client calls {region}. "
                f"Create the client (or set the connection's region) for {reference.region}.",
                queue=queue,
                code="WrongRegion",
                text=f"the queue is in {reference.region}, the client calls {region}",
            )


def _read(reading: Callable[[], _T], operation: str, queue: str) -> _T:
    """Read an answer of status 200; one that lacks what it must have did not come from SQS."""
    try:
        return reading()
    except (KeyError, TypeError, ValueError) as error:
        raise EndpointError(
            f"{operation} on queue {queue}: the answer is not one of SQS. Check the client's endpoint URL and proxy.",
            queue=queue,
            code="UnreadableAnswer",
            text=f"{type(error).__name__} while reading the answer",
        ) from None


def _in_order(receipts: Sequence[Receipt], answers: Sequence[EntryAnswer]) -> list[EntryAnswer]:
    """The answers in the order of ``receipts``; those without a handle were not sent.

    The service refuses a whole batch for one empty handle, and the others would suffer for it.
    """
    answered = iter(answers)
    text = "the receipt handle is empty: the lease was handed on without it"
    return [
        next(answered) if receipt.handle else EntryAnswer(receipt, Verdict.REFUSED, "ReceiptHandleIsInvalid", text)
        for receipt in receipts
    ]
