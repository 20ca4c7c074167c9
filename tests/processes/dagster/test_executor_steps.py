"""One batch over a run of several steps: this process is the run worker, the steps have processes of their own.

The queues are in memory: only the run worker reaches them.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import dagster as dg
import pytest

from sqs_lease.dagster.run_batch.rules import StepEnds
from sqs_lease.testing.leased_queues import LeasedQueue, LeasedQueues
from tests.dagster import executor_jobs
from tests.dagster.evidence import VISIBILITY_SECONDS
from tests.dagster.executor_runs import (
    Runs,
    check_that_only_a_whole_repetition_may_lease,
    numbers,
    runs_in,
)

pytestmark = [pytest.mark.processes]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with runs_in(tmp_path_factory.mktemp("workspace")) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_is_left(runs: Runs) -> Iterator[None]:
    yield
    assert list(runs.workspace.iterdir()) == []
    assert multiprocessing.active_children() == []


@pytest.fixture
def queue(leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch) -> LeasedQueue:
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    return leased_queues.create("orders", visibility_seconds=600)


def test_a_batch_is_held_through_steps_beside_and_after_one_another_and_deleted_when_all_succeeded(
    runs: Runs, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in the other tests: steps are forked from one process, which has the environment of the first of them.
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    queue = leased_queues.create("orders", "a", "b", visibility_seconds=VISIBILITY_SECONDS)
    work = {"seconds": VISIBILITY_SECONDS * 0.75}
    result = runs.execute(executor_jobs.orders, {"check": work, "load": work, "report": work})
    assert result.success
    assert (queue.visible, queue.invisible, queue.deleted) == ([], [], 2)
    told = numbers(result)
    assert (told["sqs/received"], told["sqs/deleted"]) == (2, 2)
    assert "sqs/lost" not in told
    # Once each: two steps after one another take longer than the messages are invisible.
    assert told["sqs/extensions"] >= 2


def test_a_step_that_is_retried_has_the_same_messages_but_for_those_that_it_failed_one_by_one(
    runs: Runs, queue: LeasedQueue
) -> None:
    queue.send("a", "b")
    wrong = {"raises": True, "fails": ["a"], "wrong_tries": 1, "fails_at_last": ["b"]}
    result = runs.execute(executor_jobs.alone, {"load": wrong})
    assert result.success
    assert (sorted(queue.visible), queue.dead_letters, queue.deleted) == (["a", "b"], [], 0)


def test_steps_of_single_messages_fail_these_alone_and_skipped_steps_fail_nothing(
    runs: Runs, queue: LeasedQueue
) -> None:
    queue.send("a", "bad")
    assert runs.execute(executor_jobs.spread).success
    assert (queue.visible, queue.deleted) == (["bad"], 1)


def test_messages_of_a_step_that_was_killed_come_back(runs: Runs, queue: LeasedQueue) -> None:
    queue.send("a", "b")
    result = runs.execute(executor_jobs.alone, {"load": {"is_killed": True}})
    assert not result.success
    assert (queue.visible, queue.deleted) == (["a", "b"], 0)


@pytest.mark.parametrize(("names", "dead_letters"), [(["bad"], ["bad"]), ([], ["a", "bad"])], ids=["by name", "all"])
def test_a_step_that_fails_after_its_block_says_so_before_the_run_worker_settles(
    runs: Runs, queue: LeasedQueue, names: list[str], dead_letters: list[str]
) -> None:
    queue.send("a", "bad")
    assert not runs.execute(executor_jobs.behind, {"fail_behind": {"names": names}}).success
    assert (queue.visible, queue.dead_letters) == ([], dead_letters)


def test_where_dagster_itself_fails_the_steps_are_ended_before_their_messages_are_given_back(
    runs: Runs, queue: LeasedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.send("a")

    def fail(ends: StepEnds, event: dg.DagsterEvent) -> None:
        if event.is_step_start:
            assert queue.invisible == ["a"]
            raise OSError("the database is away")

    monkeypatch.setattr(StepEnds, "see", fail)
    result = runs.execute(executor_jobs.alone, {"load": {"seconds": 600}})
    assert not result.success
    assert multiprocessing.active_children() == []
    assert queue.visible == ["a"]


def test_a_run_that_leaves_out_a_step_is_refused_and_one_that_repeats_all_leases_again(
    runs: Runs, queue: LeasedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.send("a")
    failed = runs.execute(executor_jobs.orders, {"report": {"is_killed": True}})
    assert queue.visible == ["a"]

    check_that_only_a_whole_repetition_may_lease(runs, queue, failed)
