"""A second driver, in a process of its own: ingests the batches that it is told on standard input."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqs_lease.spark import DeltaSink, Staged, local_session
from sqs_lease.spark.sinks.delta_sink import DeltaSnapshot
from tests.spark.samples import InterruptedSink, Place, good


@dataclass(frozen=True)
class DeadlySink(DeltaSink):
    """Kills this process, as the kernel would, right before or right after the commit."""

    moment: str = ""

    def commit(self, snapshot: DeltaSnapshot, staged: Staged, batch_id: str) -> int:
        if self.moment == "after the commit":
            super().commit(snapshot, staged, batch_id)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")


def say(**what: Any) -> None:
    # The mark tells the answers from what others print.
    sys.stdout.write(f"@{json.dumps(what)}\n")
    sys.stdout.flush()


def wait_before_commit() -> None:
    say(at="before the commit")
    sys.stdin.readline()


def main() -> None:
    with local_session(cores=1) as spark:
        while line := sys.stdin.readline():
            order = json.loads(line)
            place = Place(spark, Path(order["root"]))
            for batch in order["batches"]:
                if order["die"]:
                    place.ingest(good(batch), sink=DeadlySink(place.table, order["die"]))
                elif order["wait"]:
                    sink = InterruptedSink(place.table, before_commit=wait_before_commit)
                    say(calls=sink.calls, **asdict(place.ingest(good(batch), sink=sink)))
                else:
                    say(at="a batch")
                    say(**asdict(place.ingest(good(batch))))


if __name__ == "__main__":
    main()
