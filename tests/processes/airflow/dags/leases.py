"""DAGs of the end-to-end tests: each takes from a queue of its own, whose name is the DAG's id."""

from __future__ import annotations

from datetime import timedelta
from threading import Event
from time import time
from typing import Any

from airflow.sdk import dag, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException

from sqs_lease.airflow import sqs_lease

VISIBILITY_SECONDS = 12
"""A third of it is left for an extension that a busy machine delays."""
HANDOFF_SECONDS = 75
"""Shorter than the work, so that the keeper must extend; longer than the keeper needs to begin."""
WORK_SECONDS = 75


def work(seconds: float) -> None:
    """Take some time, as work does."""
    Event().wait(seconds)


@task(retries=1, retry_delay=timedelta(seconds=1))
def check(message: dict[str, Any]) -> None:
    """Work on one message as its body says, and leave the time when that ended."""
    task_instance = get_current_context()["ti"]
    if message["Body"] == "flaky" and task_instance.try_number == 1:
        raise RuntimeError("the next try will succeed")
    work(WORK_SECONDS / 2 if message["Body"] == "poison" else WORK_SECONDS)
    task_instance.xcom_push(key="ended_at", value=time())
    if message["Body"] == "poison":
        raise AirflowFailException("this message can never be processed")


@dag(schedule=None)
def first() -> None:
    """Its run waits for the first answers of Airflow's processes: a minute on a busy machine."""

    @task
    def load(messages: list[dict[str, Any]]) -> None:
        """Nothing more than to succeed."""

    with sqs_lease("orders", queue_url="first") as orders:
        load(orders)


@dag(schedule=None)
def per_message() -> None:
    with sqs_lease(
        "orders",
        queue_url="per_message",
        max_messages=4,
        linger=2,
        visibility=VISIBILITY_SECONDS,
        handoff_timeout=HANDOFF_SECONDS,
        timeout=60,
    ) as orders:
        check.expand(message=orders)


@dag(schedule=None)
def never_extended() -> None:
    with sqs_lease(
        "orders", queue_url="never_extended", policy="never", visibility=VISIBILITY_SECONDS, timeout=60
    ) as orders:
        check.expand(message=orders)


@dag(schedule=None)
def whole_batch() -> None:
    @task
    def load(messages: list[dict[str, Any]]) -> dict[str, Any]:
        work(WORK_SECONDS)
        get_current_context()["ti"].xcom_push(key="ended_at", value=time())
        failed = [message["MessageId"] for message in messages if message["Body"] == "bad"]
        return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}

    with sqs_lease(
        "orders",
        queue_url="whole_batch",
        max_messages=20,
        linger=2,
        visibility=VISIBILITY_SECONDS,
        handoff_timeout=HANDOFF_SECONDS,
        timeout=60,
    ) as orders:
        load(orders)


NO_MESSAGES_RETRIES = 4


@dag(schedule=None, default_args={"retries": NO_MESSAGES_RETRIES, "retry_delay": timedelta(seconds=1)})
def no_messages_fail() -> None:
    @task
    def load(messages: list[dict[str, Any]]) -> None:
        """Never reached."""

    with sqs_lease("orders", queue_url="no_messages_fail", timeout=2) as orders:
        load(orders)


@dag(schedule=None)
def no_messages_skip() -> None:
    @task
    def load(messages: list[dict[str, Any]]) -> None:
        """Never reached."""

    with sqs_lease("orders", queue_url="no_messages_skip", timeout=2, soft_fail=True) as orders:
        load(orders)


@dag(schedule=None, default_args={"retries": 2, "retry_delay": timedelta(seconds=1)})
def no_such_queue() -> None:
    @task
    def load(messages: list[dict[str, Any]]) -> None:
        """Never reached."""

    with sqs_lease("orders", queue_url="no_such_queue", timeout=60) as orders:
        load(orders)


first()
per_message()
never_extended()
whole_batch()
no_messages_fail()
no_messages_skip()
no_such_queue()
