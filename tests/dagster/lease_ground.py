"""A queue in memory, a directory and keepers of a lease sensor on them, with runs as Dagster has them.

Dagster reads the annotations of ops, so this module has no postponed ones.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import enumerate as threads
from typing import Any

import dagster as dg
from dagster._core.test_utils import create_run_for_test

from sqs_lease.core.policies import Fixed
from sqs_lease.dagster import SqsQueueResource
from sqs_lease.dagster.lease_sensor.host import LeaseHost
from sqs_lease.dagster.lease_sensor.settings import HostSettings, Request, Tick
from sqs_lease.dagster.run_batch.leased_batch import BATCH_TAG
from sqs_lease.keeper.options import LeaseOptions
from sqs_lease.testing import LeasedQueues, MemoryTransport, ScriptedFaults

Status = dg.DagsterRunStatus


@dg.op
def load(context: dg.OpExecutionContext) -> None:
    with SqsQueueResource(queue=os.environ.get("ORDERS_QUEUE", "orders")).lease(context) as batch:
        for message in batch:
            if message.body == "bad":
                batch.fail(message, "it is bad")
            if message.body == "raise":
                raise ZeroDivisionError


@dg.job(executor_def=dg.in_process_executor)
def loading() -> None:
    load()


def eventually(seen: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 600
    while not seen():
        assert time.monotonic() < deadline, f"not within 600 s: {what}"
        time.sleep(0.02)


class Ground:
    """A queue, a directory, and the hosts on them."""

    def __init__(self, instance: dg.DagsterInstance, directory: Path) -> None:
        self.instance = instance
        self.directory = directory / "sensor"
        self.queues = LeasedQueues()
        self.queue = self.queues.create("orders", visibility_seconds=600)
        self.hosts: list[LeaseHost] = []
        self.faults = ScriptedFaults()

    def host(self, **changed: Any) -> LeaseHost:
        settings = HostSettings(
            sensor="orders",
            deployment="ours",
            uri=str(self.directory),
            queue=self.queue.url,
            options=LeaseOptions.of(wait=0, linger=0, policy=Fixed(visibility=600, every=300)),
            max_batches=1,
            run_deadline_seconds=3600,
            look_seconds=0.05,
            fence_seconds=0.2,
        )
        instance = dg.DagsterInstance.from_ref(self.instance.get_ref())
        of_lease = {name: changed.pop(name) for name in LeaseOptions.__slots__ if name in changed}
        settings = replace(settings, options=replace(settings.options, **of_lease), **changed)
        host = LeaseHost(settings, instance, lambda: MemoryTransport(self.queues.sqs, faults=self.faults))
        self.hosts.append(host)
        return host

    def tick(self, host: LeaseHost) -> Tick:
        tick = host.tick()
        assert tick is not None
        return tick

    def request(self, host: LeaseHost) -> Request:
        (request,) = self.tick(host).requests
        return request

    def work(self, request: Request) -> dg.ExecuteInProcessResult:
        """Execute the run that was asked for."""
        return loading.execute_in_process(instance=self.instance, tags=tags(request), raise_on_error=False)

    def run(self, request: Request, status: Status, **more: Any) -> dg.DagsterRun:
        """A run as Dagster would have it, of which nothing is executed."""
        run: dg.DagsterRun = create_run_for_test(
            self.instance, "loading", status=status, tags={**tags(request), **more.pop("tags", {})}, **more
        )
        return run

    def end(self, run: dg.DagsterRun, status: Status) -> None:
        event = {
            Status.FAILURE: dg.DagsterEventType.RUN_FAILURE,
            Status.CANCELED: dg.DagsterEventType.RUN_CANCELED,
            Status.SUCCESS: dg.DagsterEventType.RUN_SUCCESS,
        }[status]
        from dagster._core.events import DagsterEvent

        self.instance.report_dagster_event(DagsterEvent(event.value, run.job_name), run.run_id)

    def batches(self) -> list[str]:
        return [path.name for path in self.directory.iterdir() if path.is_dir()]

    def is_settled(self) -> bool:
        return not self.batches()


def tags(request: Request) -> dict[str, str]:
    return {BATCH_TAG: request.uri, "dagster/run_key": request.batch_id}


def kill(host: LeaseHost) -> None:
    """End a host as the death of its process does: nothing is called, and its claim stays."""
    host._ownership.leave = lambda: None  # type: ignore[method-assign]
    host.end()


def end_waiting_for_runs(host: LeaseHost) -> None:
    """From now on, wait no longer for a run that does not appear."""
    host._settler._run_deadline_seconds = 0.0


def is_closed(host: LeaseHost) -> bool:
    """Whether a host that gave up has done all that it does then, its thread last but one."""
    return host.is_over and host._thread.is_stopped and not host._gate.locked()


def keepers() -> int:
    return sum(thread.name == "sqs-lease sensor orders" for thread in threads())
