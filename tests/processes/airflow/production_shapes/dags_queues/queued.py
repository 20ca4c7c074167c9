"""DAGs whose triggers belong to queues of triggerers; the queue in SQS is named like the DAG."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import Asset, AssetWatcher, dag, task

from sqs_lease.airflow import SqsLeaseTrigger, sqs_lease
from tests.processes.airflow.production_shapes.gated_work import do

LEASES = "leases"
LATE = "late"
"""Two queues of triggerers."""

VISIBILITY_SECONDS = float(os.environ["VISIBILITY_SECONDS"])
LATE_VISIBILITY_SECONDS = float(os.environ["LATE_VISIBILITY_SECONDS"])


@task
def check(message: dict[str, Any]) -> None:
    """Do what the message says, on a worker of the default queue."""
    do(message)


@dag(schedule=None)
def queued() -> None:
    """Both triggers on one queue."""
    with sqs_lease(
        "orders", queue_url="queued", max_messages=20, linger=3, visibility=VISIBILITY_SECONDS, queue=LEASES
    ) as orders:
        check.expand(message=orders)


@dag(schedule=None)
def late_keeper() -> None:
    """A keeper whose queue no triggerer serves at first."""
    with sqs_lease(
        "orders",
        queue_url="late_keeper",
        max_messages=20,
        linger=3,
        visibility=LATE_VISIBILITY_SECONDS,
        queue=LEASES,
        keeper_arguments={"queue": LATE},
    ) as orders:
        check.expand(message=orders)


@dag(schedule=None)
def late() -> None:
    """A sensor and a keeper whose queue no triggerer serves at first; the sensor receives in its worker."""
    with sqs_lease(
        "orders", queue_url="late", max_messages=20, linger=3, visibility=VISIBILITY_SECONDS, queue=LATE
    ) as orders:
        check.expand(message=orders)


watched = Asset("watched", watchers=[AssetWatcher(name="watched", trigger=SqsLeaseTrigger("watched"))])


@dag(schedule=[watched])
def by_event() -> None:
    """A run that messages start: its watcher is of no queue, its keeper of the same as the others."""
    with sqs_lease(
        "orders", event=watched, max_messages=20, linger=3, visibility=VISIBILITY_SECONDS, queue=LEASES
    ) as orders:
        check.expand(message=orders)


queued()
late_keeper()
late()
by_event()
