"""A second driver, in a process of its own: ingests the batches that it is told on standard input."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sqs_lease.spark import DeltaSink, Staged, local_session
from sqs_lease.spark.batch_parts import BatchParts
from sqs_lease.spark.sinks.delta.sink import OpenDelta
from sqs_lease.spark.sinks.sink import Admission, Rest
from sqs_lease.spark.sinks.write_ahead import Application, WriteAheadLookUp, WriteAheadTable
from tests.spark.samples import InterruptedSink, Place, good

BEFORE_WRITING = "before writing"
BEFORE_THE_COMMIT = "before the commit"
AFTER_THE_ADMISSION = "after the admission"
AFTER_THE_APPLICATION = "after the application"
AFTER_THE_RETURN = "after the return"


def die() -> None:
    """End as the kernel would end this process."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class DeadlySink:
    """A Delta sink that kills this process at a moment of its first batch."""

    path: Path
    moment: str

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> WriteAheadTable:
        table = DeltaSink(self.path).open(spark, columns, widen=widen)
        assert isinstance(table.target, OpenDelta)
        return DeadlyTable(DeadlyTarget(table.target, self.moment), table.ledger, self.moment)


@dataclass(frozen=True)
class DeadlyTable(WriteAheadTable):
    moment: str

    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        if self.moment == BEFORE_WRITING:
            die()
        return super().stage(rows, batch_id)

    def stage_parts(self, spark: SparkSession, parts: BatchParts, rest: Rest, batch_id: str) -> Staged | None:
        if self.moment == BEFORE_WRITING:
            die()
        return super().stage_parts(spark, parts, rest, batch_id)

    def commit(self, looked_up: WriteAheadLookUp, admission: Admission) -> int | None:
        if self.moment == BEFORE_THE_COMMIT:
            die()
        return super().commit(looked_up, admission)


@dataclass(frozen=True)
class DeadlyTarget:
    table: OpenDelta
    moment: str

    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        return self.table.stage(rows, batch_id)

    def stage_parts(self, spark: SparkSession, parts: BatchParts, rest: Rest, batch_id: str) -> Staged:
        return self.table.stage_parts(spark, parts, rest, batch_id)

    def apply(self, location: str, application: Application) -> int | None:
        if self.moment == AFTER_THE_ADMISSION:
            die()
        version = self.table.apply(location, application)
        if self.moment == AFTER_THE_APPLICATION:
            die()
        return version

    def version(self) -> int | None:
        return self.table.version()

    def discard(self, location: str) -> None:
        self.table.discard(location)


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
                    die()
                elif order["wait"]:
                    sink = InterruptedSink(place.table, before_commit=wait_before_commit)
                    say(calls=sink.calls, **asdict(place.ingest(good(batch), sink=sink)))
                else:
                    say(at="a batch")
                    say(**asdict(place.ingest(good(batch))))


if __name__ == "__main__":
    main()
