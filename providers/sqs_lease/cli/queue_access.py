"""Calls on one queue that change nothing: the questions of `doctor`, and the permissions that the answers prove.

SQS has no dry run. Each permission is probed by a call that has no effect even if it is allowed: a receipt handle that
does not exist, a batch without entries, a receive of no messages. The answers prove different things:

- A read that answers is allowed. So is a change that is refused only for its receipt handle: a caller without the
  permission is denied before that.
- For a receive, a send and a move task it is not documented whether SQS checks the permission or the request first.
  There a denial is certain, but another refusal proves nothing: :attr:`Permit.NOT_DENIED`.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from functools import partial
from typing import Any, Final

from botocore import xform_name
from botocore.exceptions import ClientError

from sqs_lease.sqs.client_transport import check_answers, error_of_call, read_answer
from sqs_lease.sqs.errors import (
    AccessDeniedError,
    InvalidRequestError,
    OverLimitError,
    QueueNotFoundError,
    SqsError,
)
from sqs_lease.sqs.move_tasks import MAX_MOVES_PER_SECOND, UNKNOWN_CALL_CODES
from sqs_lease.sqs.requests import dead_letter_sources, found_url, queue_attributes, queue_url_request
from sqs_lease.sqs.validation import queue_reference

_NO_HANDLE: Final = "sqs-lease-doctor"
_NO_QUEUE: Final = "sqs-lease-doctor-no-such-queue-1b0f3a52"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a call.

    Attributes:
        content: The content; empty if the call failed.
        error: Why it failed; None if it did not.
        clock_seconds: How far the server's clock is ahead of this machine's; None if there was no answer.
        seconds: How long the call took.
    """

    content: Mapping[str, Any]
    error: SqsError | None
    clock_seconds: float | None
    seconds: float


class QueueCaller:
    """A caller of single operations on a queue, which returns their errors as values.

    Args:
        client: An SQS client of boto3.
        queue: The queue's name, URL or ARN, for errors.
    """

    def __init__(self, client: Any, queue: str) -> None:
        self._client = client
        check_answers(client)
        self._queue = queue

    def call(
        self, operation: str, read: Callable[[Mapping[str, Any]], object] | None = None, **parameters: Any
    ) -> Answer:
        """Make one call.

        Args:
            operation: The API operation.
            read: Reads the answer, to find out whether it can be read; None takes any.
            parameters: The parameters.
        """
        content: Mapping[str, Any] = {}
        error: SqsError | None = None
        began_at, began = time.time(), time.monotonic()
        try:
            content = getattr(self._client, xform_name(operation))(**parameters)
            metadata = content.get("ResponseMetadata", {})
            if read is not None:
                read_answer(partial(read, content), operation, self._queue)
        except SqsError as unreadable:
            content, error = {}, unreadable
        except Exception as raised:
            error = error_of_call(raised, operation=operation, queue=self._queue)
            if error is None:
                raise
            # Errors of the HTTP client have a response as well, which may be None.
            metadata = raised.response.get("ResponseMetadata", {}) if isinstance(raised, ClientError) else {}
        seconds = time.monotonic() - began
        return Answer(content, error, _clock_seconds(metadata, began_at + seconds / 2), seconds)

    def url(self) -> Answer:
        """Ask for the queue's URL, even if the user gave it, because leases ask when a name or an ARN is given."""
        return self.call("GetQueueUrl", found_url, **queue_url_request(queue_reference(self._queue)))

    def attributes(self, url: str) -> Answer:
        """Ask for all attributes of the queue."""
        return self.call("GetQueueAttributes", queue_attributes, QueueUrl=url, AttributeNames=["All"])

    def dead_letter_sources(self, url: str) -> Answer:
        """Ask for the queues that it is the dead-letter queue of."""
        return self.call("ListDeadLetterSourceQueues", dead_letter_sources, QueueUrl=url)


class Permit(StrEnum):
    """The knowledge about a permission."""

    ALLOWED = "allowed"
    NOT_DENIED = "not denied"
    DENIED = "denied"
    NOT_OFFERED = "not offered"
    """The server does not have this call."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Permission:
    """The result of a probe of a permission on a queue.

    Attributes:
        action: The IAM action, without ``sqs:``.
        permit: The result.
        error: Why it was denied, or is not known; None for other permits.
    """

    action: str
    permit: Permit
    error: SqsError | None = None


@dataclass(frozen=True, slots=True)
class _Probe:
    action: str
    operation: str
    parameters: Callable[[str, str], Mapping[str, Any]]
    """Makes the parameters from the queue's URL and ARN."""
    proves: bool
    """Whether a refusal of the request itself proves the permission."""


def _handle_of_no_task(arn: str) -> str:
    task = {"taskId": "00000000-0000-0000-0000-000000000000", "sourceArn": arn}
    return base64.b64encode(json.dumps(task).encode()).decode()


_ENTRY: Final = {"Id": "0", "ReceiptHandle": _NO_HANDLE}

RECEIVING: Final = (
    _Probe(
        "ReceiveMessage",
        "ReceiveMessage",
        lambda url, _: {"QueueUrl": url, "MaxNumberOfMessages": 0, "WaitTimeSeconds": 0},
        proves=False,
    ),
    _Probe(
        "ChangeMessageVisibility",
        "ChangeMessageVisibilityBatch",
        lambda url, _: {"QueueUrl": url, "Entries": [{**_ENTRY, "VisibilityTimeout": 30}]},
        proves=True,
    ),
    _Probe(
        "DeleteMessage",
        "DeleteMessageBatch",
        lambda url, _: {"QueueUrl": url, "Entries": [_ENTRY]},
        proves=True,
    ),
)
"""Probes of the permissions that every lease needs on its queue, beside the two reads."""

SENDING: Final = (
    _Probe("SendMessage", "SendMessageBatch", lambda url, _: {"QueueUrl": url, "Entries": []}, proves=False),
)
"""Probes of the permissions that ``dead_letter()`` needs on the dead-letter queue."""

MOVING: Final = (
    _Probe("ListMessageMoveTasks", "ListMessageMoveTasks", lambda _, arn: {"SourceArn": arn}, proves=True),
    _Probe(
        "StartMessageMoveTask",
        "StartMessageMoveTask",
        lambda _, arn: {
            "SourceArn": arn,
            # Two mistakes, so that servers cannot start a task.
            "DestinationArn": f"{arn.rpartition(':')[0]}:{_NO_QUEUE}",
            "MaxNumberOfMessagesPerSecond": MAX_MOVES_PER_SECOND + 1,
        },
        proves=False,
    ),
    _Probe(
        "CancelMessageMoveTask",
        "CancelMessageMoveTask",
        lambda _, arn: {"TaskHandle": _handle_of_no_task(arn)},
        proves=False,
    ),
    _Probe("ListDeadLetterSourceQueues", "ListDeadLetterSourceQueues", lambda url, _: {"QueueUrl": url}, proves=True),
)
"""Probes of the permissions that a redrive needs on the dead-letter queue."""


def probe(caller: QueueCaller, probes: tuple[_Probe, ...], *, url: str, arn: str) -> tuple[Permission, ...]:
    """Probe permissions on a queue, without any effect on it or its messages.

    Args:
        caller: Makes the calls.
        probes: :data:`RECEIVING`, :data:`SENDING` or :data:`MOVING`.
        url: The queue's URL.
        arn: Its ARN.
    """
    return tuple(
        permission_of(each.action, caller.call(each.operation, **each.parameters(url, arn)), proves=each.proves)
        for each in probes
    )


def permission_of(action: str, answer: Answer, *, proves: bool = True) -> Permission:
    """Derive a permission from an answer.

    Args:
        action: The IAM action, without ``sqs:``.
        answer: The answer.
        proves: Whether a refusal of the request itself proves the permission.
    """
    error = answer.error
    if error is None:
        return Permission(action, Permit.ALLOWED)
    if isinstance(error, AccessDeniedError):
        # The text names the denied action; a probe may be denied for another action that SQS checks first.
        names = error.text.lower()
        is_another = "not authorized to perform: sqs:" in names and f"sqs:{action.lower()}" not in names
        return Permission(action, Permit.NOT_DENIED if is_another else Permit.DENIED, error)
    if error.code in UNKNOWN_CALL_CODES:
        return Permission(action, Permit.NOT_OFFERED)
    if isinstance(error, OverLimitError):
        return Permission(action, Permit.ALLOWED)
    if isinstance(error, InvalidRequestError) or (not proves and isinstance(error, QueueNotFoundError)):
        return Permission(action, Permit.ALLOWED if proves else Permit.NOT_DENIED)
    return Permission(action, Permit.UNKNOWN, error)


def _clock_seconds(metadata: Mapping[str, Any], here: float) -> float | None:
    date = metadata.get("HTTPHeaders", {}).get("date")
    try:
        there = parsedate_to_datetime(date) if date else None
    except ValueError:
        return None
    if there is None:
        return None
    # The header has whole seconds, rounded down: half a second is the average of the rest.
    return there.timestamp() + 0.5 - here
