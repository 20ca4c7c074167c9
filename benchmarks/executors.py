"""How `ingest` and plain Spark scale with executors, on a standalone cluster of real processes on this machine.

    python -m benchmarks.executors [--messages 500000] [--rounds 3] [--executors 1 2 4]

Each executor has one core. Timed is what :mod:`benchmarks.sinks` times of `DeltaSink`: plain Spark that reads the
bodies with a schema and writes Parquet, `ingest` of the manifest into an empty table, and of the same messages again.
With more executors than the machine has cores, nothing can get faster: it shows what the further tasks cost.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.flights import Files, write_files
from benchmarks.sinks import Contest, contenders
from sqs_lease.spark.session import driver_session
from tests.processes.spark.engines.cluster import session_settings, standalone_cluster

EXECUTORS = (1, 2, 4)
TIMED = ("plain", "ingest", "redelivery")


def measure(directory: Path, files: Files, messages: int, executors: int, rounds: int) -> dict[str, float]:
    """The median seconds of all rounds but the first, which warms up."""
    tables = directory / "tables"
    tables.mkdir(parents=True)
    with ExitStack() as stack:
        cluster = stack.enter_context(standalone_cluster(directory, executors, java_options=""))
        conf = {**session_settings(), "spark.log.level": "ERROR"}
        spark = stack.enter_context(driver_session(master=cluster.address, remote=None, conf=conf))
        contest = Contest(spark, tables, files, messages)
        delta = contenders(spark, tables, stack, ["delta"])["delta"]
        seconds = [contest.round(delta) for _ in range(rounds)][1:]
    return {what: statistics.median(of_round[what] for of_round in seconds) for what in TIMED}


def report(executors: int, seconds: dict[str, float], first: dict[str, float]) -> None:
    """Print a row: seconds, and how many times as fast as with the first number of executors."""
    columns = (f"{seconds[what]:8.1f} ({first[what] / seconds[what]:.2f} x)" for what in TIMED)
    print(f"{executors:9} {' '.join(columns)} {seconds['ingest'] / seconds['plain']:14.2f}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3, help="the first one only warms up")
    parser.add_argument("--executors", type=int, nargs="+", default=EXECUTORS)
    given = parser.parse_args(arguments)
    print(f"\n{given.messages:,} messages of 1 KB, executors of one core, {os.cpu_count()} cores; medians in seconds\n")
    print(f"{'executors':9} {'plain':>17} {'ingest':>17} {'redelivery':>17} {'ingest / plain':>14}", flush=True)
    first: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as temporary:
        (Path(temporary) / "files").mkdir()
        files = write_files(Path(temporary) / "files", given.messages)
        for executors in given.executors:
            seconds = measure(Path(temporary) / str(executors), files, given.messages, executors, given.rounds)
            first = first or seconds
            report(executors, seconds, first)


if __name__ == "__main__":
    main()
