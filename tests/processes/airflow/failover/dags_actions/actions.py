"""DAGs of the tests of user actions: each takes from a queue of its own, whose name is the DAG's id.

The work of most of them waits for a slot of a pool, which costs nothing; the work of the others runs until it is
ended, or cleared.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any, NoReturn

from airflow.sdk import dag, get_current_context, task

from sqs_lease.airflow import SqsLeaseKeeperOperator, SqsLeaseSensor, sqs_lease

GATE = "gate"
"""A pool without slots, until the test opens it for the work whose keeper was cleared."""

CLOSED = "closed"
"""A pool that never has slots."""

HANDOFF_SECONDS = 15
HANDED_VISIBILITY_SECONDS = 12
"""Shorter than the hand-off: a lease that lasts longer is left alone."""
SHORT_VISIBILITY_SECONDS = 21
RUN_TIMEOUT_SECONDS = 110
DEFERRAL_SECONDS = 25

WAITING = ("keeper_failed", "keeper_success", "kept_dag_deleted", "pending_run_success")
RUNNING = (
    "work_failed",
    "work_success",
    "run_failed",
    "run_success",
    "run_cleared",
    "task_killed",
    "supervisor_killed",
)
STAGED = ("stages_run_failed", "stages_run_success")
NEVER_KEPT = ("pool_full", "dag_deleted")


@task(pool=CLOSED)
def wait(messages: list[dict[str, Any]]) -> None:
    """Nothing more than to succeed, once it may."""


@task
def run(messages: list[dict[str, Any]]) -> None:
    """Tell which process this is, and run until it is ended; when it was cleared, succeed."""
    context = get_current_context()
    told = Path(os.environ["PROCESSES"]) / context["dag"].dag_id
    unfinished = told.with_suffix(".unfinished")
    unfinished.write_text(f"{os.getpid()} {os.getppid()}")
    unfinished.rename(told)
    if context["ti"].try_number == 1:
        Event().wait(600)


@task
def extract(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first of two stages: it succeeds at once."""
    return messages


def stages(messages: Any) -> None:
    """Two stages, of which the second one never has a slot."""
    extracted: Any = extract(messages)
    wait(extracted)


def lease_dag(name: str, work: Any, *, run_timeout: timedelta | None = None, **arguments: Any) -> None:
    """A DAG with a lease over one task."""

    @dag(dag_id=name, schedule=None, dagrun_timeout=run_timeout)
    def one_lease() -> None:
        with sqs_lease("orders", queue_url=name, max_messages=2, **arguments) as orders:
            work(orders)

    one_lease()


class ImpatientSensor(SqsLeaseSensor):
    """A sensor that Airflow ends while it still waits for more messages."""

    def defer(self, **arguments: Any) -> NoReturn:
        super().defer(**{**arguments, "timeout": timedelta(seconds=DEFERRAL_SECONDS)})


class ImpatientKeeper(SqsLeaseKeeperOperator):
    """A keeper whose deferral Airflow ends."""

    def defer(self, **arguments: Any) -> NoReturn:
        super().defer(**{**arguments, "timeout": timedelta(seconds=DEFERRAL_SECONDS)})


def operators_dag(name: str, sensor: SqsLeaseSensor, keeper_class: type[SqsLeaseKeeperOperator], **keeper: Any) -> None:
    """The tasks of a lease, each by itself, in the DAG that the sensor is in."""
    messages: Any = sensor.output
    wait(messages)
    keep = keeper_class(
        task_id="orders_keeper",
        receive_task_id="orders",
        work_task_ids=["wait"],
        handoff_timeout=HANDOFF_SECONDS,
        **keeper,
    )
    keep.as_teardown(setups=sensor)


@dag(schedule=None)
def sensor_deferral() -> None:
    sensor = ImpatientSensor(task_id="orders", queue_url="sensor_deferral", max_messages=10, linger=300)
    operators_dag("sensor_deferral", sensor, SqsLeaseKeeperOperator)


@dag(schedule=None)
def keeper_deferral() -> None:
    sensor = SqsLeaseSensor(
        task_id="orders",
        queue_url="keeper_deferral",
        max_messages=2,
        visibility=SHORT_VISIBILITY_SECONDS,
        handoff_timeout=HANDOFF_SECONDS,
    )
    operators_dag("keeper_deferral", sensor, ImpatientKeeper)


@dag(schedule=None)
def dag_paused() -> None:
    """Its sensor waits for a second message, which comes when the DAG is paused."""
    sensor = SqsLeaseSensor(
        task_id="orders",
        queue_url="dag_paused",
        max_messages=2,
        linger=300,
        visibility=HANDED_VISIBILITY_SECONDS,
        handoff_timeout=HANDOFF_SECONDS,
    )
    operators_dag("dag_paused", sensor, SqsLeaseKeeperOperator)


def never_kept(name: str) -> None:
    """A DAG whose keeper has no slot."""

    @dag(dag_id=name, schedule=None)
    def without_keeper() -> None:
        sensor = SqsLeaseSensor(
            task_id="orders",
            queue_url=name,
            max_messages=2,
            visibility=HANDED_VISIBILITY_SECONDS,
            handoff_timeout=HANDOFF_SECONDS,
        )
        operators_dag(name, sensor, SqsLeaseKeeperOperator, pool=CLOSED)

    without_keeper()


for each in WAITING:
    lease_dag(each, wait)
for each in RUNNING:
    lease_dag(each, run)
for each in STAGED:
    lease_dag(each, stages)
for each in NEVER_KEPT:
    never_kept(each)
lease_dag("keeper_cleared", wait.override(pool=GATE), visibility=SHORT_VISIBILITY_SECONDS)
lease_dag("work_cleared", run, visibility=SHORT_VISIBILITY_SECONDS)
lease_dag("run_timeout", wait, run_timeout=timedelta(seconds=RUN_TIMEOUT_SECONDS))
sensor_deferral()
keeper_deferral()
dag_paused()
