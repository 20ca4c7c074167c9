"""Faults of calls on the in-memory SQS, as values: scripted call by call, at random, or for a time.

The rules can be nested: a rule with ``otherwise`` first asks that rule, and adds its own faults. A service that is away
for a minute, allows ten calls a second and answers slowly now and then::

    slow = HeavyTail(random=random, otherwise=RandomFaults(random=random, throttled_entries=0.1))
    faults = Outages([(60, 120)], CallRate(10, slow))

A rule that counts, such as :class:`CallRate`, counts for all transports that it is given to.
"""

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
    START_MOVE_TASK = "StartMessageMoveTask"
    LIST_MOVE_TASKS = "ListMessageMoveTasks"
    CANCEL_MOVE_TASK = "CancelMessageMoveTask"
    DEAD_LETTER_SOURCES = "ListDeadLetterSourceQueues"


@dataclass(frozen=True, slots=True)
class TransportCall:
    """One call, as a fault rule sees it.

    Attributes:
        operation: The operation.
        queue_url: The queue; for ``QUEUE_URL`` as the caller gave it, for move tasks its ARN.
        entries: How many messages it concerns: the entries of a batch, the most that a receive may return.
        at: When it was made, in seconds of the service's clock.
    """

    operation: Operation
    queue_url: str
    entries: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The fault of one call; no fault by default.

    Attributes:
        before_seconds: How long the request takes to reach the service, which then carries it out.
        after_seconds: How long the answer takes to come back, or its absence to be noticed.
        error: The service answers the whole call with this error, and does nothing unless ``carried_out``.
        carried_out: With ``error``: the service carries the call out in spite of the error, as it may with a 500.
        entry_errors: The service answers these entries of a batch call, by their place from 0, with errors
            and does nothing for them; the others go through.
        unreachable: The connection is refused: the service never sees the call, and the caller can tell.
        request_lost: The service never sees the call; the caller gets a read time-out.
        answer_lost: The service carries the call out; the caller gets a read time-out.
        unstoppable: The service carries the call out even if the caller gives it up on its way.
    """

    before_seconds: float = 0.0
    after_seconds: float = 0.0
    error: ServiceError | None = None
    carried_out: bool = False
    entry_errors: Mapping[int, ServiceError] = field(default_factory=dict)
    unreachable: bool = False
    request_lost: bool = False
    answer_lost: bool = False
    unstoppable: bool = False


NO_FAULT = Fault()

_THROTTLED_CALL = Fault(error=THROTTLED)
_UNAVAILABLE_CALL = Fault(error=UNAVAILABLE)
_FAILED_CALL = Fault(error=INTERNAL_ERROR)
_DONE_BUT_FAILED_CALL = Fault(error=INTERNAL_ERROR, carried_out=True)
_REFUSED_CONNECTION = Fault(unreachable=True)
_LOST_REQUEST = Fault(request_lost=True)
_LOST_ANSWER = Fault(answer_lost=True)

FaultRule: TypeAlias = Callable[[TransportCall], Fault]
"""Function that returns the fault of each call of a transport."""


def no_faults(call: TransportCall) -> Fault:
    """Return no fault."""
    return NO_FAULT


class ScriptedFaults:
    """The given faults, one per call in order, then none.

    Args:
        faults: The faults of the first call, the second, and so on; ``NO_FAULT`` for a call without one.
        operation: Count calls of this operation only; all by default.
    """

    def __init__(self, *faults: Fault, operation: Operation | None = None) -> None:
        self._faults = list(faults)
        self._operation = operation

    def __call__(self, call: TransportCall) -> Fault:
        """Return the next fault."""
        if not self._faults or self._operation not in (None, call.operation):
            return NO_FAULT
        return self._faults.pop(0)

    @property
    def left(self) -> int:
        """The number of faults that are still to come: 0 after the whole script."""
        return len(self._faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomFaults:
    """Faults at random; the shares are of all calls, from 0 to 1, and 0 by default.

    Attributes:
        random: Where chance comes from; the same seed gives the same faults for the same calls.
        latency_seconds: Most that a request takes, and most that an answer takes.
        throttled: Calls refused with ``RequestThrottled``.
        unavailable: Calls refused with ``ServiceUnavailable`` (503): certainly not carried out.
        failed: Calls answered with ``InternalError`` (500) and not carried out.
        done_but_failed: Calls answered with ``InternalError`` although they are carried out.
        refused_connections: Calls that cannot be sent: certainly not carried out.
        lost_requests: Calls that never reach the service.
        lost_answers: Calls that are carried out without an answer.
        noticed_seconds: Most that it takes to notice that a request or an answer was lost.
        throttled_entries: Entries of batch calls that are throttled.
        failed_entries: Entries of batch calls that fail with an internal error.
        unstoppable: Calls that are carried out even if the caller gives them up on their way.
    """

    random: Random
    latency_seconds: float = 0.0
    throttled: float = 0.0
    unavailable: float = 0.0
    failed: float = 0.0
    done_but_failed: float = 0.0
    refused_connections: float = 0.0
    lost_requests: float = 0.0
    lost_answers: float = 0.0
    noticed_seconds: float = 10.0
    throttled_entries: float = 0.0
    failed_entries: float = 0.0
    unstoppable: float = 0.0

    def __call__(self, call: TransportCall) -> Fault:
        """Draw the fault of a call."""
        chance = self.random.random
        fault = self._draw_kind()
        lost = fault.request_lost or fault.answer_lost
        fault = replace(
            fault,
            before_seconds=self.latency_seconds * chance(),
            after_seconds=(self.noticed_seconds if lost else self.latency_seconds) * chance(),
            unstoppable=chance() < self.unstoppable,
        )
        if fault.error is None and not lost and (self.throttled_entries or self.failed_entries):
            return replace(fault, entry_errors=self._entry_errors(call))
        return fault

    def _draw_kind(self) -> Fault:
        drawn = self.random.random()
        for share, fault in (
            (self.throttled, _THROTTLED_CALL),
            (self.unavailable, _UNAVAILABLE_CALL),
            (self.failed, _FAILED_CALL),
            (self.done_but_failed, _DONE_BUT_FAILED_CALL),
            (self.refused_connections, _REFUSED_CONNECTION),
            (self.lost_requests, _LOST_REQUEST),
            (self.lost_answers, _LOST_ANSWER),
        ):
            drawn -= share
            if drawn < 0:
                return fault
        return NO_FAULT

    def _entry_errors(self, call: TransportCall) -> dict[int, ServiceError]:
        if call.operation not in (Operation.CHANGE_VISIBILITY, Operation.DELETE):
            return {}
        errors: dict[int, ServiceError] = {}
        for place in range(call.entries):
            drawn = self.random.random()
            if drawn < self.throttled_entries:
                errors[place] = THROTTLED
            elif drawn < self.throttled_entries + self.failed_entries:
                errors[place] = INTERNAL_ERROR
        return errors


@dataclass(frozen=True, slots=True, kw_only=True)
class HeavyTail:
    """Calls take from 10 ms to 10 s: most of them hardly any time, and a few of them very long.

    A call is carried out at any moment of that time, early or late.

    Attributes:
        random: Where chance comes from.
        shortest_seconds: The least that a call takes; 10 ms by default.
        longest_seconds: The most; 10 s by default.
        tail: How thin the tail is: ``(shortest_seconds / t) ** tail`` of the calls take longer than ``t``. With 1, the
            default, one in a hundred takes longer than a second; with 0.5, one in ten.
        otherwise: A rule for further faults; its times are replaced by those of this rule.
    """

    random: Random
    shortest_seconds: float = 0.01
    longest_seconds: float = 10.0
    tail: float = 1.0
    otherwise: FaultRule = no_faults

    def __call__(self, call: TransportCall) -> Fault:
        """Return the fault of a call."""
        drawn = self.shortest_seconds * (1 - self.random.random()) ** (-1 / self.tail)
        seconds = min(drawn, self.longest_seconds)
        before = seconds * self.random.random()
        return replace(self.otherwise(call), before_seconds=before, after_seconds=seconds - before)


class CallRate:
    """A limit of calls a second for a queue; calls beyond it are throttled as a whole and not carried out.

    It is a token bucket by the service's clock, for each queue: it is full at first, and every call of any kind takes a
    token. Calls that are throttled, or that do not reach the service, do not take one.

    Args:
        calls_per_second: How many tokens come in each second.
        otherwise: A rule for further faults.
        burst: Most tokens in the bucket: this many calls at once go through after a rest. By default the tokens of one
            second, but at least 1.
        queue_url: The queue of the counted calls; by default each queue is counted by itself.
    """

    def __init__(
        self,
        calls_per_second: float,
        otherwise: FaultRule = no_faults,
        *,
        burst: float | None = None,
        queue_url: str | None = None,
    ) -> None:
        self._calls_per_second = calls_per_second
        self._otherwise = otherwise
        self._burst = max(calls_per_second, 1.0) if burst is None else burst
        self._queue_url = queue_url
        self._buckets: dict[str, tuple[float, float]] = {}  # by queue: how many tokens, and when that was

    def __call__(self, call: TransportCall) -> Fault:
        """Return the fault of a call."""
        fault = self._otherwise(call)
        if fault.unreachable or fault.request_lost or self._queue_url not in (None, call.queue_url):
            return fault
        tokens, counted_at = self._buckets.get(call.queue_url, (self._burst, call.at))
        tokens = min(tokens + (call.at - counted_at) * self._calls_per_second, self._burst)
        allowed = tokens >= 1
        self._buckets[call.queue_url] = (tokens - allowed, call.at)
        return fault if allowed else replace(fault, error=THROTTLED, carried_out=False)


@dataclass(frozen=True, slots=True)
class Outages:
    """Outages of the service: calls made then fail and are not carried out.

    Attributes:
        windows: The beginning and end of each, in seconds of the service's clock, the end not included.
        otherwise: The rule at other times, and for other operations.
        unreachable: True: connections are refused. False, the default: the service answers with ``error``.
        error: The answer; ``ServiceUnavailable`` by default.
        operation: The calls that are refused; all by default.
    """

    windows: Sequence[tuple[float, float]]
    otherwise: FaultRule = no_faults
    unreachable: bool = False
    error: ServiceError = UNAVAILABLE
    operation: Operation | None = None

    def __call__(self, call: TransportCall) -> Fault:
        """Return the fault of a call."""
        concerned = self.operation in (None, call.operation)
        if not (concerned and any(start <= call.at < end for start, end in self.windows)):
            return self.otherwise(call)
        if self.unreachable:
            return Fault(unreachable=True)
        return Fault(error=self.error)
