"""DAGs that are run by `dag.test()`: each takes from a queue of its own, whose name is the DAG's id."""

from __future__ import annotations

import os
from threading import Event
from typing import Any

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowSkipException

from sqs_lease.airflow import MessageFailed, read_messages, sqs_lease

VISIBILITY_SECONDS = 8
"""A third of it is left for an extension that a busy machine delays."""
WORK_SECONDS = 17


def batch_dag(work: Any, name: str, **options: Any) -> None:
    @dag(dag_id=name, schedule=None)
    def define() -> None:
        lease = sqs_lease(
            "orders",
            **{"queue_url": name, "max_messages": 10, "visibility": VISIBILITY_SECONDS, "timeout": 5, **options},
        )
        with lease as orders:
            work(orders)

    define()


@task
def succeed(messages: list[dict[str, Any]]) -> None:
    """Take longer than the visibility timeout."""
    Event().wait(WORK_SECONDS)


@task
def fail(messages: list[dict[str, Any]]) -> None:
    raise RuntimeError("the work fails")


@task
def name_failures(messages: Any) -> dict[str, Any]:
    failed = [message["MessageId"] for message in read_messages(messages) if message["Body"] == "bad"]
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


@task
def fail_some(messages: list[dict[str, Any]]) -> None:
    raise MessageFailed([message["MessageId"] for message in messages if message["Body"] == "bad"])


@task
def check(message: dict[str, Any]) -> None:
    if message["Body"] == "bad":
        raise RuntimeError("the work on this message fails")


@task
def step(value: Any = None) -> None:
    """One task of a chain."""


@task
def skip(value: Any = None) -> None:
    raise AirflowSkipException("nothing to do")


batch_dag(succeed, "local_success")
batch_dag(fail, "local_failure")
batch_dag(fail_some, "local_some")
batch_dag(name_failures, "local_payload", payload=os.environ.get("LOCAL_PAYLOAD", "/tmp"))
batch_dag(lambda orders: check.expand(message=orders), "local_mapped", do_xcom_push=False, multiple_outputs=True)
batch_dag(lambda orders: step.override(task_id="first")(orders) >> step(), "local_chain", deferrable=False)
batch_dag(lambda orders: step(orders) >> skip(), "local_skipped")
batch_dag(succeed, "local_empty", timeout=0, soft_fail=True)
batch_dag(succeed, "local_no_queue", soft_fail=True)
