"""When the backlog sensor starts what; queues and runs are in memory, and its clock stands still unless it is moved."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from dagster._core.events import DagsterEvent
from dagster._core.test_utils import create_run_for_test
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from sqs_lease.clock import SystemClock
from sqs_lease.dagster import Backlog, SqsQueueResource, build_sqs_backlog_sensor
from sqs_lease.dagster import backlog_sensor as module
from sqs_lease.dagster.backlog_sensor import SENSOR_TAG
from sqs_lease.sqs.errors import QueueNotFoundError, ThrottledError, TransientError
from sqs_lease.testing import LeasedQueue, LeasedQueues
from tests.dagster.backlog_sensor.origins import InProcessCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

QUEUE = SqsQueueResource(queue="orders")
ORIGIN = RemoteJobOrigin(
    RemoteRepositoryOrigin(InProcessCodeLocationOrigin(LoadableTargetOrigin(module_name="orders")), "orders"), "orders"
)
"""Where the runs came from, which Dagster asks of runs in its queue."""
DAYS = dg.StaticPartitionsDefinition(["monday", "tuesday"])
HOURS = dg.DynamicPartitionsDefinition(name="hours")


@dg.asset
def orders() -> None: ...


@dg.asset(partitions_def=DAYS)
def orders_of_the_day() -> None: ...


@dg.asset(partitions_def=HOURS)
def orders_of_the_hour() -> None: ...


@dg.op
def load() -> None: ...


@dg.job
def first() -> None:
    load()


@dg.job
def second() -> None:
    load()


@dataclass
class Time:
    now: float = 1_790_000_000.0


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(SystemClock, "wall", lambda clock: time.now)
    return time


@pytest.fixture
def queue(leased_queues: LeasedQueues, time: Time) -> LeasedQueue:
    return leased_queues.create("orders")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


class Ticks:
    """A sensor as the daemon evaluates it: each evaluation gets the cursor of the one before."""

    def __init__(self, instance: dg.DagsterInstance, target: Any = orders, **options: Any) -> None:
        self.instance = instance
        self.sensor = build_sqs_backlog_sensor("backlog", QUEUE, target, **options)
        self.definitions = dg.Definitions(
            assets=[orders, orders_of_the_day, orders_of_the_hour], jobs=[first, second], sensors=[self.sensor]
        )
        self.cursor: str | None = None

    def tick(self, *, store: bool = True) -> list[dg.RunRequest]:
        """The runs asked for; without `store` as if the evaluation came to nothing after that."""
        with dg.build_sensor_context(self.instance, self.cursor, definitions=self.definitions) as context:
            # The daemon's context has it; a test's context knows no instance to look for partitions in.
            context.__dict__["caching_dynamic_partitions_loader"] = self.instance
            data = self.sensor.evaluate_tick(context)
        if store:
            self.cursor = data.cursor
        self.skipped = data.skip_message
        self.added = {each.partitions_def_name: each.partition_keys for each in data.dynamic_partitions_requests or []}
        return list(data.run_requests or [])

    def run(self, request: dg.RunRequest, *events: dg.DagsterEventType, **tags: str) -> str:
        """A run made of a request, to which some things happened now."""
        return self.retry(request, None, *events, **tags)

    def retry(self, request: dg.RunRequest, of: str | None, *events: dg.DagsterEventType, **tags: str) -> str:
        """A run that repeats another one of a request."""
        made = create_run_for_test(
            self.instance,
            request.job_name or "orders",
            tags={**request.tags, **tags},
            remote_job_origin=ORIGIN,
            parent_run_id=of,
            root_run_id=of,
        )
        run_id: str = made.run_id
        for event in events:
            self.happened(run_id, event)
        return run_id

    def happened(self, run_id: str, event: dg.DagsterEventType) -> None:
        at = datetime.fromtimestamp(SystemClock().wall(), UTC)
        self.instance.run_storage.handle_run_event(run_id, DagsterEvent(event.value, "orders"), at)


# When


def test_nothing_is_started_for_an_empty_queue(queue: LeasedQueue, instance: dg.DagsterInstance) -> None:
    ticks = Ticks(instance)
    assert ticks.tick() == []
    assert ticks.skipped == "There are no messages to receive"


def test_a_run_is_started_when_there_are_enough_messages(queue: LeasedQueue, instance: dg.DagsterInstance) -> None:
    ticks = Ticks(instance, min_messages=3)
    queue.send("a", "b")
    assert ticks.tick() == []
    assert ticks.skipped == "2 messages can be received, fewer than 3"
    queue.send("c")
    (request,) = ticks.tick()
    assert request.tags[SENSOR_TAG] == "backlog"


def test_a_run_is_started_for_fewer_when_they_have_waited(
    queue: LeasedQueue, instance: dg.DagsterInstance, time: Time
) -> None:
    ticks = Ticks(instance, min_messages=3, max_wait=timedelta(minutes=1))
    queue.send("a")
    assert ticks.tick() == []
    time.now += 59
    assert ticks.tick() == []
    assert ticks.skipped == ("1 message can be received, fewer than 3, and the wait of 59 s is shorter than 60 s")
    time.now += 1
    assert len(ticks.tick()) == 1


def test_the_wait_begins_again_when_the_queue_was_empty_and_when_a_run_was_started(
    queue: LeasedQueue, instance: dg.DagsterInstance, leased_queues: LeasedQueues, time: Time
) -> None:
    ticks = Ticks(instance, min_messages=3, max_wait=60, max_concurrent_runs=2, messages_per_run=1)
    queue.send("a")
    ticks.tick()
    (message,) = leased_queues.sqs.receive(queue.url)
    ticks.tick()
    leased_queues.sqs.delete(queue.url, [message.receipt])
    queue.send("b")
    time.now += 60
    assert ticks.tick() == []
    time.now += 60
    assert len(ticks.tick()) == 1
    assert ticks.tick() == []
    assert "the wait of 0 s" in str(ticks.skipped)


def test_an_evaluation_takes_no_message(
    queue: LeasedQueue, instance: dg.DagsterInstance, leased_queues: LeasedQueues
) -> None:
    queue.send("a", "b")
    trail = list(leased_queues.sqs.trail().entries())
    assert len(Ticks(instance).tick()) == 1
    assert queue.visible == ["a", "b"]
    assert list(leased_queues.sqs.trail().entries()) == trail


# How many


@pytest.mark.parametrize(
    "event",
    [
        dg.DagsterEventType.RUN_ENQUEUED,
        dg.DagsterEventType.RUN_STARTING,
        dg.DagsterEventType.RUN_START,
        dg.DagsterEventType.RUN_CANCELING,
    ],
)
def test_no_second_run_is_started_while_one_is_in_progress(
    queue: LeasedQueue, instance: dg.DagsterInstance, event: dg.DagsterEventType
) -> None:
    ticks = Ticks(instance)
    queue.send("a")
    run_id = ticks.run(ticks.tick()[0], event)
    assert ticks.tick() == []
    assert ticks.skipped == f"1 message can be received, but run {run_id} is in progress"


def test_runs_of_others_do_not_count(queue: LeasedQueue, instance: dg.DagsterInstance) -> None:
    ticks = Ticks(instance)
    queue.send("a")
    create_run_for_test(instance, "orders", tags={SENSOR_TAG: "other"}, status=dg.DagsterRunStatus.STARTED)
    assert len(ticks.tick()) == 1


@pytest.mark.parametrize(("messages", "runs"), [(1, 1), (10, 1), (11, 2), (30, 3), (1000, 3)])
def test_as_many_runs_are_started_as_the_backlog_is_worth_but_three_at_most(
    queue: LeasedQueue, instance: dg.DagsterInstance, messages: int, runs: int
) -> None:
    queue.send(*["a"] * messages)
    requests = Ticks(instance, max_concurrent_runs=5, messages_per_run=10).tick()
    assert len(requests) == runs
    assert len({request.run_key for request in requests}) == runs


def test_messages_for_runs_that_just_began_are_not_counted_twice(
    queue: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    ticks = Ticks(instance, max_concurrent_runs=3, messages_per_run=10)
    queue.send(*["a"] * 15)
    for request in ticks.tick():
        ticks.run(request, dg.DagsterEventType.RUN_STARTING)
    assert ticks.tick() == []
    assert ticks.skipped == "15 messages can be received, but the 2 runs in progress may have yet to receive them"
    queue.send(*["a"] * 6)
    assert len(ticks.tick()) == 1


def test_a_run_that_began_a_minute_ago_has_received(
    queue: LeasedQueue, instance: dg.DagsterInstance, time: Time
) -> None:
    ticks = Ticks(instance, max_concurrent_runs=3, messages_per_run=10)
    queue.send(*["a"] * 10)
    ticks.run(ticks.tick()[0], dg.DagsterEventType.RUN_START)
    time.now += 59
    assert ticks.tick() == []
    time.now += 1
    assert len(ticks.tick()) == 1


# Once


def test_an_evaluation_after_a_cursor_that_was_not_stored_asks_for_the_same_run_again(
    queue: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    ticks = Ticks(instance)
    queue.send("a")
    ticks.run(ticks.tick()[0], dg.DagsterEventType.RUN_SUCCESS)
    (lost,) = ticks.tick(store=False)
    (again,) = ticks.tick()
    (next_one,) = ticks.tick()
    assert lost.run_key == again.run_key != next_one.run_key


def test_run_keys_are_new_after_the_cursor_was_cleared(queue: LeasedQueue, instance: dg.DagsterInstance) -> None:
    ticks = Ticks(instance)
    queue.send("a")
    keys = {ticks.tick()[0].run_key}
    ticks.cursor = None
    assert ticks.tick()[0].run_key not in keys


@pytest.mark.parametrize(
    "cursor",
    ["", "7", "no json", '{"epoch": "a"}', '{"version": 2, "epoch": "a", "sequence": 3}', '{"version": 1, "new": 1}'],
)
def test_a_cursor_that_cannot_be_read_is_reset(queue: LeasedQueue, instance: dg.DagsterInstance, cursor: str) -> None:
    ticks = Ticks(instance)
    ticks.cursor = cursor
    queue.send("a")
    assert len(ticks.tick()) == 1
    assert json.loads(str(ticks.cursor))["sequence"] == 1


def test_the_cursor_stays_small(queue: LeasedQueue, instance: dg.DagsterInstance, time: Time) -> None:
    ticks = Ticks(instance, min_messages=3, max_wait=60, max_concurrent_runs=5, messages_per_run=1)
    for _ in range(5):
        queue.send(*["a"] * 10)
        ticks.tick()
        time.now += 30
    assert len(str(ticks.cursor)) < 120


# After failures


def test_failed_runs_are_followed_by_a_pause_that_doubles(
    queue: LeasedQueue, instance: dg.DagsterInstance, time: Time
) -> None:
    ticks = Ticks(instance, pause_after_failure=30)
    queue.send("poison")
    for failures, pause in ((1, 30), (2, 60), (3, 120)):
        run_id = ticks.run(ticks.tick()[0], dg.DagsterEventType.RUN_FAILURE)
        time.now += pause - 1
        assert ticks.tick() == []
        assert f"failed, the newest is {run_id}: nothing is started for 1 s more" in str(ticks.skipped)
        assert ("the last run" if failures == 1 else f"the last {failures} runs") in str(ticks.skipped)
        time.now += 1


def test_the_pause_ends_growing_at_15_minutes(queue: LeasedQueue, instance: dg.DagsterInstance, time: Time) -> None:
    ticks = Ticks(instance)
    queue.send("poison")
    (request,) = ticks.tick()
    for _ in range(12):
        ticks.run(request, dg.DagsterEventType.RUN_FAILURE)
    time.now += 899
    assert ticks.tick() == []
    time.now += 1
    assert len(ticks.tick()) == 1


def test_a_run_that_succeeds_ends_the_pause_and_a_canceled_one_is_not_a_failure(
    queue: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    ticks = Ticks(instance, pause_after_failure=timedelta(days=10_000))
    queue.send("a")
    (request,) = ticks.tick()
    canceled = ticks.run(request, dg.DagsterEventType.RUN_CANCELED)
    ticks.retry(request, canceled, dg.DagsterEventType.RUN_SUCCESS)
    assert len(ticks.tick()) == 1
    ticks.run(request, dg.DagsterEventType.RUN_FAILURE)
    assert ticks.tick() == []
    ticks.run(request, dg.DagsterEventType.RUN_SUCCESS)
    assert len(ticks.tick()) == 1


def test_after_failures_one_run_is_tried_before_there_are_more(
    queue: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    ticks = Ticks(instance, pause_after_failure=0, max_concurrent_runs=4, messages_per_run=1)
    queue.send("a", "b", "c")
    requests = ticks.tick()
    assert len(requests) == 3
    for request in requests:
        ticks.run(request, dg.DagsterEventType.RUN_FAILURE)
    (trial,) = ticks.tick()
    ticks.run(trial, dg.DagsterEventType.RUN_START)
    assert ticks.tick() == []
    assert "one is tried alone" in str(ticks.skipped)


def test_a_run_that_dagster_is_about_to_retry_is_in_progress_and_no_failure(
    queue: LeasedQueue, instance: dg.DagsterInstance, time: Time
) -> None:
    ticks = Ticks(instance, pause_after_failure=timedelta(days=10_000))
    queue.send("a")
    run_id = ticks.run(ticks.tick()[0], dg.DagsterEventType.RUN_FAILURE, **{"dagster/will_retry": "true"})
    time.now += 299
    assert ticks.tick() == []
    assert f"run {run_id} is in progress" in str(ticks.skipped)
    time.now += 1
    assert len(ticks.tick()) == 1


FOR_EVER = timedelta(days=10_000)


def test_a_retry_that_succeeds_does_not_end_the_pause_that_the_failure_began(
    queue: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    ticks = Ticks(instance, pause_after_failure=FOR_EVER)
    queue.send("poison")
    (request,) = ticks.tick()
    failed = ticks.run(request, dg.DagsterEventType.RUN_FAILURE)
    # It received other messages than the first one.
    ticks.retry(request, failed, dg.DagsterEventType.RUN_SUCCESS)
    assert ticks.tick() == []
    assert f"the last run failed, the newest is {failed}" in str(ticks.skipped)
    ticks.run(request, dg.DagsterEventType.RUN_SUCCESS)
    assert len(ticks.tick()) == 1


def test_runs_with_automatic_retries_that_succeed_are_followed_by_a_pause_too(
    queue: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    ticks = Ticks(instance, pause_after_failure=FOR_EVER)
    queue.send("poison")
    (request,) = ticks.tick()
    retried = {"dagster/will_retry": "true", "dagster/auto_retry_run_id": "the retry"}
    first = ticks.run(request, dg.DagsterEventType.RUN_FAILURE, **retried)
    second = ticks.retry(request, first, dg.DagsterEventType.RUN_FAILURE, **retried)
    ticks.retry(request, second, dg.DagsterEventType.RUN_SUCCESS)
    assert ticks.tick() == []
    assert f"the last run failed, the newest is {second}" in str(ticks.skipped)


# Runs that never end


HOUR = 3600


def test_a_run_that_takes_long_is_named_with_what_to_do_if_it_is_not_worked_on(
    queue: LeasedQueue, instance: dg.DagsterInstance, time: Time
) -> None:
    ticks = Ticks(instance)
    queue.send("a")
    run_id = ticks.run(ticks.tick()[0], dg.DagsterEventType.RUN_STARTING, dg.DagsterEventType.RUN_START)
    time.now += HOUR - 1
    assert ticks.tick() == []
    assert str(ticks.skipped).endswith("is in progress")
    time.now += 1
    assert ticks.tick() == []
    assert f"Run {run_id} has been started for 1.0 h" in str(ticks.skipped)
    assert "mark it as canceled" in str(ticks.skipped)
    assert "run_monitoring" in str(ticks.skipped)


@pytest.mark.parametrize(
    "event", [dg.DagsterEventType.RUN_STARTING, dg.DagsterEventType.RUN_START, dg.DagsterEventType.RUN_CANCELING]
)
def test_a_run_that_cannot_hold_its_messages_any_more_does_not_count(
    queue: LeasedQueue, instance: dg.DagsterInstance, time: Time, event: dg.DagsterEventType
) -> None:
    ticks = Ticks(instance)
    queue.send("a")
    ticks.run(ticks.tick()[0], event)
    time.now += 12 * HOUR - 1
    assert ticks.tick() == []
    time.now += 1
    assert len(ticks.tick()) == 1


def test_a_run_waits_in_the_queue_for_as_long_as_it_takes(
    queue: LeasedQueue, instance: dg.DagsterInstance, time: Time
) -> None:
    ticks = Ticks(instance)
    queue.send("a")
    ticks.run(ticks.tick()[0], dg.DagsterEventType.RUN_ENQUEUED)
    time.now += 100 * HOUR
    assert ticks.tick() == []
    assert "has waited in Dagster's queue for 100.0 h" in str(ticks.skipped)


# Targets


def test_a_job_a_selection_and_a_partition_can_be_run(queue: LeasedQueue, instance: dg.DagsterInstance) -> None:
    queue.send("a")
    assert len(Ticks(instance, first).tick()) == 1
    assert len(Ticks(instance, dg.AssetSelection.assets("orders")).tick()) == 1
    assert len(Ticks(instance, "orders").tick()) == 1
    assert len(Ticks(instance, [orders]).tick()) == 1
    assert [request.job_name for request in Ticks(instance, [first]).tick()] == ["first"]
    job = dg.define_asset_job("of_the_day", [orders_of_the_day])
    for target in (job, orders_of_the_day):
        (request,) = Ticks(instance, target, partition_key="monday").tick()
        assert request.tags["dagster/partition"] == "monday"


def test_each_of_several_jobs_has_runs_of_its_own(queue: LeasedQueue, instance: dg.DagsterInstance) -> None:
    ticks = Ticks(instance, [first, second])
    queue.send("a")
    requests = ticks.tick()
    assert [request.job_name for request in requests] == ["first", "second"]
    assert len({request.run_key for request in requests}) == 2
    ticks.run(requests[0], dg.DagsterEventType.RUN_START)
    (request,) = ticks.tick()
    assert request.job_name == "second"
    ticks.run(request, dg.DagsterEventType.RUN_ENQUEUED)
    assert ticks.tick() == []
    assert "first: run" in str(ticks.skipped)
    assert "second: run" in str(ticks.skipped)


def test_partition_configuration_and_tags_may_depend_on_what_was_seen(
    queue: LeasedQueue, instance: dg.DagsterInstance, time: Time
) -> None:
    seen: list[Backlog] = []

    def partition(backlog: Backlog) -> str:
        seen.append(backlog)
        return "tuesday" if backlog.visible > 1 else "monday"

    queue.send("a", "b")
    (request,) = Ticks(
        instance,
        orders_of_the_day,
        partition_key=partition,
        run_config=lambda backlog: {"ops": {"visible": backlog.visible}},
        run_tags=lambda backlog: {"team": "orders", SENSOR_TAG: "mine"},
    ).tick()
    assert request.tags["dagster/partition"] == "tuesday"
    assert request.run_config == {"ops": {"visible": 2}}
    assert (request.tags["team"], request.tags[SENSOR_TAG]) == ("orders", "backlog")
    assert seen[0].seen_at.timestamp() == time.now
    assert (seen[0].in_flight, seen[0].delayed, seen[0].waited) == (0, 0, timedelta(0))


def test_a_partition_that_is_dynamic_is_added_by_the_evaluation_that_asks_for_its_runs(
    queue: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    queue.send(*["a"] * 20)
    ticks = Ticks(
        instance, orders_of_the_hour, partition_key=lambda _: "noon", max_concurrent_runs=2, messages_per_run=10
    )
    requests = ticks.tick()
    assert [request.tags["dagster/partition"] for request in requests] == ["noon", "noon"]
    assert ticks.added == {"hours": ["noon"]}


def test_a_partition_of_a_target_without_partitions_is_an_error_that_names_it(
    queue: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    queue.send("a")
    with pytest.raises(ValueError, match="partition_key is 'noon', but its target is not partitioned"):
        Ticks(instance, partition_key="noon").tick()


# Errors


def refusing(error: Exception) -> Callable[..., Any]:
    def attributes(self: SqsQueueResource, **_: Any) -> None:
        raise error

    return attributes


def test_a_queue_that_does_not_exist_fails_the_evaluation(time: Time, leased_queues: LeasedQueues) -> None:
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(QueueNotFoundError, match="orders"):
        Ticks(instance).tick()


@pytest.mark.parametrize("kind", [ThrottledError, TransientError])
def test_a_queue_that_cannot_be_read_just_now_is_skipped_but_not_for_ever(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, time: Time, kind: type[Exception]
) -> None:
    ticks = Ticks(instance)
    monkeypatch.setattr(SqsQueueResource, "attributes", refusing(kind("the queue is busy")))
    assert ticks.tick() == []
    assert ticks.skipped == "the queue is busy"
    time.now += 599
    assert ticks.tick() == []
    time.now += 1
    with pytest.raises(kind, match="busy"):
        ticks.tick()


def test_an_answer_of_the_queue_ends_the_count_of_its_silence(
    queue: LeasedQueue, instance: dg.DagsterInstance, time: Time
) -> None:
    ticks = Ticks(instance)
    for _ in range(3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SqsQueueResource, "attributes", refusing(TransientError("away")))
            assert ticks.tick() == []
        time.now += 500
        ticks.tick()


def test_an_evaluation_reads_for_much_less_than_dagster_gives_it() -> None:
    assert module._READ_SECONDS <= 30


def test_settings_come_from_the_environment_at_each_evaluation(
    queue: LeasedQueue, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensor = build_sqs_backlog_sensor("backlog", SqsQueueResource(queue=dg.EnvVar("ORDERS_QUEUE")), first)
    assert "ORDERS_QUEUE" in str(sensor.description)
    queue.send("a")
    monkeypatch.delenv("ORDERS_QUEUE", raising=False)
    with (
        dg.build_sensor_context(instance) as context,
        pytest.raises(dg.DagsterInvalidConfigError, match='"ORDERS_QUEUE" which is not set'),
    ):
        sensor.evaluate_tick(context)
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    with dg.build_sensor_context(instance) as context:
        assert len(sensor.evaluate_tick(context).run_requests or []) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_messages": 0}, "min_messages"),
        ({"max_concurrent_runs": 0}, "max_concurrent_runs"),
        ({"max_concurrent_runs": 2}, "messages_per_run"),
        ({"messages_per_run": True}, "messages_per_run"),
        ({"max_wait": -1}, "max_wait"),
        ({"pause_after_failure": -1}, "pause_after_failure"),
        ({"target": None}, "either target or queue_asset"),
        ({"queue_asset": "orders_queue"}, "either target or queue_asset"),
        ({"target": None, "queue_asset": "orders_queue", "run_tags": {"a": "b"}}, "run_tags"),
        ({"target": [first, orders]}, "not both"),
    ],
    # Not the values: some have an address, and each process of the test run must give a test the same name.
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_arguments_that_make_no_sense_are_refused_where_the_sensor_is_defined(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        build_sqs_backlog_sensor("backlog", QUEUE, **{"target": orders, **options})
