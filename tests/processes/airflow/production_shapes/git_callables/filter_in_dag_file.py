"""A DAG with a filter function in its own file, which is refused when the file is parsed."""

from __future__ import annotations

from typing import Any

from airflow.sdk import dag, task

from sqs_lease.airflow import sqs_lease


def is_order(message: dict[str, Any]) -> bool:
    """Let every message through."""
    return True


@task
def load(messages: list[dict[str, Any]]) -> None:
    """Never reached."""


@dag(schedule=None)
def filter_in_dag_file() -> None:
    """Never stored."""
    with sqs_lease(
        "orders",
        queue_url="refused",
        message_filtering="callable",
        message_filtering_config="filter_in_dag_file.is_order",
    ) as orders:
        load(orders)


filter_in_dag_file()
