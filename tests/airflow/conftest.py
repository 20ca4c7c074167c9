"""Airflow in unit tests: a home of its own, no database, and a Fernet key."""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Iterator

# Airflow reads its configuration when it is imported, so this comes before everything else.
_HOME = tempfile.TemporaryDirectory(prefix="sqs-lease-airflow-")
os.environ["AIRFLOW_HOME"] = _HOME.name
os.environ["AIRFLOW__CORE__FERNET_KEY"] = base64.urlsafe_b64encode(os.urandom(32)).decode()
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"

import pytest  # noqa: E402

from tests.airflow.scripted_assets import ScriptedAssets  # noqa: E402
from tests.airflow.scripted_comms import ScriptedComms, supervised_by  # noqa: E402
from tests.airflow.watched_queue import WatchedQueue  # noqa: E402


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
