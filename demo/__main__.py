"""Runs the demo: `make demo`, or `python -m demo [--keep]` in an environment that `make setup` made.

It publishes flights and some malformed messages to a queue, lets Airflow bring them into a Delta table in several
runs, and reads back from queue, dead-letter queue and table where everything is. It exits with 0 when the figures
add up, with 1 when they do not or something failed, and with 130 when it was interrupted.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

from botocore.exceptions import BotoCoreError, ClientError
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from demo.airflow_api import AirflowApiError
from demo.airflow_stack import AirflowSetupError, AirflowStack, airflow_stack
from demo.flights import bodies
from demo.processes import ROOT, ProcessFailedError
from demo.queues import VISIBILITY_SECONDS, PublishError, Queues
from demo.runs import DAG_ID, RUN_SECONDS, NotDrainedError, Runs
from demo.sqs_server import SetupMissingError, SqsServer, sqs_server
from demo.summary import Summary
from sqs_lease.spark.columns import MESSAGE_ID
from sqs_lease.spark.errors import JavaError
from sqs_lease.spark.packaged_java import java_for_spark

MESSAGES = 3000

LAST = ROOT / ".demo" / "last"
"""Everything of the last demo: logs, Airflow's home, the table."""

DAG_FILE = ROOT / "dags" / "flights_to_delta.py"
"""The DAG of the demo, alone: the other examples there have no queues here."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends the demo early."""

FAILED = 1
INTERRUPTED = 130
"""Exit code of a program that Ctrl-C ended."""


class AnotherDemoError(RuntimeError):
    """A demo of this checkout is running already."""


EXPECTED_ERRORS = (
    BotoCoreError,
    ClientError,
    AirflowApiError,
    AirflowSetupError,
    AnotherDemoError,
    JavaError,
    NotDrainedError,
    ProcessFailedError,
    PublishError,
    SetupMissingError,
)
"""Errors whose message says all that a user can act on; others are shown with their traceback."""


class Progress:
    """Prints lines with the time since the start."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self, line: str) -> None:
        """Print one line."""
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        print(f"  {minutes}:{seconds:02}  {line}", flush=True)


def main() -> int:
    """Run the demo.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m demo", description="Flights from a queue into a Delta table.")
    parser.add_argument("--keep", action="store_true", help="leave Airflow up at the end, until Ctrl-C")
    arguments = parser.parse_args()
    for number in SIGNALS:
        signal.signal(number, _interrupt)
    try:
        with java_for_spark():
            pass  # a machine without Java is found out before anything starts
        with _only_one():
            return _run(keep=arguments.keep)
    except KeyboardInterrupt:
        print("Interrupted. Everything that was started has been stopped.", file=sys.stderr)
        return INTERRUPTED
    except EXPECTED_ERRORS as error:
        print(f"The demo failed: {error}", file=sys.stderr)
        if LAST.exists():
            print(
                f"All logs are in {LAST}. Everything that was started has been stopped; `make demo` starts afresh.",
                file=sys.stderr,
            )
        return FAILED


def _run(*, keep: bool) -> int:
    show = Progress()
    shutil.rmtree(LAST, ignore_errors=True)
    dags_folder = LAST / "dags"
    dags_folder.mkdir(parents=True)
    shutil.copy(DAG_FILE, dags_folder)
    table = LAST / "table"
    with ExitStack() as started:
        server = started.enter_context(sqs_server(LAST))
        queues = Queues(server)
        show(f"SQS server at {server.endpoint_url}, visibility timeout {VISIBILITY_SECONDS} s")
        published = queues.publish(bodies(MESSAGES))
        show(f"published {len(published.flights)} flights and {len(published.malformed)} malformed messages")
        show("Airflow is starting")
        stack = started.enter_context(airflow_stack(LAST / "airflow", dags_folder, _environment(server, queues, table)))
        stack.wait_for_dag(DAG_ID)
        show(f"Airflow at {stack.url}; each run takes {RUN_SECONDS} s or more, and one fails on its first try")
        runs = Runs(stack, queues, server.process, rows=lambda: len(_message_ids(table)), show=show)
        runs.drain()
        summary = Summary(
            published=published,
            table_ids=_message_ids(table),
            dead_letter_ids=queues.receive_dead_letters(),
            left=queues.counts(),
            batches=runs.outcomes(),
            failed_runs=runs.failed(),
        )
        exit_code = _report(summary, table)
        if keep:
            _wait_to_be_stopped(stack)
    show("everything has been stopped")
    return exit_code


def _report(summary: Summary, table: Path) -> int:
    print("\nRead back from the queue, the dead-letter queue and the table:\n")
    for line in summary.lines():
        print(f"  {line}")
    print(f"\nThe table is {table / 'flights'}, the logs are in {LAST}.")
    problems = summary.problems()
    if problems:
        print("\nThe figures do not add up:", file=sys.stderr)
        for problem in problems:
            print(f"  - {problem}", file=sys.stderr)
        print(f"What the tasks did is in {LAST / 'airflow' / 'logs' / f'dag_id={DAG_ID}'}.\n", file=sys.stderr)
        return FAILED
    print("The figures add up.\n", flush=True)
    return 0


def _environment(server: SqsServer, queues: Queues, table: Path) -> dict[str, str]:
    return {
        "AIRFLOW_CONN_AWS_DEFAULT": server.airflow_connection,
        "AIRFLOW_VAR_FLIGHTS_QUEUE_URL": queues.url,
        "AIRFLOW_VAR_FLIGHTS_TABLE": str(table),
        # Each batch starts a Spark of its own for a few seconds of work: compiling it to the last costs more than
        # twice the processor time that it saves, and several run at once on perhaps two cores.
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


def _message_ids(table: Path) -> list[str]:
    try:
        rows = DeltaTable(str(table / "flights"))
    except TableNotFoundError:
        return []
    ids: list[str] = rows.to_pyarrow_table(columns=[MESSAGE_ID])[MESSAGE_ID].to_pylist()
    return ids


def _wait_to_be_stopped(stack: AirflowStack) -> None:
    print(f"Airflow's UI is up: {stack.url} (no login needed).")
    print(f"To stop it and the SQS server, press Ctrl-C here or run: kill {os.getpid()}\n", flush=True)
    with suppress(KeyboardInterrupt):
        signal.pause()


@contextmanager
def _only_one() -> Iterator[None]:
    LAST.parent.mkdir(exist_ok=True)
    with (LAST.parent / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise AnotherDemoError(
                f"another demo of this checkout is running. Wait for its end, or stop it: kill {lock.read()}"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    # Once is enough: a second Ctrl-C must not keep processes from being stopped.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    os.write(sys.stderr.fileno(), b"\nStopping everything ...\n")
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
