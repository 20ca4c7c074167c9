"""The demo: `make demo`, or `python -m demo [--orchestrator dagster] [--keep]` in the environment of `make setup`.

It publishes flights and some malformed messages to a queue, lets Airflow (or Dagster) bring them into a Delta table
in several runs, and reads the results back from queue, dead-letter queue and table. It exits with 0 when the
figures add up, with 1 when they do not or something failed, and with 130 when it was interrupted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

from botocore.exceptions import BotoCoreError, ClientError
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from demo.airflow_api import AirflowApiError
from demo.airflow_runs import airflow_runs
from demo.airflow_stack import AirflowSetupError
from demo.dagster_api import DagsterApiError
from demo.dagster_runs import dagster_runs
from demo.dagster_stack import DagsterSetupError
from demo.flights import bodies
from demo.lock import LockedError, locked
from demo.processes import ROOT, ProcessFailedError
from demo.queues import VISIBILITY_SECONDS, PublishError, Queues
from demo.runs import RUN_SECONDS, NotDrainedError, Runs, Work, drain
from demo.sqs_server import SetupMissingError, sqs_server
from demo.summary import Summary
from sqs_lease.spark.columns import MESSAGE_ID
from sqs_lease.spark.errors import JavaError
from sqs_lease.spark.java_home import java_for_spark

MESSAGES = 3000

SHOWN_MESSAGES = 300
"""Number of messages that one more run holds at the end, when the user interface stays up."""

LAST = ROOT / ".demo" / "last"
"""Everything of the last demo: logs, the orchestrator's home, the table."""

ORCHESTRATORS: Mapping[str, Callable[[Work], AbstractContextManager[Runs]]] = {
    "airflow": airflow_runs,
    "dagster": dagster_runs,
}
"""The orchestrators of the demo, by their names in lower case."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end the demo early."""

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
    DagsterApiError,
    DagsterSetupError,
    JavaError,
    NotDrainedError,
    ProcessFailedError,
    PublishError,
    SetupMissingError,
)
"""Errors with a message that is enough for a user; others are shown with their traceback."""


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
    parser.add_argument(
        "--orchestrator", choices=ORCHESTRATORS, default="airflow", help="what starts the runs (default: %(default)s)"
    )
    parser.add_argument("--keep", action="store_true", help="leave the user interface up at the end, until Ctrl-C")
    arguments = parser.parse_args()
    for number in SIGNALS:
        signal.signal(number, _interrupt)
    try:
        with java_for_spark():
            pass  # a machine without Java is found out before anything starts
        with _only_one():
            return _run(arguments.orchestrator, keep=arguments.keep)
    except KeyboardInterrupt:
        print("Interrupted. Everything that was started has been stopped.", file=sys.stderr)
        return INTERRUPTED
    except EXPECTED_ERRORS as error:
        print(f"The demo failed: {error}", file=sys.stderr)
        if LAST.exists():
            print(
                f"All logs are in {LAST}. Everything that was started has been stopped; the next demo starts afresh.",
                file=sys.stderr,
            )
        return FAILED


def _run(orchestrator: str, *, keep: bool) -> int:
    show, name = Progress(), orchestrator.capitalize()
    shutil.rmtree(LAST, ignore_errors=True)
    table = LAST / "table"
    with ExitStack() as started:
        server = started.enter_context(sqs_server(LAST))
        queues = Queues(server)
        show(f"SQS server at {server.endpoint_url}, visibility timeout {VISIBILITY_SECONDS} s")
        published = queues.publish(bodies(MESSAGES))
        show(f"published {len(published.flights)} flights and {len(published.malformed)} malformed messages")
        show(f"{name} is starting")
        work = Work(server, queues.url, LAST / orchestrator, table)
        runs = started.enter_context(ORCHESTRATORS[orchestrator](work))
        show(f"{name} at {runs.url}; each run takes {RUN_SECONDS} s or more, and one fails on its first try")
        drain(runs, queues, server.process, rows=lambda: len(_message_ids(table)), show=show)
        summary = Summary(
            published=published,
            table_ids=_message_ids(table),
            dead_letter_ids=queues.receive_dead_letters(),
            left=queues.counts(),
            batches=runs.outcomes(),
            failed_runs=runs.failed(),
        )
        exit_code = _report(summary, table, runs.logs)
        if keep:
            held_page = runs.hold_for_show(lambda: queues.publish(bodies(SHOWN_MESSAGES)))
            _wait_to_be_stopped(name, runs.url, held_page)
    show("everything has been stopped")
    return exit_code


def _report(summary: Summary, table: Path, logs: Path) -> int:
    print("\nRead back from the queue, the dead-letter queue and the table:\n")
    for line in summary.lines():
        print(f"  {line}")
    print(f"\nThe table is {table / 'flights'}, the logs are in {LAST}.")
    problems = summary.problems()
    if problems:
        print("\nThe figures do not add up:", file=sys.stderr)
        for problem in problems:
            print(f"  - {problem}", file=sys.stderr)
        print(f"The logs of the runs are in {logs}.\n", file=sys.stderr)
        return FAILED
    print("The figures add up.\n", flush=True)
    return 0


def _message_ids(table: Path) -> list[str]:
    try:
        rows = DeltaTable(str(table / "flights"))
    except TableNotFoundError:
        return []
    ids: list[str] = rows.to_pyarrow_table(columns=[MESSAGE_ID])[MESSAGE_ID].to_pylist()
    return ids


def _wait_to_be_stopped(name: str, url: str, held_page: str | None) -> None:
    print(f"{name}'s UI is up: {url} (no login needed).")
    if held_page is not None:
        print(f"One more run holds {SHOWN_MESSAGES} messages for you to look at: {held_page}")
    print(f"To stop it and the SQS server, press Ctrl-C here or run: kill {os.getpid()}\n", flush=True)
    with suppress(KeyboardInterrupt):
        signal.pause()


@contextmanager
def _only_one() -> Iterator[None]:
    try:
        with locked(LAST.parent / "lock"):
            yield
    except LockedError as error:
        raise AnotherDemoError(
            f"another demo of this checkout is running. Wait for its end, or stop it: kill {error.pid}"
        ) from None


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    # A second Ctrl-C is ignored, so that it does not keep processes from being stopped.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    os.write(sys.stderr.fileno(), b"\nStopping everything ...\n")
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
