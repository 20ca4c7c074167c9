"""Shared by the tests of the Airflow package: a scripted supervisor, and queues."""

from __future__ import annotations

# isort: off
from tests.airflow import airflow_home  # noqa: F401 - Airflow reads its configuration when it is imported
# isort: on

from collections.abc import Iterator

import pytest

from sqs_lease.airflow import sensor
from sqs_lease.testing import LeasedQueue, LeasedQueues
from sqs_lease.testing.pytest_plugin import leased_queues
from tests.airflow.scripted_comms import ScriptedComms, supervised_by
from tests.airflow.watched_queue import WatchedQueue

__all__ = ["leased_queues"]


@pytest.fixture
def supervisor() -> Iterator[ScriptedComms]:
    """Put a script in the place of Airflow's supervisor, to which triggers talk."""
    with supervised_by(ScriptedComms()) as scripted:
        yield scripted


def pytest_configure(config: pytest.Config) -> None:
    # Short timeouts keep tests on real time short; test_visibility.py tests the warning.
    config.addinivalue_line("filterwarnings", "ignore:.* a visibility timeout of .* leaves")


@pytest.fixture
def watched() -> WatchedQueue:
    """A queue that watchers count."""
    return WatchedQueue()


@pytest.fixture
def empty_queue(leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch) -> LeasedQueue:
    """The queue `orders` without messages: a sensor that looks there finds nothing, at once, and defers."""
    monkeypatch.setattr(sensor, "FIRST_LOOK_SECONDS", 0.0)
    return leased_queues.create("orders")
