"""DAGs of the end-to-end tests that messages start: each takes from a queue of its own, whose name is the DAG's id."""

from __future__ import annotations

from datetime import timedelta
from threading import Event
from time import time
from typing import Any

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import Asset, AssetWatcher, dag, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException

from sqs_lease.airflow import SqsLeaseTrigger, sqs_lease
from sqs_lease.core.settlements import release

VISIBILITY_SECONDS = 6
LONG_WORK_SECONDS = 20


def queue_asset(name: str, **arguments: Any) -> Asset:
    """The asset of a queue, with the trigger that watches it."""
    trigger = SqsLeaseTrigger(name, visibility=VISIBILITY_SECONDS, **arguments)
    return Asset(name, watchers=[AssetWatcher(f"{name} watcher", trigger=trigger)])


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
            trigger=MessageQueueTrigger(
                scheme="sqs+lease", queue_url="started", linger=2.0, visibility=VISIBILITY_SECONDS
            ),
        )
    ],
)
together = queue_asset("together", max_messages=1, linger=0)
failing = queue_asset("failing", linger=0)
paused = queue_asset("paused", handoff_timeout=5)
shared = queue_asset("shared", max_messages=2, linger=0)


@dag(dag_id="started", schedule=started)
def started_dag() -> None:
    @task
    def load(messages: list[dict[str, Any]]) -> None:
        work(messages, LONG_WORK_SECONDS)

    with sqs_lease("orders", event=started) as orders:
        load(orders)


@dag(dag_id="together", schedule=together, max_active_runs=1)
def together_dag() -> None:
    @task
    def load(messages: list[dict[str, Any]]) -> None:
        work(messages, 8)

    with sqs_lease("orders", event=together) as orders:
        load(orders)


@dag(dag_id="failing", schedule=failing)
def failing_dag() -> None:
    @task
    def load(messages: list[dict[str, Any]]) -> None:
        work(messages, 0)
        raise AirflowFailException("this message can never be processed")

    with sqs_lease("orders", event=failing, on_failure=release(timedelta(seconds=10))) as orders:
        load(orders)


@dag(dag_id="paused", schedule=paused)
def paused_dag() -> None:
    @task
    def load(messages: list[dict[str, Any]]) -> None:
        """Never reached."""

    with sqs_lease("orders", event=paused) as orders:
        load(orders)


def reader(dag_id: str) -> None:
    """One of two DAGs that read from the same queue."""

    @dag(dag_id=dag_id, schedule=shared)
    def read() -> None:
        @task
        def load(messages: list[dict[str, Any]]) -> None:
            work(messages, 1)

        with sqs_lease("orders", event=shared) as orders:
            load(orders)

    read()


started_dag()
together_dag()
failing_dag()
paused_dag()
reader("reader_a")
reader("reader_b")
