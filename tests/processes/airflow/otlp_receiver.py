"""An OpenTelemetry collector as small as can be: takes metrics over HTTP and keeps the last value of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from demo.processes import LOOPBACK


class OtlpReceiver:
    """The receiver of Airflow's metrics: it keeps their last values."""

    def __init__(self, port: int) -> None:
        self.environment = {
            "AIRFLOW__METRICS__OTEL_ON": "True",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{LOOPBACK}:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        }
        """With it, Airflow's processes report here once a second."""
        self._values: dict[tuple[str, str], float] = {}
        self._lock = Lock()

    def value(self, metric: str, queue: str) -> float | None:
        """The last value of a counter or a gauge, or the number of readings of a timer; None if it never came."""
        with self._lock:
            return self._values.get((metric, queue))

    def take(self, request: ExportMetricsServiceRequest) -> None:
        """Keep what a request reports."""
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    self._take_metric(metric)

    def _take_metric(self, metric: Any) -> None:
        kind = metric.WhichOneof("data")
        for point in getattr(metric, kind).data_points:
            queue = next((tag.value.string_value for tag in point.attributes if tag.key == "queue"), "")
            value = point.count if kind.endswith("histogram") else getattr(point, point.WhichOneof("value"))
            with self._lock:
                self._values[metric.name, queue] = value


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """Listen on the loopback address and a free port until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/metrics":
                receiver.take(ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_request(self, code: Any = "-", size: Any = "-") -> None:
            """Not worth a line."""

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    receiver = OtlpReceiver(server.server_address[1])
    thread = Thread(target=server.serve_forever, name="OTLP receiver")
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
