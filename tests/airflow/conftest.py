"""What the tests of the Airflow package share: a scripted supervisor, and a queue that a watcher receives from."""

from __future__ import annotations

# isort: off
from tests.airflow import airflow_home  # noqa: F401 - Airflow reads its configuration when it is imported
# isort: on

from collections.abc import Iterator

import pytest

from sqs_lease.testing.pytest_plugin import leased_queues
from tests.airflow.scripted_assets import ScriptedAssets
from tests.airflow.scripted_comms import ScriptedComms, supervised_by
from tests.airflow.watched_queue import WatchedQueue

__all__ = ["leased_queues"]


@pytest.fixture
def supervisor() -> Iterator[ScriptedComms]:
    """What triggers talk to in place of Airflow's supervisor."""
    with supervised_by(ScriptedComms()) as scripted:
        yield scripted


def pytest_configure(config: pytest.Config) -> None:
    # Short timeouts keep tests on real time short; test_visibility.py tests the warning.
    config.addinivalue_line("filterwarnings", "ignore:.* a visibility timeout of .* leaves")


@pytest.fixture
def queue() -> Iterator[WatchedQueue]:
    """A queue that an asset's watcher receives from."""
    with supervised_by(ScriptedAssets()) as scripted:
        assert isinstance(scripted, ScriptedAssets)
        yield WatchedQueue(scripted)
