"""Metrics of every keeper, and a span for each lease, published through OpenTelemetry.

A program that publishes has imported OpenTelemetry before its first lease, and configured it. In other programs
nothing is published, and OpenTelemetry is not even imported. Leases are extended also if a program's provider or
exporter raises, or blocks at the beginning or the end of a span: an exporter without a queue of its own calls its
collector then.

Metrics, each with ``messaging.system`` (``aws_sqs``) and ``messaging.destination.name`` (the queue's name):

    sqs_lease.held             up-down counter  {message}  leases held now
    sqs_lease.batches          up-down counter  {batch}    batches with leases that are held now
    sqs_lease.extended         counter          {message}  confirmed extensions, one for each message
    sqs_lease.late             counter          {message}  deadlines that passed before an extension was confirmed
    sqs_lease.lost             counter          {message}  leases that the service refused to extend, or to settle
    sqs_lease.settled          counter          {message}  settlements, with the attribute ``sqs_lease.outcome``
    sqs_lease.release_latency  histogram        s          from the decision that a message failed to its being visible

Beside them are metrics of OpenTelemetry's semantic conventions for messaging, which other clients of queues publish
under the same names. They have ``messaging.operation.name``, ``server.address`` and ``server.port`` as well, and
``error.type`` if the operation failed:

    messaging.client.operation.duration  histogram  s          each call to SQS about messages
    messaging.client.consumed.messages   counter    {message}  messages that were received
    messaging.process.duration           histogram  s          leases: as long as the span below

The operations are ``receive``, ``change_visibility``, ``delete``, ``send`` and ``process``. Calls are measured where
they are made (:class:`MeteredTransport`), so failed calls and polls without messages are included. The conventions are
still in development.

The span ``process <queue>`` lasts from the receive of the first message to the settlement of the last one. It has a
link to the trace of each message's producer: W3C trace context in the message attributes ``traceparent`` and
``tracestate``, or X-Ray's in the system attribute ``AWSTraceHeader``. Attributes are those of OpenTelemetry's semantic
conventions for messaging, ``sqs_lease.<outcome>`` with the count of each outcome, and ``sqs_lease.extensions``. Receipt
handles and bodies are in none of it.

A lease that one process begins and another one ends has one span as well. Only plain values can be passed to the next
holder, so the span is made when the lease ends (:func:`publish_span`): from the values that were written down when the
lease was handed on (:func:`trace_of`), with the time of the first receive as its start.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from sqs_lease.clock import Clock
from sqs_lease.core.calls import EntryAnswer, Verdict, VisibilityChange
from sqs_lease.core.events import Outcome
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.daemon_threads import DaemonThreads
from sqs_lease.keeper.batch import LeaseReport, Meter, Unmetered
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.transport import QueueAttributes, Transport
from sqs_lease.sqs.validation import queue_reference

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.metrics import Counter, Histogram, MeterProvider
    from opentelemetry.metrics import Meter as ProgramMeter
    from opentelemetry.trace import Link, Span

logger = logging.getLogger(__name__)

NAME: Final = "sqs_lease"
"""The instrumentation scope of all that is published."""

MOST_LINKS: Final = 128
"""Most links of a span; OpenTelemetry keeps as many by default (OTEL_SPAN_LINK_COUNT_LIMIT)."""

RELEASE_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Bounds of the buckets of ``sqs_lease.release_latency``: OpenTelemetry's own begin at 5, for milliseconds."""

OPERATION_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Bounds of the buckets of the durations, as the conventions have them."""

_SYSTEM: Final = "messaging.system"
_QUEUE: Final = "messaging.destination.name"
_OUTCOME: Final = "sqs_lease.outcome"
_OPERATION: Final = "messaging.operation.name"
_OPERATION_TYPE: Final = "messaging.operation.type"
_ERROR_TYPE: Final = "error.type"
_PROCESS: Final = {_OPERATION: "process", _OPERATION_TYPE: "process"}
_TYPES: Final = {"receive": "receive", "delete": "settle", "send": "send"}
"""The conventions' type of an operation; an extension or a release by ``change_visibility`` has none."""

_ACTIVE_SPAN: Final = f"{NAME}-entered"
"""The key of the innermost lease in a context of OpenTelemetry."""

_XRAY: Final = re.compile(r"(?:^|;)\s*Root=1-(?P<epoch>[0-9a-fA-F]{8})-(?P<unique>[0-9a-fA-F]{24})(?:;|$)")
_XRAY_PARENT: Final = re.compile(r"(?:^|;)\s*Parent=(?P<span>[0-9a-fA-F]{16})(?:;|$)")
_XRAY_SAMPLED: Final = re.compile(r"(?:^|;)\s*Sampled=1(?:;|$)")

_TROUBLE: Final = (Outcome.LOST, Outcome.FAILED, Outcome.UNCERTAIN)

_T = TypeVar("_T")


def open_telemetry_meter() -> Meter:
    """Return a meter that counts through OpenTelemetry, or one that counts nothing if the program does not use it."""
    found = _safely(_instruments) if "opentelemetry.metrics" in sys.modules else None
    return Unmetered() if found is None else found.meter


class _Instruments:
    """All instruments of one provider of a program.

    Args:
        provider: The provider.
    """

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(NAME)
        self.meter = _OpenTelemetryMeter(meter)
        self.operation_duration: Histogram = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of a call about messages",
            explicit_bucket_boundaries_advisory=OPERATION_SECONDS,
        )
        self.consumed_messages: Counter = meter.create_counter(
            "messaging.client.consumed.messages",
            "{message}",
            "Number of messages that were delivered to the application",
        )
        self.process_duration: Histogram = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration from the first receive of a lease to its last settlement",
            explicit_bucket_boundaries_advisory=OPERATION_SECONDS,
        )


def _instruments() -> _Instruments:
    """Return the instruments of the program's provider, made once.

    Where a program has no SDK, OpenTelemetry keeps each meter and each instrument that it is asked for.
    """
    from opentelemetry import metrics

    return _instruments_of(metrics.get_meter_provider())


_instruments_of = lru_cache(maxsize=1)(_Instruments)


class _OpenTelemetryMeter:
    """A meter that counts through OpenTelemetry.

    Args:
        meter: The program's own one.
    """

    def __init__(self, meter: ProgramMeter) -> None:
        messages = "{message}"
        self._held = meter.create_up_down_counter(f"{NAME}.held", messages, "Leases held now")
        self._batches = meter.create_up_down_counter(
            f"{NAME}.batches", "{batch}", "Batches with leases that are held now"
        )
        self._extended = meter.create_counter(f"{NAME}.extended", messages, "Confirmed extensions")
        self._late = meter.create_counter(
            f"{NAME}.late", messages, "Deadlines that passed before an extension was confirmed"
        )
        self._lost = meter.create_counter(
            f"{NAME}.lost", messages, "Leases that the service refused to extend, or to settle"
        )
        self._settled = meter.create_counter(f"{NAME}.settled", messages, "Settlements, by their outcome")
        self._attributes: dict[str, dict[str, Any]] = {}  # by queue: names are parsed once
        self._release_latency = meter.create_histogram(
            f"{NAME}.release_latency",
            "s",
            "From the decision that a message failed to its being visible again",
            explicit_bucket_boundaries_advisory=RELEASE_SECONDS,
        )

    def held(self, queue_url: str, change: int) -> None:
        """See ``sqs_lease.held``."""
        self._held.add(change, self._of(queue_url))

    def batches(self, queue_url: str, change: int) -> None:
        """See ``sqs_lease.batches``."""
        self._batches.add(change, self._of(queue_url))

    def extended(self, queue_url: str, leases: int) -> None:
        """See ``sqs_lease.extended``."""
        self._extended.add(leases, self._of(queue_url))

    def late(self, queue_url: str) -> None:
        """See ``sqs_lease.late``."""
        self._late.add(1, self._of(queue_url))

    def ended(self, queue_url: str, outcome: Outcome, settling_seconds: float | None) -> None:
        """See ``sqs_lease.lost``, ``sqs_lease.settled`` and ``sqs_lease.release_latency``."""
        attributes = self._of(queue_url)
        if outcome is Outcome.LOST:
            self._lost.add(1, attributes)
            return
        self._settled.add(1, {**attributes, _OUTCOME: _named(outcome)})
        if outcome is Outcome.RELEASED and settling_seconds is not None:
            self._release_latency.record(settling_seconds, attributes)

    def _of(self, queue_url: str) -> dict[str, Any]:
        if queue_url not in self._attributes:
            self._attributes[queue_url] = _attributes(queue_url)
        return self._attributes[queue_url]


def metered(transport: Transport, clock: Clock) -> Transport:
    """Return a transport that measures its calls; the same one if the program does not use OpenTelemetry's metrics."""
    found = _safely(_instruments) if "opentelemetry.metrics" in sys.modules else None
    return transport if found is None else MeteredTransport(transport, clock, found)


class MeteredTransport:
    """A transport that measures the calls of another one, by OpenTelemetry's conventions for messaging clients.

    A call that was cancelled, mostly because its answer did not come in time, has ``error.type`` ``CancelledError``.

    Args:
        transport: Makes the calls.
        clock: The source of time.
        instruments: Where the calls are measured.
    """

    def __init__(self, transport: Transport, clock: Clock, instruments: _Instruments) -> None:
        self._transport = transport
        self._clock = clock
        self._duration = instruments.operation_duration
        self._consumed = instruments.consumed_messages
        self._attributes: dict[tuple[str, str], dict[str, Any]] = {}  # by queue and operation: made once

    async def queue_url(self, queue: str) -> str:
        """See :class:`Transport`. It is not measured, because it is not an operation on messages."""
        return await self._transport.queue_url(queue)

    async def queue_attributes(self, queue_url: str) -> QueueAttributes:
        """See :class:`Transport`. It is not measured, because it is not an operation on messages."""
        return await self._transport.queue_attributes(queue_url)

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
        """See :class:`Transport`. A long poll lasts until its answer; it waits for a message meanwhile."""
        call = self._transport.receive(
            queue_url,
            max_messages=max_messages,
            wait_seconds=wait_seconds,
            visibility_seconds=visibility_seconds,
            attempt_id=attempt_id,
            on_sent=on_sent,
        )
        messages = await self._measured(queue_url, "receive", call)
        if messages:
            _safely(lambda: self._consumed.add(len(messages), self._of(queue_url, "receive")))
        return messages

    async def change_visibility(self, queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        """See :class:`Transport`."""
        call = self._transport.change_visibility(queue_url, changes)
        return await self._measured(queue_url, "change_visibility", call, _error_of)

    async def delete(self, queue_url: str, receipts: Sequence[Receipt]) -> Sequence[EntryAnswer]:
        """See :class:`Transport`."""
        return await self._measured(queue_url, "delete", self._transport.delete(queue_url, receipts), _error_of)

    async def send(
        self,
        queue_url: str,
        body: str,
        *,
        message_attributes: Mapping[str, Mapping[str, Any]] | None = None,
        message_group_id: str | None = None,
        deduplication_id: str | None = None,
    ) -> str:
        """See :class:`Transport`."""
        call = self._transport.send(
            queue_url,
            body,
            message_attributes=message_attributes,
            message_group_id=message_group_id,
            deduplication_id=deduplication_id,
        )
        return await self._measured(queue_url, "send", call)

    async def aclose(self) -> None:
        """See :class:`Transport`."""
        await self._transport.aclose()

    async def _measured(
        self, queue_url: str, operation: str, call: Awaitable[_T], error_of: Callable[[_T], str] = lambda _: ""
    ) -> _T:
        began_at = self._clock.now()
        try:
            answer = await call
        except (SqsError, asyncio.CancelledError) as error:
            code = error.code if isinstance(error, SqsError) else ""
            self._record(queue_url, operation, self._clock.now() - began_at, code or type(error).__name__)
            raise
        self._record(queue_url, operation, self._clock.now() - began_at, error_of(answer))
        return answer

    def _record(self, queue_url: str, operation: str, seconds: float, error_type: str) -> None:
        failed = {_ERROR_TYPE: error_type} if error_type else {}
        _safely(lambda: self._duration.record(seconds, {**self._of(queue_url, operation), **failed}))

    def _of(self, queue_url: str, operation: str) -> dict[str, Any]:
        key = queue_url, operation
        if key not in self._attributes:
            kind = {_OPERATION_TYPE: _TYPES[operation]} if operation in _TYPES else {}
            self._attributes[key] = {**_attributes(queue_url), **_server(queue_url), _OPERATION: operation, **kind}
        return self._attributes[key]


def _error_of(answers: Sequence[EntryAnswer]) -> str:
    """Return the error of a call with an answer for each entry, if no entry was done."""
    if not answers or any(answer.verdict is Verdict.DONE for answer in answers):
        return ""
    return answers[0].code or answers[0].verdict.value


def traceparent_here() -> str:
    """Return the current span of this thread or task as W3C trace context; empty if there is none."""
    carrier: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:
        _safely(lambda: _inject(carrier))
    return carrier.get("traceparent", "")


async def trace_of(messages: Sequence[Message], received_in: str) -> dict[str, Any]:
    """Return the values of the receive that :func:`publish_span` needs, as plain values.

    Args:
        messages: The messages that were received.
        received_in: The span that received them, see :func:`traceparent_here`.
    """
    links = await _beside(lambda: _plain_links(messages)) if "opentelemetry.trace" in sys.modules else None
    return {"received_in": received_in, "links": links or []}


async def publish_span(
    queue_url: str,
    trace_of_receive: Mapping[str, Any],
    *,
    received_at: float,
    counts: Mapping[str, int],
) -> None:
    """Publish the span of a lease that ends now and was begun by another process.

    It is a child of the span that received the messages, and has a link to the one that is current here.

    Args:
        queue_url: The queue.
        trace_of_receive: The result of :func:`trace_of`.
        received_at: When the first of the messages was received, in seconds since the epoch.
        counts: ``received``, ``extensions`` and each outcome, such as ``dead_lettered``, with how many messages.
    """
    if "opentelemetry.trace" in sys.modules:
        ends_in = _safely(_current)
        await _beside(lambda: _publish(queue_url, trace_of_receive, received_at, counts, ends_in))


class LeaseSpan:
    """The span of one lease, and its ``messaging.process.duration``.

    Nothing is published if the program does not use OpenTelemetry, or no message came. The span is a child of the span
    that is current where this is made. The methods never raise. Those that are not coroutines may be called from any
    thread.

    Args:
        clock: The source of time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._parent = _safely(_current) if "opentelemetry.trace" in sys.modules else None
        self._span: Span | None = None
        self._measured: tuple[str, float] | None = None  # the queue, and when its first message was received

    async def begin(self, queue_url: str, messages: Sequence[Message], received_at: float) -> None:
        """Begin the span, beside the event loop. The caller must not be cancelled: the span would not end.

        Args:
            queue_url: The queue.
            messages: The messages that were received.
            received_at: When the first of them was received, in seconds since the epoch.
        """
        parent, self._parent = self._parent, None
        if messages and "opentelemetry.metrics" in sys.modules:
            self._measured = queue_url, received_at
        if messages and parent is not None:
            self._span = await _beside(lambda: _started(queue_url, messages, received_at, parent))

    def enter(self) -> object:
        """Make it the current span of this thread or task, so that spans of the work become its children.

        Returns:
            A value for :meth:`leave`. It refers to the program's whole context, so it is not kept here.
        """
        span = self._span
        return None if span is None else _safely(lambda: _activated(span))

    def leave(self, entered: object) -> None:
        """Undo :meth:`enter`, if this is still the same thread or task.

        If a lease that was entered later is still open, its span stays current, and its end undoes this one, too.
        """
        if isinstance(entered, _ActiveSpan):
            _safely(lambda: _detach(entered))

    async def end(self, report: LeaseReport, error_type: str | None) -> None:
        """End the span, beside the event loop.

        Args:
            report: The counts of the messages.
            error_type: The class of the exception that the work raised, without its text, which may quote a body; None
                if it ended well.
        """
        self._measure(report, error_type)
        span, self._span = self._span, None
        if span is not None:
            await _beside(lambda: _finish(span, _counts(report), report.extensions, error_type))

    def end_now(self, report: LeaseReport, error_type: str | None) -> None:
        """End the span here, if it has not ended yet because the event loop died before that."""
        self._measure(report, error_type)
        span, self._span = self._span, None
        if span is not None:
            _safely(lambda: _finish(span, _counts(report), report.extensions, error_type))

    def _measure(self, report: LeaseReport, error_type: str | None) -> None:
        measured, self._measured = self._measured, None
        if measured is not None:
            queue_url, received_at = measured
            # The wall clock may have been set back meanwhile.
            seconds = max(self._clock.wall() - received_at, 0.0)
            _safely(lambda: _record_process(queue_url, seconds, _type_of_error(_counts(report), error_type)))


def _current() -> Context:
    from opentelemetry import context

    return context.get_current()


def _started(queue_url: str, messages: Sequence[Message], received_at: float, parent: Context) -> Span:
    message_id = {"messaging.message.id": messages[0].message_id} if len(messages) == 1 else {}
    return _span(queue_url, len(messages), message_id, received_at, parent, list(_links(messages)))


def _span(
    queue_url: str,
    messages: int,
    attributes: Mapping[str, str],
    received_at: float,
    parent: Context | None,
    links: list[Link],
) -> Span:
    from opentelemetry import trace

    return trace.get_tracer(NAME).start_span(
        f"process {_name(queue_url)}",
        context=parent,
        kind=trace.SpanKind.CONSUMER,
        attributes={
            **_attributes(queue_url),
            **_server(queue_url),
            **_PROCESS,
            "messaging.batch.message_count": messages,
            **attributes,
        },
        links=links,
        start_time=int(received_at * 1e9),
    )


def _publish(
    queue_url: str,
    trace_of_receive: Mapping[str, Any],
    received_at: float,
    counts: Mapping[str, int],
    ends_in: Context | None,
) -> None:
    from opentelemetry.trace import Link, get_current_span

    received_in = _of_traceparent(str(trace_of_receive.get("received_in", "")))
    links = [
        Link(get_current_span(_of_traceparent(traceparent)).get_span_context(), {"messaging.message.id": message_id})
        for traceparent, message_id in trace_of_receive.get("links", ())
    ]
    here = get_current_span(ends_in).get_span_context()
    if here.is_valid:
        links.append(Link(here))
    is_known = get_current_span(received_in).get_span_context().is_valid
    span = _span(queue_url, counts.get("received", 0), {}, received_at, received_in if is_known else ends_in, links)
    by_outcome = {outcome: counts.get(_named(outcome), 0) for outcome in Outcome}
    _finish(span, by_outcome, counts.get("extensions", 0), None)


def _plain_links(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Return the spans that sent the messages, as W3C trace context, each with the id of a message."""
    return [
        (
            f"00-{link.context.trace_id:032x}-{link.context.span_id:016x}-{link.context.trace_flags:02x}",
            str((link.attributes or {})["messaging.message.id"]),
        )
        for link in _links(messages)
    ]


def _inject(carrier: dict[str, str]) -> None:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    TraceContextTextMapPropagator().inject(carrier)


def _of_traceparent(traceparent: str) -> Context:
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())


@dataclass(slots=True)
class _ActiveSpan:
    """A lease whose span is a program's current one: the context before it, how to go back, and whether it was left."""

    before: Context
    token: Token[Context] | None = None
    is_left: bool = False


def _activated(span: Span) -> _ActiveSpan:
    from opentelemetry import context, trace

    entered = _ActiveSpan(context.get_current())
    entered.token = context.attach(context.set_value(_ACTIVE_SPAN, entered, trace.set_span_in_context(span)))
    return entered


def _detach(entered: _ActiveSpan) -> None:
    from opentelemetry import context

    entered.is_left = True
    # A suspended generator may be closed in another context, in which this span was never current.
    if context.get_value(_ACTIVE_SPAN) is not entered or entered.token is None:
        return
    context.detach(entered.token)
    # Leases that were entered before this one, and left before it.
    while isinstance(outer := context.get_value(_ACTIVE_SPAN), _ActiveSpan) and outer.is_left:
        context.attach(outer.before)


def _counts(report: LeaseReport) -> dict[Outcome, int]:
    return {outcome: int(getattr(report, _named(outcome))) for outcome in Outcome}


def _finish(span: Span, counts: Mapping[Outcome, int], extensions: int, error_type: str | None) -> None:
    from opentelemetry.trace import Status, StatusCode

    if extensions:
        span.set_attribute(f"{NAME}.extensions", extensions)
    span.set_attributes({f"{NAME}.{_named(outcome)}": count for outcome, count in counts.items() if count})
    if (type_of_error := _type_of_error(counts, error_type)) is not None:
        span.set_attribute(_ERROR_TYPE, type_of_error)
        trouble = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in _TROUBLE if counts[outcome])
        span.set_status(Status(StatusCode.ERROR, trouble if error_type is None else error_type))
    span.end()


def _record_process(queue_url: str, seconds: float, error_type: str | None) -> None:
    failed = {} if error_type is None else {_ERROR_TYPE: error_type}
    _instruments().process_duration.record(
        seconds, {**_attributes(queue_url), **_server(queue_url), **_PROCESS, **failed}
    )


def _type_of_error(counts: Mapping[Outcome, int], error_type: str | None) -> str | None:
    """Return the class of the work's exception, or else the first outcome that is an error; None without an error."""
    return error_type or next((_named(outcome) for outcome in _TROUBLE if counts[outcome]), None)


def _links(messages: Iterable[Message]) -> Iterable[Link]:
    """Return links to the spans that sent the messages, each span once."""
    from opentelemetry.trace import Link, get_current_span

    seen = set()
    for message in messages:
        sent_by = get_current_span(_producer(message)).get_span_context()
        key = sent_by.trace_id, sent_by.span_id
        if sent_by.is_valid and key not in seen:
            seen.add(key)
            yield Link(sent_by, {"messaging.message.id": message.message_id})
            if len(seen) == MOST_LINKS:
                return


def _producer(message: Message) -> Context:
    """Return the context in which a message was sent; an empty one if the message names none that can be read."""
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        NonRecordingSpan,
        SpanContext,
        TraceFlags,
        get_current_span,
        set_span_in_context,
    )
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    for name in ("traceparent", "tracestate"):
        text = message.message_attributes.get(name, {}).get("StringValue")
        if isinstance(text, str):
            carrier[name] = text
    sent_in = TraceContextTextMapPropagator().extract(carrier, Context())
    if get_current_span(sent_in).get_span_context().is_valid:
        return sent_in
    header = message.attributes.get("AWSTraceHeader", "")
    trace_id, span_id = _XRAY.search(header), _XRAY_PARENT.search(header)
    if trace_id is None or span_id is None:
        return Context()
    flags = TraceFlags.SAMPLED if _XRAY_SAMPLED.search(header) else TraceFlags.DEFAULT
    sent_by = SpanContext(
        int(trace_id["epoch"] + trace_id["unique"], 16), int(span_id["span"], 16), True, TraceFlags(flags)
    )
    return set_span_in_context(NonRecordingSpan(sent_by), Context())


def _attributes(queue_url: str) -> dict[str, Any]:
    return {_SYSTEM: "aws_sqs", _QUEUE: _name(queue_url)}


def _server(queue_url: str) -> dict[str, Any]:
    """Return the server in the queue's URL."""
    url = urlsplit(queue_url)
    return {"server.address": url.hostname or "", "server.port": url.port or (80 if url.scheme == "http" else 443)}


def _name(queue_url: str) -> str:
    return queue_reference(queue_url).name


def _named(outcome: Outcome) -> str:
    return outcome.value.replace("-", "_")


def _safely(act: Callable[[], _T]) -> _T | None:
    """Call OpenTelemetry, which must not end a lease; None if it fails: a program's provider may raise anything."""
    try:
        return act()
    except KeyboardInterrupt:
        raise
    except BaseException:
        logger.warning("OpenTelemetry failed; the lease goes on without it", exc_info=True)
        return None


async def _beside(act: Callable[[], _T]) -> _T | None:
    """Call OpenTelemetry as :func:`_safely` does, in a thread: while it blocks, the event loop extends leases."""
    return await DaemonThreads(1, "sqs-lease OpenTelemetry").run(_safely, act)
