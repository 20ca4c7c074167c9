"""Declarative automation by a queue's backlog: what the sensor reports makes the assets behind the queue's run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from time import time as wall

import dagster as dg
import pytest
from dagster._core.definitions.asset_daemon_cursor import AssetDaemonCursor
from dagster._core.events import AssetMaterializationPlannedData, DagsterEvent
from dagster._core.test_utils import create_run_for_test

from sqs_lease.clock import SystemClock
from sqs_lease.dagster import SqsQueueResource, build_sqs_backlog_sensor
from sqs_lease.testing import LeasedQueue, LeasedQueues

QUEUE_ASSET = dg.AssetSpec("orders_queue")
PARTITIONS = dg.StaticPartitionsDefinition(["north", "south"])


@dg.asset(deps=[QUEUE_ASSET], automation_condition=dg.AutomationCondition.eager())
def eager() -> None:
    if os.environ.get("POISON"):
        raise ZeroDivisionError


@dg.asset(deps=[QUEUE_ASSET], automation_condition=dg.AutomationCondition.any_deps_updated())
def updated() -> None: ...


@dg.asset(deps=[QUEUE_ASSET])
def by_hand() -> None: ...


@dataclass
class Time:
    now: float


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time(wall())
    monkeypatch.setattr(SystemClock, "wall", lambda clock: time.now)
    return time


@pytest.fixture
def queue(leased_queues: LeasedQueues) -> LeasedQueue:
    return leased_queues.create("orders", "an order")


@pytest.fixture
def instance(time: Time) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


class Automation:
    """The sensor and the evaluation of the conditions, one after the other, as Dagster's daemons do it."""

    def __init__(self, instance: dg.DagsterInstance, assets: list[dg.AssetSpec | dg.AssetsDefinition]) -> None:
        self.instance = instance
        self.sensor = build_sqs_backlog_sensor(
            "backlog", SqsQueueResource(queue="orders"), queue_asset="orders_queue", pause_after_failure=60
        )
        self.definitions = dg.Definitions(assets=assets, sensors=[self.sensor])
        self.sensor_cursor: str | None = None
        self.cursor: AssetDaemonCursor | None = None

    def report(self, *, store: bool = True) -> list[dg.AssetMaterialization]:
        with dg.build_sensor_context(self.instance, self.sensor_cursor, definitions=self.definitions) as context:
            data = self.sensor.evaluate_tick(context)
        for event in data.asset_events:
            self.instance.report_runless_asset_event(event)
        if store:
            self.sensor_cursor = data.cursor
        self.said = data.skip_message
        assert not data.run_requests
        return [event for event in data.asset_events if isinstance(event, dg.AssetMaterialization)]

    def requested(self) -> set[str]:
        """The assets that Dagster would run now."""
        result = dg.evaluate_automation_conditions(self.definitions, self.instance, cursor=self.cursor)
        self.cursor = result.cursor
        return {each.key.to_user_string() for each in result.results if not each.true_subset.is_empty}


@pytest.fixture
def automation(instance: dg.DagsterInstance) -> Automation:
    made = Automation(instance, [QUEUE_ASSET, eager, updated, by_hand])
    made.requested()
    return made


def test_assets_behind_the_queue_run_once_for_a_backlog(queue: LeasedQueue, automation: Automation) -> None:
    (event,) = automation.report()
    assert automation.said == "Reported 1 visible message on orders_queue"
    assert event.metadata["sqs/visible"].value == 1
    assert automation.requested() == {"eager", "updated"}
    assert automation.requested() == set()


def test_nothing_runs_for_an_empty_queue(leased_queues: LeasedQueues, automation: Automation) -> None:
    leased_queues.create("orders")
    assert automation.report() == []
    assert automation.requested() == set()


def test_an_evaluation_after_a_cursor_that_was_not_stored_reports_nothing_twice(
    queue: LeasedQueue, automation: Automation, time: Time
) -> None:
    automation.report()
    time.now += 60
    assert len(automation.report(store=False)) == 1
    assert automation.report() == []
    assert automation.said == "Reported already: 1 visible message on orders_queue"
    time.now += 60
    assert len(automation.report()) == 1


def test_a_backlog_is_reported_again_only_after_a_run_or_a_minute(
    queue: LeasedQueue, automation: Automation, instance: dg.DagsterInstance, time: Time
) -> None:
    assert len(automation.report()) == 1
    time.now += 59
    assert automation.report() == []
    assert "reported 59 s ago, and no run has come of it yet" in str(automation.said)
    time.now += 1
    assert len(automation.report()) == 1
    time.now = wall() - 1
    automation.sensor_cursor = None
    assert len(automation.report()) == 1
    dg.materialize([eager], instance=instance)
    time.now = wall()
    assert len(automation.report()) == 1


def test_nothing_is_reported_while_an_asset_behind_the_queue_is_at_work(
    queue: LeasedQueue, automation: Automation, instance: dg.DagsterInstance
) -> None:
    for name in ("by_hand", "eager"):
        run = create_run_for_test(instance, "any", status=dg.DagsterRunStatus.STARTED)
        assert len(automation.report(store=False)) == 1
        planned = DagsterEvent.build_asset_materialization_planned_event(
            "any", "step", AssetMaterializationPlannedData(dg.AssetKey(name), None, None)
        )
        instance.report_dagster_event(planned, run.run_id)
    assert automation.report() == []
    assert f"run {run.run_id} is in progress" in str(automation.said)


def test_failed_runs_are_followed_by_a_pause_that_doubles(
    queue: LeasedQueue,
    automation: Automation,
    instance: dg.DagsterInstance,
    time: Time,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POISON", "1")
    for failures, pause in ((1, 60), (2, 120)):
        run_id = dg.materialize([eager], instance=instance, raise_on_error=False).run_id
        (record,) = instance.get_run_records(dg.RunsFilter(run_ids=[run_id]))
        time.now = float(record.end_time or 0) + pause - 1
        assert automation.report() == []
        assert f"failed, the newest is {run_id}: nothing is started for 1 s more" in str(automation.said)
        assert ("the last run" if failures == 1 else f"the last {failures} runs") in str(automation.said)
        time.now += 1
        assert len(automation.report()) == 1
    monkeypatch.delenv("POISON")
    dg.materialize([eager], instance=instance)
    time.now += 60
    assert len(automation.report()) == 1
    monkeypatch.setenv("POISON", "1")
    run_id = dg.materialize([eager], instance=instance, raise_on_error=False).run_id
    (record,) = instance.get_run_records(dg.RunsFilter(run_ids=[run_id]))
    time.now = float(record.end_time or 0) + 1
    assert automation.report() == []
    assert "the last run failed" in str(automation.said)


def test_a_retry_that_succeeds_does_not_end_the_pause_that_the_failure_began(
    queue: LeasedQueue,
    automation: Automation,
    instance: dg.DagsterInstance,
    time: Time,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def record(run_id: str) -> dg.RunRecord:
        (found,) = instance.get_run_records(dg.RunsFilter(run_ids=[run_id]))
        return found

    def failed() -> str:
        with monkeypatch.context() as poisoned:
            poisoned.setenv("POISON", "1")
            return dg.materialize([eager], instance=instance, raise_on_error=False).run_id

    def retried(parent: str) -> float:
        """A run that repeats another one, and succeeds."""
        run = create_run_for_test(instance, "any", parent_run_id=parent, root_run_id=parent)
        planned = DagsterEvent.build_asset_materialization_planned_event(
            "any", "step", AssetMaterializationPlannedData(dg.AssetKey("eager"), None, None)
        )
        instance.report_dagster_event(planned, run.run_id)
        instance.report_dagster_event(DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, "any"), run.run_id)
        return float(record(run.run_id).end_time or 0)

    first = failed()
    time.now = float(record(first).end_time or 0) + 1
    assert automation.report() == []
    time.now = retried(first) + 1
    assert automation.report() == []
    assert "the last run failed" in str(automation.said)

    # The failure of a run that Dagster retries is counted with its retry.
    second = failed()
    instance.add_run_tags(second, {"dagster/will_retry": "true", "dagster/auto_retry_run_id": "the retry"})
    time.now = retried(second) + 1
    assert automation.report() == []
    assert "the last 2 runs failed" in str(automation.said)


def test_a_queue_asset_that_the_code_location_lacks_is_an_error_that_says_what_to_add(
    queue: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    automation = Automation(instance, [])
    with pytest.raises(ValueError, match=r'add dg.AssetSpec\("orders_queue"\) to its assets'):
        automation.report()


def test_a_partition_of_the_queue_asset_can_be_reported(queue: LeasedQueue, instance: dg.DagsterInstance) -> None:
    queue_asset = dg.AssetSpec("orders_queue", partitions_def=PARTITIONS)

    @dg.asset(
        deps=[queue_asset], partitions_def=PARTITIONS, automation_condition=dg.AutomationCondition.any_deps_updated()
    )
    def behind() -> None: ...

    automation = Automation(instance, [queue_asset, behind])
    automation.sensor = build_sqs_backlog_sensor(
        "other", SqsQueueResource(queue="orders"), queue_asset=queue_asset, partition_key=lambda backlog: "south"
    )
    automation.requested()
    automation.report()
    result = dg.evaluate_automation_conditions(automation.definitions, instance, cursor=automation.cursor)
    assert result.get_requested_partitions(dg.AssetKey("behind")) == {"south"}
