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


def queue_asset(name: str, **arguments: Any) -> Asset:
    """The asset of a queue, with the trigger that watches it."""
    trigger = SqsLeaseTrigger(name, **arguments)
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
paused = queue_asset("paused")
shared = queue_asset("shared", max_messages=2, linger=0)
# However long a new triggerer takes to start on a busy machine: the default is made for one that starts within 30 s.
survivor = queue_asset("survivor", visibility=600)


@dag(dag_id="started", schedule=started)
def started_dag() -> None:
    @task
    def load(messages: list[dict[str, Any]]) -> None:
        work(messages, LONG_WORK_SECONDS)

    with sqs_lease("orders", event=started) as orders:
        load(orders)


@dag(dag_id="failing", schedule=failing)
def failing_dag() -> None:
    @task
    def load(messages: list[dict[str, Any]]) -> None:
        work(messages, 0)
        raise AirflowFailException("this message can never be processed")

    with sqs_lease("orders", event=failing) as orders:
        load(orders)


def short_work(dag_id: str, asset: Asset) -> None:
    """A DAG that works shortly on what starts it."""

    @dag(dag_id=dag_id, schedule=asset)
    def process() -> None:
        @task
        def load(messages: list[dict[str, Any]]) -> None:
            work(messages, 1)

        with sqs_lease("orders", event=asset) as orders:
            load(orders)

    process()


started_dag()
failing_dag()
short_work("together", together)
short_work("paused", paused)
short_work("survivor", survivor)
short_work("reader_a", shared)
short_work("reader_b", shared)
