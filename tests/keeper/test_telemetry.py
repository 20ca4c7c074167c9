"""The telemetry of leases through OpenTelemetry: metrics, and a span from the receive to the last settlement."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from sqs_lease import Fixed, async_lease, lease, release
from sqs_lease.clock import SystemClock
from sqs_lease.core.calls import EntryAnswer
from sqs_lease.core.messages import Receipt
from sqs_lease.keeper import telemetry
from sqs_lease.keeper.loop_thread import LoopThreadError
from sqs_lease.sqs.errors import SqsError
from sqs_lease.testing import MemorySqs, MemoryTransport
from sqs_lease.testing.leased_queues import LeasedQueues
from sqs_lease.testing.pytest_plugin import leased_queues

__all__ = ["leased_queues"]

PATIENCE_SECONDS = 120.0

SERVER = "sqs.us-east-1.amazonaws.com", 443

TRACE, SENDER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
W3C = {"traceparent": {"DataType": "String", "StringValue": f"00-{TRACE}-{SENDER}-01"}}
XRAY = f"Root=1-{TRACE[:8]}-{TRACE[8:]};Parent={SENDER};Sampled=1"


class Published:
    """The records that a program's providers got."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reader = InMemoryMetricReader()
        self._spans = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        meters = MeterProvider([self._reader])
        # A process has its providers for good, and these are for one test.
        monkeypatch.setattr(metrics, "get_meter_provider", lambda: meters)
        monkeypatch.setattr(trace, "get_tracer", self.tracers.get_tracer)

    def points(self) -> dict[str, dict[str, Any]]:
        """The values of all metrics, by name and outcome."""
        found: dict[str, dict[str, Any]] = {}
        data = self._reader.get_metrics_data()
        for of_resource in data.resource_metrics if data else ():
            for scope in of_resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        attributes = dict(point.attributes or {})
                        assert attributes["messaging.system"] == "aws_sqs"
                        assert attributes["messaging.destination.name"] == "orders"
                        outcome = str(attributes.get("sqs_lease.outcome", ""))
                        value = getattr(point, "value", None)
                        found.setdefault(metric.name, {})[outcome] = point if value is None else value
        return found

    def by_operation(self, name: str) -> dict[str, Any]:
        """The points of a metric of the conventions, by operation and error."""
        data = self._reader.get_metrics_data()
        assert data is not None
        points = [
            point
            for of_resource in data.resource_metrics
            for scope in of_resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]
        found: dict[str, Any] = {}
        for point in points:
            attributes = dict(point.attributes or {})
            assert attributes.pop("messaging.system") == "aws_sqs"
            assert attributes.pop("messaging.destination.name") == "orders"
            assert (attributes.pop("server.address"), attributes.pop("server.port")) == SERVER
            error = attributes.pop("error.type", "")
            operation = attributes.pop("messaging.operation.name")
            kind = attributes.pop("messaging.operation.type", "")
            assert attributes == {}
            found[f"{operation} {kind} {error}".strip()] = point
        return found

    def span(self) -> ReadableSpan:
        (span,) = [span for span in self._spans.get_finished_spans() if span.name == "process orders"]
        return span

    def others(self) -> list[ReadableSpan]:
        return [span for span in self._spans.get_finished_spans() if span.name != "process orders"]


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Published:
    return Published(monkeypatch)


def test_settlements_are_counted_by_their_outcome(published: Published, leased_queues: LeasedQueues) -> None:
    leased_queues.create("orders", "a", "b", "c")
    with lease("orders", max_messages=3, wait=0, linger=0) as batch:
        assert published.points()["sqs_lease.held"] == {"": 3}
        assert published.points()["sqs_lease.batches"] == {"": 1}
        batch.fail(next(iter(batch)), "no")
    points = published.points()
    assert points["sqs_lease.settled"] == {"deleted": 2, "released": 1}
    assert points["sqs_lease.held"] == {"": 0}
    assert points["sqs_lease.batches"] == {"": 0}
    assert points["sqs_lease.release_latency"][""].count == 1


def test_the_buckets_of_the_release_latency_tell_a_tenth_of_a_second_from_ten(
    published: Published, leased_queues: LeasedQueues
) -> None:
    leased_queues.create("orders", "a")
    with lease("orders", wait=0, linger=0) as batch:
        batch.fail(next(iter(batch)), "no")
    bounds = published.points()["sqs_lease.release_latency"][""].explicit_bounds
    assert [bound for bound in bounds if 0.1 <= bound < 10] == [0.1, 0.25, 0.5, 1.0, 2.5, 5.0]


def test_calls_are_measured_by_the_conventions_for_messaging(published: Published, leased_queues: LeasedQueues) -> None:
    leased_queues.create("orders", "a", "b", "c")
    with lease("orders", max_messages=3, wait=0, linger=0) as batch:
        batch.fail(next(iter(batch)), "no")
    calls = published.by_operation("messaging.client.operation.duration")
    assert set(calls) == {"receive receive", "delete settle", "change_visibility"}
    assert calls["delete settle"].count == 1
    assert calls["receive receive"].explicit_bounds == telemetry.OPERATION_SECONDS
    assert published.by_operation("messaging.client.consumed.messages")["receive receive"].value == 3


def test_a_poll_without_messages_is_a_call_that_consumed_no_message(
    published: Published, leased_queues: LeasedQueues
) -> None:
    leased_queues.create("orders")
    with lease("orders", wait=0, linger=0):
        pass
    assert set(published.by_operation("messaging.client.operation.duration")) == {"receive receive"}
    assert published.by_operation("messaging.client.consumed.messages") == {}
    assert published.by_operation("messaging.process.duration") == {}


def test_a_call_that_fails_has_the_type_of_its_error(published: Published, leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", "a")
    with lease("orders", wait=0, linger=0) as batch:
        (message,) = batch
        leased_queues.sqs.delete(queue.url, [message.receipt])
        batch.release(message)
    calls = published.by_operation("messaging.client.operation.duration")
    (failed,) = [name for name in calls if name.startswith("change_visibility")]
    assert failed == "change_visibility  InvalidParameterValue"
    assert set(published.by_operation("messaging.process.duration")) == {"process process lost"}


def test_a_refused_receive_is_measured_too(published: Published) -> None:
    import asyncio

    async def receive() -> None:
        transport = telemetry.metered(MemoryTransport(MemorySqs(SystemClock())), SystemClock())
        url = f"https://{SERVER[0]}/1/orders"
        with pytest.raises(SqsError):
            await transport.receive(url, max_messages=1, wait_seconds=0, visibility_seconds=9)

    asyncio.run(receive())
    (call,) = published.by_operation("messaging.client.operation.duration")
    assert call == "receive receive NonExistentQueue"


def test_a_call_without_an_answer_in_time_is_measured_too(published: Published) -> None:
    import asyncio

    class Hanging(MemoryTransport):
        async def delete(self, queue_url: str, receipts: Sequence[Receipt]) -> Sequence[EntryAnswer]:
            await asyncio.Event().wait()
            raise AssertionError

    async def delete() -> None:
        transport = telemetry.metered(Hanging(MemorySqs(SystemClock())), SystemClock())
        async with asyncio.timeout(0):
            await transport.delete(f"https://{SERVER[0]}/1/orders", [Receipt("m", "handle")])

    with pytest.raises(TimeoutError):
        asyncio.run(delete())
    (call,) = published.by_operation("messaging.client.operation.duration")
    assert call == "delete settle CancelledError"


def test_processing_is_as_long_as_its_span(published: Published, leased_queues: LeasedQueues) -> None:
    leased_queues.create("orders", "a")
    with lease("orders", wait=0, linger=0):
        pass
    point = published.by_operation("messaging.process.duration")["process process"]
    span = published.span()
    assert point.count == 1
    assert span.start_time is not None
    assert span.end_time is not None
    # The span ends in a thread, a moment later.
    assert 0 < point.sum <= (span.end_time - span.start_time) / 1e9 + 0.001


def test_work_that_raises_is_measured_with_the_class_of_its_error(
    published: Published, leased_queues: LeasedQueues
) -> None:
    leased_queues.create("orders", "a")
    with pytest.raises(ValueError, match="secret"), lease("orders", wait=0, linger=0, on_failure=release()):
        raise ValueError("secret")
    assert set(published.by_operation("messaging.process.duration")) == {"process process ValueError"}


def test_the_span_lasts_from_the_receive_to_the_settlement(published: Published, leased_queues: LeasedQueues) -> None:
    leased_queues.create("orders", "a", "b")
    with lease("orders", max_messages=2, wait=0, linger=0) as batch:
        batch.succeed(next(iter(batch)))
    span = published.span()
    assert span.kind is trace.SpanKind.CONSUMER
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time < span.end_time
    assert dict(span.attributes or {}) == {
        "messaging.system": "aws_sqs",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.batch.message_count": 2,
        "server.address": SERVER[0],
        "server.port": SERVER[1],
        "sqs_lease.deleted": 2,
    }
    assert span.status.status_code is StatusCode.UNSET


def test_without_messages_there_is_no_span(published: Published, leased_queues: LeasedQueues) -> None:
    leased_queues.create("orders")
    with lease("orders", wait=0, linger=0):
        pass
    with pytest.raises(ValueError, match="not enough values"):
        published.span()


def test_it_links_to_the_senders_of_the_messages(published: Published, leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", "without")
    queue.send("w3c", message_attributes=W3C)
    with lease("orders", max_messages=2, wait=0, linger=0):
        pass
    (link,) = published.span().links
    assert (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") == (TRACE, SENDER)


@pytest.mark.parametrize(
    ("header", "links"),
    [
        (XRAY, 1),
        (f"Self=1-x;{XRAY}", 1),
        (XRAY.replace(";Sampled=1", ""), 1),
        ("", 0),
        ("Root=1-5759e988-bd862e3fe1be46a994272793", 0),
        (XRAY.replace("Root=1-", "Root=2-"), 0),
        ("Root=;Parent=;Sampled=", 0),
        ("\x00" * 10_000, 0),
    ],
)
def test_the_header_of_x_ray_is_read_if_it_can_be(header: str, links: int) -> None:
    from sqs_lease.core.messages import Message, Receipt

    message = Message(Receipt("m", "h"), "body", {"AWSTraceHeader": header})
    assert len(list(telemetry._links([message]))) == links


@pytest.mark.parametrize("text", ["", "nonsense", f"00-{'0' * 32}-{SENDER}-01", "00-" * 10_000, "\x00"])
def test_a_malformed_trace_context_gives_no_link(text: str) -> None:
    from sqs_lease.core.messages import Message, Receipt

    attributes = {"traceparent": {"DataType": "String", "StringValue": text}}
    message = Message(Receipt("m", "h"), "body", {}, attributes)
    assert list(telemetry._links([message])) == []


@pytest.mark.parametrize("name", ["traceparent", "tracestate"])
def test_where_the_trace_context_cannot_be_read_the_header_of_x_ray_is(name: str) -> None:
    from sqs_lease.core.messages import Message, Receipt

    attributes = {name: {"DataType": "String", "StringValue": "nonsense"}}
    message = Message(Receipt("m", "h"), "body", {"AWSTraceHeader": XRAY}, attributes)
    (link,) = telemetry._links([message])
    assert (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") == (TRACE, SENDER)


def test_links_are_bounded_and_each_sender_is_linked_once() -> None:
    from sqs_lease.core.messages import Message, Receipt

    def message(number: int, span: int) -> Message:
        attributes = {"traceparent": {"DataType": "String", "StringValue": f"00-{TRACE}-{span:016x}-01"}}
        return Message(Receipt(f"m{number}", "h"), "body", {}, attributes)

    assert len(list(telemetry._links([message(number, 1) for number in range(3)]))) == 1
    assert len(list(telemetry._links([message(number, number + 1) for number in range(500)]))) == telemetry.MOST_LINKS


def test_spans_of_the_work_are_its_children_and_it_is_one_of_the_program(
    published: Published, leased_queues: LeasedQueues
) -> None:
    leased_queues.create("orders", "a")
    tracer = published.tracers.get_tracer("program")
    with tracer.start_as_current_span("program") as program:
        with lease("orders", wait=0, linger=0), tracer.start_as_current_span("work"):
            pass
        assert trace.get_current_span() is program
    (work, _) = published.others()
    span = published.span()
    assert work.parent is not None
    assert work.parent.span_id == span.context.span_id
    assert span.parent is not None
    assert span.parent.span_id == program.get_span_context().span_id


async def _asynchronous(published: Published) -> None:
    tracer = published.tracers.get_tracer("program")
    async with async_lease("orders", wait=0, linger=0):
        with tracer.start_as_current_span("work"):
            pass


def test_it_is_the_same_in_asynchronous_programs(published: Published, leased_queues: LeasedQueues) -> None:
    import asyncio

    leased_queues.create("orders", "a")
    asyncio.run(_asynchronous(published))
    (work,) = published.others()
    assert work.parent is not None
    assert work.parent.span_id == published.span().context.span_id


def test_failed_work_is_an_error_by_its_class_and_not_by_its_text(
    published: Published, leased_queues: LeasedQueues
) -> None:
    leased_queues.create("orders", "a")
    with pytest.raises(ValueError, match="secret"), lease("orders", wait=0, linger=0, on_failure=release()):
        raise ValueError("secret")
    span = published.span()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "ValueError")
    assert "secret" not in span.to_json()
    assert dict(span.attributes or {})["sqs_lease.released"] == 1


def test_leases_that_were_lost_are_an_error_with_a_type(published: Published, leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", "a")
    with lease("orders", wait=0, linger=0) as batch:
        (message,) = batch
        leased_queues.sqs.delete(queue.url, [message.receipt])
        batch.release(message)
    span = published.span()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "1 lost")
    assert dict(span.attributes or {})["error.type"] == "lost"


def test_nothing_secret_is_published(published: Published, leased_queues: LeasedQueues) -> None:
    leased_queues.create("orders", "a body")
    with lease("orders", wait=0, linger=0) as batch:
        (message,) = batch
    text = published.span().to_json()
    assert "a body" not in text
    assert message.receipt.handle not in text


@pytest.mark.parametrize("name", ["metrics.get_meter_provider", "trace.get_tracer"])
@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_a_provider_that_fails_stops_no_lease(
    leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch, name: str, error: type[BaseException]
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise error

    monkeypatch.setattr(f"opentelemetry.{name}", fail)
    queue = leased_queues.create("orders", "a")
    with lease("orders", wait=0, linger=0) as batch:
        assert len(batch) == 1
    assert queue.visible == []


def test_instruments_that_fail_stop_no_lease(
    published: Published, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("opentelemetry.sdk.metrics.Counter.add", fail)
    monkeypatch.setattr("opentelemetry.sdk.trace.Span.end", fail)
    queue = leased_queues.create("orders", "a")
    with lease("orders", wait=0, linger=0) as batch:
        assert len(batch) == 1
    assert queue.visible == []


class Blocking(SpanProcessor):
    """Blocks where a span begins, or ends, until the test says go on."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.is_reached = threading.Event()
        self.goes_on = threading.Event()
        self.was_let_go = False

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self._block("start")

    def on_end(self, span: ReadableSpan) -> None:
        self._block("end")

    def _block(self, where: str) -> None:
        if where == self._where:
            self.is_reached.set()
            self.was_let_go = self.goes_on.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("where", ["start", "end"])
def test_while_a_processor_blocks_the_event_loop_goes_on(
    published: Published, leased_queues: LeasedQueues, where: str
) -> None:
    import asyncio

    leased_queues.create("orders", "a")
    blocking = Blocking(where)
    published.tracers.add_span_processor(blocking)

    async def one() -> None:
        async with async_lease("orders", wait=0, linger=0):
            pass

    async def scenario() -> None:
        leasing = asyncio.create_task(one())
        assert await asyncio.to_thread(blocking.is_reached.wait, PATIENCE_SECONDS)
        assert not leasing.done()
        blocking.goes_on.set()
        await leasing

    asyncio.run(scenario())
    assert blocking.was_let_go
    assert published.span().end_time is not None


def test_while_a_processor_blocks_where_the_span_begins_the_lease_is_extended(
    published: Published, leased_queues: LeasedQueues
) -> None:
    queue = leased_queues.create("orders", "a")
    blocking = Blocking("start")
    published.tracers.add_span_processor(blocking)
    policy = Fixed(every=0.05, visibility=3600)

    def work() -> None:
        with lease("orders", wait=0, linger=0, policy=policy):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert blocking.is_reached.wait(PATIENCE_SECONDS)
        while not published.points().get("sqs_lease.extended"):
            time.sleep(0.01)
    finally:
        blocking.goes_on.set()
        thread.join()
    assert queue.deleted == 1


def test_an_interruption_while_the_span_begins_ends_it(published: Published, leased_queues: LeasedQueues) -> None:
    import asyncio

    queue = leased_queues.create("orders", "a")
    blocking = Blocking("start")
    published.tracers.add_span_processor(blocking)

    async def one() -> None:
        async with async_lease("orders", wait=0, linger=0):
            pass

    async def scenario() -> None:
        leasing = asyncio.create_task(one())
        assert await asyncio.to_thread(blocking.is_reached.wait, PATIENCE_SECONDS)
        leasing.cancel()
        await asyncio.sleep(0)
        blocking.goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await leasing

    asyncio.run(scenario())
    assert dict(published.span().attributes or {})["sqs_lease.released"] == 1
    assert queue.visible == ["a"]


def test_leases_leave_nothing_behind_where_a_program_has_no_sdk(
    leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    class Kept(metrics.NoOpMeterProvider):
        """The provider of a program without an SDK keeps each meter for as long as the process lives."""

        def get_meter(self, name: str, *given: Any, **named: Any) -> metrics.Meter:
            made.append(name)
            return super().get_meter(name, *given, **named)

    provider = Kept()
    for place in ("opentelemetry.metrics", "opentelemetry.metrics._internal"):
        monkeypatch.setattr(f"{place}.get_meter_provider", lambda: provider)
    leased_queues.create("orders", *map(str, range(5)))
    for _ in range(5):
        with lease("orders", max_messages=1, wait=0, linger=0) as batch:
            assert len(batch) == 1
    assert len(made) == 1


def test_the_span_ends_also_where_the_thread_that_extends_died(
    published: Published, leased_queues: LeasedQueues
) -> None:
    leased_queues.create("orders", "a")

    def work() -> None:
        with lease("orders", wait=0, linger=0) as batch:
            batch._lease._host._loop.call_soon_threadsafe(sys.exit)
            batch.succeed(batch)

    with pytest.raises(LoopThreadError):
        work()
    assert dict(published.span().attributes or {})["error.type"] == "LoopThreadError"


def test_a_program_that_does_not_use_it_does_not_import_it() -> None:
    code = (
        "import sys\nfrom sqs_lease import lease\nfrom sqs_lease.testing import LeasedQueues\n"
        "from sqs_lease.clock import SystemClock\n"
        "from sqs_lease.keeper.telemetry import LeaseSpan, metered, open_telemetry_meter\n"
        "open_telemetry_meter(); LeaseSpan(SystemClock()); metered(None, SystemClock())\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_leases_that_are_left_in_another_order_leave_no_span_current(
    published: Published, leased_queues: LeasedQueues
) -> None:
    leased_queues.create("orders", "a", "b", "c")

    def one() -> Any:
        return lease("orders", wait=0, linger=0, max_messages=1)

    def current() -> str:
        return getattr(trace.get_current_span(), "name", "")

    first, second, third = one(), one(), one()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    third.__enter__()
    second.__exit__(None, None, None)
    assert current() == "process orders"
    third.__exit__(None, None, None)
    assert current() == ""


def test_a_span_that_is_left_goes_back_to_the_one_around_it(published: Published, leased_queues: LeasedQueues) -> None:
    leased_queues.create("orders", "a", "b")
    with published.tracers.get_tracer("program").start_as_current_span("outer") as outer:
        with lease("orders", wait=0, linger=0, max_messages=1) as first:
            around = trace.get_current_span()
            with lease("orders", wait=0, linger=0, max_messages=1):
                pass
            assert trace.get_current_span() is around
            assert len(first) == 1
        assert trace.get_current_span() is outer
