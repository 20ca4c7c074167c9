"""DAGs of the test of messages that start runs of other DAGs: one DAG for each queue, and the DAGs of their runs."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event
from time import time
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import BaseOperator, dag, literal, task
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import StartTriggerArgs

from sqs_lease.airflow import sqs_lease

CLOSED = "closed"
"""A pool that never has slots."""

POKE_SECONDS = 5
WORK_SECONDS = 45
"""How long each run takes at least.

A run may not be over before the process that asked for it: Airflow 3.3 takes a task for failed if its trigger fires
while the process that deferred it has not ended, which on a busy machine is more than ten seconds later.
"""

QUEUES = {"routed": 100, "cleared": 4, "redelivered": 4}
"""How many messages each queue has; each is also the id of the DAG that receives from it."""

DAG_OF_KIND = {"empty": "empty_work", "work": "real_work", "held": "held_work", "paused": "paused_work"}


def run_of(message: Any) -> dict[str, Any]:
    """Return the arguments of a message's run."""
    order = json.loads(message["Body"])
    return {
        "trigger_dag_id": DAG_OF_KIND[order["kind"]],
        "trigger_run_id": f"message-{message['MessageId']}",
        "conf": literal({"order": order}),
    }


def receiving_dag(name: str, messages: int) -> None:
    """A DAG that starts a run for each message of its queue."""

    @dag(dag_id=name, schedule=None, max_active_runs=4)
    def routed() -> None:
        # It waits until all have come, so that the messages of a run are known.
        with sqs_lease("orders", queue_url=name, max_messages=messages, linger=30) as orders:
            TriggerDagRunOperator.partial(
                task_id="run",
                reset_dag_run=True,
                wait_for_completion=True,
                deferrable=True,
                poke_interval=POKE_SECONDS,
            ).expand_kwargs(orders.map(run_of))

    routed()


class Wait(BaseOperator):
    """Takes a while, without a worker."""

    start_from_trigger = True
    start_trigger_args = StartTriggerArgs(
        trigger_cls="airflow.providers.standard.triggers.temporal.TimeDeltaTrigger",
        trigger_kwargs={"delta": timedelta(seconds=WORK_SECONDS), "end_from_trigger": True},
        next_method="execute_complete",
    )


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Do the work on one message, write down when, and notice if another process does the same."""
    place = Path(os.environ["WORK"]) / name
    with place.with_suffix(".lock").open("w") as lock, place.with_suffix(".log").open("a") as log:
        try:
            # A process that is killed gives it back.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            place.with_suffix(".overlap").touch()
        print("began", time(), file=log, flush=True)
        try:
            yield
        finally:
            print("ended", time(), file=log, flush=True)


def may_go(name: str) -> bool:
    """Whether the test lets the work on a message end."""
    return (Path(os.environ["WORK"]) / f"{name}.go").exists()


@dag(schedule=None, max_active_runs=100)
def real_work() -> None:
    @task(retries=1, retry_delay=timedelta(seconds=1))
    def work(dag_run: Any = None, ti: Any = None) -> None:
        order = dag_run.conf["order"]
        with alone(order["name"]):
            match order["does"]:
                case "fail":
                    raise AirflowFailException("as it was told")
                case "fail before it may go" if not may_go(order["name"]):
                    raise AirflowFailException("as it was told")
                case "retry" if ti.try_number == 1:
                    raise RuntimeError("as it was told")
                case "wait":
                    while not may_go(order["name"]):
                        Event().wait(0.2)
                case "keep text":
                    (Path(os.environ["WORK"]) / f"{order['name']}.text").write_text(order["text"])

    Wait(task_id="wait") >> work()


@dag(schedule=None, max_active_runs=100)
def empty_work() -> None:
    """Its runs succeed without a worker."""
    Wait(task_id="work")


@dag(schedule=None)
def held_work() -> None:
    """Its runs go on until they are marked."""

    @task(pool=CLOSED)
    def work() -> None:
        """Never run."""

    work()


@dag(schedule=None, is_paused_upon_creation=True)
def paused_work() -> None:
    """Its runs are queued until the DAG is not paused any more."""
    EmptyOperator(task_id="work")


for name, messages in QUEUES.items():
    receiving_dag(name, messages)
real_work()
empty_work()
held_work()
paused_work()
