"""DAGs of the end-to-end tests that receive in other ways than by default: each takes from a queue named as itself."""

from __future__ import annotations

from threading import Event
from typing import Any

from airflow.sdk import dag, task

from sqs_lease import discard
from sqs_lease.airflow import read_messages, sqs_lease

VISIBILITY_SECONDS = 12
"""A third of it is left for an extension that a busy machine delays."""
WORK_SECONDS = 40
STORED_MESSAGES = 500


def receiving_dag(name: str, work: Any, **options: Any) -> None:
    """A DAG with one lease and one task over its messages."""

    @dag(dag_id=name, schedule=None)
    def define() -> None:
        lease = sqs_lease(
            "orders",
            **{
                "queue_url": name,
                "visibility": VISIBILITY_SECONDS,
                "timeout": 60,
                "linger": 2,
                "handoff_timeout": 75,
                **options,
            },
        )
        with lease as orders:
            work(orders)

    define()


@task
def load(orders: Any) -> dict[str, Any]:
    """Work on all messages for some time, and give back those whose body says so."""
    messages = read_messages(orders)
    assert all("ReceiptHandle" not in message for message in messages)
    Event().wait(WORK_SECONDS)
    failed = [message["MessageId"] for message in messages if message["Body"] == "bad"]
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


# The waiting ends with the last message: a busy machine may take long to receive them.
receiving_dag("stored", load, max_messages=STORED_MESSAGES, payload="{{ var.value.payload }}", linger=50, visibility=30)
receiving_dag("poking", load, max_messages=3, deferrable=False, poke_interval=1)
receiving_dag(
    "filtering",
    load,
    message_filtering="jsonpath",
    message_filtering_config="kind",
    message_filtering_match_values=["order"],
    unmatched=discard(),
)
receiving_dag("no_queue_to_skip", load, soft_fail=True)
receiving_dag("denied_payload", load, payload="/proc/no/such/directory")
