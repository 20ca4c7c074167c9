"""The backlog sensor under the code of Dagster's own daemon, which is cut off at the worst moments."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from time import time

import dagster as dg
import pytest
from dagster._core.test_utils import freeze_time
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster._daemon.sensor import SensorLaunchContext, execute_sensor_iteration

from sqs_lease.dagster.backlog_sensor import SENSOR_TAG
from sqs_lease.testing import LeasedQueue, LeasedQueues
from tests.dagster.backlog_sensor.origins import InProcessCodeLocationOrigin
from tests.dagster.instances import stored_instance

MODULE = "tests.dagster.backlog_sensor.backlog_definitions"


class PowerCut(KeyboardInterrupt):
    """The end of a daemon without power: it writes nothing after that."""


@pytest.fixture
def queue(leased_queues: LeasedQueues) -> LeasedQueue:
    return leased_queues.create("orders", "an order")


@dataclass
class Daemon:
    workspace: WorkspaceProcessContext
    instance: dg.DagsterInstance
    now: float

    def iterate(self) -> list[dg.DagsterRun]:
        """One round of the daemon, a minute after the one before; returns all runs, the newest first."""
        self.now += 60
        logger = logging.getLogger("daemon")
        with freeze_time(self.now):
            list(execute_sensor_iteration(self.workspace, logger, None, None))
        return list(self.instance.get_runs())


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    origin = InProcessCodeLocationOrigin(LoadableTargetOrigin(module_name=MODULE), location_name="orders_location")
    with (
        stored_instance() as instance,
        WorkspaceProcessContext(instance, InProcessWorkspaceLoadTarget(origin)) as workspace,
    ):
        yield Daemon(workspace, instance, time())


def test_a_run_is_queued_with_the_tag_by_which_it_is_found_again(queue: LeasedQueue, daemon: Daemon) -> None:
    (run,) = daemon.iterate()
    assert run.status is dg.DagsterRunStatus.QUEUED
    assert run.tags[SENSOR_TAG] == "orders_backlog@orders_location"
    assert len(daemon.iterate()) == 1


@pytest.mark.parametrize("moment", ["before the launch", "after the launch"])
def test_a_daemon_that_dies_in_the_middle_starts_no_second_run(
    queue: LeasedQueue, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def cut(*_: object, **__: object) -> None:
        raise PowerCut

    with monkeypatch.context() as patch:
        if moment == "before the launch":
            patch.setattr(type(daemon.instance.run_coordinator), "submit_run", cut)
        else:
            patch.setattr(SensorLaunchContext, "add_run_info", cut)
        with pytest.raises(PowerCut):
            daemon.iterate()
    for run in daemon.instance.get_runs():
        # However it went on: the sensor may start another one now, if it believes that this one was not started.
        daemon.instance.report_run_canceled(run)
    assert len(daemon.iterate()) == 1
    assert len(daemon.iterate()) == 2


def test_an_evaluation_without_a_stored_result_starts_no_second_run(
    queue: LeasedQueue, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = daemon.iterate()
    daemon.instance.report_run_canceled(first)
    with monkeypatch.context() as patch:
        # The evaluation's end is not written: neither its cursor nor what it launched.
        patch.setattr(SensorLaunchContext, "_write", lambda context: None)
        (second, _) = daemon.iterate()
    assert second.tags["dagster/run_key"] != first.tags["dagster/run_key"]
    daemon.instance.report_run_canceled(second)
    assert len(daemon.iterate()) == 2
