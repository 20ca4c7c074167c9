"""DAGs of the rounds on Airflow: three that take from one queue, each in another way, and are never without a run.

They are all that a task needs: the tests' own modules cannot be imported by Airflow's processes.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any
from uuid import uuid4

from airflow.sdk import Asset, AssetWatcher, dag, get_current_context, task

from sqs_lease import by_exception, dead_letter, release
from sqs_lease.airflow import SqsLeaseTrigger, sqs_lease

QUEUE = os.environ["ROUNDS_QUEUE"]
SHORT_SECONDS = float(os.environ["ROUNDS_SHORT_SECONDS"])
TABLE = Path(os.environ["ROUNDS_TABLE"])
PROCESSES = Path(os.environ["ROUNDS_PROCESSES"])

RULE = by_exception({ValueError: dead_letter()}, otherwise=release())
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
MESSAGES = 4
FOREVER_SECONDS = 7 * 24 * 3600.0


def work_on(message: dict[str, Any]) -> str:
    """Work on a message as it says, and write its row if it is good.

    Returns:
        Its kind: good, flaky (as long as it was received once), or poison.
    """
    order = json.loads(message["Body"])
    Event().wait(order["seconds"])
    kind = str(order["kind"])
    if kind == "flaky" and int(message["Attributes"]["ApproximateReceiveCount"]) > 1:
        kind = "good"
    if kind == "good":
        # A file of its own: a full disk still has room in the last block of a file.
        with (TABLE / f"{uuid4()}.jsonl").open("w") as file:
            file.write(json.dumps({"id": message["MessageId"], "at": monotonic()}) + "\n")
    return kind


def tell_process() -> None:
    """Tell which process this is, and which supervises it."""
    (PROCESSES / f"{os.getpid()}.{os.getppid()}").touch()


@task
def check(message: dict[str, Any]) -> None:
    """Work on one message; what is flaky comes again."""
    tell_process()
    kind = work_on(message)
    if kind == "poison":
        raise ValueError("this message can never be processed")
    if kind == "flaky":
        raise RuntimeError("it will be processed when it comes again")


@task(retries=1, retry_delay=timedelta(seconds=1))
def load(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Work on a batch; what is flaky is held for the second try."""
    tell_process()
    kinds = {message["MessageId"]: work_on(message) for message in messages}
    if "flaky" in kinds.values() and get_current_context()["ti"].try_number == 1:
        raise RuntimeError("the next try will succeed")
    # A message that is still flaky in the second try comes again, or is a dead letter.
    failed = [message_id for message_id, kind in kinds.items() if kind != "good"]
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


@dag(schedule="@continuous", start_date=BEGAN, max_active_runs=1, catchup=False)
def mapped() -> None:
    """A task for each message, with a visibility timeout that no takeover survives."""
    with sqs_lease(
        "orders",
        queue_url=QUEUE,
        max_messages=MESSAGES,
        visibility=SHORT_SECONDS,
        timeout=FOREVER_SECONDS,
        on_failure=RULE,
        on_lost="raise",
    ) as orders:
        check.expand(message=orders)


@dag(schedule="@continuous", start_date=BEGAN, max_active_runs=1, catchup=False)
def whole() -> None:
    """A task for a batch, with the default visibility timeout, which survives a takeover; all that fails is dead."""
    with sqs_lease(
        "orders",
        queue_url=QUEUE,
        max_messages=MESSAGES,
        timeout=FOREVER_SECONDS,
        on_failure=dead_letter(),
        on_lost="raise",
    ) as orders:
        load(orders)


waiting_orders = Asset("rounds", watchers=[AssetWatcher("rounds", trigger=SqsLeaseTrigger(QUEUE))])


@dag(schedule=waiting_orders, start_date=BEGAN, max_active_runs=1)
def started() -> None:
    """Runs that messages start; poison that fails here goes round until another DAG has it."""
    with sqs_lease(
        "orders",
        event=waiting_orders,
        max_messages=MESSAGES,
        visibility=SHORT_SECONDS,
        on_failure=RULE,
        on_lost="raise",
    ) as orders:
        load(orders)


mapped()
whole()
started()
