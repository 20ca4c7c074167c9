"""DAGs of the failover tests."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import dag, task

from sqs_lease.airflow import sqs_lease

POOL = "gate"
MESSAGES = int(os.environ["MESSAGES"])
VISIBILITY_SECONDS = float(os.environ["VISIBILITY_SECONDS"]) if "VISIBILITY_SECONDS" in os.environ else None


@task
def load(messages: list[dict[str, Any]]) -> None:
    """Nothing more than to succeed, once it may."""


@dag(schedule=None, max_active_runs=50)
def kept() -> None:
    """As many runs as keepers, on one queue; the work waits for a slot of a pool, for as long as the test wants."""
    # Not longer than the lease, so that the first renewal is due as the policy says.
    with sqs_lease(
        "orders", queue_url="kept", max_messages=MESSAGES, visibility=VISIBILITY_SECONDS, handoff_timeout=100
    ) as orders:
        load.override(pool=POOL)(orders)


@dag(schedule=None)
def handed() -> None:
    """One run, between whose receive and keeper the scheduler stands still."""
    with sqs_lease(
        "orders", queue_url="handed", max_messages=MESSAGES, visibility=float(os.environ["HANDED_VISIBILITY_SECONDS"])
    ) as orders:
        load(orders)


@dag(schedule=None)
def first_answer() -> None:
    """A run of which the test wants nothing but that a triggerer answers."""
    with sqs_lease("orders", queue_url="first_answer", max_messages=1) as orders:
        load(orders)


kept()
handed()
first_answer()
