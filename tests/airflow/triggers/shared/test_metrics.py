"""The metrics say what the keepers of a triggerer hold and did."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from sqs_lease.airflow import SqsLeaseTrigger
from sqs_lease.airflow.triggers import shared as metrics
from sqs_lease.core.failure_rules import dead_letter
from sqs_lease.core.policies import Threshold
from sqs_lease.testing import Fault, Operation, no_faults
from sqs_lease.testing.service_errors import ACCESS_DENIED
from tests.airflow.leased_messages import LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import CHECK
from tests.airflow.watched_queue import WatchedQueue


class Recorded:
    """Stands in for Airflow's stats."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.gauges: dict[str, list[float]] = {}
        self.timers: dict[str, list[timedelta]] = {}
        self.queues: set[str] = set()

    def incr(self, stat: str, count: int, *, tags: Mapping[str, Any]) -> None:
        self.counters[stat] += count
        self.queues.add(tags["queue"])

    def gauge(self, stat: str, value: float, *, tags: Mapping[str, Any]) -> None:
        self.gauges.setdefault(stat, []).append(value)
        self.queues.add(tags["queue"])

    def timing(self, stat: str, dt: timedelta, *, tags: Mapping[str, Any]) -> None:
        self.timers.setdefault(stat, []).append(dt)
        self.queues.add(tags["queue"])


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    stand_in = Recorded()
    monkeypatch.setattr(metrics, "stats", stand_in)
    return stand_in


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor)


def test_extensions_settlements_and_release_times_are_counted(world: LeasedMessages, recorded: Recorded) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(CHECK, policy=Threshold(visibility=30.0))
        del world.states["load"]
        world.states.update({"check_0": "running", "check_1": "running", "check_2": "running"})
        await asyncio.sleep(60)
        world.states.update({"check_0": "success", "check_1": "failed", "check_2": "success"})
        await running.ended()

    world.run(scenario)
    assert recorded.counters == {
        "sqs_lease.extended": 6,
        "sqs_lease.settled.deleted": 2,
        "sqs_lease.settled.released": 1,
    }
    (latency,) = recorded.timers["sqs_lease.release_latency"]
    assert latency < timedelta(seconds=1)
    assert recorded.queues == {"orders"}


def test_dead_lettered_messages_are_counted_for_themselves(world: LeasedMessages, recorded: Recorded) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(on_failure=dead_letter())
        world.states["load"] = "failed"
        await running.ended()

    world.run(scenario)
    assert recorded.counters["sqs_lease.settled.dead_lettered"] == 3
    assert "sqs_lease.release_latency" not in recorded.timers


def test_the_gauges_show_how_much_is_held_and_how_old_it_is_and_end_at_zero(
    world: LeasedMessages, recorded: Recorded
) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(policy=Threshold(visibility=30.0))
        await asyncio.sleep(100)
        world.states["load"] = "success"
        await running.ended()
        await asyncio.sleep(2 * metrics.MEASURE_SECONDS)

    world.run(scenario)
    assert max(recorded.gauges["sqs_lease.held"]) == 3
    assert max(recorded.gauges["sqs_lease.batches"]) == 1
    assert 80 <= max(recorded.gauges["sqs_lease.oldest_lease"]) <= 110
    assert {name: readings[-1] for name, readings in recorded.gauges.items()} == {
        "sqs_lease.held": 0,
        "sqs_lease.batches": 0,
        "sqs_lease.oldest_lease": 0,
    }


def test_leases_that_another_consumer_took_are_counted_as_lost(world: LeasedMessages, recorded: Recorded) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(policy=Threshold(visibility=30.0))
        await asyncio.sleep(5)
        # This process stands still for too long; another consumer takes the messages and is done with them.
        world.clock.advance(60)
        taken = world.sqs.receive(world.url, max_messages=10, visibility_seconds=30)
        world.sqs.delete(world.url, [message.receipt for message in taken])
        await running.ended()

    world.run(scenario)
    assert recorded.counters == {"sqs_lease.extended": 0, "sqs_lease.lost": 3}


def test_deadlines_that_passed_are_counted_although_the_messages_were_not_taken(
    world: LeasedMessages, recorded: Recorded
) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(policy=Threshold(visibility=30.0))
        await asyncio.sleep(5)
        world.clock.advance(60)
        await asyncio.sleep(10)
        world.states["load"] = "success"
        await running.ended()

    world.run(scenario)
    assert (recorded.counters["sqs_lease.late"], recorded.counters["sqs_lease.lost"]) == (3, 0)


POLL_AGE = "sqs_lease.watcher.poll_age"


@pytest.mark.parametrize("reference", ["orders", "arn:aws:sqs:us-east-1:000000000000:orders"])
def test_the_poll_age_of_a_watcher_shows_that_it_counts(
    watched: WatchedQueue, recorded: Recorded, reference: str
) -> None:
    async def scenario() -> None:
        watcher = watched.triggerer().watch(SqsLeaseTrigger(reference))
        await asyncio.sleep(300)
        await watcher.cancel()
        published = len(recorded.gauges[POLL_AGE])
        await asyncio.sleep(60)
        assert len(recorded.gauges[POLL_AGE]) == published

    watched.run(scenario)
    assert len(recorded.gauges[POLL_AGE]) >= 30
    assert max(recorded.gauges[POLL_AGE]) <= 3
    assert recorded.queues == {"orders"}


def test_the_poll_age_of_a_watcher_grows_while_the_queue_gives_errors(
    watched: WatchedQueue, recorded: Recorded
) -> None:
    async def scenario() -> None:
        triggerer = watched.triggerer()
        watcher = watched.watch(triggerer)
        await asyncio.sleep(30)
        triggerer.faults = lambda call: Fault(
            error=ACCESS_DENIED if call.operation is Operation.QUEUE_ATTRIBUTES else None
        )
        await asyncio.sleep(600)
        triggerer.faults = no_faults
        grown = list(recorded.gauges[POLL_AGE])
        recorded.gauges.clear()
        await asyncio.sleep(400)
        assert 580 <= max(grown) <= 610
        assert recorded.gauges[POLL_AGE][-1] <= 3
        await watcher.cancel()

    watched.run(scenario)


def test_the_poll_age_of_a_watcher_grows_while_its_connection_is_missing(
    watched: WatchedQueue, recorded: Recorded
) -> None:
    async def scenario() -> None:
        triggerer = watched.triggerer()
        triggerer.open_error = OSError("no connection")
        watcher = watched.watch(triggerer)
        await asyncio.sleep(300)
        await watcher.cancel()

    watched.run(scenario)
    assert max(recorded.gauges[POLL_AGE]) >= 290
