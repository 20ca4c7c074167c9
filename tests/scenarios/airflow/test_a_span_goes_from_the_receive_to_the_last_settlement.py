"""The span of a lease on Airflow: from the receive in one process to the last settlement in another."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from sqs_lease.core.policies import Growing, Never
from tests.airflow.leased_messages import LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import RunningTrigger

TRACE, SENDER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
W3C = {"traceparent": {"DataType": "String", "StringValue": f"00-{TRACE}-{SENDER}-01"}}


class Traced:
    """A deployment that publishes spans, as Airflow makes them around the triggers of tasks."""

    def __init__(self, world: LeasedMessages, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self._spans = InMemorySpanExporter()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._tracer = tracers.get_tracer("airflow")
        # A process has its providers for good, and these are for one test.
        monkeypatch.setattr(trace, "get_tracer", tracers.get_tracer)

    async def receive(self, *arguments: Any) -> None:
        with self._tracer.start_as_current_span("trigger.orders"):
            await self.world.receive(self.world.triggerer(), *arguments)

    def keep(self, triggerer: str = "triggerer", **options: Any) -> RunningTrigger:
        with self._tracer.start_as_current_span("trigger.orders_keeper"):
            return self.world.keep(self.world.triggerer(triggerer), **options)

    def span(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self._spans.get_finished_spans() if span.name == name]
        return span


def linked(span: ReadableSpan) -> set[tuple[str, str]]:
    return {(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") for link in span.links}


def ids_of(span: ReadableSpan) -> tuple[str, str]:
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


@pytest.fixture
def traced(supervisor: ScriptedComms, monkeypatch: pytest.MonkeyPatch) -> Traced:
    return Traced(LeasedMessages(supervisor), monkeypatch)


def test_one_span_holds_receive_extensions_and_settlement_within_the_trace_of_the_task(traced: Traced) -> None:
    world = traced.world
    world.sqs.send(world.url, "sent within a trace", message_attributes=W3C)
    received_at = world.clock.wall()

    async def scenario() -> None:
        await traced.receive(Growing(visibility=30))
        running = traced.keep()
        await asyncio.sleep(400)
        world.states["load"] = "success"
        await running.ended()

    world.run(scenario)
    span, receive, keep = map(traced.span, ("process orders", "trigger.orders", "trigger.orders_keeper"))
    assert span.kind is SpanKind.CONSUMER
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == ids_of(receive)
    assert linked(span) == {(TRACE, SENDER), ids_of(keep)}
    assert span.start_time is not None
    assert 0 <= span.start_time / 1e9 - received_at < 5
    attributes = dict(span.attributes or {})
    extensions = attributes.pop("sqs_lease.extensions")
    assert isinstance(extensions, int)
    assert extensions > 0
    assert attributes == {
        "messaging.system": "aws_sqs",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.batch.message_count": 4,
        "server.address": "sqs.us-east-1.amazonaws.com",
        "server.port": 443,
        "sqs_lease.deleted": 4,
    }
    assert span.status.status_code is StatusCode.UNSET


def test_there_is_one_span_too_when_another_triggerer_took_over(traced: Traced) -> None:
    world = traced.world

    async def scenario() -> None:
        await traced.receive(Growing(visibility=90))
        first = traced.keep()
        await asyncio.sleep(20)
        await first.cancel()
        second = traced.keep("second")
        await asyncio.sleep(20)
        world.states["load"] = "failed"
        await second.ended()

    world.run(scenario)
    span = traced.span("process orders")
    assert ids_of(span)[0] == ids_of(traced.span("trigger.orders"))[0]
    assert dict(span.attributes or {})["sqs_lease.released"] == 3


def test_a_span_says_that_leases_were_lost(traced: Traced) -> None:
    world = traced.world

    async def scenario() -> None:
        await traced.receive(Never(visibility=30))
        running = traced.keep(on_lost="raise")
        await asyncio.sleep(31)
        world.sqs.receive(world.url, max_messages=10, visibility_seconds=3600, caller="other")
        world.states["load"] = "success"
        await running.ended()

    world.run(scenario)
    span = traced.span("process orders")
    assert span.status.status_code is StatusCode.ERROR
    assert dict(span.attributes or {})["error.type"] in ("lost", "uncertain")


def test_without_a_trace_of_the_task_the_span_is_in_that_of_its_keeper(
    supervisor: ScriptedComms, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = LeasedMessages(supervisor)
    traced = Traced(world, monkeypatch)

    async def scenario() -> None:
        await world.receive(world.triggerer())
        running = traced.keep()
        world.states["load"] = "success"
        await running.ended()

    world.run(scenario)
    assert ids_of(traced.span("process orders"))[0] == ids_of(traced.span("trigger.orders_keeper"))[0]
