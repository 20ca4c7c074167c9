"""The evaluation of a router, the runs of the messages that it passed on, and the errors that the builder refuses."""

import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from sqs_lease.core.failure_rules import dead_letter
from sqs_lease.dagster import RouterError, SqsQueueResource, build_sqs_router
from sqs_lease.dagster.run_batch.batch_of_run import ROUTED_TAG
from sqs_lease.sqs.errors import QueueNotFoundError, ThrottledError, TransientError
from sqs_lease.testing import LeasedQueues, MemoryTransport
from tests.dagster.backlog_sensor.origins import InProcessCodeLocationOrigin
from tests.dagster.refusals import refuse_dead_letters

WORKSPACE = "/var/lib/orders"


SEEN: list[list[str]] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


@dg.op(retry_policy=dg.RetryPolicy(max_retries=1))
def load(context: dg.OpExecutionContext) -> None:
    with SqsQueueResource(queue="orders").lease(context, wait=0, on_failure="dead_letter") as batch:
        SEEN.append([message.body for message in batch])
        for message in batch:
            if message.body == "bad":
                batch.fail(message, "it is bad")
        if any(message.body == "done and fails" for message in batch):
            batch.succeed(batch)
            raise ZeroDivisionError
        if any(message.body == "fails" for message in batch):
            raise ZeroDivisionError
        if context.retry_number == 0 and any(message.body == "fails once" for message in batch):
            raise ZeroDivisionError


@dg.job(executor_def=dg.in_process_executor)
def loading() -> None:
    load()


@dg.job(executor_def=dg.in_process_executor)
def twice() -> None:
    """Two steps that lease, without an executor that holds the batch for both."""
    load()
    load.alias("again")()


@dg.op
def load_until_empty(context: dg.OpExecutionContext) -> None:
    """Receives until nothing is left, as a step may that receives by itself."""
    while True:
        with SqsQueueResource(queue="orders").lease(context, wait=0, linger=0) as batch:
            SEEN.append([message.body for message in batch])
            if not batch:
                return


@dg.job(executor_def=dg.in_process_executor)
def looping() -> None:
    load_until_empty()


@dg.op
def look_away() -> None:
    """Leases nothing."""


@dg.job(executor_def=dg.in_process_executor)
def careless() -> None:
    look_away()


def router(workspace: Any, target: Any = loading, **options: Any) -> dg.SensorDefinition:
    queue = options.pop("queue", "orders")
    options = {"wait": 0, "linger": 0, **options}
    return build_sqs_router("orders_router", SqsQueueResource(queue=queue), target, workspace=str(workspace), **options)


def work(instance: dg.DagsterInstance, request: dg.RunRequest, job: dg.JobDefinition = loading) -> bool:
    """Execute the run that was asked for."""
    tags = {**request.tags, "dagster/run_key": request.run_key or ""}
    return job.execute_in_process(instance=instance, tags=tags, raise_on_error=False).success


def evaluated(
    made: dg.SensorDefinition, instance: dg.DagsterInstance, log_key: list[str] | None
) -> tuple[list[dg.RunRequest], str | None]:
    """Evaluate a sensor as the code server does, which names the evaluation's log."""
    with dg.SensorEvaluationContext(
        instance.get_ref(), sensor_name=made.name, repository_name="__repository__", log_key=log_key
    ) as context:
        data = made.evaluate_tick(context)
    return list(data.run_requests or ()), data.skip_message


def assert_no_thread_is_left(before: Sequence[threading.Thread]) -> None:
    started = [thread for thread in threading.enumerate() if thread not in before]
    for thread in [each for each in started if each.name.startswith("sqs-lease")]:
        # A thread of a pool ends a moment after its last work.
        thread.join(60)
        assert not thread.is_alive()


TICK = ["__repository__", "orders_router", "17"]


def test_a_tick_of_the_daemon_receives_and_asks_for_a_run_that_has_the_batch_as_a_tag(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue = leased_queues.create("orders", "a", "bad")
    before = threading.enumerate()
    made = router(tmp_path, run_tags={"team": "orders"}, run_config={"ops": {}})
    ((request,), _) = evaluated(made, instance, TICK)
    uri = Path(request.tags[ROUTED_TAG])
    assert (uri.parent, uri.name) == (tmp_path / "orders_router", request.run_key)
    assert (request.tags["team"], request.run_config) == ("orders", {"ops": {}})
    assert queue.invisible == ["a", "bad"]
    assert_no_thread_is_left(before)
    assert work(instance, request)
    assert SEEN == [["a", "bad"]]
    assert (queue.visible, queue.invisible, queue.dead_letters) == ([], [], ["bad"])


def test_the_run_is_asked_for_again_by_the_same_key_until_it_is_there_and_nothing_else_is_received_meanwhile(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue = leased_queues.create("orders", "a")
    ((request,), _) = evaluated(router(tmp_path), instance, TICK)
    queue.send("b")
    # As after a daemon that was killed, and a code location that was loaded again.
    ((again,), _) = evaluated(router(tmp_path), instance, TICK)
    assert (again.run_key, again.tags) == (request.run_key, request.tags)
    assert queue.visible == ["b"]
    assert work(instance, again)
    ((other,), _) = evaluated(router(tmp_path), instance, TICK)
    assert other.run_key != request.run_key


def test_a_run_that_was_deleted_before_it_began_is_asked_for_again_and_one_that_was_canceled_is_not(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue = leased_queues.create("orders", "a")
    made = router(tmp_path)
    ((request,), _) = evaluated(made, instance, TICK)
    run = instance.create_run_for_job(loading, tags=dict(request.tags), status=dg.DagsterRunStatus.NOT_STARTED)
    assert evaluated(made, instance, TICK)[0] == []
    instance.delete_run(run.run_id)
    ((again,), _) = evaluated(made, instance, TICK)
    assert again.run_key == request.run_key

    canceled = instance.create_run_for_job(loading, tags=dict(again.tags), status=dg.DagsterRunStatus.CANCELED)
    assert evaluated(made, instance, TICK)[0] == []
    # It is visible when the batch has waited for handoff_timeout.
    assert queue.invisible == ["a"]
    instance.delete_run(canceled.run_id)


def test_after_a_reload_with_another_queue_no_run_is_asked_for_by_what_came_from_the_one_before(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue = leased_queues.create("orders", "a")
    leased_queues.create("returns", "b")
    ((request,), _) = evaluated(router(tmp_path), instance, TICK)
    ((other,), _) = evaluated(router(tmp_path, queue="returns"), instance, TICK)
    assert other.run_key != request.run_key
    ((again,), _) = evaluated(router(tmp_path), instance, TICK)
    assert again.run_key == request.run_key
    assert queue.invisible == ["a"]


def test_nothing_is_received_while_as_many_runs_are_under_way_as_are_allowed(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue = leased_queues.create("orders", "a")
    made = router(tmp_path)
    ((request,), _) = evaluated(made, instance, TICK)
    run = instance.create_run_for_job(loading, tags=dict(request.tags), status=dg.DagsterRunStatus.STARTED)
    queue.send("b")
    requests, said = evaluated(made, instance, TICK)
    assert (requests, said) == ([], "1 of its runs are queued or under way")
    assert queue.visible == ["b"]
    instance.delete_run(run.run_id)


def test_runs_of_a_router_of_the_same_name_in_another_code_location_do_not_count(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue = leased_queues.create("orders", "a")

    def tick(location: str) -> list[dg.RunRequest]:
        made = router(tmp_path / location)
        origin = InProcessCodeLocationOrigin(LoadableTargetOrigin(module_name="orders"), location_name=location)
        with dg.SensorEvaluationContext(
            instance.get_ref(), sensor_name=made.name, log_key=TICK, code_location_origin=origin
        ) as context:
            return list(made.evaluate_tick(context).run_requests or ())

    (request,) = tick("staging")
    run = instance.create_run_for_job(loading, tags=dict(request.tags), status=dg.DagsterRunStatus.STARTED)
    queue.send("b")
    assert tick("staging") == []
    assert len(tick("production")) == 1
    instance.delete_run(run.run_id)


def test_the_receipt_handles_are_in_one_file_that_only_its_owner_can_read_until_the_run_takes_it(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    leased_queues.create("orders", "a")
    ((request,), _) = evaluated(router(tmp_path), instance, TICK)
    directory = Path(request.tags[ROUTED_TAG])
    _, _, ((_, handle, *_),) = json.loads((directory / "leases.json").read_text())
    found = [path.name for path in directory.iterdir() if handle.encode() in path.read_bytes()]
    assert found == ["leases.json"]
    assert (directory / "leases.json").stat().st_mode & 0o077 == 0
    assert work(instance, request)
    assert not directory.exists()


# Attempts


def test_a_retry_of_the_step_works_on_the_same_messages(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue = leased_queues.create("orders", "fails once", "bad")
    ((request,), _) = evaluated(router(tmp_path), instance, TICK)
    queue.send("of another run")
    assert work(instance, request)
    # Messages that failed for good are settled, and new ones are left alone.
    assert SEEN == [["fails once", "bad"], ["fails once"]]
    assert (queue.visible, queue.invisible, queue.dead_letters) == (["of another run"], [], ["bad"])


def test_a_retry_of_a_step_that_was_done_with_all_gets_an_empty_batch(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue = leased_queues.create("orders", "done and fails")
    ((request,), _) = evaluated(router(tmp_path), instance, TICK)
    assert work(instance, request)
    assert SEEN == [["done and fails"], []]
    assert (queue.deleted, queue.visible) == (1, [])


def test_the_last_attempt_settles_by_the_failure_rule(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue = leased_queues.create("orders", "fails", "b")
    ((request,), _) = evaluated(router(tmp_path), instance, TICK)
    assert not work(instance, request)
    assert SEEN == [["fails", "b"]] * 2
    assert queue.dead_letters == ["fails", "b"]


def test_a_dead_letter_that_is_refused_when_a_batch_is_passed_on_is_told_in_the_log_of_the_run(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = leased_queues.create("orders", "fails once", "bad")
    ((request,), _) = evaluated(router(tmp_path), instance, TICK)
    refuse_dead_letters(monkeypatch)
    assert work(instance, request)
    assert SEEN == [["fails once", "bad"], ["fails once"]]
    assert (queue.visible, queue.dead_letters) == (["bad"], [])
    (run,) = instance.get_run_records(dg.RunsFilter(tags={ROUTED_TAG: request.tags[ROUTED_TAG]}))
    told = [
        entry.user_message
        for entry in instance.all_logs(run.dagster_run.run_id)
        if entry.level == logging.WARNING and entry.dagster_event is None
    ]
    assert any("sqs:SendMessage" in text for text in told)


def test_arguments_about_the_receive_of_a_batch_that_the_router_received_are_named_in_the_log(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    leased_queues.create("orders", "a", "b", visibility_seconds=600)
    (request,), _ = evaluated(router(tmp_path), instance, TICK)

    @dg.op
    def one(context: dg.OpExecutionContext) -> None:
        with SqsQueueResource(queue="orders").lease(context, max_messages=1, wait=0, on_failure="expire") as batch:
            SEEN.append([message.body for message in batch])

    @dg.job(executor_def=dg.in_process_executor)
    def loading() -> None:
        one()

    result = loading.execute_in_process(instance=instance, tags=request.tags)
    assert SEEN == [["a", "b"]]
    told = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert any("max_messages, wait of this lease do not apply" in text for text in told)


def test_a_run_that_comes_too_late_fails_and_works_on_nothing(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leased_queues.create("orders", "a")
    ((request,), _) = evaluated(router(tmp_path), instance, TICK)
    later = time.time() + 301
    monkeypatch.setattr("sqs_lease.dagster.run_batch.batch_of_run.time.time", lambda: later)
    assert not work(instance, request)
    assert SEEN == []


def test_a_batch_that_no_run_has_taken_in_time_is_not_asked_for_again(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = leased_queues.create("orders", "a")
    ((request,), _) = evaluated(router(tmp_path), instance, TICK)
    directory, later = Path(request.tags[ROUTED_TAG]), time.time() + 301
    monkeypatch.setattr("sqs_lease.dagster.run_batch.batch_of_run.time.time", lambda: later)
    assert evaluated(router(tmp_path), instance, TICK) == ([], "No message came from orders")
    os.utime(directory, (0, 0))
    evaluated(router(tmp_path), instance, TICK)
    assert not directory.exists()
    assert queue.invisible == ["a"]


def test_a_step_that_leases_again_has_nothing_left_to_work_on_and_takes_no_messages_of_other_runs(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue = leased_queues.create("orders", "a")
    ((request,), _) = evaluated(router(tmp_path, looping), instance, TICK)
    queue.send("of another run")
    assert work(instance, request, looping)
    assert SEEN == [["a"], []]
    assert (queue.deleted, queue.visible) == (1, ["of another run"])
    assert list((tmp_path / "orders_router").iterdir()) == []


def test_of_two_steps_that_lease_without_the_executor_one_gets_the_batch_and_the_other_one_says_what_to_do(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue = leased_queues.create("orders", "a")
    ((request,), _) = evaluated(router(tmp_path, twice), instance, TICK)
    assert not work(instance, request, twice)
    assert SEEN == [["a"]]
    assert queue.deleted == 1
    runs = instance.get_run_records(dg.RunsFilter(tags={ROUTED_TAG: request.tags[ROUTED_TAG]}))
    logs = [entry.dagster_event for entry in instance.all_logs(runs[0].dagster_run.run_id)]
    failed = [str(event.step_failure_data.error) for event in logs if event is not None and event.is_step_failure]
    assert "sqs_lease_executor" in failed[0]


def test_a_run_that_succeeded_and_did_not_lease_its_messages_fails_one_evaluation_and_then_the_router_goes_on(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue = leased_queues.create("orders", "a")
    made = router(tmp_path, careless)
    ((request,), _) = evaluated(made, instance, TICK)
    assert work(instance, request, careless)
    queue.send("b")
    with pytest.raises(RouterError, match=r"did not lease its messages of orders.*lease\(context\)"):
        evaluated(made, instance, TICK)
    assert (queue.visible, queue.invisible) == (["b"], ["a"])
    assert len(evaluated(made, instance, TICK)[0]) == 1


def test_a_run_that_lasted_longer_than_its_messages_waited_is_told_of_as_well(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leased_queues.create("orders", "a")
    made = router(tmp_path, careless)
    ((request,), _) = evaluated(made, instance, TICK)
    assert work(instance, request, careless)
    later = time.time() + 301
    monkeypatch.setattr("sqs_lease.dagster.run_batch.batch_of_run.time.time", lambda: later)
    with pytest.raises(RouterError, match="did not lease its messages"):
        evaluated(made, instance, TICK)


# Evaluations


def test_a_workspace_that_is_not_a_directory_fails_the_evaluation_before_anything_is_received(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue = leased_queues.create("orders", "a")
    file = tmp_path / "orders"
    file.touch()
    with pytest.raises(RouterError, match=f"{file}.*directory"):
        evaluated(router(file), instance, TICK)
    assert queue.visible == ["a"]


def test_messages_of_batches_that_cannot_be_written_are_given_back_and_the_error_names_the_workspace(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    queue = leased_queues.create("orders", "a")
    monkeypatch.setattr("sqs_lease.dagster.router.write_leases", full)
    with pytest.raises(RouterError, match=f"{tmp_path}.*No space left"):
        evaluated(router(tmp_path), instance, TICK)
    assert queue.visible == ["a"]


def test_nothing_is_asked_for_where_no_message_came(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    leased_queues.create("orders")
    assert evaluated(router(tmp_path), instance, TICK) == ([], "No message came from orders")


def test_the_builder_says_that_it_is_a_preview(tmp_path: Path) -> None:
    with pytest.warns(dg.PreviewWarning, match="build_sqs_router"):
        router(tmp_path)


UNKNOWN = ["__repository__", "orders_router", "20261123_070354"]
"""How Dagster names the log of an evaluation that the daemon did not ask for."""


@pytest.fixture
def real_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the queues in memory pass for those of a service."""
    monkeypatch.setattr(MemoryTransport, "is_in_memory", False)


@pytest.mark.usefixtures("real_queues")
@pytest.mark.parametrize("log_key", [None, [], UNKNOWN], ids=["no key", "an empty key", "of the web server"])
def test_a_trial_of_the_sensor_takes_nothing_and_leaves_no_thread(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path, log_key: list[str] | None
) -> None:
    before = threading.enumerate()
    queue = leased_queues.create("orders", "a", "b")
    requests, said = evaluated(router(tmp_path), instance, log_key)
    assert requests == []
    assert said is not None
    assert "up to 10 of about 2 messages of orders" in said
    assert (queue.visible, list(tmp_path.iterdir())) == (["a", "b"], [])
    assert_no_thread_is_left(before)


@pytest.mark.usefixtures("real_queues")
def test_a_context_made_by_a_test_is_not_a_tick(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue = leased_queues.create("orders", "a")
    result = router(tmp_path)(dg.build_sensor_context(instance=instance, sensor_name="orders_router"))
    assert isinstance(result, dg.SensorResult)
    assert "This is a test" in str(result.skip_reason)
    assert queue.visible == ["a"]


def test_a_queue_that_cannot_be_used_fails_the_tick_with_what_to_do(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    with pytest.raises(QueueNotFoundError, match="missing"):
        evaluated(router(tmp_path, queue="missing"), instance, TICK)


@pytest.mark.parametrize(
    ("error", "said"),
    [(ThrottledError("too many requests"), "too many requests"), (TransientError("no answer"), "no answer")],
)
def test_trouble_that_passes_by_itself_is_a_reason_to_skip_a_tick(
    leased_queues: LeasedQueues,
    instance: dg.DagsterInstance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    said: str,
) -> None:
    async def fail(*arguments: Any, **options: Any) -> None:
        raise error

    leased_queues.create("orders", "a")
    monkeypatch.setattr(MemoryTransport, "queue_url", fail)
    requests, reason = evaluated(router(tmp_path), instance, TICK)
    assert requests == []
    assert reason == f"Nothing was received: {said}"


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"workspace": "orders"}, ValueError, "absolute path"),
        ({"max_messages": 0}, ValueError, "max_messages"),
        ({"max_batches": 0}, ValueError, "max_batches"),
        ({"linger": 31}, ValueError, "gives up an evaluation after 60 s"),
        ({"handoff_timeout": timedelta(hours=13)}, ValueError, "handoff_timeout"),
        ({"workspace": "s3://bucket/orders"}, ValueError, "receipt handles"),
        ({"on_failure": "dead_lettr"}, ValueError, "on_failure must be one of .*dead_letter.*, not 'dead_lettr'"),
        ({"on_failure": {"kind": "backoff", "inital": 30}}, TypeError, "inital"),
        ({"on_failure": 30}, TypeError, "on_failure must be a failure rule such as"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_arguments_that_cannot_work_are_refused_when_the_router_is_built(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        router(options.pop("workspace", WORKSPACE), **options)


def test_a_sensor_is_stopped_until_a_user_starts_it_and_has_the_target() -> None:
    made = router(WORKSPACE, on_failure=dead_letter())
    assert made.default_status is dg.DefaultSensorStatus.STOPPED
    assert made.job_name == "loading"
    assert made.minimum_interval_seconds == 10
