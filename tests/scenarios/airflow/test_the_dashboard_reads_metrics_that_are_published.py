"""The dashboard of docker/grafana reads metrics that are published, by the names that Prometheus gives them.

That Prometheus gives them these names, and evaluates the expressions, is tested on a real one: tests/processes/metrics.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import pytest
from airflow._shared.observability.metrics.otel_logger import SafeOtelLogger
from opentelemetry import metrics as opentelemetry_metrics
from opentelemetry.metrics import Histogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric, Sum
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View

from sqs_lease import blocking, lease
from sqs_lease.airflow.triggers import shared as metrics
from sqs_lease.airflow.triggers.shared import AirflowMeter, Gauges, PollAge
from sqs_lease.core.events import Outcome
from sqs_lease.keeper.batch import Meter
from sqs_lease.keeper.keeper import Holding
from sqs_lease.keeper.telemetry import open_telemetry_meter
from sqs_lease.testing import LeasedQueues, MemoryTransport, VirtualClock, run_virtual
from tests.docker.dashboard import Expression, dashboard, expressions, filled_in

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"

UNITS = {"s": "_seconds", "ms": "_milliseconds"}
"""Prometheus' suffixes for units; units in braces are left out."""


def names_on_prometheus(metric: Metric) -> set[str]:
    """The names of a metric in Prometheus."""
    name = re.sub(r"\W", "_", metric.name) + UNITS.get(metric.unit or "", "")
    if isinstance(metric.data, Sum) and metric.data.is_monotonic:
        return {f"{name}_total"}
    if hasattr(next(iter(metric.data.data_points)), "explicit_bounds"):
        return {f"{name}_bucket", f"{name}_count", f"{name}_sum"}
    return {name}


class Published:
    """The metrics of OpenTelemetry in this process."""

    def __init__(self) -> None:
        self._readers = InMemoryMetricReader(), InMemoryMetricReader()
        of_programs, of_airflow = self._readers
        self.provider = MeterProvider([of_programs])
        # Airflow's own view: its timers are exponential histograms.
        exponential = View(instrument_type=Histogram, aggregation=ExponentialBucketHistogramAggregation())
        self.airflows_provider = MeterProvider([of_airflow], views=[exponential])

    @cached_property
    def metrics(self) -> list[Metric]:
        """Read once: older SDKs tell a gauge's value to one reading only."""
        return [
            metric
            for reader in self._readers
            if (data := reader.get_metrics_data())
            for of_resource in data.resource_metrics
            for scope in of_resource.scope_metrics
            for metric in scope.metrics
        ]

    def names(self) -> set[str]:
        return set().union(*map(names_on_prometheus, self.metrics))

    def labels(self) -> dict[str, set[str]]:
        """The labels that Prometheus gives to each metric."""
        return {
            name: {re.sub(r"\W", "_", key) for point in metric.data.data_points for key in point.attributes or {}}
            for metric in self.metrics
            for name in names_on_prometheus(metric)
        }


def tell_all(meter: Meter) -> None:
    """Have everything happen that a keeper counts."""
    meter.held(QUEUE, 1)
    meter.batches(QUEUE, 1)
    meter.extended(QUEUE, 1)
    meter.late(QUEUE)
    for outcome in Outcome:
        meter.ended(QUEUE, outcome, 0.1)


def lease_one_message(patched: pytest.MonkeyPatch) -> None:
    """Receive a message and settle it, as a program does."""
    queues = LeasedQueues()
    queues.create("orders", "a")
    patched.setattr(blocking, "open_transport", lambda client, queue: MemoryTransport(queues.sqs))
    with lease("orders", wait=0, linger=0):
        pass


@contextmanager
def airflows_stats(provider: MeterProvider) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(metrics, "stats", SafeOtelLogger(provider))
        yield


@pytest.fixture(scope="module")
def published() -> Published:
    """All that Airflow's triggerers publish, and all that other programs do."""
    found = Published()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(opentelemetry_metrics, "get_meter_provider", lambda: found.provider)
        tell_all(open_telemetry_meter())
        lease_one_message(patched)
    with airflows_stats(found.airflows_provider):
        tell_all(AirflowMeter())
        Gauges().show([Holding(QUEUE, 1, 1, 0.0)], 1.0)
        clock = VirtualClock()

        async def watch() -> None:
            showing = asyncio.create_task(PollAge(QUEUE, clock).show())
            await asyncio.sleep(1)
            showing.cancel()

        run_virtual(watch, clock=clock)
    return found


def of(expression: Expression) -> str:
    return f"{expression.panel} {expression.legend}".strip()


@pytest.mark.parametrize("expression", expressions(), ids=of)
def test_an_expression_reads_metrics_that_are_published(expression: Expression, published: Published) -> None:
    assert expression.metrics
    assert expression.metrics <= published.names()


@pytest.mark.parametrize("expression", expressions(), ids=of)
def test_an_expression_chooses_the_queue_by_the_label_that_its_metric_has(
    expression: Expression, published: Published
) -> None:
    for metric, chosen in re.findall(r"(\w+)\{([^}]*)\}", expression.text):
        assert set(re.findall(r"(\w+)=", chosen)) <= published.labels()[metric]


def test_the_dashboard_shows_each_metric_that_is_published(published: Published) -> None:
    shown = set().union(*(expression.metrics for expression in expressions()))
    histogram = {name for name in published.names() if name.endswith(("_count", "_sum"))}
    assert shown == published.names() - histogram


def test_the_outcomes_are_all_there_are() -> None:
    (panel,) = [panel for panel in dashboard()["panels"] if panel["title"] == "Settlements, by outcome"]
    # Lost leases are shown for themselves.
    assert {target["legendFormat"] for target in panel["targets"]} == {
        outcome.value for outcome in Outcome if outcome is not Outcome.LOST
    }


def test_a_variable_that_nothing_fills_in_is_an_error() -> None:
    with pytest.raises(ValueError, match="interval"):
        filled_in("rate(sqs_lease_held[$interval])")


def test_panels_do_not_overlap_and_say_what_they_show() -> None:
    taken: dict[tuple[int, int], str] = {}
    panels: list[dict[str, Any]] = dashboard()["panels"]
    for panel in panels:
        at = panel["gridPos"]
        for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
            assert cell[0] < 24
            assert taken.setdefault(cell, panel["title"]) == panel["title"]
        assert panel["description"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
