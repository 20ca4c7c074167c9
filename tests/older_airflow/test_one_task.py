"""The DAG that docs/airflow.md has for older versions of Airflow, run by the one that is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sqs_lease.testing.leased_queues import LeasedQueues
from sqs_lease.testing.pytest_plugin import leased_queues

__all__ = ["leased_queues"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "airflow.md"


def run(load: Callable[[str], None]) -> str:
    """Run the DAG of the page with this work; return the state of its run."""
    (code,) = (
        block for block in PAGE.read_text().split("```python\n") if "from airflow.decorators import dag, task" in block
    )
    names: dict[str, Any] = {"__name__": "older_airflow"}
    exec(compile(code.partition("```")[0], str(PAGE), "exec", dont_inherit=True), names)
    names["load"] = load
    return str(names["orders"]().test().state)


def test_messages_that_were_worked_on_are_deleted(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", "one", "two")
    loaded: list[str] = []
    assert run(loaded.append).endswith("success")
    assert (sorted(loaded), queue.deleted) == (["one", "two"], 2)


def test_messages_of_a_failed_task_are_visible_again_at_once(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", "one", "two")

    def fail(body: str) -> None:
        raise ValueError(body)

    assert run(fail).endswith("failed")
    assert queue.deleted == 0
    assert sorted(queue.visible) == ["one", "two"]


def test_an_empty_queue_is_not_a_failure(leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    leased_queues.create("orders")
    assert run(lambda body: None).endswith("success")
