"""A DAG with an on_lost callback in its own file, which is refused when the file is parsed."""

from __future__ import annotations

from typing import Any

from airflow.sdk import dag, task
from airflow.sdk.definitions.callback import AsyncCallback

from sqs_lease.airflow import sqs_lease


async def notice(context: dict[str, Any]) -> None:
    """Never called."""


@task
def load(messages: list[dict[str, Any]]) -> None:
    """Never reached."""


@dag(schedule=None)
def on_lost_in_dag_file() -> None:
    """Never stored."""
    with sqs_lease("orders", queue_url="refused", on_lost=AsyncCallback(notice)) as orders:
        load(orders)


on_lost_in_dag_file()
