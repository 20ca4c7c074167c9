"""The trigger of an asset's watcher: it counts, fires, and starts runs that find something to do."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import Asset, AssetWatcher, BaseSensorOperator
from airflow.sdk.exceptions import AirflowOptionalProviderFeatureException
from airflow.serialization.encoders import encode_trigger
from airflow.triggers.base import BaseEventTrigger

from sqs_lease.airflow import SqsLeaseTrigger
from sqs_lease.airflow.context import ReceiveArguments, TaskArguments
from sqs_lease.airflow.dag_file import SENSOR_OPTIONS
from sqs_lease.airflow.triggers.watch import watchers_of
from sqs_lease.testing import AuditKind, Fault, Operation, no_faults
from sqs_lease.testing.service_errors import ACCESS_DENIED
from tests.airflow.context.test_arguments import parameters_of
from tests.airflow.virtual_triggerer import KEEP, USER_ACTION
from tests.airflow.watched_queue import EventRuns, WatchedQueue

# Its events


def test_an_event_says_how_many_messages_are_there_and_nothing_of_what_is_in_them(watched: WatchedQueue) -> None:
    async def scenario() -> None:
        watched.send("a secret", "another")
        watcher = watched.watch()
        assert await watched.fired(watcher) == [{"queue_url": watched.url, "messages": 2}]
        await watcher.cancel()

    watched.run(scenario)


def test_it_receives_nothing_and_asks_for_nothing_but_the_queue_and_its_counts(watched: WatchedQueue) -> None:
    async def scenario() -> None:
        triggerer = watched.triggerer()
        watcher = watched.watch(triggerer)
        watched.send("a")
        await asyncio.sleep(3600)
        assert {call.operation for call in triggerer.asked} == {Operation.QUEUE_URL, Operation.QUEUE_ATTRIBUTES}
        assert triggerer.count(Operation.QUEUE_URL) == 1
        assert 1790 <= triggerer.count(Operation.QUEUE_ATTRIBUTES) <= 1801
        await watcher.cancel()

    watched.run(scenario)
    assert watched.count(AuditKind.RECEIVED) == 0


def test_it_counts_as_often_as_it_is_told(watched: WatchedQueue) -> None:
    async def scenario() -> None:
        triggerer = watched.triggerer()
        watcher = watched.watch(triggerer, poll_interval=timedelta(seconds=20))
        await asyncio.sleep(3600)
        assert 179 <= triggerer.count(Operation.QUEUE_ATTRIBUTES) <= 181
        await watcher.cancel()

    watched.run(scenario)


def test_watchers_of_one_queue_share_one_poll_and_each_fires_at_its_own_pace(watched: WatchedQueue) -> None:
    async def scenario() -> None:
        triggerer = watched.triggerer()
        watchers = [watched.watch(triggerer, longest_pause=longest) for longest in (10, 10, 300)]
        watched.send("a")
        await asyncio.sleep(600)
        assert triggerer.count(Operation.QUEUE_ATTRIBUTES) <= 301
        assert triggerer.open_transports == 1
        assert [len(watcher.events) for watcher in watchers] == [60, 60, 5]
        # The others go on when one ends.
        await watchers[0].cancel(USER_ACTION)
        await asyncio.sleep(20)
        assert [len(watcher.events) for watcher in watchers] == [60, 62, 5]
        await watchers[1].cancel()
        await watchers[2].cancel()
        assert triggerer.open_transports == 0
        before = len(triggerer.asked)
        await asyncio.sleep(60)
        assert len(triggerer.asked) == before

    watched.run(scenario)


def test_watchers_that_count_another_queue_or_by_another_connection_or_as_often_as_they_need_share_nothing() -> None:
    keys = [
        SqsLeaseTrigger("orders").shared_stream_key(),
        SqsLeaseTrigger("returns").shared_stream_key(),
        SqsLeaseTrigger("orders", aws_conn_id="other").shared_stream_key(),
        SqsLeaseTrigger("orders", poll_interval=10).shared_stream_key(),
    ]
    assert len(set(keys)) == len(keys)
    assert SqsLeaseTrigger("orders", shortest_pause=60).shared_stream_key() == keys[0]


def test_a_host_that_shares_no_polls_runs_it_alone(watched: WatchedQueue) -> None:
    async def scenario() -> None:
        watched.send("a")
        triggerer = watched.triggerer()
        running = triggerer.start(SqsLeaseTrigger("orders"), KEEP)
        assert await watched.fired(running) == [{"queue_url": watched.url, "messages": 1}]
        await running.cancel()

    watched.run(scenario)


# The runs that it starts


def test_bursts_are_worked_on_within_seconds_in_few_runs_and_no_run_is_empty(watched: WatchedQueue) -> None:
    async def scenario() -> None:
        watcher = watched.watch()
        runs = EventRuns(watched, watcher, max_active_runs=4)
        for burst in range(20):
            watched.send(*(f"{burst} {number}" for number in range(50)))
            await asyncio.sleep(11)
        await asyncio.sleep(30)
        assert runs.empty == 0
        assert len(runs.taken) <= 25
        assert sum(runs.taken) == 1000
        assert median(runs.waited) < 5
        assert max(runs.waited) < 12
        await runs.close()
        await watcher.cancel()

    watched.run(scenario)
    assert watched.sqs.contents(watched.url) == {}
    received = Counter(entry.message_id for entry in watched.sqs.trail().entries() if entry.kind is AuditKind.RECEIVED)
    assert set(received.values()) == {1}


def test_more_messages_than_one_run_takes_are_taken_by_runs_side_by_side(watched: WatchedQueue) -> None:
    async def scenario() -> None:
        watched.send(*(str(number) for number in range(500)))
        watcher = watched.watch()
        runs = EventRuns(watched, watcher, work_seconds=3600)
        await asyncio.sleep(60)
        assert runs.taken == [100] * 5
        await runs.close()
        await watcher.cancel()

    watched.run(scenario)


def test_without_a_free_slot_for_a_minute_most_runs_still_find_something(watched: WatchedQueue) -> None:
    async def scenario() -> None:
        watcher = watched.watch()
        runs = EventRuns(watched, watcher, slots=1)
        await runs.slots.acquire()
        watched.send(*(str(number) for number in range(50)))
        await asyncio.sleep(60)
        runs.slots.release()
        await asyncio.sleep(60)
        assert sum(runs.taken) == 50
        assert runs.empty <= 1
        # Then it is quick again.
        watched.send("later")
        await asyncio.sleep(10)
        assert sum(runs.taken) == 51
        await runs.close()
        await watcher.cancel()

    watched.run(scenario)


def test_with_scarce_slots_runs_are_empty_now_and_then_only(watched: WatchedQueue) -> None:
    async def scenario() -> None:
        watcher = watched.watch()
        runs = EventRuns(watched, watcher, slots=2, max_active_runs=8, start_seconds=15.0, work_seconds=30.0)
        for burst in range(10):
            watched.send(*(f"{burst} {number}" for number in range(50)))
            await asyncio.sleep(22)
        await asyncio.sleep(300)
        assert sum(runs.taken) == 500
        assert runs.empty <= len(runs.taken) / 5
        await runs.close()
        await watcher.cancel()

    watched.run(scenario)


def test_a_dag_that_does_nothing_with_its_events_costs_few_of_them_and_no_message_a_receive(
    watched: WatchedQueue,
) -> None:
    async def scenario() -> None:
        watched.send("a")
        watcher = watched.watch()
        await asyncio.sleep(86_400)
        # Every five minutes.
        assert len(watcher.events) <= 288 + 5
        await watcher.cancel()

    watched.run(scenario)
    assert watched.count(AuditKind.RECEIVED) == 0


def test_a_poison_message_starts_runs_ever_more_rarely_and_other_messages_do_not_wait_for_it(
    watched: WatchedQueue,
) -> None:
    async def scenario() -> None:
        watched.send("poison")
        watcher = watched.watch()
        runs = EventRuns(watched, watcher, fails=lambda message: message.body == "poison")
        await asyncio.sleep(3600)
        assert len(runs.taken) <= 4 + 3600 / 300 + 1
        before = len(runs.waited)
        watched.send("good")
        await asyncio.sleep(30)
        assert max(waited for waited in runs.waited[before:] if waited < 600) < 10
        assert len(watched.sqs.contents(watched.url)) == 1
        await runs.close()
        await watcher.cancel()

    watched.run(scenario)


def test_while_more_is_sent_than_is_worked_on_runs_begin_at_the_shortest_pause(watched: WatchedQueue) -> None:
    async def scenario() -> None:
        watcher = watched.watch()
        runs = EventRuns(watched, watcher, max_messages=10, work_seconds=1)
        for second in range(300):
            watched.send(*(f"{second} {number}" for number in range(20)))
            await asyncio.sleep(1)
        assert len(runs.taken) >= 300 / 7
        assert runs.empty == 0
        await runs.close()
        await watcher.cancel()

    watched.run(scenario)


def test_a_message_that_comes_during_long_work_is_taken_at_once(watched: WatchedQueue) -> None:
    async def scenario() -> None:
        watcher = watched.watch()
        runs = EventRuns(watched, watcher, work_seconds=3600)
        for number in range(10):
            watched.send(str(number))
            await asyncio.sleep(60)
        assert runs.taken == [1] * 10
        assert max(runs.waited) < 6
        await runs.close()
        await watcher.cancel()

    watched.run(scenario)


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_triggerer_that_ends_leaves_nothing_behind_and_the_next_one_goes_on(watched: WatchedQueue, end: str) -> None:
    async def scenario() -> None:
        first = watched.triggerer("first")
        watcher = watched.watch(first)
        await asyncio.sleep(10)
        if end == "killed":
            await first.kill()
        else:
            await watcher.cancel()
        watched.send("a")
        second = watched.triggerer("second")
        again = watched.watch(second)
        await watched.fired(again, within=5)
        await again.cancel()

    watched.run(scenario)
    assert watched.count(AuditKind.RECEIVED) == 0


# Trouble


def test_a_queue_that_is_made_later_is_counted_from_then_on(watched: WatchedQueue) -> None:
    async def scenario() -> None:
        watcher = watched.triggerer().watch(SqsLeaseTrigger("later"))
        await asyncio.sleep(30)
        assert not watcher.task.done()
        later = watched.sqs.create_queue("later")
        watched.sqs.send(later, "a")
        assert await watched.fired(watcher, within=35) == [{"queue_url": later, "messages": 1}]
        await watcher.cancel()

    watched.run(scenario)


def test_a_queue_that_does_not_exist_yet_is_looked_for_every_half_minute(watched: WatchedQueue) -> None:
    looks: list[float] = []

    def look(call: Any) -> Fault:
        looks.append(watched.clock.now())
        return no_faults(call)

    async def scenario() -> None:
        triggerer = watched.triggerer()
        triggerer.faults = look
        watcher = triggerer.watch(SqsLeaseTrigger("later"))
        await asyncio.sleep(3600)
        await watcher.cancel()

    watched.run(scenario)
    waits = [after - before for before, after in pairwise([*looks, 3600.0])]
    assert max(waits) <= 30
    assert len(looks) <= 3600 / 30 + 5


def test_a_queue_that_is_missing_for_a_day_is_a_few_lines_in_the_log(
    watched: WatchedQueue, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        watcher = watched.triggerer().watch(SqsLeaseTrigger("later"))
        await asyncio.sleep(86_400)
        await watcher.cancel()

    watched.run(scenario)
    said = [record for record in caplog.records if "No events of later" in record.message]
    assert 2 <= len(said) <= 40
    assert "does not exist" in said[0].message


def test_after_an_error_that_passed_it_counts_again(watched: WatchedQueue, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        triggerer = watched.triggerer()
        watcher = watched.watch(triggerer)
        await asyncio.sleep(10)
        triggerer.faults = lambda call: Fault(
            error=ACCESS_DENIED if call.operation is Operation.QUEUE_ATTRIBUTES else None
        )
        watched.send("a")
        await asyncio.sleep(60)
        assert watcher.events == []
        triggerer.faults = no_faults
        await watched.fired(watcher, within=90)
        await watcher.cancel()

    watched.run(scenario)
    assert "No events of orders" in caplog.text


def test_an_unforeseen_error_ends_no_watcher(
    watched: WatchedQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> Any:
        raise TypeError("an unforeseen error")

    async def scenario() -> None:
        watched.send("a")
        monkeypatch.setattr("sqs_lease.airflow.triggers.watch.QueueCounts", refuse)
        watcher = watched.watch()
        await asyncio.sleep(100)
        assert not watcher.task.done()
        monkeypatch.undo()
        await watched.fired(watcher, within=120)
        await watcher.cancel()

    watched.run(scenario)
    assert "an unforeseen error" in caplog.text


# Its arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"poll_interval": 0.5}, "poll_interval must be at least 1 seconds"),
        ({"shortest_pause": 0}, "shortest_pause must be at least 1 seconds"),
        ({"shortest_pause": 60, "longest_pause": 59}, "longest_pause must be at least 60 seconds"),
        ({"queue_url": "http://"}, "http://"),
    ],
    ids=str,
)
def test_arguments_out_of_range_are_refused_while_the_dag_is_parsed(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SqsLeaseTrigger(**{"queue_url": "orders", **arguments})


@pytest.mark.parametrize("option", SENSOR_OPTIONS)
def test_an_option_of_the_sensor_is_refused_with_the_place_where_it_belongs(option: str) -> None:
    options: dict[str, Any] = {option: 10}
    place = rf"SqsLeaseTrigger only counts messages.*sqs_lease\(\.\.\., event=asset, {option}="
    with pytest.raises(TypeError, match=place):
        SqsLeaseTrigger("orders", **options)


def test_those_are_all_options_that_say_how_messages_are_received() -> None:
    own = set(ReceiveArguments.__annotations__) - set(TaskArguments.__annotations__) - parameters_of(BaseSensorOperator)
    of_the_queue = {"queue_url", "aws_conn_id", "region_name", "verify", "botocore_config"}
    assert {*SENSOR_OPTIONS} == (own - of_the_queue) | {"handoff_timeout"}


def test_a_trigger_made_from_its_stored_arguments_is_the_same() -> None:
    trigger = SqsLeaseTrigger(
        "https://sqs.eu-west-1.amazonaws.com/123456789012/orders",
        poll_interval=timedelta(seconds=10),
        region_name="eu-west-1",
        botocore_config={"read_timeout": 5, "connect_timeout": 1},
    )
    classpath, arguments = trigger.serialize()
    assert json.loads(json.dumps(arguments)) == arguments
    again = SqsLeaseTrigger(**arguments)
    assert again.serialize() == (classpath, arguments)
    assert again.shared_stream_key() == trigger.shared_stream_key()
    # Airflow tells by this whether a watcher's trigger was changed.
    assert BaseEventTrigger.hash(classpath, arguments) == BaseEventTrigger.hash(*again.serialize())


def test_message_queue_trigger_knows_the_scheme() -> None:
    trigger = MessageQueueTrigger(scheme="sqs+lease", queue_url="orders", poll_interval=5)
    assert encode_trigger(trigger) == encode_trigger(SqsLeaseTrigger("orders", poll_interval=5))
    asset = Asset("orders asset", watchers=[AssetWatcher("orders watcher", trigger=trigger)])
    (watcher,) = watchers_of(asset)
    assert watcher.queue_url == "orders"


def test_without_the_messaging_provider_only_the_scheme_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sqs_lease.airflow.triggers.message_queue", raising=False)
    monkeypatch.setitem(sys.modules, "airflow.providers.common.messaging.providers.base_provider", None)
    with pytest.raises(AirflowOptionalProviderFeatureException, match="common-messaging"):
        __import__("sqs_lease.airflow.triggers.message_queue")
