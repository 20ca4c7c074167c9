"""A program with leases that publishes what they do: `python program.py GATE`.

Of the queue `program-orders` it fails one message that begins with `bad`, and ends the block when the gate is there. On
`program-late` and `program-lost` it stands still until the test lets it go on, which is after the lease has ended.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from opentelemetry import metrics
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

from sqs_lease import Fixed, lease

metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())]))


def main(gate: Path) -> None:
    with lease("program-orders", max_messages=3, policy=Fixed(visibility=300, every=1)) as batch:
        for message in batch:
            if message.body.startswith("bad"):
                batch.fail(message, "this message can never be processed")
        while not gate.exists():
            time.sleep(0.2)
    for queue in ("program-late", "program-lost"):
        with lease(queue, visibility=2) as batch:
            os.kill(os.getpid(), signal.SIGSTOP)
            while not (batch.report().late or batch.report().lost):
                time.sleep(0.2)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
