"""A sensor whose queue is gone or denied has failed ticks, which Dagster alerts of, and comes back by itself."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.scheduler.instigation import TickStatus
from dagster._core.test_utils import freeze_time
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster._daemon.sensor import execute_sensor_iteration

from sqs_lease.sqs.errors import AccessDeniedError, EndpointUnreachableError, SqsError
from sqs_lease.testing import LeasedQueues, MemoryTransport
from tests.dagster.instances import stored_instance

DEFINITIONS = "tests.scenarios.dagster.sensor_definitions"
SENSORS = ("backlog", "lease")


@dataclass
class Daemon:
    workspace: WorkspaceProcessContext
    instance: dg.DagsterInstance
    now: float

    def iterate(self) -> dict[str, tuple[TickStatus, str]]:
        """One round, a minute after the one before: the new tick of each sensor, and the text of its error."""
        self.now += 60
        with freeze_time(self.now):
            list(execute_sensor_iteration(self.workspace, logging.getLogger("daemon"), None, None))
        ticks: dict[str, tuple[TickStatus, str]] = {}
        for location in self.workspace.create_request_context().code_locations:
            for sensor in location.get_repository("__repository__").get_sensors():
                (tick,) = self.instance.get_ticks(sensor.get_remote_origin_id(), sensor.selector_id, limit=1)
                ticks[sensor.name] = tick.status, "" if tick.error is None else tick.error.to_string()
        return ticks


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leased_queues: LeasedQueues) -> Iterator[Daemon]:
    monkeypatch.setenv("WORKSPACE", str(tmp_path))
    # It is loaded again, for this test's workspace.
    monkeypatch.delitem(sys.modules, DEFINITIONS, raising=False)
    target = LoadableTargetOrigin(module_name=DEFINITIONS)
    origin = InProcessCodeLocationOrigin(target, location_name="orders_location")
    with (
        stored_instance() as instance,
        WorkspaceProcessContext(instance, InProcessWorkspaceLoadTarget(origin)) as workspace,
    ):
        yield Daemon(workspace, instance, time())


def test_ticks_on_a_queue_that_is_gone_fail_by_its_name_and_what_to_do_until_it_is_back(
    daemon: Daemon, leased_queues: LeasedQueues
) -> None:
    for _ in range(2):
        for status, error in daemon.iterate().values():
            assert status is TickStatus.FAILURE
            assert "QueueNotFoundError" in error
            assert "orders" in error
            assert "region" in error, "what to look at"
    leased_queues.create("orders", *["an order"] * 20)
    assert {name: status for name, (status, _) in daemon.iterate().items()} == dict.fromkeys(
        SENSORS, TickStatus.SUCCESS
    )


def failing(error: SqsError) -> Any:
    async def fail(*arguments: Any, **options: Any) -> None:
        raise error

    return fail


def test_ticks_on_a_queue_that_is_denied_fail_by_what_is_denied_until_it_is_not(
    daemon: Daemon, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    leased_queues.create("orders", *["an order"] * 20)
    with monkeypatch.context() as patch:
        denied = AccessDeniedError("access to orders is denied: allow sqs:GetQueueAttributes")
        patch.setattr(MemoryTransport, "queue_url", failing(denied))
        for status, error in daemon.iterate().values():
            assert status is TickStatus.FAILURE
            assert "allow sqs:GetQueueAttributes" in error
    assert all(status is TickStatus.SUCCESS for status, _ in daemon.iterate().values())


def test_a_service_that_stays_out_of_reach_is_not_a_reason_to_skip_for_ever(
    daemon: Daemon, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    leased_queues.create("orders", *["an order"] * 20)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryTransport, "queue_url", failing(EndpointUnreachableError("no connection for orders")))
        assert all(status is TickStatus.SKIPPED for status, _ in daemon.iterate().values())
        # They count by the clock of the machine, which the test does not move.
        patch.setattr("sqs_lease.dagster.dispatch.UNREADABLE_SECONDS", 0.0)
        for status, error in daemon.iterate().values():
            assert status is TickStatus.FAILURE
            assert "no connection for orders" in error
    assert all(status is TickStatus.SUCCESS for status, _ in daemon.iterate().values())
