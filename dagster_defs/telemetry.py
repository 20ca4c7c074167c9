"""Metrics of the leases of runs and sensors, sent to the endpoint in OpenTelemetry's own environment variables.

Each process that imports the definitions publishes for itself: the code server, the run workers and the steps.
"""

import os


def publish_metrics() -> None:
    """Send metrics to the endpoint of `OTEL_EXPORTER_OTLP_ENDPOINT`; do nothing if it is not set."""
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        from opentelemetry import metrics
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())]))
