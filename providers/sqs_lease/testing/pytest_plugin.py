"""Fixtures for tests of DAGs and assets, by ``pytest_plugins = ["sqs_lease.testing.pytest_plugin"]`` in a conftest."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest

from sqs_lease.testing.leased_queues import LeasedQueues
from sqs_lease.testing.memory_transport import MemoryTransport


@pytest.fixture
def leased_queues(monkeypatch: pytest.MonkeyPatch) -> LeasedQueues:
    """Return queues in memory, which every lease in this process uses, with any connection or client.

    That is ``sqs_lease.lease`` and ``async_lease``, Dagster's ``SqsQueueResource`` (also in sensors and checks), and
    the leases of a DAG under ``dag.test()``. A router of Dagster receives in every evaluation. The fixture needs no
    server and no AWS account. Work that calls AWS by itself, or in its own processes, is not redirected.
    """
    queues = LeasedQueues()
    monkeypatch.setattr("sqs_lease.sqs.client.make_client", lambda access=None, *, queue=None: None)
    monkeypatch.setattr("sqs_lease.blocking.open_transport", lambda client, queue: MemoryTransport(queues.sqs))
    # Patched by name, because only Airflow's part of the package makes transports for DAGs, and cannot be imported
    # beside an older Airflow.
    if _airflow() >= (3, 3):
        monkeypatch.setattr("sqs_lease.airflow.worker.make_transport", lambda connection: MemoryTransport(queues.sqs))
    return queues


def _airflow() -> tuple[int, ...]:
    """Return the major and minor version of the installed Airflow; empty without Airflow, or before version 3."""
    try:
        return tuple(int(part) for part in version("apache-airflow-core").split(".")[:2])
    except PackageNotFoundError:
        return ()
