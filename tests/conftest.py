"""What tests of several packages share, and the order of their files."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from demo.sqs_server import SqsServer, sqs_server

MINUTES = (
    "tests/airflow/test_event_scheduling.py",
    "tests/dagster/test_leases_end_to_end.py",
    "tests/dagster/test_lease_sensor_end_to_end.py",
    "tests/airflow/test_example_dags.py",
    "tests/airflow/test_end_to_end.py",
    "tests/airflow/test_dag_test.py",
    "tests/airflow/test_work_shapes.py",
    "tests/packaging/test_wheel.py",
    "tests/benchmarks/test_triggerer_benchmark.py",
)
"""Files that take minutes: they begin first, so that no process has one to itself while the others have no more."""

KILLING = "tests/failover"
"""What kills processes of Airflow, and mostly waits: it comes when what takes much of the processors is over."""

CALCULATING = ("tests/simulation", "tests/spark")
"""What takes a processor for minutes and keeps to no deadline: it comes last, and fills what the others leave."""


def pytest_configure() -> None:
    # A shell's job in the background ignores SIGINT, and so would all that these tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        file = item.nodeid.partition("::")[0]
        if file in MINUTES:
            return MINUTES.index(file)
        return len(MINUTES) + file.startswith(KILLING) + 2 * file.startswith(CALCULATING)

    items.sort(key=rank)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have one of several processes give way for good to those beside it, whose leases last a few seconds."""
    is_beside_others = "PYTEST_XDIST_WORKER" in os.environ and os.getpriority(os.PRIO_PROCESS, 0) == 0
    if is_beside_others and item.nodeid.startswith(CALCULATING):
        os.nice(19)


@pytest.fixture(scope="session")
def server() -> Iterator[SqsServer]:
    """A real SQS server process; each test makes queues of its own."""
    with sqs_server() as running:
        yield running
