"""Two DAGs with a lease each: the work on a message, or on a batch, ends when the test opens a gate.

A body that begins with `bad` fails for good at once.
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event
from typing import Any

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowFailException

from sqs_lease import Fixed
from sqs_lease.airflow import sqs_lease

LOOK_SECONDS = 0.2


def wait_for_gate() -> None:
    """Wait until the test lets the work end."""
    while not Path(os.environ["PAGES_GATE"]).exists():
        Event().wait(LOOK_SECONDS)


@dag(schedule=None)
def orders() -> None:
    """A task for each message."""

    @task
    def check(message: dict[str, Any]) -> None:
        if message["Body"].startswith("bad"):
            raise AirflowFailException("this message can never be processed")
        wait_for_gate()

    with sqs_lease("orders", queue_url="orders", max_messages=3, policy=Fixed(visibility=300, every=100)) as messages:
        check.expand(message=messages)


@dag(schedule=None)
def invoices() -> None:
    """One task over the batch."""

    @task
    def load(messages: list[dict[str, Any]]) -> None:
        wait_for_gate()

    with sqs_lease("invoices", queue_url="invoices", max_messages=40, visibility=600) as messages:
        load(messages)


@dag(schedule=None)
def plain() -> None:
    """No lease at all."""

    @task
    def nothing() -> None:
        pass

    nothing()


orders()
invoices()
plain()
