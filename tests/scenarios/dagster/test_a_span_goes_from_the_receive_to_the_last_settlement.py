"""The spans of leases on Dagster: from the receive to the last settlement, with the extensions between them."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from opentelemetry.trace import StatusCode

from sqs_lease import Fixed
from sqs_lease.dagster import LeasedBatch, SqsQueueResource, build_sqs_router
from sqs_lease.testing import AuditKind, LeasedQueue, LeasedQueues
from tests.dagster import around_jobs, executor_jobs
from tests.dagster.eventually import eventually
from tests.dagster.executor_runs import Runs, runs_in
from tests.keeper.test_telemetry import SENDER, TRACE, W3C, Published, published

__all__ = ["published"]

QUEUE = SqsQueueResource(queue="orders")


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    with runs_in(tmp_path) as made:
        yield made


@pytest.fixture
def messages(leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch) -> LeasedQueue:
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    queue = leased_queues.create("orders", visibility_seconds=600)
    queue.send("a", message_attributes=W3C)
    queue.send("bad")
    return queue


def links(published: Published) -> list[tuple[str, str]]:
    return [(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") for link in published.span().links]


def counts(published: Published) -> dict[str, object]:
    attributes = published.span().attributes or {}
    return {name: value for name, value in attributes.items() if name.startswith("sqs_lease.")}


def test_the_span_of_a_lease_counts_extensions_and_is_linked_to_the_senders_of_the_messages(
    messages: LeasedQueue, leased_queues: LeasedQueues, published: Published
) -> None:
    def extensions() -> int:
        return sum(entry.kind is AuditKind.CHANGED for entry in leased_queues.sqs.trail().entries())

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with queue.lease(context, wait=0, linger=0, policy=Fixed(visibility=600, every=0.2)):
            eventually(lambda: extensions() >= 2, "the messages are extended")

    assert dg.materialize([orders], resources={"queue": QUEUE}).success
    assert links(published) == [(TRACE, SENDER)]
    told = counts(published)
    assert told.pop("sqs_lease.extensions") >= 2  # type: ignore[operator]
    assert told == {"sqs_lease.deleted": 2}


def test_the_span_of_a_run_that_an_executor_leases_for_lasts_until_all_its_steps_have_ended(
    runs: Runs, messages: LeasedQueue, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracer = published.tracers.get_tracer("test")
    work = executor_jobs.Work.on

    def traced(config: executor_jobs.Work, context: dg.OpExecutionContext, batch: LeasedBatch) -> int:
        with tracer.start_as_current_span(context.op_def.name):
            return work(config, context, batch)

    monkeypatch.setattr(executor_jobs.Work, "on", traced)
    with tracer.start_as_current_span("run"):
        assert runs.execute(around_jobs.in_process, {"check": {"fails": ["bad"]}}, {}).success
    span, spans = published.span(), {each.name: each for each in published.others()}
    assert span.context is not None
    assert span.end_time is not None
    assert span.parent is not None
    assert spans["run"].context is not None
    assert span.parent.span_id == spans["run"].context.span_id
    for step in ("check", "load", "report"):
        made = spans[step]
        assert made.parent is not None
        assert made.end_time is not None
        assert made.parent.span_id == span.context.span_id
        assert made.end_time < span.end_time
    assert links(published) == [(TRACE, SENDER)]
    assert counts(published) == {"sqs_lease.deleted": 1, "sqs_lease.released": 1}
    assert span.status.status_code is StatusCode.UNSET


@dg.op
def load(context: dg.OpExecutionContext) -> None:
    with QUEUE.lease(context, wait=0):
        pass


@dg.job
def loading() -> None:
    load()


def test_the_span_of_a_run_of_a_router_begins_when_the_router_received(
    messages: LeasedQueue, published: Published, tmp_path: Path
) -> None:
    router = build_sqs_router("router", QUEUE, loading, workspace=str(tmp_path), wait=0, linger=0)
    with dg.DagsterInstance.ephemeral() as instance:
        with published.tracers.get_tracer("test").start_as_current_span("tick"):
            (request,) = router.evaluate_tick(dg.build_sensor_context(instance)).run_requests or ()
        (tick,) = published.others()
        assert loading.execute_in_process(instance=instance, tags=dict(request.tags)).success
    span = published.span()
    assert tick.start_time is not None
    assert tick.end_time is not None
    assert span.start_time is not None
    assert tick.start_time < span.start_time < tick.end_time
    assert links(published) == [(TRACE, SENDER)]
    assert counts(published) == {"sqs_lease.deleted": 2}
