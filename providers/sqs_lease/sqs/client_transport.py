"""The base of the transports over AWS clients: the whole protocol except the line that calls the client.

Capacity: half of the client's connections is for long polls, half for all other calls. A long poll occupies a
connection for up to 20 s. Without the split, polls would delay extensions until leases end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import traceback
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from botocore.exceptions import IncompleteReadError

from sqs_lease.core.calls import EntryAnswer, Verdict, VisibilityChange
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.sqs import move_tasks, requests
from sqs_lease.sqs.classification import (
    error_from_exception,
    error_from_foreign_answer,
    translate_client_errors,
)
from sqs_lease.sqs.client import ANSWER_SECONDS
from sqs_lease.sqs.errors import SqsError, TransientError, WrongRegionError
from sqs_lease.sqs.move_tasks import MAX_LISTED_TASKS, MoveTask
from sqs_lease.sqs.transport import QueueAttributes
from sqs_lease.sqs.validation import (
    QueueReference,
    check_batch,
    check_changes,
    check_queue_url,
    check_receive,
    check_send,
    queue_reference,
)

logger = logging.getLogger(__name__)

READ_ATTEMPTS: Final = 3
"""Most tries of a call that only reads, before its failure is raised; only for failures that may pass."""

_READ_PAUSE_SECONDS: Final = 0.5

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Capacity:
    """The number of calls that the client may make at once: long polls, and all others."""

    polls: asyncio.Semaphore
    calls: asyncio.Semaphore

    @classmethod
    def of(cls, connections: int) -> Capacity:
        """Split a client's connections in halves."""
        polls = max(connections // 2, 1)
        return cls(asyncio.Semaphore(polls), asyncio.Semaphore(max(connections - polls, 1)))


class ClientTransport(ABC):
    """A :class:`sqs_lease.sqs.transport.Transport` over a client of the AWS API.

    Subclasses give :meth:`_open`, :meth:`_call` and :meth:`_close`. A transport works in one event loop only. It owns
    its client: :meth:`aclose` (or leaving it as an asynchronous context manager) closes the client.
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
        """Return the client, ready for use. Called once; again only after it failed."""

    @abstractmethod
    async def _call(
        self, method: Callable[..., Any], parameters: Mapping[str, Any], free: Callable[[], None]
    ) -> Mapping[str, Any]:
        """Make one call and return its answer.

        Args:
            method: The client's method.
            parameters: Its keyword arguments.
            free: Call it once, in the event loop, when the call has freed its connection. A cancelled call that goes on
                in a thread does so later.

        Raises:
            Exception: Any exception of the client.
        """

    @abstractmethod
    async def _close(self) -> None:
        """Close the client, used or not. Called once."""

    async def __aenter__(self) -> Self:
        await self._opened("")
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
            return read_answer(lambda: requests.found_url(answer), "GetQueueUrl", queue)

        return await self._repeated(read)

    async def queue_attributes(self, queue_url: str) -> QueueAttributes:
        """See :meth:`sqs_lease.sqs.transport.Transport.queue_attributes`."""
        await self._check_region(check_queue_url(queue_url), queue_url)

        async def read() -> QueueAttributes:
            parameters = requests.queue_attributes_request(queue_url)
            answer = await self._perform("GetQueueAttributes", parameters, queue_url)
            return read_answer(lambda: requests.queue_attributes(answer), "GetQueueAttributes", queue_url)

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
        return read_answer(lambda: requests.received_messages(answer), "ReceiveMessage", queue_url)

    async def change_visibility(self, queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        """See :meth:`sqs_lease.sqs.transport.Transport.change_visibility`."""
        check_changes(changes, queue_url)
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
        return read_answer(lambda: requests.text_of(answer["MessageId"]), "SendMessage", queue_url)

    async def start_move_task(
        self, source_arn: str, *, destination_arn: str | None = None, max_per_second: int | None = None
    ) -> str:
        """See :meth:`sqs_lease.sqs.move_tasks.RedriveTransport.start_move_task`."""
        parameters = move_tasks.start_request(source_arn, destination_arn, max_per_second)
        answer = await self._perform("StartMessageMoveTask", parameters, source_arn)
        return read_answer(lambda: requests.text_of(answer["TaskHandle"]), "StartMessageMoveTask", source_arn)

    async def move_tasks(self, source_arn: str) -> Sequence[MoveTask]:
        """See :meth:`sqs_lease.sqs.move_tasks.RedriveTransport.move_tasks`."""
        parameters = {"SourceArn": source_arn, "MaxResults": MAX_LISTED_TASKS}

        async def read() -> list[MoveTask]:
            answer = await self._perform("ListMessageMoveTasks", parameters, source_arn)
            return read_answer(lambda: move_tasks.listed_tasks(answer), "ListMessageMoveTasks", source_arn)

        return await self._repeated(read)

    async def cancel_move_task(self, source_arn: str, handle: str) -> None:
        """See :meth:`sqs_lease.sqs.move_tasks.RedriveTransport.cancel_move_task`."""
        await self._perform("CancelMessageMoveTask", {"TaskHandle": handle}, source_arn, secrets=[handle])

    async def dead_letter_sources(self, queue_url: str) -> Sequence[str]:
        """See :meth:`sqs_lease.sqs.move_tasks.RedriveTransport.dead_letter_sources`."""
        await self._check_region(check_queue_url(queue_url), queue_url)

        async def read() -> list[str]:
            answer = await self._perform("ListDeadLetterSourceQueues", {"QueueUrl": queue_url}, queue_url)
            return read_answer(lambda: requests.dead_letter_sources(answer), "ListDeadLetterSourceQueues", queue_url)

        return await self._repeated(read)

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
        """Make a call that only reads; make it again after a failure that may pass."""
        for attempt in range(1, READ_ATTEMPTS):
            try:
                return await read()
            except SqsError as error:
                if error.verdict is Verdict.REFUSED:
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
        """Make a call once there is a connection for it; turn the client's exceptions into ``SqsError``."""
        capacity = await self._opened(queue)
        method = getattr(self._client, self._methods[operation])
        semaphore = capacity.polls if operation == "ReceiveMessage" else capacity.calls
        seconds = wait_seconds + ANSWER_SECONDS
        await semaphore.acquire()
        if on_sent is not None:
            on_sent()
        try:
            # The client may have botocore's default read timeout of 60 s.
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
            described = error_of_call(error, operation=operation, queue=queue, secrets=secrets)
            if described is None:
                raise
            # Not chained: botocore's text can quote whole receipt handles, and a traceback would print it.
            raise described from None

    async def _opened(self, queue: str) -> Capacity:
        if self._closed:
            raise RuntimeError("the transport is closed and makes no calls")
        if self._capacity is None:
            async with self._opening:
                if self._capacity is None:
                    with translate_client_errors(queue):
                        self._client = await self._open()
                    meta = self._client.meta
                    check_answers(self._client)
                    self._methods = {operation: name for name, operation in meta.method_to_api_mapping.items()}
                    self._capacity = Capacity.of(meta.config.max_pool_connections)
        return self._capacity

    async def _check_region(self, reference: QueueReference, queue: str) -> None:
        await self._opened(queue)
        check_region(reference, queue, self._client.meta.region_name)


def check_region(reference: QueueReference, queue: str, region: str) -> None:
    """Check that a client calls the region of a queue; SQS would answer for the queue of that name in its own.

    Args:
        reference: The parts of the queue's name, ARN or URL.
        queue: The queue as it was given; the error names it.
        region: The client's region.

    Raises:
        WrongRegionError: It calls another one.
    """
    if reference.region not in {None, region}:
        remedy = f"Make the client (in Airflow: set the connection's region) for {reference.region}."
        raise WrongRegionError(
            f"Queue {queue} is in region {reference.region}, but the client calls {region}. {remedy}",
            queue=queue,
            code="WrongRegion",
            text=f"the queue is in {reference.region}, the client calls {region}",
            remedy=remedy,
        )


def check_answers(client: Any) -> None:
    """Let a client refuse answers that are not SQS's; :func:`error_of_call` describes the exception that it raises."""
    client.meta.events.register("before-parse.sqs", _check_answer, unique_id="sqs-lease-check-answer")


def error_of_call(error: Exception, *, operation: str, queue: str, secrets: Iterable[str] = ()) -> SqsError | None:
    """Return the error for a call in which a client raised an exception; None for a defect.

    Args:
        error: The exception.
        operation: The API operation.
        queue: The queue, for the error's text.
        secrets: See :func:`sqs_lease.sqs.classification.redacted`.
    """
    if isinstance(error, _ForeignAnswerError):
        return error_from_foreign_answer(error.status, error.text, operation=operation, queue=queue, secrets=secrets)
    described = error_from_exception(error, operation=operation, queue=queue, secrets=secrets)
    return _unreadable(error, operation, queue) if described is None and _is_of_reading(error) else described


class _ForeignAnswerError(Exception):
    """An error: an answer is not in SQS's form, but of a proxy, a login portal, or another service."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


_LONGEST_LENGTH: Final = 18
"""Most digits of an answer's length; Python refuses to convert thousands of them."""


def _check_answer(response_dict: Mapping[str, Any], **_: Any) -> None:
    """Refuse an answer that is cut short or not SQS's: botocore would accept it.

    It would read an answer of status 200 as one without any content, so that a receive whose answer was lost would look
    like one that found no message. And it would read a proxy's page of status 403 as an error of SQS with the code
    "403", as if SQS denied the access.
    """
    body: bytes = response_dict["body"]
    length = response_dict["headers"].get("content-length", "")
    if length.isdecimal() and len(length) <= _LONGEST_LENGTH and len(body) < int(length):
        raise IncompleteReadError(actual_bytes=len(body), expected_bytes=int(length))
    status: int = response_dict["status_code"]
    if status >= 300:
        if not _is_error_of_sqs(response_dict["headers"], body):
            target = response_dict["headers"].get("location", "").partition("?")[0]
            page = body.decode(errors="replace")
            raise _ForeignAnswerError(status, f"redirects to {target}" if target else page)
        return
    if not body and not length:
        raise _ForeignAnswerError(status, "the answer was cut off in its headers")
    if body[:100].lstrip()[:1] not in {b"", b"{"}:
        raise _ForeignAnswerError(status, "the answer is not JSON")


_XML_CODE: Final = re.compile(r"<Code>\s*[\w.]+\s*</Code>")


def _is_error_of_sqs(headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether an error has a code that the client can read, as all errors of SQS have.

    An error of a proxy may be any text in any encoding, some of which botocore fails at.
    """
    try:
        text = body.decode()
        said = json.loads(text)
    except UnicodeDecodeError:
        return False
    except ValueError:
        return _XML_CODE.search(text) is not None
    except RecursionError:
        return False
    if not isinstance(said, dict):
        return False
    code = said.get("__type")
    # SQS writes the code into the body. Some emulators write it into the header only.
    return bool(headers.get("x-amzn-query-error")) if code is None else isinstance(code, str) and code != ""


_READERS: Final = ("botocore.parsers", "aiobotocore.parsers")


def _is_of_reading(error: Exception) -> bool:
    """Return whether the client failed at the content of an answer, such as a list in place of an object."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__") in _READERS for frame, _ in frames)


def read_answer(reading: Callable[[], _T], operation: str, queue: str) -> _T:
    """Read an answer of status 200; one without a required field did not come from SQS.

    Raises:
        ForeignAnswerError: It cannot be read.
    """
    try:
        return reading()
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _unreadable(error, operation, queue) from None


def _unreadable(error: Exception, operation: str, queue: str) -> SqsError:
    text = f"{type(error).__name__} while reading the answer"
    return error_from_foreign_answer(200, text, operation=operation, queue=queue)


def _in_order(receipts: Sequence[Receipt], answers: Sequence[EntryAnswer]) -> list[EntryAnswer]:
    """Return the answers in the order of ``receipts``; those without a handle were not sent.

    The service refuses a whole batch for one empty handle.
    """
    answered = iter(answers)
    text = "the receipt handle is empty: the lease was handed on without it"
    return [
        next(answered) if receipt.handle else EntryAnswer(receipt, Verdict.REFUSED, "ReceiptHandleIsInvalid", text)
        for receipt in receipts
    ]
