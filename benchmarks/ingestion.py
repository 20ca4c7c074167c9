"""The cost of `ingest` from the list of messages that a DAG has, beside what a user would write, in one run.

    python -m benchmarks.ingestion [--messages 1000 10000 120000] [--rounds 6] [--stored 10000000 40000000]

The messages are those of :mod:`benchmarks.flights`, once as `Message` values, which `lease` returns, and once as the
mappings that a task gets by XCom. 120 000 are the most that SQS lets one queue have in flight. Timed, in turns, each
round into new tables, from the list to what is stored:

- plain Spark: the bodies are written to a file, which ``spark.read.schema(...).json`` reads and writes as Parquet.
- pyarrow: the bodies are read by pyarrow, and ``write_deltalake`` writes the table. No Spark.
- ingest into a new table of `DeltaSink`, `ParquetSink` or `PostgresSink`.
- again: `ingest` of the same messages into that Delta table, received once more. It knows all of them.
- psycopg: the bodies are parsed and a COPY takes their rows, one by one. No Spark.

Only `ingest` checks a message, keeps its id and has it once. Beside the seconds stand what the driver's Python needs:
its time on a processor, and the memory that it has at most beside the list. :mod:`benchmarks.sinks` begins with a
manifest instead. Then batches of 100 000 messages come into tables that know many millions of ids already.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import random
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import psycopg
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.json as pj  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from benchmarks.flights import BODY_BYTES, QUEUE_URL, SCHEMA, SENT_FROM, messages, received_again, timed
from demo.postgres import postgres_server
from sqs_lease.batch_files.manifest import write_manifest
from sqs_lease.core.messages import Message
from sqs_lease.spark import DeltaSink, JsonSource, Ledger, ParquetSink, PostgresSink, Sink, ingest, local_session
from sqs_lease.spark.schemas import arrow_schema, struct_type
from sqs_lease.spark.sinks.sink import ENTRIES, INGESTED, LOOKED_UP

BATCH_MESSAGES = 100_000
KINDS: Mapping[str, Callable[[Message], Any]] = {
    "messages": lambda message: message,
    "mappings": lambda message: message.as_dict(),
}
COPY_COLUMNS = (
    "id bigint, carrier text, flight int, origin text, dest text, distance int, delay double precision, "
    "departed timestamptz, tags jsonb, plane jsonb, remarks text"
)


@dataclass(frozen=True, slots=True)
class Batch:
    """A list of messages.

    Attributes:
        received: The messages.
        again: The same, received once more.
        body_of: The body of one.
    """

    received: Sequence[Any]
    again: Sequence[Any]
    body_of: Callable[[Any], str]

    @classmethod
    def of(cls, batch: Sequence[Message], kind: str) -> Batch:
        """Messages as values of a kind."""
        received, again = ([KINDS[kind](message) for message in some] for some in (batch, received_again(batch)))
        return cls(received, again, _body_of_mapping if kind == "mappings" else _body_of_message)


def _body_of_message(message: Message) -> str:
    return message.body


def _body_of_mapping(message: Mapping[str, Any]) -> str:
    body: str = message["Body"]
    return body


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one contender, once.

    Attributes:
        seconds: From the list to what is stored.
        processor: Seconds that the driver's Python was on a processor.
        megabytes: Its memory at most, beside its memory before.
    """

    seconds: float
    processor: float
    megabytes: float

    @classmethod
    def of(cls, work: Callable[[], object]) -> Cost:
        """Measure some work (Linux)."""
        # Memory that earlier work left free would count as this one's.
        gc.collect()
        pa.default_memory_pool().release_unused()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the most memory counts from here
        before, processor = _megabytes("VmRSS"), process_time()
        seconds = timed(work)
        return cls(seconds, process_time() - processor, _megabytes("VmHWM") - before)


def _megabytes(of: str) -> float:
    """Return this process's memory as Linux counts it: ``VmRSS``, now, or ``VmHWM``, at most."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{of}:"))
    return float(line.split()[1]) / 1024


class Contest:
    """Runs the contenders in turns, each into new places.

    Args:
        spark: The session, the same for all.
        directory: Where files and tables go, and nothing else.
        url: The PostgreSQL server.
    """

    def __init__(self, spark: SparkSession, directory: Path, url: str) -> None:
        self.spark = spark
        self.directory = directory
        self.url = url
        self._arrow = arrow_schema(struct_type(SCHEMA))

    def round(self, batch: Batch) -> dict[str, Cost]:
        """Run each contender once; what it took, by its name."""
        self.directory.mkdir()
        self._drop()
        delta = DeltaSink(self.directory / "delta")
        of_all, of_none = len(batch.received), 0
        contenders: Mapping[str, Callable[[], object]] = {
            PLAIN: partial(self._plain, batch),
            "pyarrow, Delta": partial(self._pyarrow, batch),
            "ingest, Delta": partial(self._ingest, batch.received, delta, of_all),
            "again, Delta": partial(self._ingest, batch.again, delta, of_none),
            "ingest, Parquet": partial(self._ingest, batch.received, ParquetSink(self.directory / "parquet"), of_all),
            COPY: partial(self._copy, batch),
            "ingest, PostgreSQL": partial(self._ingest, batch.received, PostgresSink(self.url, "flights"), of_all),
        }
        costs = {name: Cost.of(work) for name, work in contenders.items()}
        shutil.rmtree(self.directory)
        return costs

    def _plain(self, batch: Batch) -> None:
        bodies = self.directory / "bodies.jsonl"
        with bodies.open("w") as file:
            file.writelines(batch.body_of(message) + "\n" for message in batch.received)
        self.spark.read.schema(SCHEMA).json(str(bodies)).write.parquet(str(self.directory / "plain"))

    def _pyarrow(self, batch: Batch) -> None:
        lines = "\n".join(map(batch.body_of, batch.received)).encode()
        read = pj.read_json(pa.BufferReader(lines), parse_options=pj.ParseOptions(explicit_schema=self._arrow))
        write_deltalake(str(self.directory / "pyarrow"), read)

    def _copy(self, batch: Batch) -> None:
        with psycopg.connect(self.url) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE copied ({COPY_COLUMNS})".encode())
            with cursor.copy("COPY copied FROM STDIN") as copy:
                for message in batch.received:
                    record = json.loads(batch.body_of(message))
                    record |= {name: json.dumps(record[name]) for name in ("tags", "plane")}
                    copy.write_row(tuple(record.values()))

    def _drop(self) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute("DROP TABLE IF EXISTS copied, flights")

    def _ingest(self, received: Sequence[Any], sink: Sink, ingested: int) -> None:
        result = ingest(
            self.spark,
            received,
            source=JsonSource(SCHEMA),
            sink=sink,
            workspace=self.directory / "workspace",
        )
        if (result.ingested, result.duplicates) != (ingested, len(received) - ingested):
            raise RuntimeError(f"{ingested} should have been ingested: {result}")


PLAIN = "plain Spark, Parquet"
COPY = "psycopg, COPY"
BESIDE = {"ingest, PostgreSQL": COPY}
"""Contenders that are compared with another one than plain Spark."""


def report(kind: str, count: int, rounds: Sequence[Mapping[str, Cost]]) -> None:
    """Print a line for each contender: the least and the median, and the ratio of the least."""
    least = {name: min(costs[name].seconds for costs in rounds) for name in rounds[0]}
    for name in rounds[0]:
        of_all = [costs[name] for costs in rounds]
        beside = BESIDE.get(name, PLAIN)
        median = statistics.median(cost.seconds for cost in of_all)
        processor = min(cost.processor for cost in of_all)
        memory = max(cost.megabytes for cost in of_all)
        ratio = f"{least[name] / least[beside]:.2f} x {beside.partition(',')[0]}"
        own = f"{processor:7.2f} {processor / count * 1e6:8.1f} {memory:8.0f} {memory * 1024 / count:7.1f}"
        print(f"{count:9,} {kind:9} {name:21} {least[name]:7.2f} {median:7.2f}  {ratio:18} {own}", flush=True)


def fill_ledger(ledger: Ledger, stored: int) -> None:
    """Have a ledger know so many messages that were never sent, spread evenly over the 14 days before the others."""
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, nargs="*", default=[1_000, 10_000, 120_000])
    parser.add_argument("--stored", type=int, nargs="*", default=[10_000_000, 40_000_000])
    parser.add_argument("--rounds", type=int, default=6, help="the first one only warms up")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as directory,
        postgres_server() as postgres,
        local_session(cores=2) as spark,
    ):
        contest = Contest(spark, Path(directory) / "round", postgres.url.replace("+psycopg2", ""))
        print(f"\nfrom a list of messages of {BODY_BYTES:,} B; {given.rounds - 1} rounds; the driver's Python\n")
        print(
            f"{'messages':>9} {'as':9} {'':21} {'min, s':>7} {'median':>7}  {'of the minima':18} "
            f"{'CPU, s':>7} {'us each':>8} {'MB most':>8} {'KB each':>7}"
        )
        for count in given.messages:
            batch = list(messages(count))
            for kind in KINDS:
                of_kind = Batch.of(batch, kind)
                report(kind, count, [contest.round(of_kind) for _ in range(given.rounds)][1:])
        if given.stored:
            print(f"\na batch of {BATCH_MESSAGES:,} into a table that knows so many messages\n")
            print(f"{'known':>12} {'ingest, s':>10} {'look-up, s':>11}")
            for size, ingesting, looking in duplicate_checks(spark, Path(directory), given.stored):
                print(f"{size:12,} {ingesting:10.2f} {looking:11.2f}", flush=True)


if __name__ == "__main__":
    main()
