"""The job of docs/dagster-runs.md does what the page says, with a process for each of its steps."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.reconstruct import ReconstructableJob

from sqs_lease.testing.leased_queues import LeasedQueues
from sqs_lease.testing.pytest_plugin import leased_queues
from tests.docs.test_dagster_runs import code

__all__ = ["leased_queues"]

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


def test_the_job_over_one_batch_deletes_what_it_loaded_and_gives_back_what_it_failed(
    tmp_path: Path, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = leased_queues.create("orders", "an order", " ")
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    file = tmp_path / "orders.py"
    file.write_text(code("def check(context").replace("/var/lib/orders", str(tmp_path / "workspace")))
    with dg.instance_for_test() as instance:
        result = dg.execute_job(ReconstructableJob.for_file(str(file), "orders"), instance)
    assert result.success
    assert (queue.visible, queue.deleted) == ([" "], 1)
