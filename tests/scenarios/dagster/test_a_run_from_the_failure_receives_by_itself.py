"""A step that receives by itself, in a run that repeats another one and leaves out some of its work."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import dagster as dg
import pytest

from sqs_lease.testing import LeasedQueue, LeasedQueues
from tests.scenarios.dagster import resumed_jobs

TAGS: dict[str, dict[str, str]] = {
    "by the daemon": {"dagster/is_resume_retry": "true"},
    "in Python": {},
}
"""How runs from the failure are tagged, by what starts them."""


@pytest.fixture
def queue(leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch) -> LeasedQueue:
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    return leased_queues.create("orders", "a")


def failed_run(job: Callable[[], dg.JobDefinition], failing: str, instance: dg.DagsterInstance) -> str:
    """A run that failed in one step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAILING_OP", failing)
        failed = dg.execute_job(dg.reconstructable(job), instance)
    assert not failed.success
    return failed.run_id


def resumed(
    job: Callable[[], dg.JobDefinition], failed_run_id: str, instance: dg.DagsterInstance, tags: dict[str, str]
) -> list[str]:
    """The errors of a run that repeats a failed one from its failure."""
    result = dg.execute_job(
        dg.reconstructable(job),
        instance,
        reexecution_options=dg.ReexecutionOptions.from_failure(failed_run_id, instance),
        tags=tags,
    )
    return errors(result.all_events)


def errors(events: Iterable[dg.DagsterEvent]) -> list[str]:
    found = [event.step_failure_data.error for event in events if event.is_step_failure]
    return [str(error.message if error.cause is None else error.cause.message) for error in found if error]


@pytest.mark.parametrize("tags", TAGS.values(), ids=TAGS.keys())
def test_a_step_before_it_that_sees_no_messages_does_not_matter(
    queue: LeasedQueue, instance: dg.DagsterInstance, tags: dict[str, str]
) -> None:
    failed = failed_run(resumed_jobs.connected, "load", instance)
    assert resumed(resumed_jobs.connected, failed, instance, tags) == []
    assert queue.deleted == 1


def test_a_step_before_it_that_settled_its_messages_does_not_matter(
    queue: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    failed = failed_run(resumed_jobs.consumed, "load", instance)
    queue.send("b")
    assert resumed(resumed_jobs.consumed, failed, instance, {}) == []
    assert (queue.visible, queue.deleted) == ([], 2)
