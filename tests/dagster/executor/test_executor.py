"""One batch over a run of several steps; the queues are in memory, and this process is the run worker.

It executes the steps, too: tests/processes/dagster/test_executor_steps.py gives them processes of their own.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.execution.api import execute_run_iterator

from sqs_lease.dagster import LeasedBatch, SqsQueueResource
from sqs_lease.dagster.executor import sqs_lease_executor
from sqs_lease.testing import NO_FAULT, AuditKind, Fault, Operation, TransportCall
from sqs_lease.testing.leased_queues import LeasedQueue, LeasedQueues
from sqs_lease.testing.memory_transport import MemoryTransport
from sqs_lease.testing.service_errors import ACCESS_DENIED
from tests.dagster import executor_jobs
from tests.dagster.eventually import eventually
from tests.dagster.executor_runs import (
    Runs,
    check_that_only_a_whole_repetition_may_lease,
    failure,
    numbers,
    runs_in,
)
from tests.dagster.refusals import refuse_dead_letters

DEADLINE_SECONDS = 600.0
VISIBILITY_SECONDS = 600


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with runs_in(tmp_path_factory.mktemp("workspace")) as runs:
        yield runs


@pytest.fixture
def runs(made: Runs, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    """Runs whose steps are executed here, one after the other, and not in processes of their own."""
    here = dg.in_process_executor.executor_creation_fn
    monkeypatch.setattr(dg.multiprocess_executor, "_executor_creation_fn", here)
    yield made
    assert list(made.workspace.iterdir()) == []


@pytest.fixture
def queue(leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch) -> LeasedQueue:
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    return leased_queues.create("orders", visibility_seconds=VISIBILITY_SECONDS)


@contextmanager
def replaced_by_a_file(directory: Path) -> Iterator[None]:
    """Have a file where an empty directory was."""
    directory.rmdir()
    directory.touch()
    yield
    directory.unlink()
    directory.mkdir()


def extensions(queues: LeasedQueues) -> int:
    return sum(entry.kind is AuditKind.CHANGED for entry in queues.sqs.trail().entries())


def test_a_batch_is_held_through_steps_after_one_another_and_deleted_when_all_succeeded(
    runs: Runs, queue: LeasedQueue, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.send("a", "b")
    seen: list[int] = []

    def work_until_extended(work: executor_jobs.Work, context: dg.OpExecutionContext, batch: LeasedBatch) -> int:
        assert queue.invisible == ["a", "b"]
        before = extensions(leased_queues)
        eventually(lambda: extensions(leased_queues) >= before + len(batch), "the messages are extended")
        seen.append(before)
        return len(batch)

    monkeypatch.setattr(executor_jobs.Work, "on", work_until_extended)
    result = runs.execute(executor_jobs.eager)
    assert result.success
    assert (queue.visible, queue.invisible, queue.deleted) == ([], [], 2)
    told = numbers(result)
    assert (told["sqs/received"], told["sqs/deleted"]) == (2, 2)
    assert "sqs/lost" not in told
    # Once each, in each of three steps.
    assert told["sqs/extensions"] >= 6
    assert len(seen) == 3


def test_messages_that_any_step_failed_come_back_and_the_others_are_deleted(runs: Runs, queue: LeasedQueue) -> None:
    queue.send("a", "bad", "worse")
    result = runs.execute(executor_jobs.orders, {"check": {"fails": ["bad"]}, "report": {"fails": ["worse"]}})
    assert result.success
    assert (queue.visible, queue.deleted) == (["bad", "worse"], 1)


def test_a_step_that_fails_for_good_fails_all_by_the_rule_of_its_exception(runs: Runs, queue: LeasedQueue) -> None:
    queue.send("a", "b")
    result = runs.execute(executor_jobs.alone, {"load": {"raises": True}})
    assert not result.success
    assert (queue.visible, queue.dead_letters) == ([], ["a", "b"])


def test_the_last_step_may_fail_some_messages_by_name(runs: Runs, queue: LeasedQueue) -> None:
    queue.send("a", "bad")
    result = runs.execute(executor_jobs.alone, {"load": {"names": ["bad"]}})
    assert not result.success
    assert (queue.visible, queue.dead_letters, queue.deleted) == ([], ["bad"], 2)


@pytest.mark.parametrize(
    ("wrong", "dead_letters"), [({"raises": True}, ["a"]), ({"has_no_spark": True}, [])], ids=["any", "JobError"]
)
def test_the_rule_may_be_a_name_and_spares_messages_where_a_spark_job_failed(
    runs: Runs, queue: LeasedQueue, wrong: dict[str, bool], dead_letters: list[str]
) -> None:
    queue.send("a")
    assert not runs.execute(executor_jobs.spelled, {"load": wrong}).success
    assert queue.dead_letters == dead_letters
    assert len(queue.visible) + len(queue.dead_letters) == 1


@pytest.mark.parametrize(
    ("names", "dead_letters"), [(["bad"], ["bad"]), ([], ["a", "bad"])], ids=["by name", "by its exception"]
)
def test_a_step_that_fails_after_its_block_fails_messages_as_within_it(
    runs: Runs, queue: LeasedQueue, names: list[str], dead_letters: list[str]
) -> None:
    queue.send("a", "bad")
    assert not runs.execute(executor_jobs.behind, {"fail_behind": {"names": names}}).success
    assert (queue.visible, queue.dead_letters) == ([], dead_letters)


def test_messages_that_later_steps_did_not_get_to_come_back_at_once(runs: Runs, queue: LeasedQueue) -> None:
    queue.send("a", "bad")
    result = runs.execute(executor_jobs.orders, {"check": {"names": ["bad"]}})
    assert not result.success
    assert (queue.visible, queue.dead_letters) == (["a"], ["bad"])


def test_a_refusal_for_one_message_fails_the_run_and_the_others_are_settled(
    runs: Runs, queue: LeasedQueue, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_release(call: TransportCall) -> Fault:
        return Fault(error=ACCESS_DENIED) if call.operation is Operation.CHANGE_VISIBILITY else NO_FAULT

    monkeypatch.setattr(
        "sqs_lease.blocking.open_transport",
        lambda client, queue: MemoryTransport(leased_queues.sqs, faults=no_release),
    )
    queue.send("a", "bad")
    result = runs.execute(executor_jobs.alone, {"load": {"fails": ["bad"]}})
    assert not result.success
    assert (queue.invisible, queue.deleted) == (["bad"], 1)
    (failed,) = (event for event in result.all_events if event.is_job_failure)
    error = failed.job_failure_data.error
    assert error is not None
    assert "SettlementError" in str(error)


def test_a_step_that_is_retried_has_the_same_messages_but_for_those_that_it_failed_one_by_one(
    runs: Runs, queue: LeasedQueue
) -> None:
    queue.send("a", "b", "c")
    wrong = {"raises": True, "fails": ["a"], "wrong_tries": 1, "fails_at_last": ["b"]}
    result = runs.execute(executor_jobs.alone, {"load": wrong})
    assert result.success
    assert (sorted(queue.visible), queue.dead_letters, queue.deleted) == (["a", "b"], [], 1)


def test_messages_of_a_job_that_does_not_look_at_them_come_back_and_the_run_fails_and_says_why(
    runs: Runs, queue: LeasedQueue
) -> None:
    queue.send("a")
    result = runs.execute(executor_jobs.careless)
    assert not result.success
    assert (queue.visible, queue.deleted) == (["a"], 0)
    (failed,) = (event for event in result.all_events if event.is_job_failure)
    assert "leased its 1 messages of" in str(failed.job_failure_data.error)


def test_messages_of_a_step_that_did_not_end_its_block_come_back_though_it_succeeded(
    runs: Runs, queue: LeasedQueue
) -> None:
    queue.send("a", "b")
    assert runs.execute(executor_jobs.hasty).success
    assert (sorted(queue.visible), queue.dead_letters, queue.deleted) == (["a", "b"], [], 0)


def test_without_messages_the_steps_run_on_an_empty_batch(runs: Runs, queue: LeasedQueue) -> None:
    result = runs.execute(executor_jobs.alone)
    assert result.success
    assert numbers(result)["sqs/received"] == 0


def test_steps_of_single_messages_fail_these_alone_and_skipped_steps_fail_nothing(
    runs: Runs, queue: LeasedQueue
) -> None:
    queue.send("a", "bad")
    assert runs.execute(executor_jobs.spread).success
    assert (queue.visible, queue.deleted) == (["bad"], 1)


def test_assets_share_a_batch_too_and_a_run_that_repeats_one_of_them_is_refused(runs: Runs, queue: LeasedQueue) -> None:
    queue.send("a")
    first = runs.execute(executor_jobs.assets)
    assert first.success
    assert (queue.visible, queue.deleted) == ([], 1)

    queue.send("b")
    # As the web server starts it.
    job = dg.reconstructable(executor_jobs.assets).get_subset(asset_selection=frozenset({dg.AssetKey("stored")}))
    run = runs.instance.create_run_for_job(
        job.get_definition(),
        parent_run_id=first.run_id,
        root_run_id=first.run_id,
        tags={"dagster/is_asset_resume_retry": "true"},
        asset_selection=frozenset({dg.AssetKey("stored")}),
    )
    (failed,) = (event for event in execute_run_iterator(job, run, runs.instance) if event.is_job_failure)
    assert "leaves out 'checked'" in str(failed.job_failure_data.error)
    assert queue.visible == ["b"]


def test_messages_behind_a_failed_one_of_their_group_come_back_with_it(
    runs: Runs, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERS_QUEUE", "orders.fifo")
    queue = leased_queues.create("orders.fifo", "a", "bad", "c", message_group_id="g")
    assert runs.execute(executor_jobs.alone, {"load": {"fails": ["bad"]}}).success
    assert (queue.visible, queue.deleted) == (["bad", "c"], 1)


def test_a_run_that_is_terminated_while_it_waits_for_messages_ends_with_the_poll_under_way(
    runs: Runs, queue: LeasedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Event()
    receive = MemoryTransport.receive

    async def reported(transport: MemoryTransport, queue_url: str, **options: Any) -> Any:
        waiting.set()
        # A poll that is under way is not given up: it may bring messages.
        return await receive(transport, queue_url, **{**options, "wait_seconds": 1})

    def terminate() -> None:
        if waiting.wait(DEADLINE_SECONDS):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(MemoryTransport, "receive", reported)
    thread = Thread(target=terminate)
    thread.start()
    result = runs.execute(executor_jobs.patient)
    thread.join()
    assert "DagsterExecutionInterruptedError" in failure(result)


def test_messages_that_cannot_be_stored_for_the_steps_come_back_and_the_error_says_where(
    runs: Runs, queue: LeasedQueue
) -> None:
    queue.send("a")
    with replaced_by_a_file(runs.workspace):
        text = failure(runs.execute(executor_jobs.alone))
    assert "1 messages of" in text
    assert str(runs.workspace) in text
    assert queue.visible == ["a"]


# Runs of a part of their job


def test_a_run_of_some_of_the_ops_is_refused_because_the_others_would_never_see_its_messages(
    runs: Runs, queue: LeasedQueue
) -> None:
    queue.send("a", "b", "c")
    refused = runs.execute(executor_jobs.orders, op_selection=["check"])
    assert "leaves out 'load', 'report' of job 'orders'" in failure(refused)
    assert queue.visible == ["a", "b", "c"]


def test_a_run_of_some_of_the_assets_is_refused(runs: Runs, queue: LeasedQueue) -> None:
    queue.send("a")
    refused = runs.execute(executor_jobs.assets, asset_selection=[dg.AssetKey("checked")])
    assert "leaves out 'stored' of job 'assets'" in failure(refused)
    assert queue.visible == ["a"]


def test_a_run_of_some_of_the_assets_of_a_step_is_refused(runs: Runs, queue: LeasedQueue) -> None:
    queue.send("a")
    refused = runs.execute(executor_jobs.pair, asset_selection=[dg.AssetKey("left")])
    assert "leaves out 'right' of job 'pair'" in failure(refused)
    assert queue.visible == ["a"]


def test_a_selection_of_all_that_the_job_has_is_the_whole_job(runs: Runs, queue: LeasedQueue) -> None:
    queue.send("a")
    assert runs.execute(executor_jobs.orders, op_selection=["*report"]).success
    queue.send("b")
    keys = [dg.AssetKey("left"), dg.AssetKey("right")]
    assert runs.execute(executor_jobs.pair, asset_selection=keys).success
    assert (queue.visible, queue.deleted) == ([], 2)


def test_assets_that_are_materialized_outside_of_a_job_need_those_that_they_are_connected_with(
    runs: Runs, queue: LeasedQueue
) -> None:
    queue.send("a")
    refused = runs.materialize(executor_jobs.everything, "stored")
    assert "leaves out 'checked'" in failure(refused)
    assert "Give the executor to a job of these assets" in failure(refused)
    assert queue.visible == ["a"]

    assert runs.materialize(executor_jobs.everything, "lonely").success
    assert (queue.visible, queue.deleted) == ([], 1)


# Runs that repeat others


def test_a_run_that_leaves_out_a_step_is_refused_and_one_that_repeats_all_leases_again(
    runs: Runs, queue: LeasedQueue
) -> None:
    queue.send("a")
    failed = runs.execute(executor_jobs.orders, {"report": {"breaks": True}})
    assert not failed.success
    assert queue.visible == ["a"]

    check_that_only_a_whole_repetition_may_lease(runs, queue, failed)


def repeated(runs: Runs, failed: dg.JobExecutionResult, **options: Any) -> dict[str, Any]:
    """How Dagster's daemon repeats a run: with its tags."""
    first = runs.instance.get_run_by_id(failed.run_id)
    assert first is not None
    return {"tags": {**first.tags, "dagster/retry_number": "1"}, **options}


def test_the_failure_rule_waits_for_the_last_retry_of_the_run_and_not_for_what_a_step_failed_by_name(
    runs: Runs, queue: LeasedQueue, tmp_path: Path
) -> None:
    queue.send("a", "bad")
    wrong = {"breaks": True, "fails": ["bad"]}
    with runs_in(tmp_path, run_retries={"enabled": True, "max_retries": 1}) as retrying:
        first = retrying.execute(executor_jobs.spelled, {"load": wrong})
        assert (queue.invisible, queue.dead_letters) == (["a"], ["bad"])
        assert any("Dagster repeats run" in line for line in retrying.told(first.run_id))

        again = repeated(retrying, first, reexecution_options=dg.ReexecutionOptions(first.run_id))
        retrying.execute(executor_jobs.spelled, {"load": {"breaks": True}}, **again)
        assert (queue.invisible, queue.dead_letters) == ([], ["bad", "a"])


def test_a_run_that_dagster_repeats_from_its_failure_works_on_what_the_failed_one_left(
    runs: Runs, queue: LeasedQueue, tmp_path: Path
) -> None:
    queue.send("a", "bad")
    with runs_in(tmp_path, run_retries={"enabled": True, "max_retries": 1}) as retrying:
        first = retrying.execute(executor_jobs.orders, {"check": {"fails": ["bad"]}, "report": {"breaks": True}})
        assert (queue.visible, queue.invisible) == (["bad"], ["a"])
        queue.send("later")

        from_failure = dg.ReexecutionOptions.from_failure(first.run_id, retrying.instance)
        again = retrying.execute(executor_jobs.orders, **repeated(retrying, first, reexecution_options=from_failure))
        assert again.success
        assert {event.step_key for event in again.all_events if event.is_step_success} == {"report"}
        assert (queue.visible, queue.invisible, queue.deleted) == (["bad", "later"], [], 1)


def test_a_dead_letter_that_is_refused_when_a_batch_is_passed_on_fails_the_run_with_what_to_do(
    runs: Runs, queue: LeasedQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.send("a", "bad")
    refuse_dead_letters(monkeypatch)
    wrong = {"breaks": True, "fails": ["bad"]}
    with runs_in(tmp_path, run_retries={"enabled": True, "max_retries": 1}) as retrying:
        first = retrying.execute(executor_jobs.spelled, {"load": wrong})
    (failed,) = (event for event in first.all_events if event.is_job_failure)
    assert "sqs:SendMessage" in str(failed.job_failure_data.error)
    assert (queue.visible, queue.invisible, queue.dead_letters) == (["bad"], ["a"], [])


def test_where_what_a_run_left_cannot_be_written_down_it_comes_back_later_and_the_run_has_failed_as_it_did(
    runs: Runs, queue: LeasedQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space is left")

    queue.send("a")
    monkeypatch.setattr("sqs_lease.dagster.run_batch.batch_of_run.write_leases", full)
    with runs_in(tmp_path, run_retries={"enabled": True, "max_retries": 1}) as retrying:
        result = retrying.execute(executor_jobs.orders, {"report": {"breaks": True}})
    assert [event for event in result.all_events if event.is_job_failure]
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    assert "the database is away" in str(failed.step_failure_data.error)
    assert (queue.invisible, queue.deleted) == (["a"], 0)


def test_a_run_from_the_failure_that_comes_too_late_is_refused_and_a_whole_one_receives(
    runs: Runs, queue: LeasedQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.send("a")
    with runs_in(tmp_path, run_retries={"enabled": True, "max_retries": 1}) as retrying:
        first = retrying.execute(executor_jobs.orders, {"report": {"breaks": True}})
        later = time.time() + VISIBILITY_SECONDS
        monkeypatch.setattr("sqs_lease.dagster.run_batch.batch_of_run.time", SimpleNamespace(time=lambda: later))
        queue.send("b")

        from_failure = dg.ReexecutionOptions.from_failure(first.run_id, retrying.instance)
        refused = retrying.execute(executor_jobs.orders, **repeated(retrying, first, reexecution_options=from_failure))
        assert "leaves out 'check', 'load'" in failure(refused)
        assert queue.visible == ["b"]

        whole = dg.ReexecutionOptions(first.run_id)
        assert retrying.execute(executor_jobs.orders, **repeated(retrying, first, reexecution_options=whole)).success
        assert (queue.visible, queue.deleted) == ([], 1)


def test_a_run_may_not_leave_out_steps_that_have_never_succeeded(runs: Runs, queue: LeasedQueue) -> None:
    queue.send("a")
    failed = runs.execute(executor_jobs.orders, {"report": {"breaks": True}})
    refused = runs.execute(
        executor_jobs.orders,
        reexecution_options=dg.ReexecutionOptions(failed.run_id, step_selection=["check", "load"]),
    )
    assert "leaves out 'report'" in failure(refused)
    assert queue.visible == ["a"]


def test_a_run_worker_that_goes_on_with_steps_that_began_under_another_one_is_refused(
    runs: Runs, queue: LeasedQueue
) -> None:
    queue.send("a")
    job = dg.reconstructable(executor_jobs.alone)
    run = runs.instance.create_run_for_job(job.get_definition(), status=dg.DagsterRunStatus.STARTED)
    began = dg.DagsterEvent(dg.DagsterEventType.STEP_START.value, "alone", step_key="load")
    runs.instance.report_dagster_event(began, run.run_id)
    events = list(execute_run_iterator(job, run, runs.instance, resume_from_failure=True))
    (failed,) = (event for event in events if event.is_job_failure)
    assert "max_resume_run_attempts" in str(failed.job_failure_data.error)
    assert queue.visible == ["a"]


def test_a_run_worker_that_takes_a_run_over_before_any_step_began_receives(runs: Runs, queue: LeasedQueue) -> None:
    queue.send("a")
    job = dg.reconstructable(executor_jobs.alone)
    run = runs.instance.create_run_for_job(job.get_definition(), status=dg.DagsterRunStatus.STARTED)
    events = list(execute_run_iterator(job, run, runs.instance, resume_from_failure=True))
    assert any(event.is_job_success for event in events)
    assert (queue.visible, queue.deleted) == ([], 1)


# Errors when the executor is made


QUEUE = SqsQueueResource(queue="orders")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"queue": "orders"}, TypeError, "takes an SqsQueueResource"),
        ({"workspace": "orders"}, ValueError, "absolute path"),
        ({"workspace": "s3://orders"}, ValueError, "readers of the store could delete the messages"),
        ({"workspace": Path("/orders")}, TypeError, "must be a string"),
        ({"on_failure": "dead_lettr"}, ValueError, "on_failure must be one of .*dead_letter.*, not 'dead_lettr'"),
        ({"on_failure": {"kind": "backoff", "inital": 30}}, TypeError, "inital"),
        ({"on_failure": 30}, TypeError, "on_failure must be a failure rule such as"),
        ({"max_messages": 0}, ValueError, "max_messages"),
        ({"wait": timedelta(seconds=-1)}, ValueError, "wait"),
        ({"policy": "quickly"}, ValueError, "quickly"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_arguments_are_refused_where_the_executor_is_made(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        sqs_lease_executor(**{"queue": QUEUE, "workspace": "/orders", **options})
