"""Fixtures for tests of DAGs, by ``pytest_plugins = ["sqs_lease.testing.pytest_plugin"]`` in a ``conftest.py``."""

from __future__ import annotations

import pytest

from sqs_lease.testing.leased_queues import LeasedQueues
from sqs_lease.testing.memory_transport import MemoryTransport


@pytest.fixture
def leased_queues(monkeypatch: pytest.MonkeyPatch) -> LeasedQueues:
    """Queues in memory, from which every lease of a DAG under ``dag.test()`` takes, whatever its connection says.

    No server is started and no AWS account is asked. Work tasks that reach AWS by themselves are not redirected.
    """
    queues = LeasedQueues()
    # By name: only Airflow's part of the package makes transports for DAGs, and it is there if a DAG uses it.
    monkeypatch.setattr(
        "sqs_lease.airflow.receiving.worker_lease.make_transport", lambda connection: MemoryTransport(queues.sqs)
    )
    return queues
