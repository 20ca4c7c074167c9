"""A DAG on git, as its first commit has it: an ApiError sends a message to the dead-letter queue."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task, task_group
from airflow.sdk.exceptions import AirflowFailException

from sqs_lease import by_exception, dead_letter, release
from sqs_lease.airflow import sqs_lease
from tests.processes.airflow.production_shapes.gated_work import PLACE, do


class ApiError(Exception):
    """An error that is known to this file only."""


@task
def check(message: dict[str, Any]) -> str:
    """Do what the message says."""
    body = str(message["Body"])
    do(message, ApiError if "api" in body else AirflowFailException)
    return body


@task
def store(body: str) -> None:
    """Leave a mark that the second version has not: this task starts after the commit of that one."""
    (Path(os.environ[PLACE]) / f"stored {body}").touch()


@task_group
def process(message: Any) -> None:
    """Two tasks for a message."""
    body: Any = check(message)
    store(body)


@dag(schedule=None)
def versions() -> None:
    """A lease whose rules change with the next commit."""
    rule = by_exception({ApiError: dead_letter()}, otherwise=release())
    with sqs_lease("orders", queue_url="versions", max_messages=20, linger=3, visibility=30, on_failure=rule) as orders:
        process.expand(message=orders)


versions()
