"""DAGs of the tests of work shapes: each takes from a queue that is named like the DAG (`fifo.fifo` for `fifo`)."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from threading import Event
from time import time
from typing import Any

from airflow.sdk import TriggerRule, dag, get_current_context, task, task_group
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.exceptions import AirflowFailException

from sqs_lease.airflow import MessageFailed, sqs_lease, still_held
from sqs_lease.core.failure_rules import by_exception, dead_letter, expire, release

COMMON: dict[str, Any] = {"max_messages": 10, "linger": 3, "visibility": 60, "timeout": 100}


class ApiError(Exception):
    """An error that is known to this file only."""


def leave_time(key: str) -> None:
    """Leave the time under a key."""
    get_current_context()["ti"].xcom_push(key=key, value=time())


def leave_time_in_file(message: dict[str, Any]) -> None:
    """Leave the time in a file that is named like the message's body: an XCom would take a part of what is measured."""
    Path(os.environ["FAILED_AT"], message["Body"]).write_text(str(time()))


def await_keeper() -> None:
    """Wait until the keeper's trigger runs: before that, what fails waits for it."""
    task_instance: Any = get_current_context()["ti"]
    place = {"dag_id": task_instance.dag_id, "run_ids": [task_instance.run_id], "task_ids": ["orders_keeper"]}
    not_yet = (None, "scheduled", "queued", "running")
    while task_instance.get_task_states(**place)[task_instance.run_id]["orders_keeper"] in not_yet:
        # A new trigger starts within about two seconds, or a little more on a busy machine.
        Event().wait(4)


@dag(schedule=None)
def failing() -> None:
    """Many tasks that fail for good: how soon are their messages visible?"""

    @task(max_active_tis_per_dagrun=4)
    def fail(message: dict[str, Any]) -> None:
        await_keeper()
        leave_time_in_file(message)
        raise AirflowFailException(message["Body"])

    with sqs_lease("orders", queue_url="failing", **{**COMMON, "max_messages": 20}) as orders:
        fail.expand(message=orders)


@dag(schedule=None)
def killed() -> None:
    """Tasks whose processes are killed and can report nothing."""

    @task
    def die(message: dict[str, Any]) -> None:
        await_keeper()
        leave_time_in_file(message)
        os.kill(os.getpid(), signal.SIGKILL)

    with sqs_lease("orders", queue_url="killed", **COMMON) as orders:
        die.expand(message=orders)


@dag(schedule=None)
def branches() -> None:
    """A branch, of which one side is skipped, and a task that cleans up."""

    @task.branch
    def choose(messages: list[dict[str, Any]]) -> str:
        return "taken" if messages else "other"

    @task
    def taken() -> None:
        """Do something."""

    @task
    def other() -> None:
        """Never reached."""

    @task(trigger_rule=TriggerRule.ALL_DONE)
    def clean_up() -> None:
        """Always done."""

    with sqs_lease("orders", queue_url="branches", **COMMON) as orders:
        choose(orders) >> [taken(), other()] >> clean_up()


@dag(schedule=None)
def cleaned() -> None:
    """Work that fails, with a task behind it that succeeds whatever happened."""

    @task
    def load(messages: list[dict[str, Any]]) -> None:
        raise ValueError(f"{len(messages)} messages cannot be loaded")

    @task(trigger_rule=TriggerRule.ALL_DONE)
    def clean_up() -> None:
        """Always done."""

    with sqs_lease("orders", queue_url="cleaned", **COMMON) as orders:
        load(orders) >> clean_up()


@dag(schedule=None)
def grouped() -> None:
    """A mapped task group: a chain a message, one of which fails early while another takes long."""

    @task
    def check(message: dict[str, Any]) -> str:
        if message["Body"] == "bad":
            raise ValueError("cannot be checked")
        return str(message["Body"])

    @task
    def store(body: str) -> None:
        task_instance = get_current_context()["ti"]
        if body == "slow":
            while len(held := still_held("orders")) > 1:
                Event().wait(0.5)
            task_instance.xcom_push(key="held", value=sorted(held))

    @task_group
    def process(message: Any) -> None:
        body: Any = check(message)
        store(body)

    with sqs_lease("orders", queue_url="grouped", **COMMON) as orders:
        process.expand(message=orders)


@dag(schedule=None)
def chained() -> None:
    """A mapped task over the results of a mapped task."""

    @task
    def check(message: dict[str, Any]) -> str:
        return str(message["Body"])

    @task
    def store(body: str) -> None:
        if body == "bad":
            raise ValueError("cannot be stored")

    with sqs_lease("orders", queue_url="chained", **COMMON) as orders:
        store.expand(body=check.expand(message=orders))


@dag(schedule=None)
def some_failed() -> None:
    """One task over the batch that says by an exception which messages failed, and is tried once more before."""

    @task(retries=1, retry_delay=timedelta(seconds=0))
    def load(messages: list[dict[str, Any]]) -> None:
        raise MessageFailed([message["MessageId"] for message in messages if message["Body"] == "bad"])

    with sqs_lease("orders", queue_url="some_failed", **COMMON) as orders:
        load(orders)


@dag(schedule=None)
def chosen() -> None:
    """Rules by exception."""

    @task
    def check(message: dict[str, Any]) -> None:
        raise {"value": ValueError, "api": ApiError}.get(message["Body"], KeyError)(message["Body"])

    rule = by_exception({ValueError: dead_letter(), ApiError: release()}, otherwise=expire())
    with sqs_lease("orders", queue_url="chosen", on_failure=rule, **COMMON) as orders:
        check.expand(message=orders)


@dag(schedule=None)
def fifo() -> None:
    """A FIFO queue: the first message of a group takes long, the second fails, the third is done soon."""

    @task
    def check(message: dict[str, Any]) -> None:
        if message["Body"] == "second":
            raise ValueError("cannot be checked")
        if message["Body"] == "first":
            while len(still_held("orders")) > 1:
                Event().wait(0.5)
            Event().wait(3)
            leave_time("ended_at")

    with sqs_lease("orders", queue_url="fifo.fifo", **COMMON) as orders:
        check.expand(message=orders)


@dag(schedule=None)
def two_leases() -> None:
    """Two leases side by side: what fails in one has nothing to do with the other."""

    @task
    def load(messages: list[dict[str, Any]]) -> None:
        """Do something."""

    @task
    def fail(messages: list[dict[str, Any]]) -> None:
        raise ValueError(f"{len(messages)} messages cannot be loaded")

    with sqs_lease("orders", queue_url="two_leases", **COMMON) as orders:
        load(orders)
    with sqs_lease("returns", queue_url="two_leases_returns", **COMMON) as returns:
        fail(returns)


@dag(schedule=None)
def nested() -> None:
    """A lease in the body of another: what fails inside fails the messages of both."""

    @task
    def fail(messages: list[dict[str, Any]]) -> None:
        raise ValueError(f"{len(messages)} messages cannot be loaded")

    outer = sqs_lease("orders", queue_url="nested", **COMMON)
    with outer, sqs_lease("details", queue_url="nested_details", **COMMON) as details:
        fail(details)


@dag(schedule=None)
def lost() -> None:
    """Leases that are never extended and lapse: one is to fail the run although the work succeeds, one calls back."""

    @task
    def load(messages: list[dict[str, Any]]) -> None:
        await_keeper()
        Event().wait(8)

    arguments: dict[str, Any] = {**COMMON, "visibility": 8}
    with sqs_lease("orders", queue_url="lost", policy="never", on_lost="raise", **arguments) as orders:
        load(orders)
    notice = AsyncCallback("lost_notice.leave", {"path": os.environ.get("LOST_NOTICE", "")})
    with sqs_lease("told", queue_url="lost_told", policy="never", on_lost=notice, **arguments) as told:
        load.override(task_id="load_told")(told)


failing()
killed()
lost()
branches()
cleaned()
grouped()
chained()
some_failed()
chosen()
fifo()
two_leases()
nested()
