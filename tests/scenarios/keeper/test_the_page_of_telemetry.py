"""The examples of docs/telemetry.md send metrics and spans: to a server that speaks OTLP, from a program of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from gzip import decompress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PAGE = (Path(__file__).parents[3] / "docs" / "telemetry.md").read_text()

UNITS = {"{message}": "messages", "{batch}": "batches", "s": "s"}
"""Units of OpenTelemetry, in the words of the page."""

PROGRAM = """
from sqs_lease import blocking, lease
from sqs_lease.testing import LeasedQueues, MemoryTransport

queues = LeasedQueues()
queues.create("orders", "a", "b")
blocking.open_transport = lambda client, queue: MemoryTransport(queues.sqs)
with lease("orders", max_messages=2, wait=0, linger=0) as batch:
    batch.fail(next(iter(batch)), "no")
metrics.get_meter_provider().shutdown()
trace.get_tracer_provider().shutdown()
"""


@contextmanager
def collector() -> Iterator[tuple[str, dict[str, list[bytes]]]]:
    """A server on a free port that takes what is exported, by path."""
    received: dict[str, list[bytes]] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = decompress(body)
            received.setdefault(self.path, []).append(body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_example_sends_metrics_and_spans() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with collector() as (address, received):
        subprocess.run(
            [sys.executable, "-c", example + PROGRAM],
            env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": address},
            check=True,
            timeout=600,
        )
    units: dict[str, str] = {}
    for body in received["/v1/metrics"]:
        for of_resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            units |= {metric.name: metric.unit for scope in of_resource.scope_metrics for metric in scope.metrics}
    assert units.keys() == {
        "sqs_lease.held",
        "sqs_lease.batches",
        "sqs_lease.settled",
        "sqs_lease.release_latency",
        "messaging.client.operation.duration",
        "messaging.client.consumed.messages",
        "messaging.process.duration",
    }
    on_page = dict(re.findall(r"^\| `([\w.]+)` \| \w+ \| (\w+) \|", PAGE, re.MULTILINE))
    assert {name: UNITS[unit] for name, unit in units.items()} == {name: on_page[name] for name in units}
    spans = [
        span
        for body in received["/v1/traces"]
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in of_resource.scope_spans
        for span in scope.spans
    ]
    assert [span.name for span in spans] == ["process orders"]


def test_the_page_names_every_metric_and_no_other() -> None:
    from sqs_lease.keeper import telemetry

    # The next section names some that are Airflow's alone.
    (_, metrics, *_) = re.split(r"^## (?:Metrics|A dashboard for Grafana)$", PAGE, flags=re.MULTILINE)
    assert set(re.findall(r"^\| `(sqs_lease\.\w+)`", metrics, re.MULTILINE)) == set(
        re.findall(r"^    (sqs_lease\.\w+) ", telemetry.__doc__ or "", re.MULTILINE)
    )
