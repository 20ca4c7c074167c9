"""What tests of several packages share, and the order of their files."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from demo.sqs_server import SqsServer, sqs_server

MINUTES = (
    "tests/simulation/test_simulation.py",
    "tests/dagster/test_leases_end_to_end.py",
    "tests/dagster/test_lease_sensor_end_to_end.py",
    "tests/dagster/test_example_definitions.py",
    "tests/airflow/test_example_dags.py",
    "tests/spark/engines/test_cluster.py",
    "tests/dagster/test_spark_page.py",
    "tests/packaging/test_wheel.py",
)
"""Files that take minutes: they begin first, so that no process has one to itself while the others have no more."""


def pytest_configure() -> None:
    # A shell's job in the background ignores SIGINT, and so would all that these tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        file = item.nodeid.partition("::")[0]
        return MINUTES.index(file) if file in MINUTES else len(MINUTES)

    items.sort(key=rank)


@pytest.fixture(scope="session")
def server() -> Iterator[SqsServer]:
    """A real SQS server process; each test makes queues of its own."""
    with sqs_server() as running:
        yield running
