"""The time from the end of failing work until another consumer can receive its message, on a real Airflow.

    python -m benchmarks.release [--runs 20] [--at-once 3] [--sqlite]

Each run receives one message from a queue of its own, and its work ends after 15 s: by an exception, or by SIGKILL of
its process. Another consumer polls the queue all the time. Airflow has its default settings. The runs are started a few
at a time, because the tasks of many at once wait for one another rather than for Airflow.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import time
from typing import Final
from uuid import uuid4

from demo.airflow_stack import AirflowStack, airflow_stack, migrated_postgres
from demo.postgres import postgres_server
from demo.processes import ROOT, pause
from demo.sqs_server import SqsServer, sqs_server
from tests.second_consumer import SecondConsumer

DAGS_FOLDER: Final = ROOT / "benchmarks" / "dags_release"
DAG_ID: Final = "ending"
WAYS: Final = ("raise", "kill")
LIMIT_SECONDS: Final = 120.0


class Releases:
    """Starts runs and looks when their messages come back.

    Args:
        stack: Airflow.
        server: The SQS server.
        directory: Where the work says when it ended.
    """

    def __init__(self, stack: AirflowStack, server: SqsServer, directory: Path) -> None:
        self._stack = stack
        self._server = server
        self._directory = directory
        self._sqs = server.sqs_client()

    def seconds(self, how: str, runs: int) -> list[float]:
        """Start so many runs at once; seconds from the end of the work of each to the receipt of its message."""
        with ExitStack() as polling:
            watched = []
            for _ in range(runs):
                name = f"{how}-{uuid4().hex}"
                url = self._sqs.create_queue(QueueName=name)["QueueUrl"]
                self._sqs.send_message(QueueUrl=url, MessageBody=name)
                file = self._directory / name
                conf = {"queue_url": url, "how": how, "file": str(file)}
                self._stack.api.trigger(DAG_ID, conf)
                consumer = SecondConsumer(self._server.sqs_client(), url, 1)
                polling.enter_context(consumer.polling())
                watched.append((consumer, file))
            return [self._wait(consumer, file) for consumer, file in watched]

    def _wait(self, consumer: SecondConsumer, file: Path) -> float:
        deadline = time() + LIMIT_SECONDS
        while not consumer.receptions:
            if time() > deadline:
                raise RuntimeError(f"no message came back within {LIMIT_SECONDS:g} s of its run's start")
            pause(self._stack.processes["scheduler"], 0.1)
        return consumer.receptions[0].at - float(file.read_text())


@contextmanager
def releases(*, sqlite: bool) -> Iterator[Releases]:
    """Run everything, until the block ends."""
    with ExitStack() as exits:
        home = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        server = exits.enter_context(sqs_server(home))
        database = None if sqlite else exits.enter_context(postgres_server(migrated_postgres())).url
        environment = {"AIRFLOW_CONN_AWS_DEFAULT": server.airflow_connection}
        stack = exits.enter_context(airflow_stack(home, DAGS_FOLDER, environment, database_url=database))
        stack.wait_for_dag(DAG_ID)
        yield Releases(stack, server, home)


def show(how: str, seconds: Sequence[float]) -> None:
    """Print one line."""
    ordered = sorted(seconds)
    ninety_fifth = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    within_three = sum(each <= 3 for each in ordered)
    print(
        f"{how:<6} p50 {statistics.median(ordered):5.2f} s   p95 {ninety_fifth:5.2f} s   "
        f"longest {ordered[-1]:5.2f} s   within 3 s: {within_three} of {len(ordered)}",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=20, help="of each kind")
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--sqlite", action="store_true", help="instead of PostgreSQL")
    given = parser.parse_args()
    with releases(sqlite=given.sqlite) as running:
        for how in WAYS:
            seconds: list[float] = []
            while len(seconds) < given.runs:
                seconds += running.seconds(how, min(given.at_once, given.runs - len(seconds)))
            show(how, seconds)


if __name__ == "__main__":
    main()
