"""Airflow's data about a run, as a block that the auditor judges."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqs_lease.airflow.operators import DEFAULT_HANDOFF_TIMEOUT
from tests.rounds.airflow_host import COMPONENTS, GATE_FAULTS, PASSED_ON_SECONDS, TRAITS, block_of_run
from tests.rounds.draw import Kind, draw

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
TO_MONOTONIC = -BEGAN.timestamp()
MESSAGES = [
    {"MessageId": name, "Attributes": {"ApproximateReceiveCount": count}} for name, count in (("m", "1"), ("n", "3"))
]


def task(task_id: str, state: str | None, seconds: float, map_index: int = -1, value: Any = None) -> tuple[Any, ...]:
    return task_id, map_index, state, BEGAN + timedelta(seconds=seconds), value


def test_a_run_is_a_block_from_the_reception_to_the_end_of_its_keeper() -> None:
    tasks = [task("orders_keeper", "success", 9.0), task("load", "success", 8.0)]
    block = block_of_run("run", BEGAN + timedelta(seconds=2), MESSAGES, tasks, TO_MONOTONIC)
    assert block.ids == {"m", "n"}
    assert (block.began_at, block.ended_at) == (2.0, 9.0)
    assert block.receive_counts == {"m": 1, "n": 3}
    assert block.is_green
    assert block.failed == {}


def test_a_mapped_task_that_failed_failed_its_message_and_another_one_all_or_those_that_it_names() -> None:
    keeper = task("orders_keeper", "success", 9.0)
    mapped = [keeper, task("check", "success", 7.0, 0), task("check", "upstream_failed", 8.0, 1)]
    assert block_of_run("run", BEGAN, MESSAGES, mapped, TO_MONOTONIC).failed == {"n": 8.0}
    whole = [keeper, task("load", "failed", 8.0)]
    assert block_of_run("run", BEGAN, MESSAGES, whole, TO_MONOTONIC).failed == {"m": 8.0, "n": 8.0}
    named = [keeper, task("load", "success", 8.0, value={"batchItemFailures": [{"itemIdentifier": "m"}]})]
    assert block_of_run("run", BEGAN, MESSAGES, named, TO_MONOTONIC).failed == {"m": 8.0}


def test_a_run_with_a_keeper_that_is_not_done_did_not_end_well() -> None:
    for state in ("deferred", "failed", None):
        tasks = [task("orders_keeper", state, 9.0), task("load", "success", 8.0)]
        assert not block_of_run("run", BEGAN, MESSAGES, tasks, TO_MONOTONIC).is_green


def test_only_triggerers_lose_the_queue_and_every_process_is_killed_in_some_round() -> None:
    faults = [fault for seed in range(300) for fault in draw(TRAITS, seed).faults]
    assert {COMPONENTS[fault.worker] for fault in faults if fault.kind in GATE_FAULTS} == {
        "triggerer",
        "triggerer-2",
        "scheduler",
    }
    assert {fault.worker for fault in faults if fault.kind is Kind.KILL} == set(range(TRAITS.workers))


def test_a_batch_is_passed_on_for_as_long_as_by_default() -> None:
    assert DEFAULT_HANDOFF_TIMEOUT.total_seconds() == PASSED_ON_SECONDS
