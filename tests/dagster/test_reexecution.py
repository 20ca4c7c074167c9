"""What a step that receives by itself does in a run that repeats another one and leaves out some of its work."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import dagster as dg
import pytest
from dagster._core.execution.api import execute_run_iterator

from sqs_lease.testing import LeasedQueue, LeasedQueues
from tests.dagster import resumed_jobs

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


@pytest.mark.parametrize("tags", TAGS.values(), ids=TAGS.keys())
def test_a_step_before_it_that_gave_back_messages_of_the_same_queue_must_be_repeated_too(
    queue: LeasedQueue, instance: dg.DagsterInstance, tags: dict[str, str]
) -> None:
    failed = failed_run(resumed_jobs.peeked, "load", instance)
    (error,) = resumed(resumed_jobs.peeked, failed, instance, tags)
    assert "leaves out 'peek'" in error
    assert '"dagster/retry_strategy": "ALL_STEPS"' in error
    assert queue.visible == ["a"]

    whole = dg.execute_job(
        dg.reconstructable(resumed_jobs.peeked), instance, reexecution_options=dg.ReexecutionOptions(failed), tags=tags
    )
    assert whole.success
    assert queue.deleted == 1


def test_a_step_before_it_that_survived_what_its_block_raised_must_be_repeated_too(
    queue: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    failed = failed_run(resumed_jobs.peeked_and_raised, "load", instance)
    (error,) = resumed(resumed_jobs.peeked_and_raised, failed, instance, {})
    assert "leaves out 'peek_and_raise'" in error
    assert queue.visible == ["a"]


def test_the_newest_run_that_executed_a_step_says_what_it_did(queue: LeasedQueue, instance: dg.DagsterInstance) -> None:
    first = failed_run(resumed_jobs.peeked, "load", instance)
    job = dg.reconstructable(resumed_jobs.peeked)
    for _ in range(2):
        refused = dg.execute_job(job, instance, reexecution_options=dg.ReexecutionOptions.from_failure(first, instance))
        (error,) = errors(refused.all_events)
        assert "leaves out 'peek'" in error
        first = refused.run_id


def test_a_step_before_it_that_settled_its_messages_does_not_matter(
    queue: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    failed = failed_run(resumed_jobs.consumed, "load", instance)
    queue.send("b")
    assert resumed(resumed_jobs.consumed, failed, instance, {}) == []
    assert (queue.visible, queue.deleted) == ([], 2)


def test_a_step_before_it_that_gave_back_messages_of_another_queue_does_not_matter(
    queue: LeasedQueue, leased_queues: LeasedQueues, instance: dg.DagsterInstance
) -> None:
    leased_queues.create("returns", "b")
    failed = failed_run(resumed_jobs.peeked_elsewhere, "load", instance)
    assert resumed(resumed_jobs.peeked_elsewhere, failed, instance, {}) == []
    assert queue.deleted == 1


def test_a_step_may_say_that_its_work_depends_on_no_other(queue: LeasedQueue, instance: dg.DagsterInstance) -> None:
    failed = failed_run(resumed_jobs.peeked_independently, "load_by_itself", instance)
    assert resumed(resumed_jobs.peeked_independently, failed, instance, {}) == []
    assert queue.deleted == 1


def test_an_asset_that_was_stored_before_its_step_failed_must_be_repeated_with_the_others_of_the_step(
    queue: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    failed = failed_run(resumed_jobs.pair, "right", instance)
    assert queue.visible == ["a"]
    # As the daemon starts it with the retry strategy FROM_ASSET_FAILURE.
    selection = frozenset({dg.AssetKey("right")})
    job = dg.reconstructable(resumed_jobs.pair).get_subset(asset_selection=selection)
    run = instance.create_run_for_job(
        job.get_definition(), parent_run_id=failed, root_run_id=failed, asset_selection=selection
    )
    (error,) = errors(execute_run_iterator(job, run, instance))
    assert "leaves out 'left'" in error
    assert queue.visible == ["a"]
