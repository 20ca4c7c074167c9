"""DAGs with a filter function and an on_lost callback in a module of the git repository."""

from __future__ import annotations

from typing import Any

from airflow.sdk import dag, task
from airflow.sdk.definitions.callback import AsyncCallback

from sqs_lease.airflow import sqs_lease
from tests.processes.airflow.production_shapes.gated_work import do


@task
def check(message: dict[str, Any]) -> None:
    """Do what the message says."""
    do(message)


@dag(schedule=None)
def filter_beside() -> None:
    """Its triggerer cannot import the filter, so it receives nothing."""
    with sqs_lease(
        "orders",
        queue_url="filter_beside",
        message_filtering="callable",
        message_filtering_config="beside_dag_files.is_order",
    ) as orders:
        check.expand(message=orders)


@dag(schedule=None)
def on_lost_beside() -> None:
    """Its triggerer cannot import the callback, and holds the messages all the same."""
    with sqs_lease(
        "orders", queue_url="on_lost_beside", max_messages=20, on_lost=AsyncCallback("beside_dag_files.notice")
    ) as orders:
        check.expand(message=orders)


filter_beside()
on_lost_beside()
