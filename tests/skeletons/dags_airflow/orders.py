"""The DAG of Airflow's walking skeleton: the README's pattern, with work that ends when the test allows it."""

from __future__ import annotations

import os
from pathlib import Path
from time import sleep
from typing import Any

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowFailException

from sqs_lease.airflow import sqs_lease

LOOK_SECONDS = 0.2


@task(retries=2)
def check(message: dict[str, Any]) -> None:
    """Note that the work on a message began, and end it when that is allowed: for the poison, by failing for good."""
    notes = Path(os.environ["SKELETON_NOTES"])
    (notes / f"{message['Body']}.began").touch()
    while not (notes / f"{message['Body']}.may-end").exists():
        sleep(LOOK_SECONDS)
    if message["Body"] == "poison":
        raise AirflowFailException("this message can never be processed")


@dag(schedule=None)
def orders() -> None:
    visibility_seconds = float(os.environ["SKELETON_VISIBILITY_SECONDS"])
    with sqs_lease(
        "orders",
        queue_url="airflow-skeleton",
        max_messages=int(os.environ["SKELETON_MESSAGES"]),
        visibility=visibility_seconds,
        # No longer, so that the keeper has to extend them.
        handoff_timeout=visibility_seconds,
    ) as messages:
        check.expand(message=messages)


orders()
