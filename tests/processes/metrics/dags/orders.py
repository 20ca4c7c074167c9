"""A DAG with a lease whose work ends when the test opens a gate, and one that messages start.

A body that begins with `bad` fails at once.
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event
from typing import Any

from airflow.sdk import Asset, AssetWatcher, dag, task
from airflow.sdk.exceptions import AirflowFailException

from sqs_lease import Fixed
from sqs_lease.airflow import SqsLeaseTrigger, sqs_lease

LOOK_SECONDS = 0.2

WATCHED = Asset("metrics_watched", watchers=[AssetWatcher(name="watched", trigger=SqsLeaseTrigger("airflow-watched"))])


@dag(schedule=None)
def orders() -> None:
    """A task for each message."""

    @task
    def check(message: dict[str, Any]) -> None:
        if message["Body"].startswith("bad"):
            raise AirflowFailException("this message can never be processed")
        while not Path(os.environ["METRICS_GATE"]).exists():
            Event().wait(LOOK_SECONDS)

    policy = Fixed(visibility=300, every=1)
    with sqs_lease("orders", queue_url="airflow-orders", max_messages=3, policy=policy) as messages:
        check.expand(message=messages)


@dag(schedule=WATCHED)
def watched() -> None:
    """Started by messages; none is sent."""

    @task
    def nothing() -> None:
        pass

    nothing()


orders()
watched()
