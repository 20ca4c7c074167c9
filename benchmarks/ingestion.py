"""What `ingest` costs beside plain Spark, in one run on the same bytes, as ratios.

    python -m benchmarks.ingestion [--messages 1000000] [--stored 10000000 40000000] [--rounds 3]
        [--memory 100000 1000000]

The messages are flights-like JSON objects of 1 KB. They stand on disk twice before anything is timed: as JSON lines
(what plain Spark reads) and as a manifest (what a sensor hands over). Timed, in turns, each round into new tables:

- plain: ``spark.read.schema(...).json(file)``, written as Parquet. No check, no message ids, nothing exactly once.
- inferring: the same without ``schema``, as it is mostly written: Spark reads the file once more to find one.
- ingest: `ingest` of the manifest into an empty Delta table.
- redelivery: `ingest` of the same messages again, received once more, all of which the table knows.
- by hand: what a user would write, ``createDataFrame(list of parsed bodies)``, appended as Parquet. Timed once, with
  fewer messages where there are more than 200 000: it needs the driver's memory for all of them.

Then batches of 100 000 messages against tables that know many millions of ids already, and the memory of driver and
executors for batches of ``--memory`` messages.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Event, Thread

import psutil
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import DataFrameReader, SparkSession

from benchmarks.flights import BODY_BYTES, QUEUE_URL, SCHEMA, SENT_FROM, Files, messages, timed, write_files
from demo.processes import ROOT
from sqs_lease.batch_files.manifest import write_manifest
from sqs_lease.spark import DeltaSink, IngestResult, JsonSource, Ledger, ingest, local_session
from sqs_lease.spark.sinks.sink import ENTRIES, INGESTED, LOOKED_UP

BATCH_MESSAGES = 100_000
BY_HAND_MESSAGES = 200_000


class Contest:
    """Runs the contenders in turns, each into new places.

    Args:
        spark: The session, the same for all.
        directory: Where the tables go.
        files: What is read.
        count: How many messages that are.
    """

    def __init__(self, spark: SparkSession, directory: Path, files: Files, count: int) -> None:
        self.spark = spark
        self.directory = directory
        self.files = files
        self.count = count
        self._round = 0

    def round(self) -> dict[str, float]:
        """Run each contender once; seconds by name."""
        self._round += 1
        place = self.directory / f"round-{self._round}"
        seconds = {
            "plain": timed(lambda: self._plain(self.spark.read.schema(SCHEMA), place / "plain")),
            "inferring": timed(lambda: self._plain(self.spark.read, place / "inferring")),
            "ingest": timed(lambda: self._ingest(self.files.manifest, place, ingested=self.count)),
            "redelivery": timed(lambda: self._ingest(self.files.redelivered, place, ingested=0)),
        }
        shutil.rmtree(place)
        return seconds

    def by_hand(self) -> float:
        """Seconds for so many messages as all have, had a user written it; scaled up from fewer."""
        count = min(self.count, BY_HAND_MESSAGES)
        batch = [message.body for message in messages(count)]
        target = self.directory / "by-hand"
        seconds = timed(
            lambda: (
                self.spark.createDataFrame([self._parsed(text) for text in batch], SCHEMA)
                .write.mode("append")
                .parquet(str(target))
            )
        )
        shutil.rmtree(target)
        return seconds * self.count / count

    @staticmethod
    def _parsed(text: str) -> dict[str, object]:
        record = json.loads(text)
        return {**record, "departed": datetime.fromisoformat(record["departed"])}

    def _plain(self, reader: DataFrameReader, target: Path) -> None:
        reader.json(str(self.files.bodies)).write.parquet(str(target))

    def _ingest(self, manifest: Path, place: Path, *, ingested: int) -> IngestResult:
        result = ingest(
            self.spark,
            str(manifest),
            source=JsonSource(SCHEMA),
            sink=DeltaSink(place / "table"),
            workspace=place / "workspace",
        )
        if (result.ingested, result.duplicates) != (ingested, self.count - ingested):
            raise RuntimeError(f"{ingested} should have been ingested: {result}")
        return result


def fill_ledger(ledger: Ledger, stored: int) -> None:
    """Have a ledger know so many messages that nobody sent, spread evenly over the 14 days before the others."""
    opened = ledger.open()
    batches = stored // BATCH_MESSAGES
    step = timedelta(days=14) / stored
    for number in range(batches):
        # As long as the ids of SQS.
        digits = random.Random(-1 - number).randbytes(18 * BATCH_MESSAGES).hex()
        first = SENT_FROM - timedelta(days=14) + number * BATCH_MESSAGES * step
        entries = pa.table(
            [
                [digits[start : start + 36] for start in range(0, len(digits), 36)],
                [first + step * position for position in range(BATCH_MESSAGES)],
                pa.repeat(INGESTED, BATCH_MESSAGES),
                pa.nulls(BATCH_MESSAGES, pa.string()),
            ],
            schema=ENTRIES,
        )
        opened.admit(opened.snapshot(), f"stored-{number}", entries, None)


def duplicate_checks(spark: SparkSession, directory: Path, sizes: Sequence[int]) -> Iterator[tuple[int, float, float]]:
    """Ingest batches of 100 000 into tables that know so many messages already.

    Yields:
        How many a table knew; seconds for the whole ingestion, and for the look-up alone: medians of three.
    """
    manifests = []
    for number in range(4):
        manifests.append(directory / f"more-{number}.parquet")
        more = list(messages(BATCH_MESSAGES, first=10_000_000 + number * BATCH_MESSAGES))
        write_manifest(manifests[-1], batch_id=f"more-{number}", queue_url=QUEUE_URL, messages=more)
    for size in (0, *sizes):
        place = directory / f"stored-{size}"
        ledger = Ledger(place / "table" / "_sqs_lease" / "ledger")
        if size:
            fill_ledger(ledger, size)
        ingesting, looking = [], []
        for manifest in manifests:
            asked = pq.read_table(manifest, columns=LOOKED_UP.names)
            looking.append(timed(partial(_look_up, ledger, asked)))
            ingesting.append(timed(partial(_ingest_more, spark, manifest, place)))
        # The first of each warms up.
        yield size, statistics.median(ingesting[1:]), statistics.median(looking[1:])
        shutil.rmtree(place)


def _look_up(ledger: Ledger, asked: pa.Table) -> None:
    ledger.open().snapshot().find(asked)


def _ingest_more(spark: SparkSession, manifest: Path, place: Path) -> None:
    result = ingest(
        spark, manifest, source=JsonSource(SCHEMA), sink=DeltaSink(place / "table"), workspace=place / "workspace"
    )
    if result.ingested != BATCH_MESSAGES:
        raise RuntimeError(f"all should have been ingested: {result}")


@dataclass(frozen=True, slots=True)
class Memory:
    """Megabytes that an ingestion needed at most.

    Attributes:
        before: The driver's Python, with a session and before the batch: its own memory.
        driver: The driver's Python: its own memory.
        with_files: The same, with the pages of files that are mapped into it, which the system takes back when it
            needs them.
        workers: Each Python process of the executors, the largest, with such pages.
        jvm: Java, driver and executors in one. It takes what its heap may have (1 GB) before it collects garbage.
    """

    before: float
    driver: float
    with_files: float
    workers: float
    jvm: float


def memory_of(directory: Path, count: int) -> Memory:
    """What a driver of its own, with its executors, needs for a batch of so many messages."""
    manifest = directory / "memory.parquet"
    write_manifest(manifest, batch_id="memory", queue_url=QUEUE_URL, messages=messages(count))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.ingestion", "--driver", str(manifest)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    manifest.unlink()
    return Memory(*map(float, done.stdout.split()[-5:]))


def be_driver(manifest: Path) -> None:
    """Ingest a manifest, and print the most memory that the processes had."""
    with local_session(cores=2) as spark, tempfile.TemporaryDirectory(prefix="benchmark-") as place:
        spark.range(1).count()
        before = megabytes(os.getpid(), "RssAnon")
        ended = Event()
        watching = Thread(target=watch, args=(ended, most := {"driver": 0.0, "java": 0.0, "python": 0.0}))
        watching.start()
        try:
            ingest(
                spark,
                manifest,
                source=JsonSource(SCHEMA),
                sink=DeltaSink(f"{place}/table"),
                workspace=f"{place}/workspace",
            )
        finally:
            ended.set()
            watching.join()
        with_files = megabytes(os.getpid(), "VmHWM")
    print(f"\n{before:.0f} {most['driver']:.0f} {with_files:.0f} {most['python']:.0f} {most['java']:.0f}")


def watch(ended: Event, most: dict[str, float]) -> None:
    """Note the most memory of this process, and of any child of it, Java and Python, until it ends."""
    while not ended.wait(0.05):
        most["driver"] = max(most["driver"], megabytes(os.getpid(), "RssAnon"))
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess, OSError):
                kind = "java" if child.name() == "java" else "python"
                most[kind] = max(most[kind], megabytes(child.pid, "VmHWM"))


def megabytes(process: int, of: str) -> float:
    """What Linux says of a process's memory: ``RssAnon``, its own now, or ``VmHWM``, with files, at most."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(f"{of}:"):
            return float(line.split()[1]) / 1024
    return 0.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--stored", type=int, nargs="*", default=[10_000_000, 40_000_000])
    parser.add_argument("--rounds", type=int, default=4, help="the first one only warms up")
    parser.add_argument("--memory", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--driver", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.driver is not None:
        be_driver(given.driver)
        return
    with tempfile.TemporaryDirectory(prefix="benchmark-") as temporary:
        directory = Path(temporary)
        files = write_files(directory, given.messages)
        with local_session(cores=2) as spark:
            contest = Contest(spark, directory, files, given.messages)
            rounds = [contest.round() for _ in range(given.rounds)][1:]
            by_hand = contest.by_hand()
            print(f"\n{given.messages:,} messages of {BODY_BYTES:,} B; medians of {len(rounds)} rounds\n")
            print(f"{'':12} {'seconds':>8} {'messages/s':>11} {'x plain':>8}  {'(each round)'}")
            for name in rounds[0]:
                ratios = [seconds[name] / seconds["plain"] for seconds in rounds]
                seconds = statistics.median(of_round[name] for of_round in rounds)
                each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
                rate = given.messages / seconds
                print(f"{name:12} {seconds:8.1f} {rate:11,.0f} {statistics.median(ratios):8.2f}  {each}")
            plain = statistics.median(of_round["plain"] for of_round in rounds)
            print(f"{'by hand':12} {by_hand:8.1f} {given.messages / by_hand:11,.0f} {by_hand / plain:8.2f}")
            print(f"\na batch of {BATCH_MESSAGES:,} into a table that knows so many messages\n")
            print(f"{'known':>12} {'ingest, s':>10} {'look-up, s':>11}")
            for size, ingesting, looking in duplicate_checks(spark, directory, given.stored):
                print(f"{size:12,} {ingesting:10.2f} {looking:11.2f}", flush=True)
        print("\nmegabytes at most, for a batch of so many messages\n")
        print(f"{'messages':>12} {'before':>7} {'driver':>7} {'with files':>11} {'a worker':>9} {'Java':>6}")
        for count in given.memory:
            memory = memory_of(directory, count)
            own = f"{memory.before:7.0f} {memory.driver:7.0f} {memory.with_files:11.0f}"
            figures = f"{own} {memory.workers:9.0f} {memory.jvm:6.0f}"
            print(f"{count:12,} {figures}", flush=True)


if __name__ == "__main__":
    main()
