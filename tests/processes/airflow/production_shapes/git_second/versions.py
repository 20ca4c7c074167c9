"""The same DAG as its second commit has it: other tasks, and the failure rules the other way round."""

from __future__ import annotations

from typing import Any

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowFailException

from sqs_lease import by_exception, dead_letter, release
from sqs_lease.airflow import sqs_lease
from tests.processes.airflow.production_shapes.gated_work import do


class ApiError(Exception):
    """An error that is known to this file only."""


@task
def inspect(message: dict[str, Any]) -> None:
    """Do what the message says."""
    do(message, ApiError if "api" in message["Body"] else AirflowFailException)


@dag(schedule=None)
def versions() -> None:
    """A lease whose rules were others in the commit before."""
    rule = by_exception({ApiError: release()}, otherwise=dead_letter())
    with sqs_lease("orders", queue_url="versions", max_messages=20, linger=3, visibility=30, on_failure=rule) as orders:
        inspect.expand(message=orders)


versions()
