"""The cost of a scheduled run: from the start of a new process until its messages are stored, beside a plain script.

    python -m benchmarks.fresh_process [--messages 1500] [--rounds 5] [--sessions local connect]

Each script reads the list of messages from a JSON file, as a task reads an XCom, and ends when the table is there:

- plain: gets a session, writes the bodies to a file, and has Spark read them with a schema and write Parquet.
- ingest: gets a session and calls `ingest` into a new table of `DeltaSink`.

Once with a local session, which each process starts for itself, and once with a Spark Connect server that stays. The
first round with a server warms it up. It runs with two cores on this machine, and its Python workers are made for each
session.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Final

from benchmarks.flights import SCHEMA, messages
from demo.processes import ROOT
from tests.processes.spark.engines.cluster import connect_server, environment

_GIVEN: Final = """
import json, sys, time

file, place, address, schema = sys.argv[1:]
with open(file) as opened:
    messages = json.load(opened)
"""

PLAIN: Final = f"""{_GIVEN}
from pyspark.sql import SparkSession

builder = SparkSession.builder
spark = (builder.remote(address) if address else builder.master("local[2]")).getOrCreate()
begun = time.monotonic()
with open(place + ".jsonl", "w") as bodies:
    bodies.writelines(message["Body"] + "\\n" for message in messages)
spark.read.schema(schema).json("file://" + place + ".jsonl").write.parquet("file://" + place)
print(begun, time.monotonic())
spark.stop()
"""

INGEST: Final = f"""{_GIVEN}
from pyspark.sql import SparkSession
from sqs_lease.spark import DeltaSink, JsonSource, ingest, local_session

def store(spark):
    begun = time.monotonic()
    sink = DeltaSink(place)
    result = ingest(spark, messages, source=JsonSource(schema), sink=sink, workspace=place + "-batches")
    assert result.ingested == len(messages), result
    print(begun, time.monotonic())

if address:
    spark = SparkSession.builder.remote(address).getOrCreate()
    store(spark)
    spark.stop()
else:
    with local_session(cores=2) as spark:
        store(spark)
"""

SESSIONS: Final = ("local", "connect")
SCRIPTS: Final[Mapping[str, str]] = {"plain": PLAIN, "ingest": INGEST}


def run(script: str, file: Path, place: Path, address: str) -> tuple[float, float]:
    """Run a script in a new process: seconds from its start until it had a session, and until all was stored."""
    began = monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(file), str(place), address, SCHEMA],
        cwd=ROOT,
        env=environment(java_options=""),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    # The clock is that of the machine, the same in all processes.
    session, stored = map(float, done.stdout.split()[-2:])
    return session - began, stored - began


def measure(directory: Path, file: Path, address: str, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Run the scripts in turns: what each took in each round but the first, by its name."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in SCRIPTS}
    for number in range(rounds):
        for name, script in SCRIPTS.items():
            found[name].append(run(script, file, directory / f"{name}-{number}", address))
    return {name: took[1:] for name, took in found.items()}


def report(kind: str, found: Mapping[str, list[tuple[float, float]]]) -> None:
    """Print a row for each script."""
    least = {name: min(stored for _, stored in took) for name, took in found.items()}
    for name, took in found.items():
        session, stored = (statistics.median(seconds) for seconds in zip(*took, strict=True))
        print(
            f"{kind:9} {name:8} {session:11.1f} {least[name]:10.1f} {stored:8.1f} {least[name] / least['plain']:8.2f}"
        )
    sys.stdout.flush()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=1_500)
    parser.add_argument("--rounds", type=int, default=5, help="the first one only warms up")
    parser.add_argument("--sessions", nargs="+", choices=SESSIONS, default=SESSIONS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as temporary:
        directory = Path(temporary)
        file = directory / "messages.json"
        file.write_text(json.dumps([message.as_dict() for message in messages(given.messages)]))
        print(f"\nfrom the start of a process, {given.messages:,} messages of 1 KB, seconds\n")
        print(f"{'session':9} {'':8} {'has session':>11} {'stored min':>10} {'median':>8} {'x plain':>8}", flush=True)
        for kind in given.sessions:
            tables = directory / kind
            tables.mkdir()
            if kind == "local":
                report(kind, measure(tables, file, "", given.rounds))
            else:
                with connect_server(directory, "local[2]", java_options="") as server:
                    report(kind, measure(tables, file, server.address, given.rounds))


if __name__ == "__main__":
    main()
