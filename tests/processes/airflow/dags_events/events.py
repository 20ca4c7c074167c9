"""DAGs of the end-to-end tests that messages start: each takes from a queue of its own, whose name is the DAG's id."""

from __future__ import annotations

from threading import Event
from time import time
from typing import Any

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import Asset, AssetWatcher, dag, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException

from sqs_lease.airflow import SqsLeaseTrigger, sqs_lease

VISIBILITY_SECONDS = 12
"""Where the work takes longer; a third of it is left for an extension that a busy machine delays."""
LONG_WORK_SECONDS = 37


def queue_asset(name: str) -> Asset:
    """The asset of a queue, with the trigger that watches it."""
    return Asset(name, watchers=[AssetWatcher(f"{name} watcher", trigger=SqsLeaseTrigger(name))])


def work(messages: list[dict[str, Any]], seconds: float) -> None:
    """Take some time, as work does, and leave when that ended and what it was on."""
    Event().wait(seconds)
    task_instance = get_current_context()["ti"]
    task_instance.xcom_push(key="ended_at", value=time())
    task_instance.xcom_push(key="bodies", value=[message["Body"] for message in messages])


started = Asset(
    "started",
    watchers=[
        AssetWatcher(
            "started watcher",
            trigger=MessageQueueTrigger(scheme="sqs+lease", queue_url="started"),
        )
    ],
)
together = queue_asset("together")
failing = queue_asset("failing")
paused = queue_asset("paused")
shared = queue_asset("shared")
survivor = queue_asset("survivor")


@dag(dag_id="started", schedule=started)
def started_dag() -> None:
    @task
    def load(messages: list[dict[str, Any]]) -> None:
        work(messages, LONG_WORK_SECONDS)

    with sqs_lease("orders", event=started, linger=2.0, visibility=VISIBILITY_SECONDS) as orders:
        load(orders)


@dag(dag_id="failing", schedule=failing)
def failing_dag() -> None:
    @task
    def load(messages: list[dict[str, Any]]) -> None:
        work(messages, 0)
        raise AirflowFailException("this message can never be processed")

    with sqs_lease("orders", event=failing) as orders:
        load(orders)


def short_work(dag_id: str, asset: Asset, **options: Any) -> None:
    """A DAG that works shortly on what starts it."""

    @dag(dag_id=dag_id, schedule=asset)
    def process() -> None:
        @task
        def load(messages: list[dict[str, Any]]) -> None:
            work(messages, 1)

        with sqs_lease("orders", event=asset, **options) as orders:
            load(orders)

    process()


started_dag()
failing_dag()
short_work("together", together)
short_work("paused", paused)
short_work("survivor", survivor)
short_work("reader_a", shared, max_messages=2, linger=0)
short_work("reader_b", shared, max_messages=2, linger=0)
