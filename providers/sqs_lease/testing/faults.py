"""What goes wrong with calls on the in-memory SQS, as values: scripted call by call, at random, or for a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random
from typing import TypeAlias

from sqs_lease.testing.service_errors import INTERNAL_ERROR, THROTTLED, UNAVAILABLE, ServiceError


class Operation(Enum):
    """The calls of a transport, by the names of the API."""

    QUEUE_URL = "GetQueueUrl"
    QUEUE_ATTRIBUTES = "GetQueueAttributes"
    RECEIVE = "ReceiveMessage"
    CHANGE_VISIBILITY = "ChangeMessageVisibilityBatch"
    DELETE = "DeleteMessageBatch"
    SEND = "SendMessage"


@dataclass(frozen=True, slots=True)
class TransportCall:
    """One call, as a fault rule sees it.

    Attributes:
        operation: Which.
        queue_url: On which queue; what the caller gave, for ``QUEUE_URL``.
        entries: How many messages it concerns: the entries of a batch, the most that a receive may return.
        at: When it was made, in seconds of the service's clock.
    """

    operation: Operation
    queue_url: str
    entries: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong with one call; nothing by default.

    Attributes:
        before_seconds: How long the request takes to reach the service.
        after_seconds: How long the answer takes to come back, or the lack of one to be noticed.
        error: The service refuses the whole call with this error and does nothing.
        entry_errors: The service answers these entries of a batch call, by their place from 0, with errors
            and does nothing for them; the others go through.
        request_lost: The service never sees the call; the caller gets a connection error.
        answer_lost: The service does what was asked; the caller gets a read time-out.
    """

    before_seconds: float = 0.0
    after_seconds: float = 0.0
    error: ServiceError | None = None
    entry_errors: Mapping[int, ServiceError] = field(default_factory=dict)
    request_lost: bool = False
    answer_lost: bool = False


NO_FAULT = Fault()

FaultRule: TypeAlias = Callable[[TransportCall], Fault]
"""Decides for each call of a transport what goes wrong with it."""


def no_faults(call: TransportCall) -> Fault:
    """Nothing goes wrong."""
    return NO_FAULT


class ScriptedFaults:
    """The given faults, one per call in order, then nothing.

    Args:
        faults: What goes wrong with the first call, the second, and so on; ``NO_FAULT`` for nothing.
        operation: Count calls of this operation only; all by default.
    """

    def __init__(self, *faults: Fault, operation: Operation | None = None) -> None:
        self._faults = list(faults)
        self._operation = operation

    def __call__(self, call: TransportCall) -> Fault:
        """The next fault."""
        if not self._faults or self._operation not in (None, call.operation):
            return NO_FAULT
        return self._faults.pop(0)

    @property
    def left(self) -> int:
        """How many of the faults no call has met yet: 0 when the script was played."""
        return len(self._faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomFaults:
    """Faults at random; the shares are of all calls, from 0 to 1, and 0 by default.

    Attributes:
        random: Where chance comes from; the same seed gives the same faults for the same calls.
        latency_seconds: Most that a request takes, and most that an answer takes.
        throttled: Calls refused with ``RequestThrottled``.
        failed: Calls refused with ``InternalError``.
        lost_requests: Calls that never reach the service.
        lost_answers: Calls that are carried out without an answer.
        noticed_seconds: Most that it takes to notice that a request or an answer was lost.
        failed_entries: Entries of batch calls that fail, throttled or with an internal error.
    """

    random: Random
    latency_seconds: float = 0.0
    throttled: float = 0.0
    failed: float = 0.0
    lost_requests: float = 0.0
    lost_answers: float = 0.0
    noticed_seconds: float = 10.0
    failed_entries: float = 0.0

    def __call__(self, call: TransportCall) -> Fault:
        """Draw what goes wrong with a call."""
        chance = self.random.random
        fault = Fault(before_seconds=self.latency_seconds * chance(), after_seconds=self.latency_seconds * chance())
        drawn = chance() - self.throttled
        if drawn < 0:
            return replace(fault, error=THROTTLED)
        drawn -= self.failed
        if drawn < 0:
            return replace(fault, error=INTERNAL_ERROR)
        drawn -= self.lost_requests
        if drawn < 0:
            return replace(fault, request_lost=True, after_seconds=self.noticed_seconds * chance())
        drawn -= self.lost_answers
        if drawn < 0:
            return replace(fault, answer_lost=True, after_seconds=self.noticed_seconds * chance())
        batch = call.operation in (Operation.CHANGE_VISIBILITY, Operation.DELETE)
        if batch and self.failed_entries:
            return replace(
                fault,
                entry_errors={
                    place: THROTTLED if chance() < 0.5 else INTERNAL_ERROR
                    for place in range(call.entries)
                    if chance() < self.failed_entries
                },
            )
        return fault


@dataclass(frozen=True, slots=True)
class Outages:
    """The service is unavailable for a time: calls made then fail and are not carried out.

    Attributes:
        windows: From when until when, in seconds of the service's clock, the end not included.
        otherwise: The rule at other times.
        unreachable: True: no connection can be made. False, the default: ``ServiceUnavailable``.
    """

    windows: Sequence[tuple[float, float]]
    otherwise: FaultRule = no_faults
    unreachable: bool = False

    def __call__(self, call: TransportCall) -> Fault:
        """What goes wrong with a call."""
        if not any(start <= call.at < end for start, end in self.windows):
            return self.otherwise(call)
        if self.unreachable:
            return Fault(request_lost=True)
        return Fault(error=UNAVAILABLE)
